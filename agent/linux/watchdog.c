/* agent/watchdog.h for Linux: the half of the watchdog of inprocess/core that records
 * (watchdog_inside.h). */
#define _GNU_SOURCE
#include "watchdog.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inprocess/core/watchdog_inside.h"
#include "incidents.h"
#include "recorder.h"

#define OPEN_MAX 16       /* incidents at once */
#define RING (1 << 18)    /* of the copying, which publishes nothing here */
#define STACK_LIMIT ((size_t)1 << 20)
#define INTERVAL_MAX 20000000
#define CONDITIONS_INTERVAL 100000000

static struct machtrace_watchdog *watchdog;
/* By the core's places of watched threads: */
static struct machtrace_watchdog_poll polls[MACHTRACE_WATCHDOG_THREADS_MAX]; /* the last of each */
static int64_t lates[MACHTRACE_WATCHDOG_THREADS_MAX]; /* delays since the thread was idle */
static uint64_t roots[MACHTRACE_WATCHDOG_THREADS_MAX]; /* sp of the loop's own wait */

/* An incident, or what may become one. */
static struct open_incident {
    uint64_t number; /* the core's; 0 if this is free */
    const struct machtrace_suspect *suspect;
    struct machtrace_watchdog_poll first;
    bool is_seen;
    struct machtrace_incident_record record; /* the stacks that are not in the log yet */
} all[OPEN_MAX];

static struct machtrace_incident_stack taken[MACHTRACE_INCIDENT_STACKS_MAX]; /* not yet published */
static uint32_t taken_count;

static size_t index_of(uint32_t thread)
{
    for (size_t index = 0; index < MACHTRACE_WATCHDOG_THREADS_MAX; index++)
        if (atomic_load(&watchdog->watched[index].use) == MACHTRACE_USED &&
            watchdog->watched[index].thread == thread)
            return index;
    return MACHTRACE_WATCHDOG_THREADS_MAX;
}

static struct open_incident *find(uint64_t number)
{
    for (size_t index = 0; index < OPEN_MAX; index++)
        if (all[index].number == number)
            return &all[index];
    return NULL;
}

/* --- hangs --- */

/* What the differences of two polls prove. */
static void judge(struct machtrace_incident_record *record,
                  const struct machtrace_watchdog_poll *first,
                  const struct machtrace_watchdog_poll *last)
{
    bool has_both = first->has_schedule && last->has_schedule && first->at < last->at;
    record->span = last->at - first->at;
    record->ran = has_both ? last->ran - first->ran : 0;
    record->delayed = has_both ? last->delayed - first->delayed : 0;
    record->turns = has_both ? last->turns - first->turns : 0;
    if (first->has_status && last->has_status) {
        record->voluntary = last->voluntary - first->voluntary;
        record->involuntary = last->involuntary - first->involuntary;
    }
    record->call = last->has_call && !last->is_running ? last->call : -1;
    bool is_same = first->has_call && last->has_call && !first->is_running && !last->is_running &&
                   first->call == last->call && first->sp == last->sp && first->pc == last->pc;
    record->is_certain = 0;
    if (last->state == 'T' || last->state == 't' ||
        (record->late >= record->limit / 2 &&
         record->at - record->began - record->late < record->limit)) {
        record->verdict = MACHTRACE_VERDICT_STOPPED; /* or the whole process, the watchdog too */
    } else if (is_same && has_both && record->turns == 0) {
        record->verdict = last->state == 'D' ? MACHTRACE_VERDICT_UNINTERRUPTIBLE
                                             : MACHTRACE_VERDICT_BLOCKED;
        record->is_certain = 1;
    } else if (has_both && record->delayed > record->ran && record->delayed > record->span / 4) {
        record->verdict = MACHTRACE_VERDICT_STARVED;
    } else if (has_both ? record->ran > record->span / 4 : last->is_running) {
        record->verdict = MACHTRACE_VERDICT_BUSY;
        /* One task of a thread that states its tasks, or one that never waited. */
        record->is_certain = has_both && (last->task != 0 || record->voluntary == 0);
    } else {
        record->verdict = is_same ? MACHTRACE_VERDICT_BLOCKED : MACHTRACE_VERDICT_UNKNOWN;
    }
}

static void write_hang(struct open_incident *open, enum machtrace_incident_phase phase)
{
    struct machtrace_incident_record *record = &open->record;
    const struct machtrace_suspect *suspect = open->suspect;
    size_t index = index_of(suspect->thread);
    record->phase = (uint8_t)phase;
    record->at = watchdog->now;
    record->value = watchdog->now - record->began;
    /* The poll that sees the end is of the next task. */
    if (phase != MACHTRACE_INCIDENT_ENDED && index < MACHTRACE_WATCHDOG_THREADS_MAX) {
        record->late = lates[index];
        judge(record, &open->first, &polls[index]);
    }
    machtrace_incident_write(record);
}

/* --- what the core calls: watchdog_inside.h --- */

