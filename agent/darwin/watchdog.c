/* agent/watchdog.h for Darwin: threads state when they are idle, the main run loop by its observers,
 * and a thread of the agent's takes the stacks of those that are busy for too long. */
#include "watchdog.h"

#include <errno.h>
#include <mach/thread_info.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "darwin/run_loop.h"
#include "darwin/thread_states.h"
#include "incidents.h"
#include "inprocess/core/capture.h"
#include "recorder.h"
#include "thread.h"

#define WATCHED_MAX 64
#define STACK_LIMIT ((size_t)1 << 20)
#define STACKS 20 /* of one incident */
#define INTERVAL_MAX 20
#define CONDITIONS_INTERVAL 100 /* ms */

struct poll {
    uint64_t at; /* 0: the thread's state is unknown */
    struct machtrace_thread_state state;
};

static struct watched {
    _Atomic uint64_t thread;     /* 0 while this is free */
    _Atomic uint64_t busy_since; /* machtrace_clock; 0 while it is idle, or has stated nothing */
    _Atomic uint64_t task;

    /* By the watchdog's thread: what it is, or may be, too long busy with. */
    uint64_t suspected_task; /* 0 for none */
    uint64_t next_at;        /* the next stack */
    uint32_t stacks;
    struct poll first;
    struct machtrace_incident_record record; /* its number is 0 before the limit */
} watched[WATCHED_MAX];

static pthread_t thread;
static bool is_running;
static _Atomic bool is_ending;
static _Atomic uint32_t wake;
static uint64_t limit; /* ns; 0: no thread is watched */
static uint32_t interval; /* ms */
static unsigned char *buffer;

/* --- statements of threads --- */

static struct watched *own_slot(bool is_new)
{
    uint64_t id = machtrace_inprocess_id();
    for (size_t index = 0; index < WATCHED_MAX; index++)
        if (atomic_load(&watched[index].thread) == id)
            return &watched[index];
    for (size_t index = 0; index < WATCHED_MAX && is_new; index++) {
        uint64_t expected = 0;
        if (atomic_load(&watched[index].thread) == 0 &&
            atomic_compare_exchange_strong(&watched[index].thread, &expected, id))
            return &watched[index];
    }
    return NULL;
}

void machtrace_idle_begin(void)
{
    struct watched *own = own_slot(limit != 0 && pthread_main_np() != 0);
    if (own != NULL)
        atomic_store(&own->busy_since, 0);
}

void machtrace_idle_end(void)
{
    struct watched *own = own_slot(limit != 0 && pthread_main_np() != 0);
    if (own == NULL)
        return;
    atomic_store(&own->busy_since, 0);
    atomic_fetch_add(&own->task, 1);
    atomic_store(&own->busy_since, machtrace_clock());
}

/* --- stacks --- */

/* Records have the low half of a thread's number. */
static uint64_t whole_id(uint32_t low)
{
    static uint64_t ids[MACHTRACE_INPROCESS_THREADS_MAX];
    int64_t count = machtrace_inprocess_list(ids, MACHTRACE_INPROCESS_THREADS_MAX);
    for (int64_t index = 0; index < count && index < MACHTRACE_INPROCESS_THREADS_MAX; index++)
        if ((uint32_t)ids[index] == low)
            return ids[index];
    return 0;
}

void machtrace_incident_add_stack(struct machtrace_incident_record *record)
{
    struct machtrace_thread copied;
    struct machtrace_inprocess_capture capture = {.stack_limit = STACK_LIMIT,
                                                  .threads = &copied,
                                                  .thread_count = 1};
    memset(&copied, 0, sizeof copied);
    copied.id = whole_id(record->thread);
    copied.buffer = buffer;
    copied.room = STACK_LIMIT;
    if (record->stack_count == MACHTRACE_INCIDENT_STACKS_MAX || copied.id == 0 ||
        machtrace_inprocess_begin(0) != 0)
        return;
    machtrace_inprocess_copy(&capture);
    machtrace_inprocess_end();
    if (copied.outcome != MACHTRACE_COPIED)
        return;
    struct machtrace_incident_stack *stack = &record->stacks[record->stack_count++];
    memset(stack, 0, sizeof *stack);
    stack->at = copied.stopped_at;
    stack->thread = record->thread;
    stack->node = machtrace_stack_of_copy(&copied, &stack->flags);
}

/* --- hangs --- */

static struct poll poll_of(uint64_t id, uint64_t now)
{
    struct poll poll = {0};
    if (machtrace_thread_state_of(id, &poll.state))
        poll.at = now;
    return poll;
}

/* What the differences of two polls prove. */
static void judge(struct machtrace_incident_record *record, const struct poll *first,
                  const struct poll *last)
{
    bool has_both = first->at != 0 && last->at > first->at;
    int state = last->state.run_state;
    record->span = has_both ? (int64_t)(last->at - first->at) : 0;
    record->ran = has_both ? last->state.ran - first->state.ran : 0;
    record->call = -1;
    record->is_certain = 0;
    if (state == TH_STATE_STOPPED || state == TH_STATE_HALTED ||
        (record->late >= record->limit / 2 &&
         record->at - record->began - record->late < record->limit)) {
        record->verdict = MACHTRACE_VERDICT_STOPPED; /* or the whole process, the watchdog too */
    } else if (!has_both) {
        record->verdict = MACHTRACE_VERDICT_UNKNOWN;
    } else if (record->ran > record->span / 4) {
        record->verdict = MACHTRACE_VERDICT_BUSY;
        record->is_certain = 1;
    } else if (state == TH_STATE_UNINTERRUPTIBLE) {
        record->verdict = MACHTRACE_VERDICT_UNINTERRUPTIBLE;
    } else if (state == TH_STATE_WAITING) {
        record->verdict = MACHTRACE_VERDICT_BLOCKED;
        record->is_certain = first->state.run_state == TH_STATE_WAITING && record->ran == 0;
    } else {
        record->verdict = MACHTRACE_VERDICT_STARVED; /* it could run, and hardly did */
    }
}

