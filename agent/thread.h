/* The calling thread and its kernel, as hooks need them: linux/thread.c and darwin/thread.c.
 *
 * No lock is taken and nothing is allocated, errno stays, and none is a cancellation point, except
 * where stated. On Linux no vector register is used; Darwin's stubs save those with arguments.
 */
#ifndef MACHTRACE_AGENT_THREAD_H
#define MACHTRACE_AGENT_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct machtrace_recorder;

#if defined(__APPLE__)
#include "darwin/self.h"
#else
#include "linux/self.h"
#endif

struct machtrace_mapping {
    uint64_t start, end;
    bool is_executable;
};

/* Before the first recorder is taken; whether it succeeded. May allocate. */
bool machtrace_self_begin(void);

/* The thread's number in the kernel; never 0. */
uint32_t machtrace_thread_id(void);
bool machtrace_thread_is_main(void);
bool machtrace_thread_has_ended(uint32_t id); /* false if unknown */

/* Whether an upload has started the calling thread, which has no recorder: its calls are the agent's
 * own from now on. */
#define MACHTRACE_UPLOAD_THREAD "machtrace-send"
bool machtrace_thread_is_of_upload(void);

/* Let its recorder be that of the calling thread, until that ends. */
void machtrace_thread_set_recorder(struct machtrace_recorder *recorder);

/* The bounds of the calling thread's own stack, if it is on that; it may grow below. */
bool machtrace_thread_stack(struct machtrace_recorder *recorder, uint64_t sp, uint64_t *low,
                            uint64_t *high);

/* Whether this is the handler of a signal, on the stack that sigaltstack(2) set. */
bool machtrace_thread_is_on_signal_stack(void);

/* The mapping of an address. Uses the recorder's window. */
bool machtrace_find_mapping(struct machtrace_recorder *recorder, uint64_t address,
                            struct machtrace_mapping *mapping);

/* Copy memory that may be unmapped anywhere; how many bytes, from its start on. */
size_t machtrace_read_memory(uint64_t address, void *to, size_t size);

/* The bits of a return address that are the instruction's address. */
uint64_t machtrace_code_bits(void);

/* CLOCK_MONOTONIC in ns. */
uint64_t machtrace_clock(void);

/* Wait until a word is not what it was, or for some time; and wake who waits for it. */
void machtrace_wait(_Atomic uint32_t *word, uint32_t seen, uint32_t milliseconds);
void machtrace_wake(_Atomic uint32_t *word);

/* A thread's name, as far as there is room for it; its size. May allocate, and take locks. */
size_t machtrace_thread_name(uint32_t id, char *name, size_t room);

/* Copy threads between machtrace_inprocess_begin and _end. May allocate. */
struct machtrace_inprocess_capture;
void machtrace_copy_threads(struct machtrace_inprocess_capture *capture);

#endif