int machtrace_watchdog_have_record(struct machtrace_watchdog *made)
{
    unsigned char *bytes = mmap(NULL, RING, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED)
        return errno;
    made->ring.bytes = bytes;
    made->ring.room = RING;
    return 0;
}

void machtrace_watchdog_notify(struct machtrace_watchdog *which)
{
    (void)which;
}

bool machtrace_watchdog_has_room(const struct machtrace_watchdog *which, size_t suspects)
{
    (void)which;
    (void)suspects;
    return machtrace_incident_is_allowed() && find(0) != NULL;
}

void machtrace_watchdog_keep_from_here(struct machtrace_watchdog *which,
                                       struct machtrace_suspect *suspect)
{
    struct open_incident *open = find(0);
    size_t index = index_of(suspect->thread);
    if (open == NULL || which == NULL)
        return;
    memset(open, 0, sizeof *open);
    open->number = suspect->incident;
    open->suspect = suspect;
    if (index < MACHTRACE_WATCHDOG_THREADS_MAX)
        open->first = polls[index];
    open->record.kind = MACHTRACE_INCIDENT_HANG;
    open->record.thread = suspect->thread;
    open->record.began = suspect->began;
    open->record.limit = suspect->limit;
}

void machtrace_watchdog_record_event(struct machtrace_watchdog *which,
                                     const struct machtrace_suspect *suspect,
                                     enum machtrace_watchdog_cause cause)
{
    struct open_incident *open = find(suspect->incident);
    (void)which;
    (void)cause;
    if (open == NULL)
        return;
    if (suspect->phase == MACHTRACE_WATCHDOG_SEEN) {
        open->is_seen = true;
        machtrace_incident_begin(&open->record);
        write_hang(open, MACHTRACE_INCIDENT_SEEN);
    } else if (suspect->phase == MACHTRACE_WATCHDOG_ENDED) {
        if (open->is_seen)
            write_hang(open, MACHTRACE_INCIDENT_ENDED);
        open->number = 0;
    }
}

bool machtrace_watchdog_is_old(const struct machtrace_watchdog *which,
                               const struct machtrace_suspect *suspect)
{
    (void)which;
    (void)suspect;
    return false;
}

/* Stacks that were taken belong to an incident: before it is seen they wait. */
bool machtrace_watchdog_publish(struct machtrace_watchdog *which)
{
    struct open_incident *open = find(which->copying.row.tick);
    uint32_t flags = (which->copying.row.images_changed & MACHTRACE_WATCHDOG_TOO_LATE) != 0
                         ? MACHTRACE_INCIDENT_TOO_LATE
                         : 0;
    if (open == NULL)
        return false;
    struct machtrace_incident_record *record = &open->record;
    for (uint32_t index = 0; index < taken_count; index++) {
        if (record->stack_count == MACHTRACE_INCIDENT_STACKS_MAX)
            break;
        taken[index].flags |= flags;
        record->stacks[record->stack_count++] = taken[index];
    }
    taken_count = 0;
    if (open->is_seen)
        write_hang(open, MACHTRACE_INCIDENT_LASTS);
    return true;
}

int64_t machtrace_watchdog_record_line(struct machtrace_watchdog *which)
{
    machtrace_conditions_poll(which->now);
    return INT64_MAX;
}

/* Whether a call is one that event loops wait in. poll(2) of one descriptor is none: libraries wait
 * so for an answer. */
static bool is_loop_wait(const struct machtrace_watchdog_poll *poll)
{
    if (!poll->has_call || poll->is_running)
        return false;
    switch (poll->call) {
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
#endif
    case SYS_epoll_pwait:
#ifdef SYS_epoll_pwait2
    case SYS_epoll_pwait2:
#endif
#ifdef SYS_select
    case SYS_select:
#endif
    case SYS_pselect6:
        return true;
#ifdef SYS_poll
    case SYS_poll:
#endif
    case SYS_ppoll:
        return poll->arguments[1] > 1;
    default:
        return false;
    }
}

/* The outermost wait of this kind is the loop's own: inner ones are those of nested loops. */
static void learn(struct machtrace_watchdog *which, const struct machtrace_watchdog_poll *poll,
                  uint64_t *root)
{
    if (!is_loop_wait(poll) || poll->sp < *root)
        return;
    if (poll->sp > *root)
        machtrace_watchdog_clear_idle(which, poll->thread);
    *root = poll->sp;
    machtrace_watchdog_add_idle(which, poll->thread, poll->call, poll->sp, poll->pc);
}

