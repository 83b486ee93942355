/* The copy of one thread, as every capture returns it: of another Linux process (ptrace), of this
 * process (inprocess), of another task of macOS (darwin_task).
 *
 * Plain C without Python; common/thread_rows.h has its row in Python.
 */
#ifndef MACHTRACE_COMMON_THREAD_H
#define MACHTRACE_COMMON_THREAD_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* As debuggers get them. Linux: NT_PRSTATUS, 272 bytes on aarch64, 216 on x86-64, 72 on arm, 68 on
 * i386. Darwin: arm_thread_state64_t, 272 bytes; x86_thread_state64_t, 168. */
#define MACHTRACE_REGISTERS_MAX 272

/* The stack that the thread is on; and, of one that is in a signal handler on the alternate
 * stack, the stack that the signal interrupted. */
#define MACHTRACE_STACKS_MAX 2

enum machtrace_outcome {
    MACHTRACE_COPIED = 0,
    MACHTRACE_GONE = 1,        /* it exited before it could be copied */
    MACHTRACE_REFUSED = 2,     /* the system did not let it be stopped; see error */
    MACHTRACE_NOT_STOPPED = 3, /* it did not stop within the limit, and continues */
    MACHTRACE_FAILED = 4,      /* it was stopped, but could not be copied; see error */
    MACHTRACE_BLOCKED = 5,     /* this process: it blocks the signal that would stop it */
    /* This process, Darwin: it was stopped, and could not be resumed. What was copied is valid. */
    MACHTRACE_LEFT_STOPPED = 6
};

struct machtrace_range {
    uint64_t start;
    uint64_t end;
};

struct machtrace_stack {
    uint64_t start; /* address in the thread's process */
    size_t size;
    unsigned char *bytes; /* NULL if size is 0 */
};

struct machtrace_thread {
    /* Set by the caller. */
    uint64_t id; /* Linux: of the kernel, gettid(2); Darwin: thread_identifier_info.thread_id */
    unsigned char *buffer; /* this process: where its stacks are copied to */
    size_t room;           /* bytes of buffer; what does not fit is not copied */

    enum machtrace_outcome outcome;
    int error;                     /* an errno or kern_return_t, or 0 */
    unsigned char uninterruptible; /* NOT_STOPPED: it was in uninterruptible sleep */
    /* This process: its pthread_self(). A Darwin task: the dispatch_queue_t that it was serving.
     * 0 if unknown, or if there was none. */
    uint64_t pthread_or_queue;
    unsigned char registers[MACHTRACE_REGISTERS_MAX];
    size_t registers_size; /* distinguishes 32-bit and 64-bit threads */
    struct machtrace_stack stacks[MACHTRACE_STACKS_MAX];
    size_t stack_count;
    /* Monotonic clock, in ns: when the stop was requested, when the thread was stopped, and when
     * it was resumed. It did not run for at most resumed - requested. */
    int64_t requested_at;
    int64_t stopped_at;
    int64_t resumed_at;
};

/* Set everything but what the caller sets. */
static inline void machtrace_thread_begin(struct machtrace_thread *thread,
                                          enum machtrace_outcome outcome, int error, int64_t now)
{
    thread->outcome = outcome;
    thread->error = error;
    thread->uninterruptible = 0;
    thread->pthread_or_queue = 0;
    thread->registers_size = 0;
    thread->stack_count = 0;
    thread->requested_at = thread->stopped_at = thread->resumed_at = now;
}

/* Copy the stacks out of shared buffers, into memory that the thread owns. */
static inline void machtrace_thread_keep(struct machtrace_thread *thread)
{
    for (size_t index = 0; index < thread->stack_count; index++) {
        struct machtrace_stack *stack = &thread->stacks[index];
        if (stack->size == 0)
            continue;
        unsigned char *copy = malloc(stack->size);
        if (copy != NULL) {
            memcpy(copy, stack->bytes, stack->size);
        } else {
            stack->size = 0;
            thread->outcome = MACHTRACE_FAILED;
            thread->error = ENOMEM;
        }
        stack->bytes = copy;
    }
}

/* Free the stacks that a thread owns. */
static inline void machtrace_thread_release(struct machtrace_thread *thread)
{
    for (size_t index = 0; index < thread->stack_count; index++)
        free(thread->stacks[index].bytes);
}

#endif
