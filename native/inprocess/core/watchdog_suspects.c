/* What the watchdog suspects: when it is copied, reported and over. */
#define _GNU_SOURCE
#include "inprocess/core/watchdog_inside.h"

#define PAUSE_MAX 1000000000 /* ns between two captures of one incident */

/* Whether what a suspect did is still the same: else a copy may be of what came next. */
static bool is_still(const struct machtrace_watchdog *watchdog,
                     const struct machtrace_suspect *suspect, enum machtrace_watchdog_cause cause)
{
    struct machtrace_gil gil;
    const struct machtrace_beacon *line = machtrace_beacon_of(suspect->thread);
    switch (cause) {
    case MACHTRACE_WATCHDOG_GIL:
        machtrace_python_read_gil(&watchdog->options.layout, &gil);
        return gil.is_locked && gil.switches == suspect->key;
    case MACHTRACE_WATCHDOG_SCOPE:
        return line != NULL && atomic_load(&line->scope) == suspect->key &&
               atomic_load(&line->deadline) != 0;
    default:
        return suspect->key == 0 || line == NULL ||
               (atomic_load(&line->task) == suspect->key && atomic_load(&line->busy_since) > 0);
    }
}

static void capture(struct machtrace_watchdog *watchdog, struct machtrace_suspect *suspect,
                    enum machtrace_watchdog_cause cause, bool all)
{
    const uint64_t one[1] = {suspect->thread};
    struct machtrace_copying *copying = &watchdog->copying;
    if (suspect->captures == 0)
        machtrace_copying_forget(copying); /* an incident's records are complete */
    size_t count = 1;
    const uint64_t *threads = one;
    if (all)
        count = machtrace_copying_list(copying, &threads);
    machtrace_copying_capture(copying, &watchdog->ring, threads, count);
    bool is_same = is_still(watchdog, suspect, cause);
    uint64_t bits = all ? MACHTRACE_WATCHDOG_ALL_THREADS : 0;
    if (!is_same)
        bits |= MACHTRACE_WATCHDOG_TOO_LATE;
    if (!is_same && !all)
        machtrace_copying_forget(copying); /* nothing is published */
    else if (machtrace_copying_finish(copying, &watchdog->ring, suspect->incident, bits))
        machtrace_watchdog_publish(watchdog);
}

void machtrace_suspect_end(struct machtrace_watchdog *watchdog, struct machtrace_suspect *suspect,
                           enum machtrace_watchdog_cause cause)
{
    bool was_seen = suspect->phase == MACHTRACE_WATCHDOG_SEEN;
    if (suspect->phase != MACHTRACE_WATCHDOG_ENDED) {
        suspect->phase = MACHTRACE_WATCHDOG_ENDED;
        machtrace_watchdog_record_event(watchdog, suspect, cause);
        watchdog->lasting--;
        if (was_seen)
            machtrace_watchdog_notify(watchdog);
    }
    suspect->began = 0;
}

/* Without room for all its events nothing begins: it is tried again at the next poll. */
static void begin(struct machtrace_watchdog *watchdog, struct machtrace_suspect *suspect,
                  enum machtrace_watchdog_cause cause)
{
    if (!machtrace_watchdog_has_room(watchdog, watchdog->lasting + 1))
        return;
    watchdog->lasting++;
    suspect->phase = MACHTRACE_WATCHDOG_SUSPECTED;
    suspect->incident = ++watchdog->incidents;
    suspect->captures = 0;
    suspect->pause = suspect->limit / 10;
    suspect->next_capture = watchdog->now;
    machtrace_watchdog_keep_from_here(watchdog, suspect);
    machtrace_watchdog_record_event(watchdog, suspect, cause);
}

/* Record again what lasts so long that its first records should go, and copy it again. */
static void renew(struct machtrace_watchdog *watchdog, struct machtrace_suspect *suspect,
                  enum machtrace_watchdog_cause cause)
{
    if (suspect->phase == MACHTRACE_WATCHDOG_ENDED ||
        !machtrace_watchdog_is_old(watchdog, suspect) ||
        !machtrace_watchdog_has_room(watchdog, watchdog->lasting))
        return;
    machtrace_watchdog_keep_from_here(watchdog, suspect);
    machtrace_watchdog_record_event(watchdog, suspect, cause);
    machtrace_copying_forget(&watchdog->copying);
    suspect->next_capture = watchdog->now;
    if (suspect->captures == MACHTRACE_WATCHDOG_CAPTURES_MAX)
        suspect->captures--;
}

void machtrace_suspect_advance(struct machtrace_watchdog *watchdog,
                               struct machtrace_suspect *suspect,
                               enum machtrace_watchdog_cause cause, int64_t began, uint64_t key)
{
    int64_t now = watchdog->now;
    if (suspect->began != 0 && (began != suspect->began || key != suspect->key))
        machtrace_suspect_end(watchdog, suspect, cause);
    if (began == 0)
        return;
    if (suspect->began == 0)
        suspect->first_poll = watchdog->next_poll - 1;
    suspect->began = began;
    suspect->key = key;
    if (suspect->phase == MACHTRACE_WATCHDOG_ENDED &&
        now - began >= MACHTRACE_FIRST_CAPTURE(suspect->limit))
        begin(watchdog, suspect, cause);
    else
        renew(watchdog, suspect, cause);
    bool is_seen = suspect->phase == MACHTRACE_WATCHDOG_SUSPECTED && now - began >= suspect->limit;
    if (is_seen) {
        suspect->phase = MACHTRACE_WATCHDOG_SEEN;
        machtrace_watchdog_record_event(watchdog, suspect, cause);
    }
    bool is_due = suspect->phase != MACHTRACE_WATCHDOG_ENDED && now >= suspect->next_capture &&
                  suspect->captures < MACHTRACE_WATCHDOG_CAPTURES_MAX;
    if (is_due || is_seen) {
        capture(watchdog, suspect, cause, is_seen);
        suspect->captures++;
        if (suspect->phase == MACHTRACE_WATCHDOG_SEEN && suspect->pause < PAUSE_MAX)
            suspect->pause += suspect->pause * 6 / 10;
        suspect->next_capture = machtrace_clock_ns(CLOCK_MONOTONIC) + suspect->pause;
    }
    if (is_seen)
        machtrace_watchdog_notify(watchdog); /* not before the copies: readers would run in them */
    suspect->last = now;
}
