/* Captures this process, by the core alone, while another thread holds a lock that the program
 * would need for nearly anything: own_locks malloc | constructor PLUGIN | list. The plugin is this
 * very file, built with -DPLUGIN.
 *
 * The thread holds the lock until the captures are done: if one of them needed the lock, the program
 * would never end. Prints the number of captures.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef PLUGIN

extern void wait_here(void);

__attribute__((constructor)) static void begin(void)
{
    wait_here();
}

#else

#include "inprocess/core/linux/shared.h"
#include "inprocess/core/series.h"

static int ends[2];
static _Atomic int is_there, holder;

void wait_here(void)
{
    char byte;
    holder = (int)machtrace_inprocess_id();
    is_there = 1;
    while (read(ends[0], &byte, 1) != 1)
        continue;
}

/* All memory of the program, under one lock; a thread that allocates this size holds it. */
#define WANTED 123457

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char memory[1 << 22];
static size_t used;

void *malloc(size_t size)
{
    pthread_mutex_lock(&lock);
    if (size == WANTED)
        wait_here();
    size_t *at = (size_t *)(void *)(memory + used);
    used += (size + 31) & ~(size_t)15;
    if (used > sizeof memory)
        abort();
    *at = size;
    pthread_mutex_unlock(&lock);
    return (unsigned char *)at + 16;
}

void free(void *block)
{
    (void)block;
}

void *calloc(size_t count, size_t size)
{
    void *block = malloc(count * size);
    return memset(block, 0, count * size);
}

void *realloc(void *block, size_t size)
{
    void *other = malloc(size);
    if (block != NULL) {
        size_t before = *(size_t *)(void *)((unsigned char *)block - 16);
        memcpy(other, block, before < size ? before : size);
    }
    return other;
}

static int stay(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)info;
    (void)size;
    (void)data;
    wait_here();
    return 1;
}

static char **words;

static void *hold(void *unused)
{
    (void)unused;
    if (strcmp(words[1], "malloc") == 0)
        free(malloc(WANTED));
    else if (strcmp(words[1], "list") == 0)
        dl_iterate_phdr(stay, NULL);
    else if (dlopen(words[2], RTLD_NOW) == NULL)
        abort();
    return NULL;
}

/* The outcome of copying the thread that holds the lock. */
static enum machtrace_outcome copy_holder(void)
{
    static unsigned char buffer[1 << 18];
    static const struct machtrace_range everywhere = {0, UINT64_C(1) << 63};
    uint64_t ids[64];
    int64_t count = machtrace_inprocess_list(ids, 64);
    int is_listed = 0;
    for (int64_t index = 0; index < count; index++)
        is_listed |= ids[index] == (uint64_t)holder;
    struct machtrace_thread thread = {
        .id = (uint64_t)holder, .buffer = buffer, .room = sizeof buffer};
    struct machtrace_inprocess_capture capture = {.ranges = &everywhere,
                                                  .range_count = 1,
                                                  .stack_limit = sizeof buffer / 2,
                                                  .answer_limit = 20000000000,
                                                  .sleep_limit = 20000000000,
                                                  .threads = &thread,
                                                  .thread_count = 1};
    if (machtrace_inprocess_begin(0) != 0)
        return MACHTRACE_FAILED;
    machtrace_inprocess_copy(&capture);
    machtrace_inprocess_end();
    if (thread.outcome == MACHTRACE_COPIED && (!is_listed || thread.stacks[0].size == 0))
        return MACHTRACE_FAILED;
    return thread.outcome;
}

int main(int count, char **arguments)
{
    pthread_t thread;
    words = arguments;
    if (count < 2 || pipe(ends) != 0)
        return 2;
    struct machtrace_series_options options = {.interval = 2000000,
                                               .stack_limit = 1 << 16,
                                               .answer_limit = 100000000,
                                               .sleep_limit = 2000000,
                                               .room = 1
                                                       << 28, /* until the thread has begun, too */
                                               .text_most = 1 << 20,
                                               .mappings = machtrace_inprocess_mappings};
    int error;
    struct machtrace_series *series = machtrace_series_start(&options, &error);
    if (series == NULL)
        return 3;
    pthread_create(&thread, NULL, hold, NULL);
    while (!is_there)
        usleep(100);
    uint64_t before = machtrace_series_count(series).captures;
    struct timespec pause = {0, 1000000};
    enum machtrace_outcome outcome = copy_holder();
    /* After a signal of the series that timed out, it is blocked until it has handled that signal. */
    while (outcome == MACHTRACE_BLOCKED || outcome == MACHTRACE_NOT_STOPPED) {
        nanosleep(&pause, NULL);
        outcome = copy_holder();
    }
    if (outcome != MACHTRACE_COPIED)
        return 4;
    while (machtrace_series_count(series).captures < before + 20)
        nanosleep(&pause, NULL);
    uint64_t after = machtrace_series_count(series).captures;
    if (write(ends[1], "", 1) != 1)
        return 5;
    pthread_join(thread, NULL);
    machtrace_series_free(series);
    printf("%llu\n", (unsigned long long)(after - before));
    return 0;
}

#endif
