/* Who is asked to stop, and when; what is done with who stopped is in stopped.c. */
#define _GNU_SOURCE
#include "ptrace/ptrace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ptrace/stopped.h"

/* A thread on another CPU stops within tens of microseconds, less than a sleep takes to end: look
 * without pause that long. To yield instead is to wait for a whole turn of whatever else wants this
 * CPU, while a thread may have stopped. */
#define PATIENCE_NS 100000
#define FIRST_SLEEP_NS 20000
#define LONGEST_SLEEP_NS 1000000

/* Threads that were asked and have not stopped yet, at most: they wait for a CPU, each for its own
 * turn, and all at once. */
#define PENDING_MOST 16

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

enum event { EVENT_NONE, EVENT_EXITED, EVENT_STOPPED };

/* A thread that was asked to stop. */
struct pending {
    struct machtrace_thread *thread;
    int64_t awake; /* when it was last seen in no uninterruptible sleep; 0 before the first look */
    bool is_late;  /* it is not waited for any more; it is let go once it stops */
};

struct job {
    struct machtrace_capture *capture;
    struct machtrace_scratch scratch;
    size_t next; /* the thread to ask */
};

/* What one OS thread has asked. */
struct tracer {
    struct job *job;
    struct pending pending[PENDING_MOST];
    size_t count;
    bool must_end; /* it traces what it cannot let go of */
};

/* The letter of the state that the kernel shows the thread in; 0 where it shows none. Allocates
 * nothing. */
static char state_of(pid_t thread)
{
    char path[32];
    char text[128];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)thread);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return '\0';
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0)
        return '\0';
    text[size] = '\0';
    /* "tid (name) state ...": a name may itself hold a parenthesis. */
    const char *after_name = strrchr(text, ')');
    return after_name != NULL && after_name[1] == ' ' ? after_name[2] : '\0';
}

/* `code` is a signal with, above it, a ptrace event. */
static struct machtrace_stop trapped(int code)
{
    struct machtrace_stop stop = {0, false};
    if (code >> 8 == 0)
        stop.signal = code & 0xff; /* a signal on its way to the thread */
    else
        stop.by_interrupt = (code & 0xff) == SIGTRAP; /* otherwise job control's stop */
    return stop;
}

/* Nothing is reaped: if the target is our own child, its exit status is for
 * whoever started it, and zombies that we trace are the kernel's to hand on when
 * this OS thread ends. */
static enum event look(pid_t thread, struct machtrace_stop *stop)
{
    siginfo_t event;
    event.si_pid = 0;
    if (waitid(P_PID, (id_t)thread, &event, WSTOPPED | WEXITED | WNOWAIT | WNOHANG | __WALL) == -1)
        return errno == ECHILD ? EVENT_EXITED : EVENT_NONE;
    if (event.si_pid == 0)
        return EVENT_NONE;
    if (event.si_code != CLD_TRAPPED && event.si_code != CLD_STOPPED)
        return EVENT_EXITED;
    *stop = trapped(event.si_status);
    return EVENT_STOPPED;
}

/* Another thread of this process can take our event in a waitpid(-1); the stop itself still
 * shows. */
static enum event look_closely(pid_t thread, struct machtrace_stop *stop)
{
    siginfo_t signal;
    if (ptrace(PTRACE_GETSIGINFO, thread, NULL, &signal) != 0)
        return EVENT_NONE;
    bool is_event = signal.si_code >> 8 == PTRACE_EVENT_STOP;
    *stop = trapped(is_event ? signal.si_code : signal.si_signo);
    return EVENT_STOPPED;
}

static void ask_next(struct tracer *tracer)
{
    struct job *job = tracer->job;
    struct machtrace_thread *thread = &job->capture->threads[job->next++];
    if (ptrace(PTRACE_SEIZE, thread->id, NULL, NULL) == -1) {
        thread->error = errno;
        thread->outcome = errno == ESRCH ? MACHTRACE_GONE : MACHTRACE_REFUSED;
        return;
    }
    thread->asked_at = machtrace_now();
    if (ptrace(PTRACE_INTERRUPT, thread->id, NULL, NULL) == -1) {
        thread->error = errno;
        thread->outcome = MACHTRACE_GONE;
        tracer->must_end = true;
        return;
    }
    tracer->pending[tracer->count++] = (struct pending){thread, 0, false};
}

/* Whether the thread is pending no more. */
static bool settle(struct tracer *tracer, struct pending *pending, enum event event,
                   struct machtrace_stop stop)
{
    struct job *job = tracer->job;
    if (event == EVENT_NONE)
        return false;
    if (event == EVENT_EXITED) {
        if (!pending->is_late)
            pending->thread->outcome = MACHTRACE_GONE;
        tracer->must_end = true;
    } else if (pending->is_late) {
        machtrace_stopped_release(pending->thread->id, stop);
    } else {
        machtrace_stopped_copy(job->capture, &job->scratch, pending->thread, stop);
    }
    return true;
}

