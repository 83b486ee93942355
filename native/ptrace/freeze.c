#define _GNU_SOURCE
#include "ptrace/freeze.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "ptrace/stopped.h"

/* Times that threads are listed; those that have stopped start no others. */
#define ROUNDS_MAX 64

static int compare_ids(const void *left, const void *right)
{
    pid_t a = *(const pid_t *)left;
    pid_t b = *(const pid_t *)right;
    return (a > b) - (a < b);
}

static bool has_id(const pid_t *ids, size_t count, pid_t id)
{
    return count != 0 && bsearch(&id, ids, count, sizeof *ids, compare_ids) != NULL;
}

/* Room for another thread, or NULL. */
static struct machtrace_frozen_thread *append_thread(struct machtrace_freeze *freeze, pid_t id)
{
    if (freeze->thread_count == freeze->capacity) {
        size_t capacity = freeze->capacity == 0 ? 64 : 2 * freeze->capacity;
        void *threads = realloc(freeze->threads, capacity * sizeof *freeze->threads);
        if (threads == NULL)
            return NULL;
        freeze->threads = threads;
        freeze->capacity = capacity;
    }
    struct machtrace_frozen_thread *frozen = &freeze->threads[freeze->thread_count++];
    memset(frozen, 0, sizeof *frozen);
    frozen->thread.id = (uint64_t)id;
    frozen->is_wanted = freeze->wants_all || has_id(freeze->wanted, freeze->wanted_count, id);
    return frozen;
}

static void request_stop(const struct machtrace_freeze *freeze, struct machtrace_thread *thread)
{
    bool is_requested =
        freeze->is_traced ? machtrace_interrupt(thread) : machtrace_request_stop(thread);
    if (is_requested)
        return;
    if (freeze->is_traced)
        thread->outcome = MACHTRACE_REFUSED; /* it exits, or is not traced */
    if (thread->outcome != MACHTRACE_REFUSED)
        return;
    /* A thread that has exited and is not collected yet is refused, too. */
    char state = machtrace_thread_state((pid_t)thread->id);
    if (state == 'Z' || state == 'X' || state == '\0')
        thread->outcome = MACHTRACE_GONE;
}