void machtrace_watchdog_record_poll(struct machtrace_watchdog *which,
                                    const struct machtrace_watchdog_poll *poll)
{
    size_t index = index_of(poll->thread);
    atomic_fetch_add(&which->next_poll, 1);
    if (index == MACHTRACE_WATCHDOG_THREADS_MAX)
        return;
    const struct machtrace_watched *watched = &which->watched[index];
    if (watched->last_at == 0) { /* another thread had the place */
        memset(&polls[index], 0, sizeof polls[index]);
        roots[index] = 0;
    }
    const struct machtrace_thread_call call = {
        .number = poll->call, .sp = poll->sp, .pc = poll->pc};
    bool is_idle = poll->busy_since == 0 || (poll->has_call && !poll->is_running &&
                                             machtrace_watched_is_idle(watched, &call));
    bool is_new_task = poll->task != polls[index].task;
    int64_t late = poll->late > which->options.interval ? poll->late : 0;
    lates[index] = is_idle ? 0 : is_new_task ? late : lates[index] + late;
    memcpy(&polls[index], poll, sizeof *poll);
    if (poll->busy_since == MACHTRACE_BEACON_SILENT)
        learn(which, poll, &roots[index]);
}

void machtrace_series_add_thread(struct machtrace_ring *ring,
                                 const struct machtrace_thread *thread)
{
    (void)ring;
    if (thread->outcome != MACHTRACE_COPIED || taken_count == MACHTRACE_INCIDENT_STACKS_MAX)
        return;
    uint32_t flags = 0;
    uint32_t node = machtrace_stack_of_copy(thread, &flags);
    taken[taken_count++] = (struct machtrace_incident_stack){
        .at = thread->stopped_at, .node = node, .thread = (uint32_t)thread->id, .flags = flags};
}

/* The thread's calls are the agent's own, and no handler of a signal runs in it. */
static struct {
    void *(*body)(void *);
    void *argument;
} quiet;

static void *run_quietly(void *unused)
{
    (void)unused;
    machtrace_ignore_enter();
    pthread_setname_np(pthread_self(), "machtrace-watch");
    return quiet.body(quiet.argument);
}

int machtrace_start_quiet_thread(pthread_t *thread, void *(*body)(void *), void *argument)
{
    watchdog = argument;
    quiet.body = body;
    quiet.argument = argument;
    return pthread_create(thread, NULL, run_quietly, NULL);
}

/* --- stacks for conditions --- */

void machtrace_incident_add_stack(struct machtrace_incident_record *record)
{
    const uint64_t thread[1] = {record->thread};
    taken_count = 0;
    machtrace_copying_capture(&watchdog->copying, &watchdog->ring, thread, 1);
    for (uint32_t index = 0; index < taken_count; index++)
        if (record->stack_count < MACHTRACE_INCIDENT_STACKS_MAX)
            record->stacks[record->stack_count++] = taken[index];
    taken_count = 0;
}

/* --- begin and end --- */

int machtrace_incidents_begin(const machtrace_options_t *options)
{
    bool has_conditions = options->cpu_percent != 0 || options->memory_limit != 0;
    int error = 0;
    if (options->hang_ms == 0 && !has_conditions)
        return 0;
    memset(polls, 0, sizeof polls);
    memset(lates, 0, sizeof lates);
    memset(roots, 0, sizeof roots);
    memset(all, 0, sizeof all);
    taken_count = 0;
    machtrace_incidents_clear();
    machtrace_conditions_begin(options);
    struct machtrace_watchdog_options made = {
        .limit = (int64_t)options->hang_ms * 1000000,
        .interval = (int64_t)options->hang_ms * 100000,
        .stack_limit = STACK_LIMIT,
        .answer_limit = 100000000,
        .sleep_limit = 20000000,
        .text_most = 4096, /* of mappings, which are not recorded */
        .file = -1,
    };
    int64_t most = options->hang_ms != 0 ? INTERVAL_MAX : CONDITIONS_INTERVAL;
    if (options->cpu_seconds != 0 && most > options->cpu_seconds * INT64_C(1000000000) / 64)
        most = options->cpu_seconds * INT64_C(1000000000) / 64;
    if (made.interval == 0 || made.interval > most)
        made.interval = most;
    struct machtrace_watchdog *started = machtrace_watchdog_start(&made, &error);
    if (started == NULL)
        watchdog = NULL; /* the core has freed it */
    else if (options->hang_ms != 0)
        error = machtrace_watchdog_watch(started, (uint32_t)getpid());
    return error;
}

void machtrace_incidents_end(void)
{
    struct machtrace_watchdog *last = watchdog;
    if (last == NULL)
        return;
    machtrace_watchdog_stop(last);
    watchdog = NULL;
    munmap(last->ring.bytes, RING);
    machtrace_watchdog_free(last);
}

void machtrace_incidents_after_fork(void)
{
    watchdog = NULL;
}

int machtrace_incidents_watch(void)
{
    return watchdog == NULL || watchdog->options.limit == 0
               ? ESRCH
               : machtrace_watchdog_watch(watchdog, (uint32_t)machtrace_inprocess_id());
}

/* --- machtrace.h --- */

void machtrace_idle_begin(void)
{
    machtrace_beacon_idle();
}

void machtrace_idle_end(void)
{
    machtrace_beacon_busy();
}
