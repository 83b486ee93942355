/* A library whose constructor takes some seconds, as long as it may. */
#include <time.h>

__attribute__((constructor, noinline, used)) void slow_constructor(void);

void slow_constructor(void)
{
    struct timespec left = {3, 0};
    while (nanosleep(&left, &left) != 0)
        continue;
    __asm__ volatile("");
}
