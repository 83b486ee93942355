/* The inside of the watchdog, shared by its sources alone: see watchdog.h.
 *
 * watchdog.c has the thread and what others call, watchdog_polls.c reads what is watched,
 * watchdog_suspects.c decides when to copy, watchdog_copy.c copies, and watchdog_record.c has the
 * memory that all is written to.
 */
#ifndef MACHTRACE_INPROCESS_CORE_WATCHDOG_INSIDE_H
#define MACHTRACE_INPROCESS_CORE_WATCHDOG_INSIDE_H

#include <pthread.h>
#include <time.h>

#include "inprocess/core/beacon.h"
#include "inprocess/core/linux/thread_files.h"
#include "inprocess/core/watchdog_copy.h"

#define MACHTRACE_FIRST_CAPTURE(limit) ((limit) / 10 * 6)

/* Something that may take too long: a thread's task, a scope, or the interpreter's lock. */
struct machtrace_suspect {
    int64_t began; /* 0 while nothing is */
    uint64_t key;
    int64_t limit;
    int64_t last; /* the poll before, in the same state */
    enum machtrace_watchdog_phase phase;
    uint32_t thread, captures;
    int64_t next_capture, pause;
    uint64_t incident, first_poll;
    uint64_t first; /* the position in the ring of its first record */
    uint32_t waiters, waiter;
    char label[MACHTRACE_LABEL_SIZE];
};

struct machtrace_idle_call {
    int64_t call;
    uint64_t sp, pc;
};

enum machtrace_watched_use { MACHTRACE_FREE, MACHTRACE_USED, MACHTRACE_LEAVING };

struct machtrace_watched {
    _Atomic uint32_t use;
    uint32_t thread;
    struct machtrace_thread_files files;
    _Atomic uint32_t idle_count;
    struct machtrace_idle_call idle[MACHTRACE_WATCHDOG_IDLE_MAX];
    int64_t last_at;   /* of the poll before; 0 if there was none */
    bool has_learnt;   /* whether the reader was woken for the wait that lasts */
    struct machtrace_suspect task;
};

struct machtrace_watchdog {
    struct machtrace_watchdog_options options;
    struct machtrace_copying copying;
    struct machtrace_watchdog_head *head; /* the record; the ring is in it */
    size_t record_size;
    struct machtrace_watchdog_poll *polls;
    struct machtrace_ring ring;
    uint64_t position; /* the reader's */
    _Atomic uint64_t keep; /* what is before it is not needed; UINT64_MAX: all */
    _Atomic uint64_t next_poll;
    uint64_t incidents;
    size_t lasting; /* suspects whose phase is not ENDED */

    struct machtrace_watched watched[MACHTRACE_WATCHDOG_THREADS_MAX];
    struct machtrace_suspect scopes[MACHTRACE_BEACONS_MAX];
    struct machtrace_suspect gil;
    int64_t gil_began; /* the last poll before it was taken; 0 if it is free */
    int64_t gil_at;    /* the poll before */
    int64_t gil_scan;  /* when to look for waiters next */

    int64_t now, boot_now, late;
    _Atomic uint64_t rounds, late_rounds;
    _Atomic int64_t latest, spent; /* the longest delay; the thread's processor time */

    _Atomic uint32_t news, ending, ended; /* futexes */
    _Atomic uint64_t reader;       /* the thread that waits for news */
    pid_t process;
    pthread_t thread;
    bool has_thread;
};

static inline int64_t machtrace_clock_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* --- watchdog_record.c --- */

/* Map the record; 0 or an errno. */
int machtrace_watchdog_have_record(struct machtrace_watchdog *watchdog);

/* Let the reader know that something new was recorded. */
void machtrace_watchdog_notify(struct machtrace_watchdog *watchdog);

/* Let readers take what was written since machtrace_ring_begin; false if it did not fit. */
bool machtrace_watchdog_publish(struct machtrace_watchdog *watchdog);

/* Whether one event, and then the last two of each of `suspects` suspects, are certain to fit. */
bool machtrace_watchdog_has_room(const struct machtrace_watchdog *watchdog, size_t suspects);

/* The suspect's records begin here: older ones may go. */
void machtrace_watchdog_keep_from_here(struct machtrace_watchdog *watchdog,
                                       struct machtrace_suspect *suspect);

/* Record the suspect's phase. */
void machtrace_watchdog_record_event(struct machtrace_watchdog *watchdog,
                                     const struct machtrace_suspect *suspect,
                                     enum machtrace_watchdog_cause cause);

/* Whether half of the ring was written since the first record of the suspect: it should go. */
bool machtrace_watchdog_is_old(const struct machtrace_watchdog *watchdog,
                               const struct machtrace_suspect *suspect);

/* Write the line of the record, of the oldest incident; when something is due next. */
int64_t machtrace_watchdog_record_line(struct machtrace_watchdog *watchdog);

void machtrace_watchdog_record_poll(struct machtrace_watchdog *watchdog,
                                    const struct machtrace_watchdog_poll *poll);

/* --- watchdog_suspects.c --- */

/* Continue something that began then; 0 if nothing did. */
void machtrace_suspect_advance(struct machtrace_watchdog *watchdog,
                               struct machtrace_suspect *suspect,
                               enum machtrace_watchdog_cause cause, int64_t began, uint64_t key);

void machtrace_suspect_end(struct machtrace_watchdog *watchdog, struct machtrace_suspect *suspect,
                           enum machtrace_watchdog_cause cause);

/* --- watchdog_polls.c --- */

/* Poll everything; when something is due next. */
int64_t machtrace_watchdog_poll_all(struct machtrace_watchdog *watchdog);

bool machtrace_watched_is_idle(const struct machtrace_watched *watched,
                               const struct machtrace_thread_call *call);

/* Forget a thread that is not watched any more. */
void machtrace_watched_clean_up(struct machtrace_watchdog *watchdog,
                                struct machtrace_watched *watched);

#endif
