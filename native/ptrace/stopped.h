/* What is done while a thread of another process stands still, and right after. */
#ifndef MACHTRACE_LINUX_STOPPED_H
#define MACHTRACE_LINUX_STOPPED_H

#include <stdbool.h>

#include "ptrace/ptrace.h"

/* Where stacks are copied to before they are kept: allocated and touched beforehand. */
struct machtrace_scratch {
    unsigned char *stacks[MACHTRACE_STACKS_MAX];
    size_t size; /* of each */
};

struct machtrace_stop {
    int signal;        /* to hand back on release; 0 for none */
    bool by_interrupt; /* our own PTRACE_INTERRUPT, and nothing else, stopped it */
};

/* Room for one thread's stacks at a time. Returns 0, or an errno. */
int machtrace_scratch_take(struct machtrace_scratch *scratch, size_t stack_limit);
void machtrace_scratch_give_back(struct machtrace_scratch *scratch);

/* Copy a thread that stands still, let it go, and keep the copy. */
void machtrace_stopped_copy(const struct machtrace_capture *capture,
                            const struct machtrace_scratch *scratch,
                            struct machtrace_thread *thread, struct machtrace_stop stop);

/* Let it go. */
void machtrace_stopped_release(pid_t thread, struct machtrace_stop stop);

/* CLOCK_MONOTONIC, in ns. */
int64_t machtrace_now(void);

#endif
