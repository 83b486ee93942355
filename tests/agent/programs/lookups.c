/* Look up watched functions by name, and call them by the pointers.
 *
 *     lookups SPOOL calls | scopes PLUGIN INTERPOSER OTHER | threads COUNT
 *
 * `calls` and `threads` print what was called and what was recorded; `scopes` whether the functions are
 * those that are found without the agent.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machtrace.h"

int observed(int value);

typedef int function(int value);

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif

static const char *spool;

static int start(uint32_t flags)
{
    const machtrace_function_t functions[] = {{"observed", flags}, {"open", 0}, {"getppid", 0}};
    const machtrace_options_t options = {.size = sizeof options,
                                         .spool_path = spool,
                                         .functions = functions,
                                         .function_count = 3};
    return machtrace_start(&options);
}

static unsigned long long seen(const char *name)
{
    uint64_t calls = 0;
    machtrace_function_state(name, &calls);
    return calls;
}

/* The text of the error, with the result of a lookup that fails. */
static char *failure(void)
{
    void *result = dlsym(RTLD_DEFAULT, "not_there");
    const char *text = dlerror();
    return result == NULL && text != NULL ? strdup(text) : NULL;
}

static void *handle_of(void)
{
    return dlopen("libobserved.so", RTLD_LAZY | RTLD_NOLOAD);
}

static int calls(void)
{
    char path[4096];
    int wrong = 0;
    void *handle = handle_of();
    function *plain = (function *)dlsym(handle, "observed");
    char *before = failure();
    int begun = start(0);
    char *after = failure();
    function *by_default = (function *)dlsym(RTLD_DEFAULT, "observed");
    function *by_handle = (function *)dlsym(handle, "observed");
    int (*parent)(void) = (int (*)(void))dlvsym(RTLD_DEFAULT, "getppid", OLDEST);
    int (*open_file)(const char *, int, ...) =
        (int (*)(const char *, int, ...))dlsym(RTLD_DEFAULT, "open");
    for (int number = 0; number < 100; number++) {
        wrong += by_default(number) != number + 1;
        wrong += by_handle(number) != number + 1;
        wrong += plain(number) != number + 1; /* is not seen */
        wrong += parent() != getppid();
    }
    snprintf(path, sizeof path, "%s.created", spool);
    int file = open_file(path, O_CREAT | O_WRONLY, 0640);
    struct stat about;
    wrong += file < 0 || fstat(file, &about) != 0 || (about.st_mode & 0777) != 0640;
    close(file);
    unsigned long long first = seen("observed"), opened = seen("open"), parents = seen("getppid");
    int stopped = machtrace_stop();
    for (int number = 0; number < 100; number++)
        wrong += by_default(number) != number + 1;
    bool is_plain = dlsym(RTLD_DEFAULT, "observed") == (void *)plain;
    begun |= start(0);
    for (int number = 0; number < 10; number++)
        wrong += by_handle(number) != number + 1;
    unsigned long long second = seen("observed");
    stopped |= machtrace_stop();
    printf("wrong %d first %llu opened %llu parents %llu second %llu errors %d same %d plain %d "
           "failures %d\n",
           wrong, first, opened, parents, second, begun | stopped, by_default == by_handle, is_plain,
           before != NULL && after != NULL && strcmp(before, after) == 0);
    return 0;
}

static function *by_plugin(void *plugin, const char *name)
{
    void *(*look_up)(const char *) = (void *(*)(const char *))dlsym(plugin, name);
    return look_up == NULL ? NULL : (function *)look_up("observed");
}

/* A plugin has a function of the same name, which only its own scope finds; an interposer finds the
 * next one. */
static int scopes(const char *path, const char *interposer, const char *other)
{
    const int modes[] = {RTLD_NOW | RTLD_LOCAL, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND};
    void *between = dlopen(interposer, RTLD_NOW | RTLD_LOCAL);
    void *inquiring = dlopen(other, RTLD_NOW | RTLD_LOCAL);
    for (int mode = 0; mode < 2; mode++) {
        int values[2][4];
        for (int is_watched = 0; is_watched < 2; is_watched++) {
            int error = is_watched ? start(0) : 0;
            void *plugin = dlopen(path, modes[mode]);
            function *by_default = by_plugin(plugin, "look_up_default");
            function *own = (function *)dlsym(plugin, "observed");
            function *next = by_plugin(between, "look_up_next");
            values[is_watched][0] = error != 0 || by_default == NULL ? -1 : by_default(1);
            values[is_watched][1] = own == NULL ? -1 : own(1);
            values[is_watched][2] = next == NULL ? -1 : next(1);
            function *others = by_plugin(inquiring, "look_up_default");
            unsigned long long before = seen("observed");
            values[is_watched][3] = others == NULL ? -1 : others(1);
            if (is_watched)
                printf("others%d %llu seen%d %llu ", mode, seen("observed") - before, mode, before);
            dlclose(plugin);
        }
        printf("default%d %d own%d %d next%d %d same%d %d stop%d %d ", mode, values[0][0], mode,
               values[0][1], mode, values[0][2], mode,
               memcmp(values[0], values[1], sizeof values[0]) == 0, mode, machtrace_stop());
    }
    printf("\n");
    return 0;
}

static _Atomic int is_over;
static _Atomic unsigned long long own_calls, wrong_results;

static void *look_up_always(void *argument)
{
    void *handle = handle_of();
    while (is_over == 0) {
        void *from = own_calls % 2 != 0 ? handle : RTLD_DEFAULT;
        function *found = (function *)dlsym(from, "observed");
        wrong_results += found == NULL || found(4) != 5;
        own_calls++;
    }
    return argument;
}

static int threads(int count)
{
    pthread_t running[8];
    int errors = 0;
    for (int index = 0; index < 8; index++)
        pthread_create(&running[index], NULL, look_up_always, NULL);
    for (int number = 0; number < count; number++) {
        errors += start(number % 2 != 0 ? MACHTRACE_BUDGET : 0) != 0;
        /* Not for a time: until all have called. */
        for (unsigned long long before = own_calls; own_calls - before < 100;)
            usleep(100);
        errors += machtrace_stop() != 0;
    }
    errors += start(0) != 0;
    is_over = 1;
    for (int index = 0; index < 8; index++)
        pthread_join(running[index], NULL);
    uint64_t before = seen("observed");
    function *found = (function *)dlsym(RTLD_DEFAULT, "observed");
    for (int number = 0; number < 1000; number++)
        wrong_results += found(number) != number + 1;
    uint64_t counted = seen("observed") - before;
    errors += machtrace_stop() != 0;
    printf("wrong %llu errors %d counted %llu\n", (unsigned long long)wrong_results, errors,
           (unsigned long long)counted);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    /* Where the program is linked at a fixed address, its linker stub becomes the function's. */
    function *volatile address = observed;
    spool = argv[1];
    address(0); /* so that the library stays */
    if (strcmp(argv[2], "calls") == 0)
        return calls();
    if (strcmp(argv[2], "scopes") == 0 && argc == 6)
        return scopes(argv[3], argv[4], argv[5]);
    if (strcmp(argv[2], "threads") == 0 && argc == 4)
        return threads(atoi(argv[3]));
    return 2;
}
