/* The watchdog of the agent: what goes wrong in this process, with stacks of that time.
 *
 * The decisions are those of inprocess/core/watchdog*.c, the watchdog of Python's `self`. This one
 * has another half below it: stacks become nodes of the tree, and incidents records of the spool.
 */
#ifndef MACHTRACE_AGENT_WATCHDOG_H
#define MACHTRACE_AGENT_WATCHDOG_H

#include <stdint.h>

#include "machtrace.h"

enum machtrace_incident_kind {
    MACHTRACE_INCIDENT_HANG = 1,
    MACHTRACE_INCIDENT_CPU = 2,
    MACHTRACE_INCIDENT_MEMORY = 3
};

enum machtrace_incident_phase {
    MACHTRACE_INCIDENT_SEEN = 1,
    MACHTRACE_INCIDENT_LASTS = 2,
    MACHTRACE_INCIDENT_ENDED = 3
};

enum machtrace_incident_verdict {
    MACHTRACE_VERDICT_UNKNOWN = 0,
    MACHTRACE_VERDICT_BLOCKED = 1,
    MACHTRACE_VERDICT_BUSY = 2,
    MACHTRACE_VERDICT_STARVED = 3,
    MACHTRACE_VERDICT_STOPPED = 4,
    MACHTRACE_VERDICT_UNINTERRUPTIBLE = 5
};

enum machtrace_incident_stack_flags {
    MACHTRACE_INCIDENT_SEARCHED = 1, /* callers were found by a search for frame records */
    MACHTRACE_INCIDENT_TOO_LATE = 2  /* the thread did something else meanwhile */
};

struct machtrace_incident_stack {
    int64_t at;
    uint32_t node, thread;
    uint32_t flags, unused;
};

#define MACHTRACE_INCIDENT_STACKS_MAX 40 /* of one record */

/* The payload of a record; docs/agent-spool.md describes it. */
struct machtrace_incident_record {
    uint32_t number;
    uint8_t kind, phase, verdict, is_certain;
    uint32_t thread, stack_count;
    int64_t began, at, late; /* ns */
    int64_t limit, value;    /* ns; percent of a processor; bytes */
    int64_t span;            /* ns that the differences below are of */
    int64_t ran, delayed;    /* ns */
    uint64_t turns, voluntary, involuntary, faults;
    int64_t call;
    struct machtrace_incident_stack stacks[MACHTRACE_INCIDENT_STACKS_MAX];
};

/* Begin to watch, if the options state anything. 0 or an errno. */
int machtrace_incidents_begin(const machtrace_options_t *options);
void machtrace_incidents_end(void);

/* Watch the calling thread. Not while another thread calls one of these. */
int machtrace_incidents_watch(void);

void machtrace_incidents_after_fork(void);

#endif
