/* A library that is loaded later, and looks up functions of others. */
#define _GNU_SOURCE
#include <dlfcn.h>

void *look_up_default(const char *name);

void *look_up_default(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    __asm__ volatile("" ::: "memory"); /* no tail call */
    return found;
}
