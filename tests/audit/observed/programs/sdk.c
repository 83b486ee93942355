/* An SDK, built twice with other names: ENTER calls what is watched. */
int observed(int value);
#ifdef NEXT
int NEXT(int value);
#endif

__attribute__((noinline)) int ENTER(int value)
{
    int result = observed(value);
#ifdef NEXT
    result += NEXT(value);
#endif
    __asm__ volatile("" ::: "memory"); /* no tail call */
    return result;
}
