/* A thread that watches threads of its own process: see watchdog.h. */
#define _GNU_SOURCE
#include "inprocess/core/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inprocess/core/batches.h"
#include "inprocess/core/beacon.h"
#include "inprocess/core/linux/shared.h"
#include "inprocess/core/linux/thread_files.h"
#include "inprocess/core/python_chain.h"
#include "inprocess/core/watchdog_copy.h"

#define PAGE 4096
#define FIRST_CAPTURE(limit) ((limit) / 10 * 6)
#define SPARE_POLLS 128
#define PAUSE_MOST 1000000000 /* ns between two captures of one incident */
#define GIL_CONDITION_FIRST 32 /* of struct _gil_runtime_state: its condition and mutex */
#define GIL_CONDITION_LAST 120

/* Something that may take too long: a thread's task, a scope, or the interpreter's lock. */
struct suspect {
    int64_t began; /* 0 while nothing is */
    uint64_t key;
    int64_t limit;
    int64_t last; /* the poll before, in the same state */
    enum machtrace_watchdog_phase phase;
    uint32_t thread, captures;
    int64_t next_capture, pause;
    uint64_t incident, first, first_poll;
    uint32_t waiters, waiter;
    char label[MACHTRACE_LABEL_SIZE];
};

struct idle_call {
    int64_t call;
    uint64_t sp, pc;
};

enum use { FREE, USED, LEAVING };

struct watched {
    _Atomic uint32_t use;
    uint32_t thread;
    struct machtrace_thread_files files;
    _Atomic uint32_t idle_count;
    struct idle_call idle[MACHTRACE_WATCHDOG_IDLE_MAX];
    int64_t last_at;   /* of the poll before; 0 if there was none */
    bool has_learnt;   /* whether the reader was woken for the wait that lasts */
    struct suspect task;
};

struct machtrace_watchdog {
    struct machtrace_watchdog_options options;
    struct machtrace_copying copying;
    struct machtrace_watchdog_head *head; /* the record; the ring is in it */
    size_t record_size;
    struct machtrace_watchdog_poll *polls;
    struct machtrace_ring ring;
    uint64_t position; /* the reader's */
    _Atomic uint64_t keep; /* the first record of the oldest incident that lasts */
    _Atomic uint64_t next_poll;
    uint64_t incidents;

    struct watched watched[MACHTRACE_WATCHDOG_THREADS_MAX];
    struct suspect scopes[MACHTRACE_BEACONS_MAX];
    struct suspect gil;
    int64_t gil_began; /* the last poll before it was taken; 0 if it is free */
    int64_t gil_at;    /* the poll before */
    int64_t gil_scan;  /* when to look for waiters next */

    int64_t now, boot_now, late;
    _Atomic uint64_t rounds, late_rounds;
    _Atomic int64_t latest;

    _Atomic uint32_t news, ending; /* futexes */
    _Atomic uint64_t reader;       /* the thread that waits for news */
    pid_t process;
    pthread_t thread;
    bool is_running;
};

static int64_t clock_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* --- records --- */

