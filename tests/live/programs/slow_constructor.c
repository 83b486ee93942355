/* A library whose constructor takes until a byte comes from a descriptor, which is in the
 * environment. */
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor, noinline, used)) void slow_constructor(void);

void slow_constructor(void)
{
    char byte;
    int descriptor = atoi(getenv("END_OF_CONSTRUCTOR"));
    while (read(descriptor, &byte, 1) < 0)
        continue;
    __asm__ volatile("");
}
