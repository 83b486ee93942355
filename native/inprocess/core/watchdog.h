/* A thread that watches threads of its own process, and captures them while they hang.
 *
 * Plain C without Python, over capture.h; Linux. Once it runs it allocates nothing and takes no
 * lock, the interpreter's, malloc's and the loader's among them. It polls the watched threads, and
 * copies a thread from 0.6 of the limit on: without a signal if it waits in the kernel, else in the
 * handler of capture.h. It decides no more than when to copy: polls and copies are recorded, and
 * others decide what they mean.
 *
 * The record is memory that may be a file: then it is readable after the process was killed.
 */
#ifndef MACHTRACE_INPROCESS_CORE_WATCHDOG_H
#define MACHTRACE_INPROCESS_CORE_WATCHDOG_H

#include "common/python_layout.h"
#include "inprocess/core/series.h"

#define MACHTRACE_WATCHDOG_THREADS_MAX 64
#define MACHTRACE_WATCHDOG_IDLE_MAX 16
#define MACHTRACE_WATCHDOG_CAPTURES_MAX 40 /* of one incident */
#define MACHTRACE_WATCHDOG_POLLS 4096
#define MACHTRACE_WATCHDOG_INFO 16384 /* bytes of the caller's text in the record */

/* --- the record --- */

#define MACHTRACE_WATCHDOG_MAGIC "machwtc1"

/* The state of what is wrong now, written at every poll; `number` is odd meanwhile. */
struct machtrace_watchdog_line {
    _Atomic uint32_t number;
    uint32_t pid;
    uint32_t thread;  /* the one that is wrong longest; 0 for none */
    uint32_t phase;   /* its enum machtrace_watchdog_phase */
    int64_t at;       /* of this poll: CLOCK_MONOTONIC, in ns */
    int64_t boot_at;  /* CLOCK_BOOTTIME */
    int64_t began_at; /* of what is wrong: CLOCK_MONOTONIC */
    uint64_t incident;
    uint64_t first;   /* the position in the ring of its first record */
    uint64_t polls;   /* in all */
};

struct machtrace_watchdog_head {
    char magic[8];
    uint32_t poll_size, poll_count;
    uint64_t polls_at, ring_at, ring_room; /* offsets in the file, and bytes */
    uint64_t info_size;                    /* of the text behind this structure */
    _Atomic uint64_t published, taken;     /* of the ring */
    struct machtrace_watchdog_line line;
};

/* One poll of a thread. */
struct machtrace_watchdog_poll {
    _Atomic uint64_t number; /* from 1; 0 while it is written */
    int64_t at, boot_at;     /* CLOCK_MONOTONIC and CLOCK_BOOTTIME, in ns */
    int64_t late;            /* of the poll, in ns */
    uint32_t thread;
    uint8_t has_call, is_running, has_schedule, has_status;
    int64_t call; /* of the system call: its number, its arguments, sp and pc */
    uint64_t arguments[6];
    uint64_t sp, pc;
    int64_t ran, delayed; /* ns: the first two numbers of schedstat */
    uint64_t turns;       /* its third number: how often it was given a processor */
    int64_t busy_since;   /* the thread's own statement; MACHTRACE_BEACON_SILENT if there is none */
    uint64_t task;
    uint64_t voluntary, involuntary; /* of status: context switches */
    uint32_t tracer;
    char state, unused[3];
};

/* The records of the ring: those of series.h, and these. The `tick` of a CAPTURE is the number of
 * the incident that it belongs to; its `images_changed` has the bits below. */
enum machtrace_watchdog_kind {
    MACHTRACE_WATCHDOG_PYTHON = 4, /* frames of a thread of the next CAPTURE */
    MACHTRACE_WATCHDOG_MEMORY = 5, /* `count` blocks: see machtrace_python_copy_code */
    MACHTRACE_WATCHDOG_EVENT = 6
};

enum machtrace_watchdog_capture_bits {
    MACHTRACE_WATCHDOG_IMAGES_CHANGED = 1,
    MACHTRACE_WATCHDOG_ALL_THREADS = 2,
    MACHTRACE_WATCHDOG_TOO_LATE = 4 /* what was suspected ended meanwhile */
};

struct machtrace_watchdog_python {
    struct machtrace_series_record record;
    uint64_t thread;
    uint32_t link_count, row_count; /* they follow */
    uint32_t is_truncated, unused;
};

enum machtrace_watchdog_phase {
    MACHTRACE_WATCHDOG_ENDED = 0,
    MACHTRACE_WATCHDOG_SUSPECTED = 1,
    MACHTRACE_WATCHDOG_SEEN = 2 /* the limit was exceeded */
};

