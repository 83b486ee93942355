/* Statements of threads about themselves: when each returned from its idle wait, and its deadline.
 *
 * Plain C without Python. A line of 64 bytes belongs to each thread that states anything; only that
 * thread writes it, watchers read it. Lines are private memory: the child of a fork writes its own.
 */
#ifndef MACHTRACE_INPROCESS_CORE_BEACON_H
#define MACHTRACE_INPROCESS_CORE_BEACON_H

#include <stdatomic.h>
#include <stdint.h>

#define MACHTRACE_BEACONS_MAX 256
#define MACHTRACE_LABEL_SIZE 24

/* busy_since of a thread that has no loop, or left it. */
#define MACHTRACE_BEACON_SILENT (-1)

struct machtrace_beacon {
    _Atomic int64_t busy_since; /* CLOCK_MONOTONIC in ns at the return from the idle wait; 0 in it */
    _Atomic uint64_t task;      /* returns from the idle wait */
    _Atomic int64_t began;      /* of the scope whose deadline is next */
    _Atomic int64_t deadline;   /* CLOCK_MONOTONIC in ns; 0 outside of all scopes */
    _Atomic uint32_t thread;    /* gettid(2); 0 if the line is free */
    _Atomic uint32_t scope;     /* the number of that scope */
    char label[MACHTRACE_LABEL_SIZE]; /* that scope's; ends at a zero, or is full */
};

_Static_assert(sizeof(struct machtrace_beacon) == 64, "a line of the cache");

struct machtrace_scope {
    int64_t began, deadline;
    uint32_t number;
    char label[MACHTRACE_LABEL_SIZE];
    struct machtrace_beacon *line; /* NULL if there was none */
};

/* All lines, and how many were ever in use. */
extern struct machtrace_beacon machtrace_beacons[MACHTRACE_BEACONS_MAX];
extern _Atomic uint32_t machtrace_beacon_count;

/* The calling thread's line; NULL if there are too many threads. It is free again when the thread
 * exits. */
struct machtrace_beacon *machtrace_own_beacon(void);

/* The line of a thread; NULL if it states nothing. */
struct machtrace_beacon *machtrace_beacon_of(uint32_t thread);

/* The calling thread enters its idle wait, and returns from it. */
void machtrace_beacon_idle(void);
void machtrace_beacon_busy(void);

/* Enter a scope that should be left within `limit` ns, and leave it. Of nested ones the line has
 * that whose deadline is next. */
void machtrace_scope_enter(struct machtrace_scope *outer, int64_t limit, const char *label);
void machtrace_scope_leave(const struct machtrace_scope *outer);

#endif