/* Request a stop of every thread in the list that is not in `known`. */
static int request_stops(struct machtrace_freeze *freeze, const pid_t *known, size_t known_count)
{
    int folder = openat(freeze->task_folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return errno;
    DIR *list = fdopendir(folder);
    if (list == NULL) {
        int error = errno;
        close(folder);
        return error;
    }
    int error = 0;
    for (struct dirent *entry; error == 0 && (entry = readdir(list)) != NULL;) {
        pid_t id = (pid_t)strtol(entry->d_name, NULL, 10);
        if (id <= 0 || has_id(known, known_count, id))
            continue;
        struct machtrace_frozen_thread *frozen = append_thread(freeze, id);
        if (frozen == NULL)
            error = ENOMEM;
        else
            request_stop(freeze, &frozen->thread);
    }
    closedir(list);
    return error;
}

static void await_stop(const struct machtrace_capture *limits,
                       struct machtrace_frozen_thread *frozen, bool shares_cpu)
{
    struct machtrace_thread *thread = &frozen->thread;
    int64_t awake = 0;
    long sleep_ns = MACHTRACE_FIRST_SLEEP_NS;
    for (;;) {
        enum machtrace_event event = machtrace_poll_event((pid_t)thread->id, &frozen->stop);
        if (event == MACHTRACE_NO_EVENT) {
            if (!shares_cpu && machtrace_now() - thread->requested_at < MACHTRACE_PATIENCE_NS)
                continue;
            event = machtrace_poll_stop((pid_t)thread->id, &frozen->stop);
        }
        if (event == MACHTRACE_STOPPED) {
            frozen->is_stopped = true;
            thread->stopped_at = machtrace_now();
            return;
        }
        if (event == MACHTRACE_EXITED) {
            thread->outcome = MACHTRACE_GONE;
            return;
        }
        if (machtrace_is_overdue(limits, thread, &awake))
            return;
        nanosleep(&(struct timespec){0, sleep_ns}, NULL);
        if (sleep_ns < MACHTRACE_MAX_SLEEP_NS)
            sleep_ns *= 2;
    }
}

/* Whether the thread changes nothing: it is stopped or gone, or stops before it returns from its
 * sleep in the kernel. */
static bool is_still(const struct machtrace_frozen_thread *frozen)
{
    const struct machtrace_thread *thread = &frozen->thread;
    return frozen->is_stopped || thread->outcome == MACHTRACE_GONE ||
           (thread->outcome == MACHTRACE_NOT_STOPPED && thread->uninterruptible);
}

/* Stop all threads that exist, then those that they started meanwhile, until there are no more. */
static int stop_all(struct machtrace_freeze *freeze)
{
    bool shares_cpu = sysconf(_SC_NPROCESSORS_ONLN) < 2;
    pid_t *known = NULL;
    size_t known_count = 0;
    bool is_complete = false;
    int error = 0;
    for (int round = 0; round < ROUNDS_MAX && !is_complete; round++) {
        error = request_stops(freeze, known, known_count);
        for (size_t index = known_count; index < freeze->thread_count; index++)
            if (freeze->threads[index].thread.outcome == MACHTRACE_COPIED)
                await_stop(&freeze->settings, &freeze->threads[index], shares_cpu);
        is_complete = freeze->thread_count == known_count;
        if (error != 0 || is_complete)
            break;
        pid_t *ids = realloc(known, freeze->thread_count * sizeof *known);
        if (ids == NULL) {
            error = ENOMEM;
            break;
        }
        known = ids;
        known_count = freeze->thread_count;
        for (size_t index = 0; index < known_count; index++)
            known[index] = (pid_t)freeze->threads[index].thread.id;
        qsort(known, known_count, sizeof *known, compare_ids);
    }
    free(known);
    if (error == 0 && freeze->thread_count == 0)
        error = ESRCH;
    bool is_any_stopped = false;
    for (size_t index = 0; index < freeze->thread_count; index++) {
        is_any_stopped = is_any_stopped || freeze->threads[index].is_stopped;
        is_complete = is_complete && is_still(&freeze->threads[index]);
    }
    freeze->is_whole = is_complete && is_any_stopped;
    return error;
}

/* The registers of all are read, since every one may need its system call restarted. */
static void copy_all(struct machtrace_freeze *freeze, const struct machtrace_scratch *scratch)
{
    for (size_t index = 0; index < freeze->thread_count; index++) {
        struct machtrace_frozen_thread *frozen = &freeze->threads[index];
        if (!frozen->is_stopped)
            continue;
        machtrace_stopped_read(&freeze->settings, frozen->is_wanted ? scratch : NULL,
                               &frozen->thread, frozen->stop);
        machtrace_thread_keep(&frozen->thread);
    }
}

static void copy_python(struct machtrace_freeze *freeze)
{
    for (size_t index = 0; freeze->is_whole && index < freeze->thread_count; index++) {
        if (freeze->threads[index].is_stopped) {
            machtrace_python_copy(freeze->python, (pid_t)freeze->threads[index].thread.id);
            return;
        }
    }
}

static void release_all(struct machtrace_freeze *freeze)
{
    for (size_t index = 0; index < freeze->thread_count; index++) {
        struct machtrace_frozen_thread *frozen = &freeze->threads[index];
        if (!frozen->is_stopped)
            continue;
        pid_t id = (pid_t)frozen->thread.id;
        if (freeze->is_traced)
            machtrace_traced_continue(id, frozen->stop);
        else
            machtrace_stopped_release(id, frozen->stop);
        frozen->is_stopped = false;
    }
    int64_t resumed = machtrace_now();
    for (size_t index = 0; index < freeze->thread_count; index++)
        freeze->threads[index].thread.resumed_at = resumed;
    freeze->is_released = true;
}

static void freeze_process(struct machtrace_freeze *freeze)
{
    struct machtrace_scratch scratch;
    prctl(PR_SET_TIMERSLACK, 1000);
    freeze->error = machtrace_scratch_take(&scratch, freeze->settings.stack_limit);
    if (freeze->error == 0) {
        freeze->error = stop_all(freeze);
        if (freeze->error == 0) {
            copy_all(freeze, freeze->settings.mapping_count == 0 ? NULL : &scratch);
            if (freeze->python != NULL)
                copy_python(freeze);
            if (freeze->is_brief)
                release_all(freeze);
        }
        machtrace_scratch_give_back(&scratch);
    }
    pthread_mutex_lock(&freeze->mutex);
    freeze->is_frozen = true;
    pthread_cond_broadcast(&freeze->changed);
    pthread_mutex_unlock(&freeze->mutex);
}

static void *trace(void *argument)
{
    struct machtrace_freeze *freeze = argument;
    freeze_process(freeze);
    pthread_mutex_lock(&freeze->mutex);
    while (!freeze->must_resume && freeze->error == 0)
        pthread_cond_wait(&freeze->changed, &freeze->mutex);
    pthread_mutex_unlock(&freeze->mutex);
    if (!freeze->is_released)
        release_all(freeze);
    return NULL;
}

int machtrace_freeze_start(struct machtrace_freeze *freeze)
{
    if (freeze->wanted_count != 0)
        qsort(freeze->wanted, freeze->wanted_count, sizeof *freeze->wanted, compare_ids);
    pthread_condattr_t monotonic;
    int error = pthread_condattr_init(&monotonic);
    if (error != 0)
        return error;
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&freeze->mutex, NULL);
    pthread_cond_init(&freeze->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (freeze->is_traced) {
        freeze_process(freeze);
        prctl(PR_SET_TIMERSLACK, 0);
        return 0;
    }
    error = machtrace_start_tracer(&freeze->tracer, trace, freeze);
    if (error != 0) {
        pthread_cond_destroy(&freeze->changed);
        pthread_mutex_destroy(&freeze->mutex);
    }
    return error;
}

bool machtrace_freeze_await(struct machtrace_freeze *freeze, int64_t limit)
{
    int64_t end = machtrace_now() + limit;
    struct timespec until = {.tv_sec = (time_t)(end / 1000000000), .tv_nsec = end % 1000000000};
    pthread_mutex_lock(&freeze->mutex);
    while (!freeze->is_frozen &&
           pthread_cond_timedwait(&freeze->changed, &freeze->mutex, &until) != ETIMEDOUT)
        continue;
    bool is_frozen = freeze->is_frozen;
    pthread_mutex_unlock(&freeze->mutex);
    return is_frozen;
}

void machtrace_freeze_end(struct machtrace_freeze *freeze)
{
    pthread_mutex_lock(&freeze->mutex);
    freeze->must_resume = true;
    pthread_cond_broadcast(&freeze->changed);
    pthread_mutex_unlock(&freeze->mutex);
    if (!freeze->is_traced)
        pthread_join(freeze->tracer, NULL);
    else if (!freeze->is_released)
        release_all(freeze);
    pthread_cond_destroy(&freeze->changed);
    pthread_mutex_destroy(&freeze->mutex);
}

void machtrace_freeze_release(struct machtrace_freeze *freeze)
{
    for (size_t index = 0; index < freeze->thread_count; index++)
        machtrace_thread_release(&freeze->threads[index].thread);
    free(freeze->threads);
    free(freeze->wanted);
}
