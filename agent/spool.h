/* A mapped file of fixed size that the agent's own thread writes, and that is whole whenever the
 * process is killed. docs/agent-spool.md is its format.
 *
 * Written by one thread. Room on the disk is taken when the file is created, so that nothing fails
 * later; no system call is needed to write.
 */
#ifndef MACHTRACE_AGENT_SPOOL_H
#define MACHTRACE_AGENT_SPOOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "event.h"

#define MACHTRACE_SPOOL_MAGIC "mtspool\n"
#define MACHTRACE_SPOOL_VERSION 1
#define MACHTRACE_SPOOL_SIZE_MIN (UINT64_C(1) << 18)
#define MACHTRACE_SPOOL_SIZE_MAX (UINT64_C(1) << 36)

/* What the log has; numbers are never reused. */
enum machtrace_spool_kind {
    MACHTRACE_SPOOL_IMAGE = 1,
    MACHTRACE_SPOOL_NODES = 2,
    MACHTRACE_SPOOL_THREAD = 3,
    MACHTRACE_SPOOL_RULE = 4,
    MACHTRACE_SPOOL_INCIDENT = 5,
    MACHTRACE_SPOOL_EVENTS = 6, /* in segments alone */
    MACHTRACE_SPOOL_MARK = 7
};

struct machtrace_spool_record {
    _Atomic uint32_t size; /* with this header, a multiple of 8; 0 where no record is */
    uint16_t kind;
    uint16_t unused;     /* bytes at the end that are no payload */
    uint32_t number;     /* of the record in its region, from 0 */
    uint32_t checksum;   /* of this header up to here, its size included, and of the payload */
};

struct machtrace_spool_segment {
    _Atomic uint64_t number; /* from 1, the higher the later; 0 for an empty one */
    uint64_t first_event;
};

struct machtrace_spool_cell {
    _Atomic uint64_t key; /* 1 << 63 | rule << 32 | stack; 0 for a free one */
    _Atomic uint64_t calls;
};

/* The change of one cell, which is valid while `mark` is not 0. */
struct machtrace_spool_change {
    _Atomic uint64_t mark; /* `folded` after the change, and one */
    uint64_t cell;         /* index; from cell_count on: the calls without stack, by rule */
    uint64_t key;
    uint64_t calls; /* the new value */
};

/* What is counted and not stored; each word is written at once. */
struct machtrace_spool_losses {
    _Atomic uint64_t log_full;      /* records, and stacks of calls, without room in the log */
    _Atomic uint64_t stacks_full;   /* stacks for which the tree had no room */
    _Atomic uint64_t stacks_cut;    /* stacks with more frames than a recorder has room for */
    _Atomic uint64_t events_counted; /* calls that are in cells alone, since a ring was full */
    _Atomic uint64_t without_stack; /* calls whose stack is unknown: too many pairs, or threads */
    _Atomic uint64_t ignored;       /* calls that the agent itself made */
};

enum machtrace_spool_state {
    MACHTRACE_SPOOL_RUNNING = 1,
    MACHTRACE_SPOOL_STOPPED = 2,
    MACHTRACE_SPOOL_ROTATED = 3, /* another file of the process follows */
    MACHTRACE_SPOOL_ENDING = 4   /* the process ends, and all that was recorded is stored */
};

struct machtrace_spool_head {
    char magic[8]; /* written last */
    uint32_t version;
    uint32_t checksum; /* of the bytes behind it up to `state` */
    uint64_t file_size;
    uint64_t log_at, log_size;
    uint64_t cells_at, cell_count;
    uint64_t segments_at, segment_size, segment_count;
    uint64_t calls_at;      /* calls by rule, MACHTRACE_RULES_MAX words */
    uint64_t stackless_at;  /* those of them whose stack is unknown, as many words */
    uint64_t started_at;    /* CLOCK_REALTIME, ns */
    uint64_t started_ticks; /* CLOCK_MONOTONIC, ns */
    uint32_t pid;
    uint32_t machine; /* EM_X86_64 or EM_AARCH64 */
    uint32_t tree_bits;
    uint32_t rule_count;
    unsigned char run[16]; /* random */
    _Atomic uint64_t state;
    _Atomic uint64_t events; /* that were written to segments */
    _Atomic uint64_t folded; /* events whose calls are in cells */
    struct machtrace_spool_change change;
    struct machtrace_spool_losses losses;
};

struct machtrace_spool {
    int file;
    uint64_t size;
    unsigned char *bytes;
    struct machtrace_spool_head *head;
    bool has_earlier; /* a file was at the path, and was moved */
    uint64_t log_used;
    uint32_t log_records;
    uint64_t segment; /* index */
    uint64_t segment_used;
    uint32_t segment_records;
    uint64_t last_segment; /* its number */
};

/* Create the file. An older spool at this path becomes PATH.1, and so on up to PATH.`older`, the
 * last of which is removed. Returns 0 or an errno: EBUSY while an agent writes the file that is
 * there, EINVAL for a size that is none, ENOSPC, EROFS, ... */
int machtrace_spool_create(struct machtrace_spool *spool, const char *path, uint64_t size,
                           uint32_t tree_bits, uint32_t older);

/* Begin another file at the path: the present one is ended and moved as an older one is. It is
 * created beside the path first. Returns 0 or why that failed; then the present one is written on. */
int machtrace_spool_rotate(struct machtrace_spool *spool, const char *path, uint32_t older);

/* The calls by rule so far; for the writer to set. */
_Atomic uint64_t *machtrace_spool_calls(struct machtrace_spool *spool);

/* Append to the log; false where that is full, which is counted. */
bool machtrace_spool_log(struct machtrace_spool *spool, enum machtrace_spool_kind kind,
                         const void *payload, size_t size);

/* Append events. The oldest segment's calls are folded into cells when it is overwritten. */
void machtrace_spool_events(struct machtrace_spool *spool, const struct machtrace_event *events,
                            size_t count);

/* Count calls that have no event. */
void machtrace_spool_count(struct machtrace_spool *spool, uint16_t rule, uint32_t stack,
                           uint64_t calls);

/* Unmap and close; the file stays. */
void machtrace_spool_end(struct machtrace_spool *spool, enum machtrace_spool_state state);

/* In the child of a fork, which has no mapping of the file: close it. */
void machtrace_spool_after_fork(struct machtrace_spool *spool);

#endif
