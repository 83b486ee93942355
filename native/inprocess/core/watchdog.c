/* A thread that watches threads of its own process: see watchdog.h. */
#define _GNU_SOURCE
#include "inprocess/core/watchdog_inside.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inprocess/core/linux/shared.h"

/* --- the thread --- */

static bool wait_until(struct machtrace_watchdog *watchdog, int64_t due)
{
    struct timespec limit = {due / 1000000000, due % 1000000000};
    while (atomic_load(&watchdog->ending) == 0 && machtrace_clock_ns(CLOCK_MONOTONIC) < due)
        syscall(SYS_futex, &watchdog->ending, FUTEX_WAIT_BITSET_PRIVATE, 0, &limit, NULL,
                FUTEX_BITSET_MATCH_ANY);
    return atomic_load(&watchdog->ending) == 0;
}

static void *run(void *argument)
{
    struct machtrace_watchdog *watchdog = argument;
    machtrace_inprocess_short_turns();
    int64_t interval = watchdog->options.interval;
    int64_t due = machtrace_clock_ns(CLOCK_MONOTONIC);
    while (wait_until(watchdog, due)) {
        watchdog->now = machtrace_clock_ns(CLOCK_MONOTONIC);
        watchdog->boot_now = machtrace_clock_ns(CLOCK_BOOTTIME);
        watchdog->late = watchdog->now - due;
        atomic_fetch_add(&watchdog->rounds, 1);
        if (watchdog->late > interval)
            atomic_fetch_add(&watchdog->late_rounds, 1);
        if (watchdog->late > atomic_load(&watchdog->latest))
            atomic_store(&watchdog->latest, watchdog->late);
        int64_t next = machtrace_watchdog_poll_all(watchdog);
        due = watchdog->now + interval;
        if (next < due)
            due = next;
        int64_t now = machtrace_clock_ns(CLOCK_MONOTONIC);
        if (due < now)
            due = now;
        atomic_store(&watchdog->spent, machtrace_clock_ns(CLOCK_THREAD_CPUTIME_ID));
    }
    return NULL;
}

/* --- from outside --- */

struct machtrace_watchdog *machtrace_watchdog_start(
    const struct machtrace_watchdog_options *options, int *error)
{
    struct machtrace_watchdog *watchdog = calloc(1, sizeof *watchdog);
    if (watchdog == NULL) {
        *error = ENOMEM;
        return NULL;
    }
    watchdog->options = *options;
    watchdog->process = getpid();
    watchdog->next_poll = 1;
    atomic_store(&watchdog->keep, UINT64_MAX);
    *error = options->info_size > MACHTRACE_WATCHDOG_INFO ? EINVAL : machtrace_watchdog_have_record(watchdog);
    if (*error == 0)
        *error = machtrace_copying_have(&watchdog->copying, &watchdog->options);
    if (*error == 0)
        *error = machtrace_inprocess_begin(options->signal); /* whether a signal can be had */
    if (*error == 0) {
        machtrace_inprocess_end();
        machtrace_inprocess_image_changes(); /* the first call may wait */
        *error = machtrace_start_quiet_thread(&watchdog->thread, run, watchdog);
        watchdog->has_thread = *error == 0;
    }
    watchdog->options.info = NULL;
    if (*error != 0) {
        machtrace_watchdog_free(watchdog);
        return NULL;
    }
    return watchdog;
}

static struct machtrace_watched *find(struct machtrace_watchdog *watchdog, uint32_t thread)
{
    for (size_t index = 0; index < MACHTRACE_WATCHDOG_THREADS_MAX; index++)
        if (atomic_load(&watchdog->watched[index].use) == MACHTRACE_USED &&
            watchdog->watched[index].thread == thread)
            return &watchdog->watched[index];
    return NULL;
}

int machtrace_watchdog_watch(struct machtrace_watchdog *watchdog, uint32_t thread)
{
    if (find(watchdog, thread) != NULL)
        return 0;
    for (size_t index = 0; index < MACHTRACE_WATCHDOG_THREADS_MAX; index++) {
        struct machtrace_watched *watched = &watchdog->watched[index];
        if (atomic_load(&watched->use) != MACHTRACE_FREE)
            continue;
        int error = machtrace_thread_files_open(thread, &watched->files);
        if (error != 0)
            return error;
        watched->thread = thread;
        atomic_store(&watched->use, MACHTRACE_USED);
        return 0;
    }
    return ENOSPC;
}