enum machtrace_watchdog_cause {
    MACHTRACE_WATCHDOG_THREAD = 0, /* a watched thread did not return to its idle wait */
    MACHTRACE_WATCHDOG_SCOPE = 1,  /* a scope was not left in time */
    MACHTRACE_WATCHDOG_GIL = 2     /* a thread held the interpreter's lock, and others wait */
};

struct machtrace_watchdog_event {
    struct machtrace_series_record record; /* its count is the phase */
    uint64_t incident;
    uint32_t cause, thread;
    int64_t began, at, boot_at; /* ended: `at` is the poll that saw it */
    int64_t last;               /* the last poll before, in the same state */
    int64_t limit;              /* ns */
    uint64_t key;               /* the task, scope or count of switches */
    uint64_t first_poll, poll;  /* numbers of polls */
    uint32_t waiters, waiter;   /* GIL: threads that wait for it, and one of them */
    char label[24];
};

/* --- the watchdog --- */

struct machtrace_watchdog_options {
    int64_t limit;    /* ns that a watched thread may be busy; 0 for scopes alone */
    int64_t interval; /* ns from one poll to the next */
    size_t stack_limit;
    int64_t answer_limit; /* as in struct machtrace_inprocess_capture */
    int64_t sleep_limit;
    int signal;       /* as for machtrace_inprocess_begin */
    size_t room;      /* bytes of the ring */
    size_t text_most; /* bytes of the list of mappings, at most */
    int file;         /* a descriptor that is open for reading and writing, or -1; stays open */
    const char *info; /* the caller's text */
    size_t info_size; /* at most MACHTRACE_WATCHDOG_INFO */
    bool has_layout;  /* whether the layout is set: without it nothing of Python is copied */
    struct machtrace_python_layout layout;
};

struct machtrace_watchdog_counts {
    uint64_t polls, late; /* of the watchdog's own rounds */
    int64_t latest;       /* ns: the longest delay */
    int64_t cpu;          /* ns that the watchdog's thread ran */
    uint64_t captures;    /* that were recorded */
    uint64_t stops;       /* threads that were stopped for a copy */
    int64_t longest_stop; /* ns */
    uint64_t lost;        /* captures for which there was no room, or no turn */
};

struct machtrace_watchdog;

/* NULL with *error set. */
struct machtrace_watchdog *machtrace_watchdog_start(
    const struct machtrace_watchdog_options *options, int *error);

/* Watch a thread, and stop watching it. 0 or an errno: ESRCH no such thread, ENOSPC too many. */
int machtrace_watchdog_watch(struct machtrace_watchdog *watchdog, uint32_t thread);
int machtrace_watchdog_unwatch(struct machtrace_watchdog *watchdog, uint32_t thread);

/* State that a thread that waits in this call, at these addresses, is idle. */
int machtrace_watchdog_add_idle(struct machtrace_watchdog *watchdog, uint32_t thread,
                                int64_t call, uint64_t sp, uint64_t pc);

/* Forget all such calls of a thread. */
void machtrace_watchdog_clear_idle(struct machtrace_watchdog *watchdog, uint32_t thread);

/* Wait until something new was recorded since the news number `seen`, or for this long; returns
 * the number. Something new is an incident that is seen or ended, or a wait of unknown meaning. */
uint32_t machtrace_watchdog_wait(struct machtrace_watchdog *watchdog, uint32_t seen,
                                 int64_t for_ns);

/* Let those who wait return. */
void machtrace_watchdog_wake(struct machtrace_watchdog *watchdog);

/* Take records, as from a series. What belongs to an incident that lasts stays in the record. */
size_t machtrace_watchdog_waiting(const struct machtrace_watchdog *watchdog);
size_t machtrace_watchdog_take(struct machtrace_watchdog *watchdog, unsigned char *to,
                               size_t most);

/* Copy polls from this number on that are still recorded; returns how many. */
size_t machtrace_watchdog_polls(const struct machtrace_watchdog *watchdog, uint64_t first,
                                struct machtrace_watchdog_poll *to, size_t most);

struct machtrace_watchdog_counts machtrace_watchdog_count(
    const struct machtrace_watchdog *watchdog);

/* End the thread, and wait for it; records can still be taken. Any thread may call it, any number
 * of times: each call returns when all is recorded. In the child of a fork there is none. */
void machtrace_watchdog_stop(struct machtrace_watchdog *watchdog);
void machtrace_watchdog_free(struct machtrace_watchdog *watchdog);

#endif
