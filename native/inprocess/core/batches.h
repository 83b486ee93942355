/* Copying any number of threads, some at a time, into buffers that are there before. */
#ifndef MACHTRACE_OWN_BATCHES_H
#define MACHTRACE_OWN_BATCHES_H

#include "inprocess/core/capture.h"

/* Buffers for the threads of a batch. Reused by the next capture; all zero first. */
struct machtrace_own_buffers {
    unsigned char *bytes;
    size_t count, room;
};

/* Allocate buffers for `count` threads, `stack_limit` bytes for each of two stacks. 0 or errno. */
int machtrace_own_buffers_have(struct machtrace_own_buffers *buffers, size_t count,
                               size_t stack_limit);

void machtrace_own_buffers_free(struct machtrace_own_buffers *buffers);

/* Copy all threads of a capture, as many at a time as there are buffers; machtrace_own_begin was
 * called. `keep` gets each thread while the buffer still has its stacks. What a deep stack took of
 * a buffer is given back. */
void machtrace_own_copy_all(struct machtrace_own_buffers *buffers,
                            const struct machtrace_own_capture *all,
                            void (*keep)(struct machtrace_own_thread *thread, void *to), void *to);

#endif
