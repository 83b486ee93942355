/* A library that is loaded at run time, and calls a watched function. */
#include <stdlib.h>

int observed(int value) __attribute__((weak));
int plugged(int value);
int plugged_call(int value);

int plugged(int value)
{
    void *volatile block = malloc(10);
    free(block);
    return value + 1;
}

int plugged_call(int value)
{
    int result = observed(value) + 1;
    __asm__ volatile("" ::: "memory");
    return result;
}
