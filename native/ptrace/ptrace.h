/* Copy threads of another Linux process: stop, copy, resume, each for its own copy only.
 *
 * Plain C without Python. See docs/decisions/0005-stop-copy-resume-in-c.md.
 *
 * A thread is seized (ptrace(2), PTRACE_SEIZE) when its stop is requested. A signal
 * that reaches it meanwhile is delivered on release, and a thread that
 * job control had stopped stays stopped.
 */
#ifndef MACHTRACE_PTRACE_PTRACE_H
#define MACHTRACE_PTRACE_PTRACE_H

#include "common/thread.h"

struct machtrace_capture {
    const struct machtrace_range *mappings; /* by address; stacks are copied to their ends */
    size_t mapping_count;
    size_t stack_limit;  /* bytes of each stack, its red zone not counted */
    int64_t stop_limit;  /* ns to wait for a thread to stop */
    int64_t sleep_limit; /* ns that one may stay in uninterruptible sleep */
    struct machtrace_thread *threads;
    size_t thread_count;
};

/* Copy every thread. All ptrace calls are made by one new OS thread, which
 * has ended (and the kernel has released whatever it still traced) on return.
 * Returns 0, or an errno if the setup failed: then nothing was stopped. */
int machtrace_capture_run(struct machtrace_capture *capture);

/* Free the stacks of all threads. */
void machtrace_capture_release(struct machtrace_capture *capture);

#endif
