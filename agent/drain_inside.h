/* The inside of the agent's thread: drain.c has its passes, drain_log.c what it writes to the log. */
#ifndef MACHTRACE_AGENT_DRAIN_INSIDE_H
#define MACHTRACE_AGENT_DRAIN_INSIDE_H

#include <pthread.h>

#include "drain.h"
#include "hooks.h"
#include "images.h"
#include "recorder.h"
#include "spool.h"

#define MACHTRACE_INCIDENT_NODES 4096
#define MACHTRACE_DRAIN_BATCH 512
#define MACHTRACE_DRAIN_PENDING (1u << 16) /* bytes of a record of nodes */

struct machtrace_logged_rule {
    uint32_t state, stacks;
    uint64_t target;
    bool is_logged;
};

struct machtrace_drain {
    struct machtrace_spool spool;
    pthread_t thread;
    uint32_t interval_ms;
    _Atomic uint32_t stops;
    _Atomic uint32_t requested, done; /* passes that a flush waits for */
    pthread_mutex_t lock;             /* of the spool's log, for incidents */

    uint64_t *sent;          /* a bit for each node that is in the spool */
    uint64_t *sent_images;   /* and for each image */
    uint32_t *last_threads;  /* by recorder: the last thread in the spool */
    struct machtrace_logged_rule rules[MACHTRACE_RULES_MAX];

    struct machtrace_drain_options options; /* the path is the next one */
    char path[MACHTRACE_AGENT_PATH_MAX];
    _Atomic bool must_rotate;
    _Atomic int rotation_error;
    uint64_t rotated_at;                  /* or tried */
    pthread_t reporter;                   /* which calls options.finished */
    bool has_reporter, must_report;
    _Atomic bool may_report;
    _Atomic bool is_reporting;
    uint64_t sums[MACHTRACE_RULES_MAX];   /* calls by rule, as stored last */
    uint32_t endings;                     /* of the process, as stored last */
    uint64_t before[MACHTRACE_RULES_MAX]; /* those of earlier spools */
    uint64_t losses[3], losses_before[3];

    uint64_t first_ticks, first_ns, now_ticks, now_ns; /* the clock of events, and CLOCK_MONOTONIC */
    uint64_t swept_at;

    struct machtrace_event batch[MACHTRACE_DRAIN_BATCH];
    uint32_t incident_nodes[MACHTRACE_INCIDENT_NODES]; /* that the log has to have */
    uint32_t incident_node_count;

    uint32_t chain[MACHTRACE_FRAMES_MAX + 2];
    unsigned char pending[MACHTRACE_DRAIN_PENDING];
    size_t pending_size;
    uint32_t pending_image; /* of the last node in it */
    const struct machtrace_agent_image *last_image;
    uint32_t last_era;
};

extern struct machtrace_drain *machtrace_drain;

static inline bool machtrace_bit_is_set(const uint64_t *bits, uint32_t number)
{
    return bits[number / 64] >> number % 64 & 1;
}

/* Whether the image is in the log, also now. */
bool machtrace_drain_send_image(const struct machtrace_agent_image *image);

/* Log a thread, and what changed of rules. */
void machtrace_drain_log_thread(uint32_t number, uint32_t id);
void machtrace_drain_log_rules(void);

/* The node itself, if it and its parents are in the spool or were put there now; else the innermost
 * of its callers that is. */
uint32_t machtrace_drain_send_stack(uint32_t node);

/* Log the nodes that are pending. */
void machtrace_drain_send_nodes(void);

/* Put the stacks of incidents there; and lock the log once it has those of all that it has. */
void machtrace_drain_send_incidents(void);
void machtrace_drain_lock_without_incidents(void);

#endif
