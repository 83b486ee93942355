/* A library that calls another one. */
#include "lab.h"

FUNCTION int kit_both(int value)
{
    int result = sdk_read(value);
    __asm__ volatile("" ::: "memory");
    return sdk_write(result) + 1;
}