/* Look at all that are pending, the last that was asked first: it is the one that may stop within
 * microseconds. Whether anything was settled. */
static bool sweep(struct tracer *tracer, bool closely)
{
    bool any = false;
    for (size_t index = tracer->count; index-- > 0;) {
        struct pending *pending = &tracer->pending[index];
        struct machtrace_stop stop = {0, false};
        enum event event = look(pending->thread->id, &stop);
        if (event == EVENT_NONE && closely)
            event = look_closely(pending->thread->id, &stop);
        if (settle(tracer, pending, event, stop)) {
            any = true;
            tracer->count--;
            memmove(pending, pending + 1, (tracer->count - index) * sizeof *pending);
        }
    }
    return any;
}

/* Wait no more for threads that take too long. Returns how many are waited for still. */
static size_t give_up(struct tracer *tracer)
{
    const struct machtrace_capture *limits = tracer->job->capture;
    size_t left = 0;
    for (size_t index = 0; index < tracer->count; index++) {
        struct pending *pending = &tracer->pending[index];
        struct machtrace_thread *thread = pending->thread;
        if (pending->is_late)
            continue;
        char state = state_of(thread->id);
        if (state == 'Z' || state == 'X') {
            /* Of a main thread nobody is told until all others of its process are collected, and
             * those that are traced here are when this OS thread ends. */
            thread->outcome = MACHTRACE_GONE;
            pending->is_late = true;
            tracer->must_end = true;
            continue;
        }
        bool sleeps = state == 'D';
        int64_t at = machtrace_now();
        if (!sleeps || pending->awake == 0)
            pending->awake = at;
        if (at - thread->asked_at >= limits->stop_limit ||
            at - pending->awake >= limits->sleep_limit) {
            thread->outcome = MACHTRACE_NOT_STOPPED;
            thread->uninterruptible = sleeps;
            pending->is_late = true;
            tracer->must_end = true;
        } else {
            left++;
        }
    }
    return left;
}

/* Whether another thread may be asked. */
static bool may_ask(const struct tracer *tracer)
{
    return !tracer->must_end && tracer->count < PENDING_MOST &&
           tracer->job->next < tracer->job->capture->thread_count;
}

/* The OS thread that seized a thread is its only tracer, and cannot let go of one
 * that does not stop; but when it ends, the kernel releases all that it traced. So
 * it ends then, and another goes on: the one that wakes late is not to stand still
 * until all others are copied.
 *
 * A thread that stops at once is copied before the next is asked, so that each stands still for
 * its own copy only. One that does not, for it has to wait for its turn on a CPU, runs on until
 * then: meanwhile others are asked. */
static void *copy_on(void *argument)
{
    struct tracer tracer = {.job = argument};
    bool shares_cpu = sysconf(_SC_NPROCESSORS_ONLN) < 2;
    prctl(PR_SET_TIMERSLACK, 1000);
    int64_t since = machtrace_now(); /* of the last that was done */
    long sleep_ns = FIRST_SLEEP_NS;
    for (;;) {
        if (tracer.count == 0) {
            if (!may_ask(&tracer))
                return NULL;
            ask_next(&tracer);
            since = machtrace_now();
        }
        if (sweep(&tracer, false)) {
            since = machtrace_now();
            sleep_ns = FIRST_SLEEP_NS;
            if (may_ask(&tracer))
                ask_next(&tracer);
            continue;
        }
        if (!shares_cpu && machtrace_now() - since < PATIENCE_NS)
            continue;
        if (sweep(&tracer, true))
            continue;
        if (may_ask(&tracer)) {
            ask_next(&tracer);
            since = machtrace_now();
            continue;
        }
        if (give_up(&tracer) == 0)
            return NULL;
        nanosleep(&(struct timespec){0, sleep_ns}, NULL);
        if (sleep_ns < LONGEST_SLEEP_NS)
            sleep_ns *= 2;
    }
}

static int run_in_own_thread(struct job *job)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    int error = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (error != 0)
        return error;
    pthread_t tracer;
    error = pthread_create(&tracer, NULL, copy_on, job);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error != 0 ? error : pthread_join(tracer, NULL);
}

int machtrace_capture_run(struct machtrace_capture *capture)
{
    struct job job = {.capture = capture};
    int error = machtrace_scratch_take(&job.scratch, capture->stack_limit);
    if (error != 0)
        return error;
    while (error == 0 && job.next < capture->thread_count)
        error = run_in_own_thread(&job);
    machtrace_scratch_give_back(&job.scratch);
    return error;
}

void machtrace_capture_release(struct machtrace_capture *capture)
{
    for (size_t thread = 0; thread < capture->thread_count; thread++)
        for (size_t index = 0; index < capture->threads[thread].stack_count; index++)
            free(capture->threads[thread].stacks[index].bytes);
}
