#define _GNU_SOURCE
#include "ptrace/tracee.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

int64_t machtrace_now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

char machtrace_thread_state(pid_t thread)
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

int machtrace_start_tracer(pthread_t *tracer, void *(*run)(void *), void *argument)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    int error = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (error != 0)
        return error;
    error = pthread_create(tracer, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

bool machtrace_request_stop(struct machtrace_thread *thread)
{
    if (ptrace(PTRACE_SEIZE, (pid_t)thread->id, NULL, NULL) == -1) {
        thread->error = errno;
        thread->outcome = errno == ESRCH ? MACHTRACE_GONE : MACHTRACE_REFUSED;
        return false;
    }
    return machtrace_interrupt(thread);
}

bool machtrace_interrupt(struct machtrace_thread *thread)
{
    thread->requested_at = machtrace_now();
    if (ptrace(PTRACE_INTERRUPT, (pid_t)thread->id, NULL, NULL) == -1) {
        thread->error = errno;
        thread->outcome = MACHTRACE_GONE;
        return false;
    }
    return true;
}

/* `code` is a signal with, above it, a ptrace event. */
static struct machtrace_stop stop_of(int code)
{
    struct machtrace_stop stop = {0, false};
    if (code >> 8 == 0)
        stop.signal = code & 0xff; /* a signal on its way to the thread */
    else
        /* otherwise job control's stop, or an event that a longer trace requested */
        stop.by_interrupt = code == (SIGTRAP | PTRACE_EVENT_STOP << 8);
    return stop;
}

enum machtrace_event machtrace_poll_event(pid_t thread, struct machtrace_stop *stop)
{
    siginfo_t event;
    event.si_pid = 0;
    if (waitid(P_PID, (id_t)thread, &event, WSTOPPED | WEXITED | WNOWAIT | WNOHANG | __WALL) == -1)
        return errno == ECHILD ? MACHTRACE_EXITED : MACHTRACE_NO_EVENT;
    if (event.si_pid == 0)
        return MACHTRACE_NO_EVENT;
    if (event.si_code != CLD_TRAPPED && event.si_code != CLD_STOPPED)
        return MACHTRACE_EXITED;
    *stop = stop_of(event.si_status);
    return MACHTRACE_STOPPED;
}

enum machtrace_event machtrace_poll_stop(pid_t thread, struct machtrace_stop *stop)
{
    siginfo_t signal;
    if (ptrace(PTRACE_GETSIGINFO, thread, NULL, &signal) != 0)
        return MACHTRACE_NO_EVENT;
    bool is_event = signal.si_code >> 8 == PTRACE_EVENT_STOP;
    *stop = stop_of(is_event ? signal.si_code : signal.si_signo);
    return MACHTRACE_STOPPED;
}

bool machtrace_is_overdue(const struct machtrace_capture *limits, struct machtrace_thread *thread,
                          int64_t *awake)
{
    char state = machtrace_thread_state((pid_t)thread->id);
    if (state == 'Z' || state == 'X') {
        /* The exit of a main thread is reported only once all others of its process are collected,
         * and those that are traced here are when this OS thread ends. */
        thread->outcome = MACHTRACE_GONE;
        return true;
    }
    bool sleeps = state == 'D';
    int64_t now = machtrace_now();
    if (!sleeps || *awake == 0)
        *awake = now;
    if (now - thread->requested_at < limits->stop_limit && now - *awake < limits->sleep_limit)
        return false;
    thread->outcome = MACHTRACE_NOT_STOPPED;
    thread->uninterruptible = sleeps;
    return true;
}
