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

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* NT_PRSTATUS is 272 bytes on aarch64, 216 on x86-64, 72 on arm, 68 on i386. */
#define MACHTRACE_REGISTERS_MAX 512

/* A thread inside a signal handler can be on an alternate stack; the stack that
 * the signal interrupted is then copied too. */
#define MACHTRACE_STACKS_MAX 2

enum machtrace_outcome {
    MACHTRACE_COPIED = 0,
    MACHTRACE_GONE = 1,        /* it exited before it could be copied */
    MACHTRACE_REFUSED = 2,     /* PTRACE_SEIZE failed; see error */
    MACHTRACE_NOT_STOPPED = 3, /* it did not stop within the limit */
    MACHTRACE_FAILED = 4       /* it stopped, but could not be copied; see error */
};

struct machtrace_range {
    uint64_t start;
    uint64_t end;
};

struct machtrace_stack {
    uint64_t start; /* address in the other process */
    size_t size;
    unsigned char *bytes; /* owned; NULL if size is 0 */
};

struct machtrace_thread {
    pid_t id; /* set by the caller; all else is set here */
    enum machtrace_outcome outcome;
    int error;                    /* an errno, or 0 */
    unsigned char uninterruptible; /* NOT_STOPPED: it was in uninterruptible sleep */
    unsigned char registers[MACHTRACE_REGISTERS_MAX];
    size_t registers_size; /* distinguishes 32-bit and 64-bit threads */
    struct machtrace_stack stacks[MACHTRACE_STACKS_MAX];
    size_t stack_count;
    /* CLOCK_MONOTONIC, in ns: when the stop was requested, seen, and ended. The
     * thread did not run for at most resumed - requested. */
    int64_t requested_at;
    int64_t stopped_at;
    int64_t resumed_at;
};

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

/* Free the stacks of one thread. */
void machtrace_thread_release(struct machtrace_thread *thread);

/* Free the stacks of all threads. */
void machtrace_capture_release(struct machtrace_capture *capture);

#endif
