/* rotation SPOOL THREADS ROUNDS HOW: threads call watched functions while the spool is rotated:
 *
 *     call       every 20 ms
 *     age        by itself; a round is 20 ms
 *     full       by itself, since its log is filled so often
 *     never      not at all, while its log is filled as in `full`
 *     once       after each call of a round; one older spool stays
 *     removed    the same, and each second time the file was removed
 *     incidents  every 5 ms, while incidents are recorded
 *     killed PROGRESS  without a pause, until it is killed; each thread stores how many calls were
 *                flushed
 *
 * Prints the calls of each function, rotations and their errors, and finished spools. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "drain.h"
#include "machtrace.h"
#include "watchdog.h"

#define BATCH 200
#define THREADS_MAX 64

struct large {
    long values[6];
};

int observed(int value);
int observed_twice(int value); /* calls the other */
struct large observed_result(long first);

static atomic_bool is_stopping;
static atomic_ulong observed_calls, twice_calls, result_calls, finished;
static atomic_int last_error;
static _Atomic uint64_t *progress;

static void *call(void *unused)
{
    unsigned long count = 0;
    (void)unused;
    while (!atomic_load(&is_stopping)) {
        observed((int)count);
        if (count % 3 == 0)
            observed_twice((int)count);
        if (count % 7 == 0)
            observed_result((long)count);
        count++;
    }
    atomic_fetch_add(&observed_calls, count + (count + 2) / 3);
    atomic_fetch_add(&twice_calls, (count + 2) / 3);
    atomic_fetch_add(&result_calls, (count + 6) / 7);
    return NULL;
}

static void *call_and_flush(void *number)
{
    for (uint64_t count = BATCH;; count += BATCH) {
        for (int index = 0; index < BATCH; index++)
            observed(index);
        machtrace_flush();
        atomic_store(&progress[(uintptr_t)number], count);
    }
    return NULL;
}

/* A stack for each pattern of bits. */
__attribute__((noinline)) static uint32_t descend(unsigned long pattern, int depth);

__attribute__((noinline)) static uint32_t descend_other(unsigned long pattern, int depth)
{
    uint32_t node = descend(pattern, depth);
    __asm__ volatile("");
    return node;
}

__attribute__((noinline)) static uint32_t descend(unsigned long pattern, int depth)
{
    uint32_t node;
    if (depth == 0) {
        observed(0);
        node = machtrace_stack_identity();
    } else if (pattern & 1) {
        node = descend_other(pattern >> 1, depth - 1);
    } else {
        node = descend(pattern >> 1, depth - 1);
    }
    __asm__ volatile("");
    return node;
}

static void pause_us(long us)
{
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static unsigned long fill(unsigned long number)
{
    for (int index = 0; index < BATCH; index++)
        descend(number++, 20);
    machtrace_flush();
    atomic_fetch_add(&observed_calls, BATCH);
    return number;
}

static void *record_incidents(void *unused)
{
    uint32_t number = 0;
    (void)unused;
    while (!atomic_load(&is_stopping)) {
        struct machtrace_incident_record record = {.number = ++number,
                                                   .kind = MACHTRACE_INCIDENT_HANG,
                                                   .phase = MACHTRACE_INCIDENT_SEEN,
                                                   .stack_count = 1};
        record.stacks[0].node = descend(number, 20);
        machtrace_drain_incident(&record,
                                 sizeof record - sizeof record.stacks + sizeof record.stacks[0],
                                 &record.stacks[0].node, 1);
        atomic_fetch_add(&observed_calls, 1);
        pause_us(20);
    }
    return NULL;
}

static void count_finished(const char *path, void *context)
{
    const char *name = strrchr(path, '/');
    if (context != &finished || name == NULL)
        abort();
    atomic_fetch_add(&finished, 1);
}

static void *map_progress(const char *path)
{
    int file = open(path, O_RDWR);
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        exit(2);
    close(file);
    return memory;
}

int main(int argc, char **argv)
{
    static const machtrace_function_t functions[] = {
        {"observed", 0}, {"observed_twice", 0}, {"observed_result", MACHTRACE_COUNT_ONLY}};
    pthread_t threads[THREADS_MAX];
    if (argc < 5)
        return 1;
    size_t number = (size_t)atoi(argv[2]);
    long rounds = atol(argv[3]);
    const char *how = argv[4];
    bool fills = strcmp(how, "full") == 0 || strcmp(how, "never") == 0;
    bool is_killed = strcmp(how, "killed") == 0;
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = argv[1],
                                   .spool_size = fills || is_killed ? 1 << 18 : 1 << 20,
                                   .older_spools = strcmp(how, "once") == 0 ? 1 : 1000,
                                   .functions = functions,
                                   .function_count = 3,
                                   .interval_ms = 5,
                                   .spool_finished = count_finished,
                                   .spool_context = &finished};
    void *(*body)(void *) = call;
    if (is_killed) {
        progress = map_progress(argv[5]);
        body = call_and_flush;
    } else if (strcmp(how, "incidents") == 0) {
        body = record_incidents;
    }
    options.rotate_seconds = strcmp(how, "age") == 0 ? 1 : strcmp(how, "full") == 0 ? 3600 : 0;
    if (number >= THREADS_MAX || machtrace_start(&options) != 0)
        return 1;
    for (uintptr_t index = 0; index < number; index++)
        pthread_create(&threads[index], NULL, body, (void *)index);
    unsigned long rotations = 0, errors = 0, filled = 0;
    for (long round = 0; is_killed || round < rounds; round++) {
        if (fills) {
            /* Until the log is full, over more than the pause between rotations. */
            unsigned long before = atomic_load(&finished);
            for (int batch = 0; batch < 100 && atomic_load(&finished) == before; batch++) {
                filled = fill(filled);
                pause_us(50000);
            }
            continue;
        }
        if (strcmp(how, "once") == 0 || strcmp(how, "removed") == 0) {
            observed((int)round);
            atomic_fetch_add(&observed_calls, 1);
            if (strcmp(how, "removed") == 0 && round % 2 != 0)
                unlink(argv[1]);
        } else if (!is_killed) {
            pause_us(body == record_incidents ? 5000 : 20000);
        }
        if (strcmp(how, "age") != 0) {
            int error = machtrace_rotate();
            errors += error != 0;
            if (error != 0)
                atomic_store(&last_error, error);
            rotations++;
        }
    }
    atomic_store(&is_stopping, true);
    for (size_t index = 0; index < number; index++)
        pthread_join(threads[index], NULL);
    machtrace_stop();
    printf("observed %lu observed_twice %lu observed_result %lu rotations %lu errors %lu error %d "
           "finished %lu\n",
           (unsigned long)observed_calls, (unsigned long)twice_calls, (unsigned long)result_calls,
           rotations, errors, (int)last_error, (unsigned long)finished);
    return 0;
}
