/* Functions that a Python program calls without giving its interpreter lock up. */
#include <time.h>

static long long thread_time(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

__attribute__((noinline)) void compute_in_c(long ms)
{
    for (long long until = thread_time() + ms * 1000000ll; thread_time() < until;)
        for (volatile int spin = 0; spin < 400000; ++spin)
            ;
}

__attribute__((noinline)) void sleep_in_c(long ms)
{
    struct timespec rest = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&rest, &rest);
    __asm__ volatile("" ::: "memory");
}
