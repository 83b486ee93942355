/* A program without libraries that writes to an address of the upper half. */
void _start(void)
{
	*(volatile int *)0x80001234 = 1;
}
