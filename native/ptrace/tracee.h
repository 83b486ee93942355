/* One thread of another process under ptrace: request its stop, wait for it, and what the kernel
 * reports meanwhile. Everything here is called by the OS thread that seized it. */
#ifndef MACHTRACE_PTRACE_TRACEE_H
#define MACHTRACE_PTRACE_TRACEE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ptrace/ptrace.h"

/* A thread on another CPU stops within tens of microseconds, less than a sleep takes to end: poll
 * without a pause that long. A yield would wait for a whole turn of whatever else wants this CPU,
 * while a thread may have stopped. */
#define MACHTRACE_PATIENCE_NS 100000
#define MACHTRACE_FIRST_SLEEP_NS 20000
#define MACHTRACE_MAX_SLEEP_NS 1000000

struct machtrace_stop {
    int signal;        /* to deliver on release; 0 for none */
    bool by_interrupt; /* our own PTRACE_INTERRUPT, and nothing else, stopped it */
};

enum machtrace_event { MACHTRACE_NO_EVENT, MACHTRACE_EXITED, MACHTRACE_STOPPED };

/* CLOCK_MONOTONIC, in ns. */
int64_t machtrace_now(void);

/* The letter of the thread's state as proc(5) shows it; 0 if it is gone. Allocates nothing. */
char machtrace_thread_state(pid_t thread);

/* Start the only OS thread that makes ptrace calls for one capture, with all signals blocked.
 * Returns 0, or an errno. */
int machtrace_start_tracer(pthread_t *tracer, void *(*run)(void *), void *argument);

/* Seize the thread and interrupt it. If that fails, false with the outcome set; it is seized all
 * the same if requested_at is set. */
bool machtrace_request_stop(struct machtrace_thread *thread);

/* Interrupt a thread that the calling OS thread has seized. If that fails, false with the outcome
 * set. */
bool machtrace_interrupt(struct machtrace_thread *thread);

/* What the kernel reports of the thread. Nothing is reaped: if the target is our own child, its
 * exit status belongs to the code that started it; the kernel releases zombies that we trace when
 * this OS thread ends. */
enum machtrace_event machtrace_poll_event(pid_t thread, struct machtrace_stop *stop);

/* Another thread of this process can consume our event in a waitpid(-1); the stop itself remains
 * visible. */
enum machtrace_event machtrace_poll_stop(pid_t thread, struct machtrace_stop *stop);

/* Whether waiting for the thread should end; its outcome is then set. `awake` is when it was last
 * seen in no uninterruptible sleep, 0 at first. */
bool machtrace_is_overdue(const struct machtrace_capture *limits, struct machtrace_thread *thread,
                          int64_t *awake);

#endif
