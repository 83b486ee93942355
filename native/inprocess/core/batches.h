/* Copy any number of threads, some at a time, into buffers allocated before. */
#ifndef MACHTRACE_INPROCESS_CORE_BATCHES_H
#define MACHTRACE_INPROCESS_CORE_BATCHES_H

#include "inprocess/core/capture.h"

/* Buffers for the threads of a batch. Reused by the next capture; all zero first. */
struct machtrace_inprocess_buffers {
    unsigned char *bytes;
    size_t count, room;
};

/* Allocate buffers for `count` threads, `stack_limit` bytes for each of two stacks. 0 or errno. */
int machtrace_inprocess_buffers_have(struct machtrace_inprocess_buffers *buffers, size_t count,
                                     size_t stack_limit);

void machtrace_inprocess_buffers_free(struct machtrace_inprocess_buffers *buffers);

/* Copy all threads of a capture, as many at a time as there are buffers; machtrace_inprocess_begin
 * was called. `keep` gets each thread while the buffer still has its stacks. The excess of a buffer
 * that a deep stack needed is released. */
void machtrace_inprocess_copy_all(struct machtrace_inprocess_buffers *buffers,
                                  const struct machtrace_inprocess_capture *all,
                                  void (*keep)(struct machtrace_thread *thread, void *to),
                                  void *to);

#endif
