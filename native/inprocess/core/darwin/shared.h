/* The parts of the capture core for Darwin, for one another; see inprocess/core/capture.h. */
#ifndef MACHTRACE_INPROCESS_CORE_DARWIN_SHARED_H
#define MACHTRACE_INPROCESS_CORE_DARWIN_SHARED_H

#include <mach/mach.h>

#include "inprocess/core/capture.h"

/* --- threads by id: threads.c --- */

struct machtrace_thread_port {
    thread_act_t port;   /* MACH_PORT_NULL if there is none of this id */
    kern_return_t error; /* why it may not be found though it is there, or not be stopped; or 0 */
    uint64_t pthread;
};

/* Find the threads of a capture; `ports` has an element for each. Allocates, so nothing may be
 * stopped. Never the calling thread: suspended, it would stay so. The ports are cached, and queried
 * again only for threads that are not among them, until machtrace_threads_release. One thread at a
 * time may call these two. */
kern_return_t machtrace_threads_find(const struct machtrace_inprocess_capture *capture,
                                     struct machtrace_thread_port *ports);

void machtrace_threads_release(void);

/* In the child of a fork, where the ports are nobody's. */
void machtrace_threads_forget(void);

/* --- copying: copy.c --- */

/* Copy registers and stack of a suspended thread; calls nothing but the kernel. */
void machtrace_copy_suspended(const struct machtrace_inprocess_capture *capture,
                              struct machtrace_thread *thread, thread_act_t port);

#endif
