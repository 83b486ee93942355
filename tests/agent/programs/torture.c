/* Watch functions that everything uses, from threads, in handlers of signals, in children, while
 * images are loaded and unloaded.
 *
 *     torture SPOOL PLUGIN THREADS SECONDS
 *
 * The program counts its own calls. Prints "malloc N free N open N read N pthread_mutex_lock N
 * dlopen N errors N".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "machtrace.h"

enum { MALLOC, FREE, OPEN, READ, LOCK, DLOPEN, FUNCTIONS };

static const char *const names[FUNCTIONS] = {"malloc", "free", "open",
                                             "read",   "pthread_mutex_lock", "dlopen"};
static _Atomic uint64_t totals[FUNCTIONS], errors;
static _Thread_local uint64_t own[FUNCTIONS];
static _Thread_local volatile sig_atomic_t in_handler[2]; /* calls of open and read */
static _Atomic int stops;
static const char *plugin;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local void *volatile last_block;

static __attribute__((noinline)) void read_file(void)
{
    char byte;
    own[OPEN]++;
    int file = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    own[READ]++;
    if (file < 0 || read(file, &byte, 1) != 1 || byte != 0)
        errors++;
    close(file);
}

/* Both are allowed in the handler of a signal. */
static void on_signal(int number)
{
    (void)number;
    int before = errno;
    char byte = 1;
    int file = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    in_handler[0]++;
    if (file >= 0) {
        if (read(file, &byte, 1) != 1 || byte != 0)
            errors++;
        in_handler[1]++;
        close(file);
    }
    errno = before;
}

static __attribute__((noinline)) void allocate(unsigned depth, size_t size)
{
    if (depth > 0) {
        allocate(depth - 1, size);
    } else {
        own[MALLOC]++;
        unsigned char *block = malloc(size);
        if (block == NULL) {
            errors++;
            return;
        }
        block[size - 1] = 1;
        last_block = block;
        own[FREE]++;
        free(block);
    }
    __asm__ volatile("" ::: "memory");
}

static void load(void)
{
    own[DLOPEN]++;
    void *handle = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        errors++;
        return;
    }
    int (*function)(int) = (int (*)(int))dlsym(handle, "plugged");
    if (function == NULL || function(3) != 4)
        errors++;
    dlclose(handle);
}

static void have_child(void)
{
    pid_t child = fork();
    if (child == 0) {
        allocate(3, 100);
        read_file();
        _exit(7);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7)
        errors++;
}

static void *run(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    while (stops == 0) {
        for (int round = 0; round < 50; round++) {
            seed = seed * 1103515245 + 12345;
            allocate(seed >> 16 & 31, 1 + (seed >> 8 & 1023));
            own[LOCK]++;
            if (pthread_mutex_lock(&mutex) != 0 || pthread_mutex_unlock(&mutex) != 0)
                errors++;
        }
        read_file();
        if ((seed >> 20 & 15) == 0)
            load();
        if ((seed >> 20 & 63) == 1)
            have_child();
    }
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    own[OPEN] += (uint64_t)in_handler[0];
    own[READ] += (uint64_t)in_handler[1];
    for (int function = 0; function < FUNCTIONS; function++)
        totals[function] += own[function];
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 5)
        return 2;
    plugin = arguments[2];
    unsigned threads = (unsigned)strtoul(arguments[3], NULL, 10);
    machtrace_function_t functions[FUNCTIONS];
    for (int function = 0; function < FUNCTIONS; function++)
        functions[function] = (machtrace_function_t){names[function], 0};
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = arguments[1],
                                   .spool_size = UINT64_C(64) << 20,
                                   .functions = functions,
                                   .function_count = FUNCTIONS};
    int error = machtrace_start(&options);
    if (error != 0) {
        fprintf(stderr, "%s\n", strerror(error));
        return 1;
    }
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    pthread_t running[64];
    for (unsigned thread = 0; thread < threads; thread++)
        pthread_create(&running[thread], NULL, run, (void *)(uintptr_t)(thread + 1));
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, NULL);
    struct timespec pause = {0, 10000000};
    time_t end = time(NULL) + (time_t)strtoul(arguments[4], NULL, 10);
    while (time(NULL) < end) {
        for (unsigned thread = 0; thread < threads; thread++)
            pthread_kill(running[thread], SIGALRM);
        nanosleep(&pause, NULL);
    }
    stops = 1;
    for (unsigned thread = 0; thread < threads; thread++)
        pthread_join(running[thread], NULL);
    memset(&often, 0, sizeof often);
    setitimer(ITIMER_REAL, &often, NULL);
    if (machtrace_stop() != 0)
        errors++;
    for (int function = 0; function < FUNCTIONS; function++)
        printf("%s %llu ", names[function], (unsigned long long)totals[function]);
    printf("errors %llu\n", (unsigned long long)errors);
    return 0;
}
