/* Runs, without ever waiting; with a line on standard input it loads the CPython named, and runs that. */
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>

static const char program[] = "def embedded():\n"
                              "    print('loaded', flush=True)\n"
                              "    while True:\n"
                              "        pass\n"
                              "embedded()\n";

int main(int count, char **arguments)
{
    struct pollfd input = {0, POLLIN, 0};
    puts("ready");
    fflush(stdout);
    while (poll(&input, 1, 0) == 0)
        ;
    void *library = count < 2 ? NULL : dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL)
        return 1;
    void (*initialize)(void) = (void (*)(void))dlsym(library, "Py_Initialize");
    int (*run)(const char *) = (int (*)(const char *))dlsym(library, "PyRun_SimpleString");
    initialize();
    return run(program);
}
