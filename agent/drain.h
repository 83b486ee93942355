/* The agent's own thread, which moves events from rings to the spool. */
#ifndef MACHTRACE_AGENT_DRAIN_H
#define MACHTRACE_AGENT_DRAIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "spool.h"

struct machtrace_drain_options {
    const char *path;
    uint64_t size;
    uint32_t older, interval_ms, rotate_seconds;
    void (*finished)(const char *path, void *context); /* or NULL; by a thread of its own */
    void *context;
};

/* Create the spool and start the thread. Returns 0 or an errno. */
int machtrace_drain_begin(const struct machtrace_drain_options *options);

/* From now on, `finished` may be called: the thread that does cannot be stopped, so that not all code
 * can be changed while it runs. */
void machtrace_drain_report(void);

/* Begin another spool once no `finished` runs, and return then: 0 or why it failed. */
int machtrace_drain_rotate(void);

/* Whether the function `finished` calls this, and is to return. */
bool machtrace_drain_is_ending(void);

/* Return once what was recorded before is in the spool. */
void machtrace_drain_flush(void);

/* Drain for the last time, and end the thread and the spool. Nothing is recorded any more. */
void machtrace_drain_end(void);

/* Whether a record was stored. By any thread; copied before it returns. */
bool machtrace_drain_log(enum machtrace_spool_kind kind, const void *payload, uint32_t size);

/* Whether a record of an incident was stored, at once; its stacks follow. By any thread between begin
 * and end. */
bool machtrace_drain_incident(const void *payload, uint32_t size, const uint32_t *nodes,
                              uint32_t count);

void machtrace_drain_after_fork(void);

/* While code is changed that it may execute, the agent's thread, which no signal stops, waits in a
 * system call of its own. Set the first, and then read the last. */
extern _Atomic bool machtrace_code_changes;
extern _Atomic uint32_t machtrace_drain_thread; /* the kernel's number; 0 while it does not run */
extern _Atomic bool machtrace_drain_is_parked;

#endif
