/* Which thread is requested to stop, and when; what is done with a stopped one is in stopped.c. */
#define _GNU_SOURCE
#include "ptrace/ptrace.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "ptrace/stopped.h"
#include "ptrace/tracee.h"

/* Threads requested to stop that have not stopped yet, at most: each waits for its turn on a CPU, all
 * at the same time. */
#define PENDING_MAX 16

/* A thread that was requested to stop. */
struct pending {
    struct machtrace_thread *thread;
    int64_t awake; /* when it was last seen in no uninterruptible sleep; 0 at first */
    bool is_late;  /* no longer waited for; released once it stops */
};

struct job {
    struct machtrace_capture *capture;
    struct machtrace_scratch scratch;
    size_t next; /* index of the thread to request next */
};

/* The requests of one OS thread. */
struct tracer {
    struct job *job;
    struct pending pending[PENDING_MAX];
    size_t count;
    bool must_end; /* it traces a thread that it cannot release */
};

static void request_next(struct tracer *tracer)
{
    struct job *job = tracer->job;
    struct machtrace_thread *thread = &job->capture->threads[job->next++];
    if (machtrace_request_stop(thread))
        tracer->pending[tracer->count++] = (struct pending){thread, 0, false};
    else if (thread->requested_at != 0)
        tracer->must_end = true;
}

/* Whether the thread is no longer pending. */
static bool settle(struct tracer *tracer, struct pending *pending, enum machtrace_event event,
                   struct machtrace_stop stop)
{
    struct job *job = tracer->job;
    if (event == MACHTRACE_NO_EVENT)
        return false;
    if (event == MACHTRACE_EXITED) {
        if (!pending->is_late)
            pending->thread->outcome = MACHTRACE_GONE;
        tracer->must_end = true;
    } else if (pending->is_late) {
        machtrace_stopped_release((pid_t)pending->thread->id, stop);
    } else {
        machtrace_stopped_copy(job->capture, &job->scratch, pending->thread, stop);
    }
    return true;
}

/* Poll all pending threads, the latest first: it is the one that may stop within microseconds.
 * Returns whether any was settled. */
static bool sweep(struct tracer *tracer, bool by_siginfo)
{
    bool any = false;
    for (size_t index = tracer->count; index-- > 0;) {
        struct pending *pending = &tracer->pending[index];
        struct machtrace_stop stop = {0, false};
        enum machtrace_event event = machtrace_poll_event((pid_t)pending->thread->id, &stop);
        if (event == MACHTRACE_NO_EVENT && by_siginfo)
            event = machtrace_poll_stop((pid_t)pending->thread->id, &stop);
        if (settle(tracer, pending, event, stop)) {
            any = true;
            tracer->count--;
            memmove(pending, pending + 1, (tracer->count - index) * sizeof *pending);
        }
    }
    return any;
}

/* Stop waiting for overdue threads. Returns how many are still waited for. */
static size_t give_up(struct tracer *tracer)
{
    size_t left = 0;
    for (size_t index = 0; index < tracer->count; index++) {
        struct pending *pending = &tracer->pending[index];
        if (pending->is_late)
            continue;
        if (machtrace_is_overdue(tracer->job->capture, pending->thread, &pending->awake)) {
            pending->is_late = true;
            tracer->must_end = true;
        } else {
            left++;
        }
    }
    return left;
}

/* Whether another thread may be requested to stop. */
static bool may_request(const struct tracer *tracer)
{
    return !tracer->must_end && tracer->count < PENDING_MAX &&
           tracer->job->next < tracer->job->capture->thread_count;
}

/* The OS thread that seized a thread is its only tracer, and cannot release one that does not stop;
 * but when it ends, the kernel releases all that it traced. So it ends then, and another continues:
 * a thread that stops late does not stay stopped until all others are copied.
 *
 * A thread that stops at once is copied before the next is requested, so that each is stopped for
 * its own copy only. One that waits for its turn on a CPU runs until then; meanwhile others are
 * requested. */
static void *copy_on(void *argument)
{
    struct tracer tracer = {.job = argument};
    bool shares_cpu = sysconf(_SC_NPROCESSORS_ONLN) < 2;
    prctl(PR_SET_TIMERSLACK, 1000);
    int64_t since = machtrace_now(); /* the last progress */
    long sleep_ns = MACHTRACE_FIRST_SLEEP_NS;
    for (;;) {
        if (tracer.count == 0) {
            if (!may_request(&tracer))
                return NULL;
            request_next(&tracer);
            since = machtrace_now();
        }
        if (sweep(&tracer, false)) {
            since = machtrace_now();
            sleep_ns = MACHTRACE_FIRST_SLEEP_NS;
            if (may_request(&tracer))
                request_next(&tracer);
            continue;
        }
        if (!shares_cpu && machtrace_now() - since < MACHTRACE_PATIENCE_NS)
            continue;
        if (sweep(&tracer, true))
            continue;
        if (may_request(&tracer)) {
            request_next(&tracer);
            since = machtrace_now();
            continue;
        }
        if (give_up(&tracer) == 0)
            return NULL;
        nanosleep(&(struct timespec){0, sleep_ns}, NULL);
        if (sleep_ns < MACHTRACE_MAX_SLEEP_NS)
            sleep_ns *= 2;
    }
}

static int run_tracer(struct job *job)
{
    pthread_t tracer;
    int error = machtrace_start_tracer(&tracer, copy_on, job);
    return error != 0 ? error : pthread_join(tracer, NULL);
}

int machtrace_capture_run(struct machtrace_capture *capture)
{
    struct job job = {.capture = capture};
    int error = machtrace_scratch_take(&job.scratch, capture->stack_limit);
    if (error != 0)
        return error;
    while (error == 0 && job.next < capture->thread_count)
        error = run_tracer(&job);
    machtrace_scratch_give_back(&job.scratch);
    return error;
}

void machtrace_capture_release(struct machtrace_capture *capture)
{
    for (size_t index = 0; index < capture->thread_count; index++)
        machtrace_thread_release(&capture->threads[index]);
}
