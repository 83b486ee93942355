/* rotation SPOOL THREADS SECONDS HOW: threads call a watched function while the spool is rotated, by
 * `call`, `age` or, until it is killed, `forever`. Prints the paths of finished spools, and how
 * often the function was called. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "machtrace.h"

int observed(int value);

static atomic_bool is_stopping;
static atomic_ulong calls, finished;

static void *call(void *unused)
{
    unsigned long count = 0;
    (void)unused;
    while (!atomic_load(&is_stopping))
        observed((int)count++);
    atomic_fetch_add(&calls, count);
    return NULL;
}

static void print_finished(const char *path, void *context)
{
    const char *name = strrchr(path, '/');
    if (context != &finished || name == NULL)
        abort();
    atomic_fetch_add(&finished, 1);
}

static void pause_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

int main(int argc, char **argv)
{
    static const machtrace_function_t functions[] = {{"observed", 0}};
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = argv[1],
                                   .spool_size = 1 << 20,
                                   .older_spools = 1000,
                                   .functions = functions,
                                   .function_count = 1,
                                   .interval_ms = 5,
                                   .spool_finished = print_finished,
                                   .spool_context = &finished};
    pthread_t threads[64];
    int number = argc == 5 ? atoi(argv[2]) : 0;
    long seconds = argc == 5 ? atol(argv[3]) : 0;
    const char *how = argc == 5 ? argv[4] : "";
    options.rotate_seconds = strcmp(how, "age") == 0;
    if (number == 0 || machtrace_start(&options) != 0)
        return 1;
    for (int index = 0; index < number; index++)
        pthread_create(&threads[index], NULL, call, NULL);
    printf("ready 1\n");
    fflush(stdout);
    unsigned long rotations = 0, errors = 0;
    for (long round = 0; strcmp(how, "forever") == 0 || round < 50 * seconds; round++) {
        pause_ms(20);
        if (strcmp(how, "age") != 0) {
            errors += machtrace_rotate() != 0;
            rotations++;
        }
    }
    atomic_store(&is_stopping, true);
    for (int index = 0; index < number; index++)
        pthread_join(threads[index], NULL);
    machtrace_stop();
    printf("calls %lu rotations %lu errors %lu finished %lu\n", (unsigned long)calls, rotations,
           errors, (unsigned long)finished);
    return 0;
}