int machtrace_watchdog_unwatch(struct machtrace_watchdog *watchdog, uint32_t thread)
{
    struct machtrace_watched *watched = find(watchdog, thread);
    if (watched == NULL)
        return ESRCH;
    atomic_store(&watched->use, MACHTRACE_LEAVING);
    return 0;
}

int machtrace_watchdog_add_idle(struct machtrace_watchdog *watchdog, uint32_t thread,
                                int64_t call, uint64_t sp, uint64_t pc)
{
    struct machtrace_watched *watched = find(watchdog, thread);
    if (watched == NULL)
        return ESRCH;
    const struct machtrace_thread_call wanted = {.number = call, .sp = sp, .pc = pc};
    if (machtrace_watched_is_idle(watched, &wanted))
        return 0;
    uint32_t count = atomic_load(&watched->idle_count);
    if (count == MACHTRACE_WATCHDOG_IDLE_MAX)
        return ENOSPC;
    watched->idle[count] = (struct machtrace_idle_call){call, sp, pc};
    atomic_store(&watched->idle_count, count + 1);
    return 0;
}

void machtrace_watchdog_clear_idle(struct machtrace_watchdog *watchdog, uint32_t thread)
{
    struct machtrace_watched *watched = find(watchdog, thread);
    if (watched != NULL)
        atomic_store(&watched->idle_count, 0);
}

uint32_t machtrace_watchdog_wait(struct machtrace_watchdog *watchdog, uint32_t seen,
                                 int64_t for_ns)
{
    struct timespec limit = {for_ns / 1000000000, for_ns % 1000000000};
    atomic_store(&watchdog->reader, machtrace_inprocess_id());
    if (atomic_load(&watchdog->news) == seen && watchdog->process == getpid())
        syscall(SYS_futex, &watchdog->news, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
    return atomic_load(&watchdog->news);
}

void machtrace_watchdog_wake(struct machtrace_watchdog *watchdog)
{
    machtrace_watchdog_notify(watchdog);
}

struct machtrace_watchdog_counts machtrace_watchdog_count(
    const struct machtrace_watchdog *watchdog)
{
    const struct machtrace_copying *copying = &watchdog->copying;
    return (struct machtrace_watchdog_counts){
        .polls = atomic_load(&watchdog->rounds),
        .late = atomic_load(&watchdog->late_rounds),
        .latest = atomic_load(&watchdog->latest),
        .cpu = atomic_load(&watchdog->spent),
        .captures = atomic_load(&copying->captures),
        .stops = atomic_load(&copying->stops),
        .longest_stop = atomic_load(&copying->longest_stop),
        .lost = atomic_load(&copying->lost),
    };
}

void machtrace_watchdog_stop(struct machtrace_watchdog *watchdog)
{
    if (!watchdog->has_thread || watchdog->process != getpid())
        return;
    if (atomic_exchange(&watchdog->ending, 1) != 0) { /* a thread can be joined once */
        while (atomic_load(&watchdog->ended) == 0)
            syscall(SYS_futex, &watchdog->ended, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
        return;
    }
    syscall(SYS_futex, &watchdog->ending, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    pthread_join(watchdog->thread, NULL);
    for (size_t index = 0; index < MACHTRACE_WATCHDOG_THREADS_MAX; index++)
        if (atomic_load(&watchdog->watched[index].use) != MACHTRACE_FREE)
            machtrace_watched_clean_up(watchdog, &watchdog->watched[index]);
    watchdog->boot_now = machtrace_clock_ns(CLOCK_BOOTTIME);
    watchdog->now = machtrace_clock_ns(CLOCK_MONOTONIC);
    for (size_t index = 0; index < MACHTRACE_BEACONS_MAX; index++)
        machtrace_suspect_end(watchdog, &watchdog->scopes[index], MACHTRACE_WATCHDOG_SCOPE);
    machtrace_suspect_end(watchdog, &watchdog->gil, MACHTRACE_WATCHDOG_GIL);
    machtrace_watchdog_record_line(watchdog);
    atomic_store(&watchdog->ended, 1);
    syscall(SYS_futex, &watchdog->ended, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void machtrace_watchdog_free(struct machtrace_watchdog *watchdog)
{
    machtrace_watchdog_stop(watchdog);
    if (watchdog->head != NULL)
        munmap(watchdog->head, watchdog->record_size);
    machtrace_copying_free(&watchdog->copying);
    free(watchdog);
}
