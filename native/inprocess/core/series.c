/* A thread that captures at a rate into a ring: see series.h. */
#define _GNU_SOURCE
#include "inprocess/core/series.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "inprocess/core/ring.h"
#include "inprocess/core/batches.h"

#define BATCH 64 /* threads that are signalled at a time, unless all are */

struct machtrace_series {
    struct machtrace_series_options options;
    struct machtrace_inprocess_buffers buffers;
    struct machtrace_thread *threads;
    uint64_t *ids;
    char *text;

    struct machtrace_ring ring;
    bool knows_mappings;
    uint64_t changes;            /* of the images, when the mappings were last written */

    _Atomic uint64_t captures, late, lost, refused;
    _Atomic int error;

    pid_t process;
    pthread_t thread;
    bool has_thread;
    bool is_ending, has_ended; /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* --- records --- */

/* Where a record of this size goes, its header written; NULL if there is no room. */
static void *add_record(struct machtrace_series *series, size_t size,
                        enum machtrace_series_kind kind, uint32_t count)
{
    return machtrace_ring_add(&series->ring, size, (uint32_t)kind, count);
}

void machtrace_series_add_thread(struct machtrace_ring *ring,
                                 const struct machtrace_thread *thread)
{
    struct machtrace_series_thread row = {
        .id = thread->id,
        .pthread = thread->pthread_or_queue,
        .outcome = (int32_t)thread->outcome,
        .error = thread->error,
        .uninterruptible = thread->uninterruptible,
        .registers_size = (uint32_t)thread->registers_size,
        .requested_at = thread->requested_at,
        .stopped_at = thread->stopped_at,
        .resumed_at = thread->resumed_at,
    };
    size_t size = sizeof row;
    for (size_t index = 0; index < thread->stack_count; index++) {
        row.stack_start[index] = thread->stacks[index].start;
        row.stack_size[index] = thread->stacks[index].size;
        size += thread->stacks[index].size;
    }
    memcpy(row.registers, thread->registers, thread->registers_size);
    unsigned char *place =
        machtrace_ring_add(ring, size, MACHTRACE_SERIES_THREAD, (uint32_t)thread->stack_count);
    if (place == NULL)
        return;
    memcpy(&row.record, place, sizeof row.record);
    memcpy(place, &row, sizeof row);
    place += sizeof row;
    for (size_t index = 0; index < thread->stack_count; index++) {
        if (thread->stacks[index].size != 0)
            memcpy(place, thread->stacks[index].bytes, thread->stacks[index].size);
        place += thread->stacks[index].size;
    }
}

static void add_thread(struct machtrace_thread *thread, void *to)
{
    struct machtrace_series *series = to;
    machtrace_series_add_thread(&series->ring, thread);
}

static void add_mappings(struct machtrace_series *series)
{
    int64_t size = -1;
    if (series->options.mappings != NULL)
        size = series->options.mappings(series->text, series->options.text_most);
    if (size < 0)
        return;
    struct machtrace_series_mappings row = {.text_size = (uint64_t)size};
    unsigned char *place =
        add_record(series, sizeof row + (size_t)size, MACHTRACE_SERIES_MAPPINGS, 0);
    if (place == NULL)
        return;
    memcpy(&row.record, place, sizeof row.record);
    memcpy(place, &row, sizeof row);
    memcpy(place + sizeof row, series->text, (size_t)size);
}

static void add_capture(struct machtrace_series *series, struct machtrace_series_capture row)
{
    unsigned char *place =
        add_record(series, sizeof row, MACHTRACE_SERIES_CAPTURE, row.record.count);
    if (place == NULL)
        return;
    memcpy(&row.record, place, sizeof row.record);
    memcpy(place, &row, sizeof row);
}

/* --- the thread --- */

/* List all threads but this; returns how many there are, or -1. */
static int64_t list_others(struct machtrace_series *series, size_t *count)
{
    int64_t listed = machtrace_inprocess_list(series->ids, MACHTRACE_SERIES_THREADS_MAX);
    uint64_t own = machtrace_inprocess_id();
    *count = 0;
    for (int64_t index = 0; index < listed && index < MACHTRACE_SERIES_THREADS_MAX; index++)
        if (series->ids[index] != own)
            series->threads[(*count)++].id = series->ids[index];
    return listed < 0 ? -1 : listed - 1;
}

static int copy_all(struct machtrace_series *series, struct machtrace_series_capture *row)
{
    /* Everywhere: copying fails for unmapped memory. */
    static const struct machtrace_range everywhere = {0, UINT64_C(1) << 63};
    const struct machtrace_series_options *options = &series->options;
    int error = machtrace_inprocess_begin(options->signal);
    if (error != 0)
        return error;
    row->began_at = now();
    size_t count;
    int64_t listed = list_others(series, &count);
    if (listed < 0) {
        error = errno;
    } else {
        const struct machtrace_inprocess_capture capture = {
            .ranges = &everywhere,
            .range_count = 1,
            .stack_limit = options->stack_limit,
            .answer_limit = options->answer_limit,
            .sleep_limit = options->sleep_limit,
            .together = options->together,
            .threads = series->threads,
            .thread_count = count,
        };
        machtrace_inprocess_copy_all(&series->buffers, &capture, add_thread, series);
        row->listed = (uint64_t)listed;
        row->record.count = (uint32_t)count;
        row->ended_at = now();
    }
    machtrace_inprocess_end();
    return error;
}

/* A thread may be in an image that is loaded or unloaded meanwhile: the mappings are read before
 * and after, if images changed. */
static void look_at_images(struct machtrace_series *series)
{
    uint64_t changes = machtrace_inprocess_image_changes();
    if (series->knows_mappings && changes == series->changes)
        return;
    add_mappings(series);
    series->knows_mappings = true;
    series->changes = changes;
}

static void capture_once(struct machtrace_series *series, uint64_t tick)
{
    struct machtrace_series_capture row = {.tick = tick};
    machtrace_ring_begin(&series->ring);
    look_at_images(series);
    uint64_t before = series->changes;
    int error = copy_all(series, &row);
    if (error != 0) {
        series->knows_mappings = false;
        atomic_store(&series->error, error);
        atomic_fetch_add(&series->refused, 1);
        return;
    }
    look_at_images(series);
    row.images_changed = series->changes != before;
    add_capture(series, row);
    if (!machtrace_ring_publish(&series->ring)) {
        series->knows_mappings = false;
        atomic_fetch_add(&series->lost, 1);
        return;
    }
    atomic_fetch_add(&series->captures, 1);
}

/* Wait until then; whether the thread is to continue. */
static bool wait_until(struct machtrace_series *series, int64_t due)
{
    pthread_mutex_lock(&series->lock);
    int64_t left;
    while (!series->is_ending && (left = due - now()) > 0) {
#ifdef __APPLE__
        struct timespec time = {left / 1000000000, left % 1000000000};
        pthread_cond_timedwait_relative_np(&series->changed, &series->lock, &time);
#else
        struct timespec time = {due / 1000000000, due % 1000000000};
        pthread_cond_timedwait(&series->changed, &series->lock, &time);
#endif
    }
    bool goes_on = !series->is_ending;
    pthread_mutex_unlock(&series->lock);
    return goes_on;
}

static void *run(void *argument)
{
    struct machtrace_series *series = argument;
    if (series->options.prepare_thread != NULL)
        series->options.prepare_thread();
    int64_t interval = series->options.interval;
    int64_t due = now();
    for (uint64_t tick = 0; wait_until(series, due); tick++) {
        capture_once(series, tick);
        due += interval;
        int64_t behind = now() - due;
        if (behind > 0) {
            uint64_t missed = (uint64_t)(behind / interval) + 1;
            atomic_fetch_add(&series->late, missed);
            tick += missed;
            due += (int64_t)missed * interval;
        }
    }
    return NULL;
}

/* --- from outside --- */

static void *reserve(size_t size)
{
    int flags = MAP_PRIVATE | MAP_ANON;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    return bytes == MAP_FAILED ? NULL : bytes;
}

static void give_back(void *bytes, size_t size)
{
    if (bytes != NULL)
        munmap(bytes, size);
}

static int have_memory(struct machtrace_series *series)
{
    const struct machtrace_series_options *options = &series->options;
    size_t batch = options->together ? MACHTRACE_INPROCESS_THREADS_MAX : BATCH;
    size_t room = options->room & ~(size_t)(MACHTRACE_RING_ALIGN - 1);
    series->ring.bytes = reserve(room);
    series->ring.room = room;
    series->text = reserve(options->text_most);
    series->ids = reserve(MACHTRACE_SERIES_THREADS_MAX * sizeof *series->ids);
    series->threads = reserve(MACHTRACE_SERIES_THREADS_MAX * sizeof *series->threads);
    if (series->ring.bytes == NULL || series->text == NULL || series->ids == NULL ||
        series->threads == NULL)
        return ENOMEM;
    return machtrace_inprocess_buffers_have(&series->buffers, batch, options->stack_limit);
}

static int prepare_lock(struct machtrace_series *series)
{
    pthread_condattr_t attributes;
    int error = pthread_condattr_init(&attributes);
    if (error != 0)
        return error;
#ifndef __APPLE__
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
    pthread_mutex_init(&series->lock, NULL);
    error = pthread_cond_init(&series->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return error;
}

int machtrace_start_quiet_thread(pthread_t *thread, void *(*body)(void *), void *argument)
{
    static const int own_faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t index = 0; index < sizeof own_faults / sizeof *own_faults; index++)
        sigdelset(&blocked, own_faults[index]);
    if (machtrace_inprocess_signal() != 0)
        sigdelset(&blocked, machtrace_inprocess_signal());
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int error = pthread_create(thread, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#ifdef __linux__
    if (error == 0)
        pthread_setname_np(*thread, "machtrace");
#endif
    return error;
}

static int start_thread(struct machtrace_series *series)
{
    int error = machtrace_start_quiet_thread(&series->thread, run, series);
    series->has_thread = error == 0;
    return error;
}

struct machtrace_series *machtrace_series_start(const struct machtrace_series_options *options,
                                                int *error)
{
    struct machtrace_series *series = calloc(1, sizeof *series);
    if (series == NULL) {
        *error = ENOMEM;
        return NULL;
    }
    series->options = *options;
    series->process = getpid();
    /* First, so that whatever fails later, the release below is valid. */
    *error = prepare_lock(series);
    if (*error != 0) {
        free(series);
        return NULL;
    }
    *error = have_memory(series);
    if (*error == 0)
        *error = machtrace_inprocess_begin(options->signal); /* whether a signal can be had */
    if (*error == 0) {
        machtrace_inprocess_end();
        machtrace_inprocess_image_changes(); /* the first call may wait */
        *error = start_thread(series);
    }
    if (*error != 0) {
        machtrace_series_free(series);
        return NULL;
    }
    return series;
}

size_t machtrace_series_waiting(const struct machtrace_series *series, size_t most)
{
    return machtrace_ring_waiting(&series->ring, most);
}

size_t machtrace_series_take(struct machtrace_series *series, unsigned char *to, size_t most)
{
    return machtrace_ring_take(&series->ring, to, most);
}

struct machtrace_series_counts machtrace_series_count(const struct machtrace_series *series)
{
    return (struct machtrace_series_counts){
        .captures = atomic_load(&series->captures),
        .late = atomic_load(&series->late),
        .lost = atomic_load(&series->lost),
        .refused = atomic_load(&series->refused),
        .error = atomic_load(&series->error),
    };
}

void machtrace_series_stop(struct machtrace_series *series)
{
    if (!series->has_thread || series->process != getpid())
        return;
    pthread_mutex_lock(&series->lock);
    bool is_first = !series->is_ending; /* a thread can be joined once */
    series->is_ending = true;
    pthread_cond_broadcast(&series->changed);
    if (is_first) {
        pthread_mutex_unlock(&series->lock);
        pthread_join(series->thread, NULL);
        pthread_mutex_lock(&series->lock);
        series->has_ended = true;
        pthread_cond_broadcast(&series->changed);
    }
    while (!series->has_ended)
        pthread_cond_wait(&series->changed, &series->lock);
    pthread_mutex_unlock(&series->lock);
}

void machtrace_series_free(struct machtrace_series *series)
{
    machtrace_series_stop(series);
    if (series->process == getpid()) { /* else another thread's hands were on them */
        pthread_cond_destroy(&series->changed);
        pthread_mutex_destroy(&series->lock);
    }
    give_back(series->ring.bytes, series->ring.room);
    give_back(series->text, series->options.text_most);
    give_back(series->ids, MACHTRACE_SERIES_THREADS_MAX * sizeof *series->ids);
    give_back(series->threads, MACHTRACE_SERIES_THREADS_MAX * sizeof *series->threads);
    machtrace_inprocess_buffers_free(&series->buffers);
    free(series);
}
