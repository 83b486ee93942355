/* An SDK, built twice with other names: ENTER calls what is watched. With NEXT it is called once
 * when the library is loaded, before the constructors of the program. */
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

#ifdef NEXT
static __attribute__((constructor)) void at_load(void)
{
    ENTER(0);
    __asm__ volatile("" ::: "memory");
}
#endif
