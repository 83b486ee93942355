/* A library with debug information and a function that waits for a byte from a descriptor. */
#include <unistd.h>

void wait_for_byte(int descriptor);

void wait_for_byte(int descriptor)
{
    char byte;
    while (read(descriptor, &byte, 1) < 0)
        continue;
    __asm__ volatile("");
}
