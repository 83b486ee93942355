/* Calls a function, and ends in some way.
 *
 *     ends HOW CALLS [COUNT]
 *
 * fork: COUNT children call it as often, in sequence; threads: the same, while another thread
 * has the loader's lock most of the time.
 */
#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int observed(int value);

static void call(int calls)
{
    for (int number = 0; number < calls; number++)
        observed(number);
}

static int linger(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)info;
    (void)size;
    usleep(2000);
    return *(int *)data;
}

static void *use_loader(void *unused)
{
    int is_last = 1;
    (void)unused;
    for (;;) {
        dl_iterate_phdr(linger, &is_last);
        usleep(500);
    }
}

static int make_children(int calls, int count)
{
    int status, failures = 0;
    for (int number = 0; number < count; number++) {
        pid_t child = fork();
        if (child == 0) {
            call(calls);
            _exit(0);
        }
        failures += waitpid(child, &status, 0) != child || status != 0;
    }
    return failures;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const char *how = argv[1];
    int calls = atoi(argv[2]), count = argc > 3 ? atoi(argv[3]) : 0;
    pthread_t thread;
    call(calls);
    if (strcmp(how, "_exit") == 0)
        _exit(0);
    if (strcmp(how, "quick_exit") == 0)
        quick_exit(0);
    if (strcmp(how, "abort") == 0)
        abort();
    if (strcmp(how, "kill") == 0)
        raise(SIGKILL);
    if (strcmp(how, "execv") == 0)
        execv(argv[0], (char *[]){argv[0], "execlp", argv[2], NULL});
    if (strcmp(how, "execlp") == 0)
        execlp(argv[0], argv[0], "_exit", argv[2], (char *)NULL);
    if (strcmp(how, "vfork") == 0) {
        if (vfork() == 0)
            _exit(0);
        call(calls);
    }
    if (strcmp(how, "threads") == 0 && pthread_create(&thread, NULL, use_loader, NULL) != 0)
        return 1;
    if (count != 0)
        return make_children(calls, count) != 0;
    return 0;
}