static void notify(struct machtrace_watchdog *watchdog)
{
    atomic_fetch_add(&watchdog->news, 1);
    syscall(SYS_futex, &watchdog->news, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static bool publish(struct machtrace_watchdog *watchdog)
{
    bool is_published = machtrace_ring_publish(&watchdog->ring);
    atomic_store(&watchdog->head->published, atomic_load(&watchdog->ring.published));
    return is_published;
}

static void record_event(struct machtrace_watchdog *watchdog, const struct suspect *suspect,
                         enum machtrace_watchdog_cause cause)
{
    machtrace_ring_begin(&watchdog->ring);
    struct machtrace_watchdog_event *place =
        machtrace_ring_add(&watchdog->ring, sizeof *place, MACHTRACE_WATCHDOG_EVENT,
                           (uint32_t)suspect->phase);
    if (place != NULL) {
        struct machtrace_watchdog_event event = {
            .record = place->record,
            .incident = suspect->incident,
            .cause = (uint32_t)cause,
            .thread = suspect->thread,
            .began = suspect->began,
            .at = watchdog->now,
            .boot_at = watchdog->boot_now,
            .last = suspect->last,
            .limit = suspect->limit,
            .key = suspect->key,
            .first_poll = suspect->first_poll,
            .poll = watchdog->next_poll - 1,
            .waiters = suspect->waiters,
            .waiter = suspect->waiter,
        };
        memcpy(event.label, suspect->label, sizeof event.label);
        memcpy(place, &event, sizeof event);
    }
    publish(watchdog);
}

static void each_suspect(struct machtrace_watchdog *watchdog,
                         void (*visit)(struct machtrace_watchdog *, const struct suspect *,
                                       void *),
                         void *data)
{
    for (size_t index = 0; index < MACHTRACE_WATCHDOG_THREADS_MAX; index++)
        if (watchdog->watched[index].task.phase != MACHTRACE_WATCHDOG_ENDED)
            visit(watchdog, &watchdog->watched[index].task, data);
    uint32_t count = atomic_load(&machtrace_beacon_count);
    for (uint32_t index = 0; index < count; index++)
        if (watchdog->scopes[index].phase != MACHTRACE_WATCHDOG_ENDED)
            visit(watchdog, &watchdog->scopes[index], data);
    if (watchdog->gil.phase != MACHTRACE_WATCHDOG_ENDED)
        visit(watchdog, &watchdog->gil, data);
}

struct oldest {
    const struct suspect *suspect;
    uint64_t first;
    int64_t next; /* when something is due */
};

static void take_oldest(struct machtrace_watchdog *watchdog, const struct suspect *suspect,
                        void *data)
{
    struct oldest *oldest = data;
    (void)watchdog;
    if (oldest->suspect == NULL || suspect->began < oldest->suspect->began)
        oldest->suspect = suspect;
    if (suspect->first < oldest->first)
        oldest->first = suspect->first;
    int64_t due = suspect->captures < MACHTRACE_WATCHDOG_CAPTURES_MAX ? suspect->next_capture
                                                                      : INT64_MAX;
    if (suspect->phase == MACHTRACE_WATCHDOG_SUSPECTED && suspect->began + suspect->limit < due)
        due = suspect->began + suspect->limit;
    if (due < oldest->next)
        oldest->next = due;
}

/* Write the line of the record, of the oldest incident; when something is due next. */
static int64_t record_line(struct machtrace_watchdog *watchdog)
{
    struct oldest oldest = {NULL, UINT64_MAX, INT64_MAX};
    each_suspect(watchdog, take_oldest, &oldest);
    atomic_store(&watchdog->keep, oldest.first);
    struct machtrace_watchdog_line *line = &watchdog->head->line;
    uint32_t number = atomic_load_explicit(&line->number, memory_order_relaxed);
    atomic_store(&line->number, number + 1);
    atomic_thread_fence(memory_order_release);
    const struct suspect *suspect = oldest.suspect;
    line->thread = suspect == NULL ? 0 : suspect->thread;
    line->phase = suspect == NULL ? 0 : (uint32_t)suspect->phase;
    line->at = watchdog->now;
    line->boot_at = watchdog->boot_now;
    line->began_at = suspect == NULL ? 0 : suspect->began;
    line->incident = suspect == NULL ? 0 : suspect->incident;
    line->first = suspect == NULL ? 0 : suspect->first;
    line->polls = watchdog->next_poll - 1;
    atomic_store(&line->number, number + 2);
    return oldest.next;
}

/* --- suspects --- */

/* Whether what a suspect did is still the same: else a copy may be of what came next. */
static bool is_still(const struct machtrace_watchdog *watchdog, const struct suspect *suspect,
                     enum machtrace_watchdog_cause cause)
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

static void capture(struct machtrace_watchdog *watchdog, struct suspect *suspect,
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
        publish(watchdog);
}

static void end(struct machtrace_watchdog *watchdog, struct suspect *suspect,
                enum machtrace_watchdog_cause cause)
{
    bool was_seen = suspect->phase == MACHTRACE_WATCHDOG_SEEN;
    if (suspect->phase != MACHTRACE_WATCHDOG_ENDED) {
        suspect->phase = MACHTRACE_WATCHDOG_ENDED;
        record_event(watchdog, suspect, cause);
        if (was_seen)
            notify(watchdog);
    }
    suspect->began = 0;
}

static void begin(struct machtrace_watchdog *watchdog, struct suspect *suspect,
                  enum machtrace_watchdog_cause cause)
{
    suspect->phase = MACHTRACE_WATCHDOG_SUSPECTED;
    suspect->incident = ++watchdog->incidents;
    suspect->first = atomic_load(&watchdog->ring.published);
    suspect->captures = 0;
    suspect->pause = suspect->limit / 10;
    suspect->next_capture = watchdog->now;
    record_event(watchdog, suspect, cause);
}

/* Continue something that began then; 0 if nothing did. */
static void advance(struct machtrace_watchdog *watchdog, struct suspect *suspect,
                    enum machtrace_watchdog_cause cause, int64_t began, uint64_t key)
{
    int64_t now = watchdog->now;
    if (suspect->began != 0 && (began != suspect->began || key != suspect->key))
        end(watchdog, suspect, cause);
    if (began == 0)
        return;
    if (suspect->began == 0)
        suspect->first_poll = watchdog->next_poll - 1;
    suspect->began = began;
    suspect->key = key;
    if (suspect->phase == MACHTRACE_WATCHDOG_ENDED && now - began >= FIRST_CAPTURE(suspect->limit))
        begin(watchdog, suspect, cause);
    bool is_seen = suspect->phase == MACHTRACE_WATCHDOG_SUSPECTED && now - began >= suspect->limit;
    if (is_seen) {
        suspect->phase = MACHTRACE_WATCHDOG_SEEN;
        record_event(watchdog, suspect, cause);
    }
    bool is_due = suspect->phase != MACHTRACE_WATCHDOG_ENDED && now >= suspect->next_capture &&
                  suspect->captures < MACHTRACE_WATCHDOG_CAPTURES_MAX;
    if (is_due || is_seen) {
        capture(watchdog, suspect, cause, is_seen);
        suspect->captures++;
        if (suspect->phase == MACHTRACE_WATCHDOG_SEEN && suspect->pause < PAUSE_MOST)
            suspect->pause += suspect->pause * 6 / 10;
        suspect->next_capture = clock_ns(CLOCK_MONOTONIC) + suspect->pause;
    }
    if (is_seen)
        notify(watchdog); /* not before the copies: readers would run in them */
    suspect->last = now;
}

/* --- watched threads --- */

static bool is_idle(const struct watched *watched, const struct machtrace_thread_call *call)
{
    uint32_t count = atomic_load(&watched->idle_count);
    for (uint32_t index = 0; index < count; index++) {
        const struct idle_call *idle = &watched->idle[index];
        if (idle->call == call->number && idle->sp == call->sp && idle->pc == call->pc)
            return true;
    }
    return false;
}

static void record_poll(struct machtrace_watchdog *watchdog,
                        const struct machtrace_watchdog_poll *poll)
{
    uint64_t number = atomic_load(&watchdog->next_poll);
    struct machtrace_watchdog_poll *slot = &watchdog->polls[number % MACHTRACE_WATCHDOG_POLLS];
    atomic_store(&slot->number, 0);
    atomic_thread_fence(memory_order_release);
    memcpy((unsigned char *)slot + sizeof slot->number,
           (const unsigned char *)poll + sizeof slot->number, sizeof *slot - sizeof slot->number);
    atomic_store(&slot->number, number);
    atomic_store(&watchdog->next_poll, number + 1);
}

static void read_schedule(const struct watched *watched, struct machtrace_watchdog_poll *poll)
{
    struct machtrace_thread_schedule schedule;
    machtrace_thread_read_schedule(&watched->files, &schedule);
    poll->has_schedule = schedule.is_known;
    poll->ran = schedule.ran;
    poll->delayed = schedule.delayed;
    poll->turns = schedule.turns;
}

static bool read_thread(struct machtrace_watchdog *watchdog, struct watched *watched,
                        struct machtrace_watchdog_poll *poll)
{
    struct machtrace_thread_call call;
    struct machtrace_thread_state state = {0};
    /* Switches are read before the call at the first poll of a suspicion, and after it later. */
    bool is_suspected = watched->task.phase != MACHTRACE_WATCHDOG_ENDED;
    bool is_old = watched->task.began != 0 &&
                  watchdog->now - watched->task.began >= watched->task.limit / 4;
    if (is_old && !is_suspected)
        machtrace_thread_read_state(&watched->files, &state);
    if (!machtrace_thread_read_call(&watched->files, &call))
        return false;
    read_schedule(watched, poll);
    if (is_suspected || !call.is_known)
        machtrace_thread_read_state(&watched->files, &state);
    poll->has_call = call.is_known;
    poll->is_running = call.is_known ? call.is_running : state.state == 'R';
    poll->call = call.number;
    memcpy(poll->arguments, call.arguments, sizeof poll->arguments);
    poll->sp = call.sp;
    poll->pc = call.pc;
    poll->has_status = state.state != 0;
    poll->state = state.state;
    poll->tracer = state.tracer;
    poll->voluntary = state.voluntary;
    poll->involuntary = state.involuntary;
    return true;
}

/* When the thread began not to be idle, by what the kernel shows; 0 if it is idle. */
static int64_t began_by_kernel(const struct machtrace_watchdog *watchdog,
                               const struct watched *watched,
                               const struct machtrace_watchdog_poll *poll)
{
    const struct machtrace_thread_call call = {
        .number = poll->call, .sp = poll->sp, .pc = poll->pc};
    if (poll->has_call && !poll->is_running && is_idle(watched, &call))
        return 0;
    if (!poll->has_call && !poll->is_running)
        return 0; /* whether it is idle cannot be seen */
    if (watched->task.began != 0)
        return watched->task.began;
    return watched->last_at != 0 ? watched->last_at : watchdog->now;
}

static void poll_thread(struct machtrace_watchdog *watchdog, struct watched *watched)
{
    struct machtrace_watchdog_poll poll = {
        .at = watchdog->now,
        .boot_at = watchdog->boot_now,
        .late = watchdog->late,
        .thread = watched->thread,
        .busy_since = MACHTRACE_BEACON_SILENT,
    };
    const struct machtrace_beacon *line = machtrace_beacon_of(watched->thread);
    if (line != NULL) {
        do {
            poll.task = atomic_load(&line->task);
            poll.busy_since = atomic_load(&line->busy_since);
        } while (poll.task != atomic_load(&line->task));
    }
    int64_t began = 0;
    uint64_t key = 0;
    bool is_silent = poll.busy_since == MACHTRACE_BEACON_SILENT;
    if (poll.busy_since == 0) {
        read_schedule(watched, &poll); /* what it uses from here on is of its next task */
    } else if (!read_thread(watchdog, watched, &poll)) {
        atomic_store(&watched->use, LEAVING); /* it has exited */
        return;
    }
    if (poll.busy_since > 0) {
        began = poll.busy_since;
        key = poll.task;
    } else if (is_silent) {
        began = began_by_kernel(watchdog, watched, &poll);
    }
    watched->task.limit = watchdog->options.limit;
    watched->task.thread = watched->thread;
    record_poll(watchdog, &poll);
    advance(watchdog, &watched->task, MACHTRACE_WATCHDOG_THREAD, began, key);
    watched->last_at = watchdog->now;
    /* Its first copy shows others whether an unknown wait is idle. */
    if (watched->task.phase == MACHTRACE_WATCHDOG_ENDED)
        watched->has_learnt = false;
    else if (is_silent && !watched->has_learnt) {
        watched->has_learnt = true;
        notify(watchdog);
    }
}

static void poll_scope(struct machtrace_watchdog *watchdog, uint32_t index)
{
    const struct machtrace_beacon *line = &machtrace_beacons[index];
    struct suspect *suspect = &watchdog->scopes[index];
    int64_t deadline, began = 0;
    uint32_t number;
    char label[MACHTRACE_LABEL_SIZE];
    do {
        number = atomic_load(&line->scope);
        deadline = atomic_load(&line->deadline);
        began = atomic_load(&line->began);
        memcpy(label, line->label, sizeof label);
        atomic_thread_fence(memory_order_acquire);
    } while (deadline != atomic_load(&line->deadline) || number != atomic_load(&line->scope));
    uint32_t thread = atomic_load(&line->thread);
    if (deadline == 0 || thread == 0)
        began = 0;
    if (suspect->phase == MACHTRACE_WATCHDOG_ENDED) {
        suspect->limit = deadline - began;
        suspect->thread = thread;
        memcpy(suspect->label, label, sizeof label);
    }
    advance(watchdog, suspect, MACHTRACE_WATCHDOG_SCOPE, began, number);
}

/* --- the interpreter's lock --- */

static void find_waiters(struct machtrace_watchdog *watchdog, const struct machtrace_gil *gil)
{
    const uint64_t *threads;
    size_t count = machtrace_copying_list(&watchdog->copying, &threads);
    struct suspect *suspect = &watchdog->gil;
    suspect->waiters = suspect->waiter = 0;
    for (size_t index = 0; index < count; index++) {
        struct machtrace_thread_files files;
        struct machtrace_thread_call call;
        if (threads[index] == atomic_load(&watchdog->reader) ||
            machtrace_thread_files_open((uint32_t)threads[index], &files) != 0)
            continue; /* nobody else is hindered by a reader that waits */
        if (machtrace_thread_read_call(&files, &call) && call.is_known && !call.is_running &&
            call.number == MACHTRACE_FUTEX_CALL &&
            call.arguments[0] - gil->address - GIL_CONDITION_FIRST <
                GIL_CONDITION_LAST - GIL_CONDITION_FIRST) {
            if (suspect->waiters++ == 0)
                suspect->waiter = (uint32_t)threads[index];
        }
        machtrace_thread_files_close(&files);
    }
}

static void poll_gil(struct machtrace_watchdog *watchdog)
{
    const struct machtrace_python_layout *layout = &watchdog->options.layout;
    struct suspect *suspect = &watchdog->gil;
    struct machtrace_gil gil;
    machtrace_python_read_gil(layout, &gil);
    uint64_t key = gil.switches;
    int64_t now = watchdog->now, before = watchdog->gil_at;
    watchdog->gil_at = now;
    if (!gil.is_locked || key != suspect->key || watchdog->gil_began == 0) {
        end(watchdog, suspect, MACHTRACE_WATCHDOG_GIL);
        suspect->key = key;
        suspect->waiters = 0;
        /* It was taken after the poll before. */
        watchdog->gil_began = !gil.is_locked ? 0 : before != 0 ? before : now;
        watchdog->gil_scan = 0;
        return;
    }
    int64_t began = watchdog->gil_began;
    suspect->limit = watchdog->options.limit;
    int64_t age = now - began;
    bool is_due = age >= FIRST_CAPTURE(suspect->limit) &&
                  (now >= watchdog->gil_scan ||
                   (suspect->phase == MACHTRACE_WATCHDOG_SUSPECTED && age >= suspect->limit));
    if (is_due) {
        /* Again when the limit is reached, then ever less often. */
        int64_t pause = age < suspect->limit ? suspect->limit - age : age;
        watchdog->gil_scan = now + (pause < PAUSE_MOST ? pause : PAUSE_MOST);
        suspect->thread = (uint32_t)machtrace_python_thread_of(layout, gil.holder);
        find_waiters(watchdog, &gil);
    }
    if (suspect->waiters == 0 || suspect->thread == 0)
        return; /* nobody is hindered */
    advance(watchdog, suspect, MACHTRACE_WATCHDOG_GIL, began, key);
}

/* --- the thread --- */

static void clean_up(struct machtrace_watchdog *watchdog, struct watched *watched)
{
    end(watchdog, &watched->task, MACHTRACE_WATCHDOG_THREAD);
    machtrace_thread_files_close(&watched->files);
    atomic_store(&watched->idle_count, 0);
    watched->last_at = 0;
    atomic_store(&watched->use, FREE);
}

static int64_t poll_all(struct machtrace_watchdog *watchdog)
{
    for (size_t index = 0; index < MACHTRACE_WATCHDOG_THREADS_MAX; index++) {
        struct watched *watched = &watchdog->watched[index];
        uint32_t use = atomic_load(&watched->use);
        if (use == USED)
            poll_thread(watchdog, watched);
        if (atomic_load(&watched->use) == LEAVING)
            clean_up(watchdog, watched);
    }
    uint32_t count = atomic_load(&machtrace_beacon_count);
    for (uint32_t index = 0; index < count; index++)
        poll_scope(watchdog, index);
    if (watchdog->options.has_layout && watchdog->options.limit > 0)
        poll_gil(watchdog);
    return record_line(watchdog);
}

static bool wait_until(struct machtrace_watchdog *watchdog, int64_t due)
{
    struct timespec limit = {due / 1000000000, due % 1000000000};
    while (atomic_load(&watchdog->ending) == 0 && clock_ns(CLOCK_MONOTONIC) < due)
        syscall(SYS_futex, &watchdog->ending, FUTEX_WAIT_BITSET_PRIVATE, 0, &limit, NULL,
                FUTEX_BITSET_MATCH_ANY);
    return atomic_load(&watchdog->ending) == 0;
}

static void *run(void *argument)
{
    struct machtrace_watchdog *watchdog = argument;
    machtrace_inprocess_short_turns();
    int64_t interval = watchdog->options.interval;
    int64_t due = clock_ns(CLOCK_MONOTONIC);
    while (wait_until(watchdog, due)) {
        watchdog->now = clock_ns(CLOCK_MONOTONIC);
        watchdog->boot_now = clock_ns(CLOCK_BOOTTIME);
        watchdog->late = watchdog->now - due;
        atomic_fetch_add(&watchdog->rounds, 1);
        if (watchdog->late > interval)
            atomic_fetch_add(&watchdog->late_rounds, 1);
        if (watchdog->late > atomic_load(&watchdog->latest))
            atomic_store(&watchdog->latest, watchdog->late);
        int64_t next = poll_all(watchdog);
        due = watchdog->now + interval;
        if (next < due)
            due = next;
        int64_t now = clock_ns(CLOCK_MONOTONIC);
        if (due < now)
            due = now;
    }
    return NULL;
}

/* --- from outside --- */

static int have_record(struct machtrace_watchdog *watchdog)
{
    const struct machtrace_watchdog_options *options = &watchdog->options;
    size_t polls_at = (sizeof *watchdog->head + MACHTRACE_WATCHDOG_INFO + PAGE - 1) &
                      ~(size_t)(PAGE - 1);
    size_t ring_at = polls_at + ((MACHTRACE_WATCHDOG_POLLS * sizeof *watchdog->polls + PAGE - 1) &
                                 ~(size_t)(PAGE - 1));
    size_t room = options->room & ~(size_t)(PAGE - 1);
    size_t size = ring_at + room;
    int flags = MAP_PRIVATE | MAP_ANON | MAP_NORESERVE;
    if (options->file >= 0) {
        /* Reserved now: a full disk would be a signal later. */
        int error = posix_fallocate(options->file, 0, (off_t)size);
        if (error != 0)
            return error;
        flags = MAP_SHARED;
    }
    void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, options->file, 0);
    if (bytes == MAP_FAILED)
        return errno;
    watchdog->head = bytes;
    watchdog->record_size = size;
    watchdog->polls = (void *)((unsigned char *)bytes + polls_at);
    watchdog->ring.bytes = (unsigned char *)bytes + ring_at;
    watchdog->ring.room = room;
    struct machtrace_watchdog_head *head = watchdog->head;
    memcpy((unsigned char *)(head + 1), options->info, options->info_size);
    head->poll_size = sizeof *watchdog->polls;
    head->poll_count = MACHTRACE_WATCHDOG_POLLS;
    head->polls_at = polls_at;
    head->ring_at = ring_at;
    head->ring_room = room;
    head->info_size = options->info_size;
    head->line.pid = (uint32_t)getpid();
    memcpy(head->magic, MACHTRACE_WATCHDOG_MAGIC, sizeof head->magic);
    return 0;
}

struct machtrace_watchdog *machtrace_watchdog_start(
    const struct machtrace_watchdog_options *options, int *error)
{
    struct machtrace_watchdog *watchdog = calloc(1, sizeof *watchdog);
    if (watchdog == NULL) {
        *error = ENOMEM;
        return NULL;
    }
    watchdog->options = *options;
    watchdog->process = getpid();
    watchdog->next_poll = 1;
    atomic_store(&watchdog->keep, UINT64_MAX);
    *error = options->info_size > MACHTRACE_WATCHDOG_INFO ? EINVAL : have_record(watchdog);
    if (*error == 0)
        *error = machtrace_copying_have(&watchdog->copying, &watchdog->options);
    if (*error == 0)
        *error = machtrace_inprocess_begin(options->signal); /* whether a signal can be had */
    if (*error == 0) {
        machtrace_inprocess_end();
        machtrace_inprocess_image_changes(); /* the first call may wait */
        *error = machtrace_start_quiet_thread(&watchdog->thread, run, watchdog);
        watchdog->is_running = *error == 0;
    }
    watchdog->options.info = NULL;
    if (*error != 0) {
        machtrace_watchdog_free(watchdog);
        return NULL;
    }
    return watchdog;
}

static struct watched *find(struct machtrace_watchdog *watchdog, uint32_t thread)
{
    for (size_t index = 0; index < MACHTRACE_WATCHDOG_THREADS_MAX; index++)
        if (atomic_load(&watchdog->watched[index].use) == USED &&
            watchdog->watched[index].thread == thread)
            return &watchdog->watched[index];
    return NULL;
}

int machtrace_watchdog_watch(struct machtrace_watchdog *watchdog, uint32_t thread)
{
    if (find(watchdog, thread) != NULL)
        return 0;
    for (size_t index = 0; index < MACHTRACE_WATCHDOG_THREADS_MAX; index++) {
        struct watched *watched = &watchdog->watched[index];
        if (atomic_load(&watched->use) != FREE)
            continue;
        int error = machtrace_thread_files_open(thread, &watched->files);
        if (error != 0)
            return error;
        watched->thread = thread;
        atomic_store(&watched->use, USED);
        return 0;
    }
    return ENOSPC;
}

int machtrace_watchdog_unwatch(struct machtrace_watchdog *watchdog, uint32_t thread)
{
    struct watched *watched = find(watchdog, thread);
    if (watched == NULL)
        return ESRCH;
    atomic_store(&watched->use, LEAVING);
    return 0;
}

int machtrace_watchdog_add_idle(struct machtrace_watchdog *watchdog, uint32_t thread,
                                int64_t call, uint64_t sp, uint64_t pc)
{
    struct watched *watched = find(watchdog, thread);
    if (watched == NULL)
        return ESRCH;
    const struct machtrace_thread_call wanted = {.number = call, .sp = sp, .pc = pc};
    if (is_idle(watched, &wanted))
        return 0;
    uint32_t count = atomic_load(&watched->idle_count);
    if (count == MACHTRACE_WATCHDOG_IDLE_MAX)
        return ENOSPC;
    watched->idle[count] = (struct idle_call){call, sp, pc};
    atomic_store(&watched->idle_count, count + 1);
    return 0;
}

void machtrace_watchdog_clear_idle(struct machtrace_watchdog *watchdog, uint32_t thread)
{
    struct watched *watched = find(watchdog, thread);
    if (watched != NULL)
        atomic_store(&watched->idle_count, 0);
}

uint32_t machtrace_watchdog_wait(struct machtrace_watchdog *watchdog, uint32_t seen,
                                 int64_t for_ns)
{
    struct timespec limit = {for_ns / 1000000000, for_ns % 1000000000};
    atomic_store(&watchdog->reader, machtrace_inprocess_id());
    if (atomic_load(&watchdog->news) == seen && watchdog->process == getpid())
        syscall(SYS_futex, &watchdog->news, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
    return atomic_load(&watchdog->news);
}

void machtrace_watchdog_wake(struct machtrace_watchdog *watchdog)
{
    notify(watchdog);
}

size_t machtrace_watchdog_waiting(const struct machtrace_watchdog *watchdog)
{
    uint64_t position = watchdog->position;
    return machtrace_ring_read(&watchdog->ring, &position, NULL, SIZE_MAX);
}

size_t machtrace_watchdog_take(struct machtrace_watchdog *watchdog, unsigned char *to,
                               size_t most)
{
    size_t size = machtrace_ring_read(&watchdog->ring, &watchdog->position, to, most);
    uint64_t keep = atomic_load(&watchdog->keep);
    uint64_t taken = keep < watchdog->position ? keep : watchdog->position;
    if (watchdog->process == getpid() && taken > atomic_load(&watchdog->ring.taken)) {
        atomic_store(&watchdog->head->taken, taken);
        atomic_store(&watchdog->ring.taken, taken);
    }
    return size;
}

size_t machtrace_watchdog_polls(const struct machtrace_watchdog *watchdog, uint64_t first,
                                struct machtrace_watchdog_poll *to, size_t most)
{
    size_t count = 0;
    uint64_t next = atomic_load(&watchdog->next_poll);
    /* The oldest are overwritten, some more of them meanwhile. */
    if (first + MACHTRACE_WATCHDOG_POLLS < next + SPARE_POLLS)
        first = next + SPARE_POLLS - MACHTRACE_WATCHDOG_POLLS;
    for (uint64_t number = first; number < next && count < most; number++) {
        const struct machtrace_watchdog_poll *slot =
            &watchdog->polls[number % MACHTRACE_WATCHDOG_POLLS];
        uint64_t seen = atomic_load(&slot->number);
        if (seen != number)
            break; /* not yet written, or another by now */
        memcpy(&to[count], slot, sizeof *slot);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load(&slot->number) == number)
            count++;
        else
            break;
    }
    return count;
}

struct machtrace_watchdog_counts machtrace_watchdog_count(
    const struct machtrace_watchdog *watchdog)
{
    clockid_t clock;
    int64_t cpu = 0;
    if (watchdog->is_running && watchdog->process == getpid() &&
        pthread_getcpuclockid(watchdog->thread, &clock) == 0)
        cpu = clock_ns(clock);
    const struct machtrace_copying *copying = &watchdog->copying;
    return (struct machtrace_watchdog_counts){
        .polls = atomic_load(&watchdog->rounds),
        .late = atomic_load(&watchdog->late_rounds),
        .latest = atomic_load(&watchdog->latest),
        .cpu = cpu,
        .captures = atomic_load(&copying->captures),
        .stops = atomic_load(&copying->stops),
        .longest_stop = atomic_load(&copying->longest_stop),
        .lost = atomic_load(&copying->lost),
    };
}

void machtrace_watchdog_stop(struct machtrace_watchdog *watchdog)
{
    if (!watchdog->is_running || watchdog->process != getpid())
        return;
    atomic_store(&watchdog->ending, 1);
    syscall(SYS_futex, &watchdog->ending, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    pthread_join(watchdog->thread, NULL);
    watchdog->is_running = false;
    for (size_t index = 0; index < MACHTRACE_WATCHDOG_THREADS_MAX; index++)
        if (atomic_load(&watchdog->watched[index].use) != FREE)
            clean_up(watchdog, &watchdog->watched[index]);
    watchdog->boot_now = clock_ns(CLOCK_BOOTTIME);
    watchdog->now = clock_ns(CLOCK_MONOTONIC);
    for (size_t index = 0; index < MACHTRACE_BEACONS_MAX; index++)
        end(watchdog, &watchdog->scopes[index], MACHTRACE_WATCHDOG_SCOPE);
    end(watchdog, &watchdog->gil, MACHTRACE_WATCHDOG_GIL);
    record_line(watchdog);
}

void machtrace_watchdog_free(struct machtrace_watchdog *watchdog)
{
    machtrace_watchdog_stop(watchdog);
    if (watchdog->head != NULL)
        munmap(watchdog->head, watchdog->record_size);
    machtrace_copying_free(&watchdog->copying);
    free(watchdog);
}
