/* What is done while a thread of another process is stopped, and right after. */
#ifndef MACHTRACE_PTRACE_STOPPED_H
#define MACHTRACE_PTRACE_STOPPED_H

#include "ptrace/ptrace.h"
#include "ptrace/tracee.h"

/* Where stacks are copied to first: allocated and touched before any thread is stopped. */
struct machtrace_scratch {
    unsigned char *stacks[MACHTRACE_STACKS_MAX];
    size_t size; /* of each */
};

/* Room for one thread's stacks at a time. Returns 0, or an errno. */
int machtrace_scratch_take(struct machtrace_scratch *scratch, size_t stack_limit);
void machtrace_scratch_give_back(struct machtrace_scratch *scratch);

/* Copy a stopped thread's registers, and its stacks into `scratch` unless that is NULL. A system call
 * that the stop would make fail is marked for a restart. */
void machtrace_stopped_read(const struct machtrace_capture *capture,
                            const struct machtrace_scratch *scratch,
                            struct machtrace_thread *thread, struct machtrace_stop stop);

/* Resume the thread. */
void machtrace_stopped_release(pid_t thread, struct machtrace_stop stop);

/* Copy a stopped thread and resume it as soon as that is read. */
void machtrace_stopped_copy(const struct machtrace_capture *capture,
                            const struct machtrace_scratch *scratch,
                            struct machtrace_thread *thread, struct machtrace_stop stop);

/* Stop and release a thread that the calling OS thread has seized. If a signal on its way stops it
 * first, that is in `signal`, and the thread stays stopped. Returns 0, or an errno: ESRCH if it has
 * exited, ETIMEDOUT if it did not stop. */
int machtrace_stopped_unseize(pid_t id, int64_t stop_limit, int *signal);

/* Copy threads that the calling OS thread has seized, each stopped for its own copy only. One that
 * something else stopped is copied, too, and stays stopped: its stop is still to be waited for, and
 * handled. Returns 0, or an errno. */
int machtrace_traced_copy_all(struct machtrace_capture *capture);

/* Continue a seized thread, unless something else than its interruption stopped it. */
void machtrace_traced_continue(pid_t thread, struct machtrace_stop stop);

/* Copy threads that are stopped already, and leave them so. Returns 0, or an errno. */
int machtrace_stopped_copy_all(struct machtrace_capture *capture);

#endif
