/* Loads the library named on its command line, and calls its "run". */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments)
{
    void *library = count > 1 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    if (library == NULL)
        return 1;
    void (*run)(void);
    *(void **)&run = dlsym(library, "run");
    run();
    return 0;
}
