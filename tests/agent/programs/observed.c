/* A library whose functions are watched. */
int observed(int value);
int observed_twice(int value);

__attribute__((noinline)) int observed(int value)
{
    return value + 1;
}

/* Calls the other through its own import slot. */
__attribute__((noinline)) int observed_twice(int value)
{
    int result = observed(value) + 1;
    __asm__ volatile("" ::: "memory");
    return result;
}
