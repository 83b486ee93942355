/* A library that is loaded later, with a watched function's name for its own one. */
#define _GNU_SOURCE
#include <dlfcn.h>

int observed(int value);
void *look_up_default(const char *name);
void *look_up_next(const char *name);

int observed(int value)
{
    return value + 100;
}

void *look_up_default(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    __asm__ volatile("" ::: "memory"); /* no tail call */
    return found;
}

/* The next one behind this library: there is none but where it was loaded at the start. */
void *look_up_next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    __asm__ volatile("" ::: "memory");
    return found;
}
