/* Shared by the parts of inprocess/core/capture.h for Linux. */
#ifndef MACHTRACE_INPROCESS_CORE_LINUX_SHARED_H
#define MACHTRACE_INPROCESS_CORE_LINUX_SHARED_H

#include <stdint.h>
#include <sys/types.h>
#include <time.h>
#include <ucontext.h>

#include "inprocess/core/capture.h"

/* The kernel's facts about a thread. */
#define MACHTRACE_STATE_UNKNOWN '?' /* it cannot be read: there may be no descriptor left */

struct machtrace_thread_status {
    char state; /* as ps shows it; 0 where the thread is gone */
    uint64_t pending, blocked;
};

struct machtrace_thread_status machtrace_status_of(pid_t thread);

/* The text of /proc/self/maps: its size, `room` at most; or -1.
 * Allocates nothing, and takes no lock of this process. */
int64_t machtrace_inprocess_mappings(char *text, size_t room);

/* Request short time slices for the calling thread, which are scheduled sooner: each thread that it
 * signals may run before it continues. It gets no more processor time by that, and needs no right.
 * Linux 6.12 and later support it; others ignore it. */
void machtrace_inprocess_short_turns(void);

/* Copy the calling thread as it was in `context`, in the handler of a signal. */
void machtrace_copy_interrupted(const struct machtrace_inprocess_capture *capture,
                                struct machtrace_thread *thread,
                                const ucontext_t *context);

static inline int64_t machtrace_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

#endif