static void write_hang(struct watched *one, enum machtrace_incident_phase phase, uint64_t now)
{
    struct machtrace_incident_record *record = &one->record;
    record->phase = (uint8_t)phase;
    record->at = (int64_t)now;
    record->value = record->at - record->began;
    if (phase != MACHTRACE_INCIDENT_ENDED) {
        struct poll last = poll_of(atomic_load(&one->thread), now);
        judge(record, &one->first, &last);
    }
    machtrace_incident_write(record);
}

/* False if the thread has ended: then its place is free. */
static bool suspect(struct watched *one, uint64_t task, uint64_t since, uint64_t now)
{
    one->first = poll_of(atomic_load(&one->thread), now);
    if (one->first.at == 0) {
        atomic_store(&one->busy_since, 0);
        atomic_store(&one->thread, 0);
        return false;
    }
    memset(&one->record, 0, sizeof one->record);
    one->record.kind = MACHTRACE_INCIDENT_HANG;
    one->record.thread = (uint32_t)atomic_load(&one->thread);
    one->record.began = (int64_t)since;
    one->record.limit = (int64_t)limit;
    one->suspected_task = task;
    one->stacks = 0;
    one->next_at = now;
    return true;
}

static void take_stack(struct watched *one, uint64_t now, uint64_t busy)
{
    uint32_t before = one->record.stack_count;
    machtrace_incident_add_stack(&one->record);
    if (one->record.stack_count > before && atomic_load(&one->task) != one->suspected_task)
        one->record.stacks[before].flags |= MACHTRACE_INCIDENT_TOO_LATE;
    one->stacks++;
    one->next_at = now + (busy > limit ? busy : limit) / 4;
}

static void poll_thread(struct watched *one, uint64_t now, uint64_t late)
{
    uint64_t since = atomic_load(&one->busy_since), task = atomic_load(&one->task);
    bool is_busy = since != 0 && since == atomic_load(&one->busy_since);
    uint64_t busy = is_busy && now > since ? now - since : 0;
    if (one->suspected_task != 0 && (!is_busy || task != one->suspected_task)) {
        if (one->record.number != 0)
            write_hang(one, MACHTRACE_INCIDENT_ENDED, now);
        one->suspected_task = 0;
    }
    /* From 0.6 of the limit on: what it does at the limit may be the end of it. */
    if (!is_busy || busy < limit / 10 * 6 || !machtrace_incident_is_allowed())
        return;
    if (one->suspected_task == 0 && !suspect(one, task, since, now))
        return;
    one->record.late += (int64_t)late;
    bool is_due = now >= one->next_at && one->stacks < STACKS;
    if (is_due)
        take_stack(one, now, busy);
    if (busy >= limit && one->record.number == 0) {
        machtrace_incident_begin(&one->record);
        write_hang(one, MACHTRACE_INCIDENT_SEEN, now);
    } else if (is_due && one->record.number != 0) {
        write_hang(one, MACHTRACE_INCIDENT_LASTS, now);
    }
}

static void *watch(void *unused)
{
    uint64_t before = machtrace_clock();
    machtrace_ignore_enter();
    pthread_setname_np("machtrace-watch");
    while (!atomic_load(&is_ending)) {
        uint32_t seen = atomic_load(&wake);
        machtrace_wait(&wake, seen, interval);
        uint64_t now = machtrace_clock(), passed = now - before;
        uint64_t expected = (uint64_t)interval * 2000000;
        for (size_t index = 0; index < WATCHED_MAX && limit != 0; index++)
            if (atomic_load(&watched[index].thread) != 0)
                poll_thread(&watched[index], now, passed > expected ? passed - expected : 0);
        machtrace_conditions_poll((int64_t)now);
        before = now;
    }
    machtrace_ignore_leave();
    return unused;
}

/* --- begin and end --- */

int machtrace_incidents_begin(const machtrace_options_t *options)
{
    if (options->hang_ms == 0 && options->cpu_percent == 0 && options->memory_limit == 0)
        return 0;
    memset(watched, 0, sizeof watched);
    machtrace_incidents_clear();
    machtrace_conditions_begin(options);
    interval = options->hang_ms != 0 ? options->hang_ms / 10 : CONDITIONS_INTERVAL;
    uint32_t most = options->hang_ms != 0 ? INTERVAL_MAX : CONDITIONS_INTERVAL;
    interval = interval == 0 ? 1 : interval < most ? interval : most;
    buffer = malloc(STACK_LIMIT);
    if (buffer == NULL)
        return ENOMEM;
    atomic_store(&is_ending, false);
    limit = (uint64_t)options->hang_ms * 1000000;
    int error = pthread_create(&thread, NULL, watch, NULL);
    is_running = error == 0;
    if (is_running && limit != 0)
        machtrace_run_loop_begin();
    return error;
}

void machtrace_incidents_end(void)
{
    if (is_running) {
        machtrace_run_loop_end();
        atomic_store(&is_ending, true);
        machtrace_wake(&wake);
        pthread_join(thread, NULL);
    }
    is_running = false;
    limit = 0;
    free(buffer);
    buffer = NULL;
}

void machtrace_incidents_after_fork(void)
{
    is_running = false;
    limit = 0;
}

int machtrace_incidents_watch(void)
{
    if (limit == 0)
        return ESRCH;
    return own_slot(true) == NULL ? ENOSPC : 0;
}
