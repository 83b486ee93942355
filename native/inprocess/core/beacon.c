/* Lines that threads write about themselves: see beacon.h. */
#define _GNU_SOURCE
#include "inprocess/core/beacon.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "inprocess/core/capture.h"

_Alignas(64) struct machtrace_beacon machtrace_beacons[MACHTRACE_BEACONS_MAX];
_Atomic uint32_t machtrace_beacon_count;

static _Thread_local struct machtrace_beacon *own_line;
static _Atomic uint32_t last_scope;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void release(void *line)
{
    struct machtrace_beacon *beacon = line;
    atomic_store(&beacon->deadline, 0);
    atomic_store(&beacon->busy_since, MACHTRACE_BEACON_SILENT);
    atomic_store(&beacon->thread, 0);
}

/* The child of a fork has one thread, whose id is another. */
static void after_fork(void)
{
    for (size_t index = 0; index < MACHTRACE_BEACONS_MAX; index++)
        if (&machtrace_beacons[index] != own_line)
            atomic_store(&machtrace_beacons[index].thread, 0);
    if (own_line != NULL)
        atomic_store(&own_line->thread, (uint32_t)machtrace_inprocess_id());
}

static void prepare(void)
{
    pthread_key_create(&key, release);
    pthread_atfork(NULL, NULL, after_fork);
}

static struct machtrace_beacon *take_line(void)
{
    uint32_t thread = (uint32_t)machtrace_inprocess_id();
    pthread_once(&once, prepare);
    for (uint32_t index = 0; index < MACHTRACE_BEACONS_MAX; index++) {
        struct machtrace_beacon *line = &machtrace_beacons[index];
        uint32_t expected = 0;
        if (!atomic_compare_exchange_strong(&line->thread, &expected, thread))
            continue;
        atomic_store(&line->task, 0);
        atomic_store(&line->busy_since, MACHTRACE_BEACON_SILENT);
        uint32_t count = atomic_load(&machtrace_beacon_count);
        while (count <= index &&
               !atomic_compare_exchange_weak(&machtrace_beacon_count, &count, index + 1))
            continue;
        pthread_setspecific(key, line);
        return line;
    }
    return NULL;
}

struct machtrace_beacon *machtrace_own_beacon(void)
{
    if (own_line == NULL)
        own_line = take_line();
    return own_line;
}

struct machtrace_beacon *machtrace_beacon_of(uint32_t thread)
{
    uint32_t count = atomic_load(&machtrace_beacon_count);
    for (uint32_t index = 0; index < count; index++)
        if (atomic_load(&machtrace_beacons[index].thread) == thread)
            return &machtrace_beacons[index];
    return NULL;
}

void machtrace_beacon_idle(void)
{
    struct machtrace_beacon *line = machtrace_own_beacon();
    if (line != NULL)
        atomic_store_explicit(&line->busy_since, 0, memory_order_release);
}

void machtrace_beacon_busy(void)
{
    struct machtrace_beacon *line = machtrace_own_beacon();
    if (line == NULL)
        return;
    uint64_t task = atomic_load_explicit(&line->task, memory_order_relaxed);
    atomic_store_explicit(&line->task, task + 1, memory_order_relaxed);
    atomic_store_explicit(&line->busy_since, now(), memory_order_release);
}

/* Readers check that the scope's number is the same before and after they read the rest. */
static void state(struct machtrace_beacon *line, int64_t began, int64_t deadline,
                  const char *label, uint32_t number)
{
    atomic_store(&line->deadline, 0);
    atomic_store(&line->scope, number);
    atomic_store(&line->began, began);
    memcpy(line->label, label, MACHTRACE_LABEL_SIZE);
    atomic_store(&line->deadline, deadline);
}

void machtrace_scope_enter(struct machtrace_scope *outer, int64_t limit, const char *label)
{
    struct machtrace_beacon *line = machtrace_own_beacon();
    outer->line = line;
    if (line == NULL)
        return;
    outer->began = atomic_load(&line->began);
    outer->deadline = atomic_load(&line->deadline);
    outer->number = atomic_load(&line->scope);
    memcpy(outer->label, line->label, MACHTRACE_LABEL_SIZE);
    int64_t began = now();
    int64_t deadline = limit < INT64_MAX - began ? began + limit : INT64_MAX;
    if (outer->deadline != 0 && outer->deadline <= deadline)
        return;
    char own[MACHTRACE_LABEL_SIZE] = {0};
    for (size_t index = 0; index < sizeof own && label[index] != '\0'; index++)
        own[index] = label[index];
    state(line, began, deadline, own, atomic_fetch_add(&last_scope, 1) + 1);
}

void machtrace_scope_leave(const struct machtrace_scope *outer)
{
    struct machtrace_beacon *line = outer->line;
    if (line == NULL || line != own_line)
        return;
    if (atomic_load(&line->deadline) != outer->deadline ||
        atomic_load(&line->scope) != outer->number)
        state(line, outer->began, outer->deadline, outer->label, outer->number);
}
