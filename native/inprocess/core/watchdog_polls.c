/* What the watchdog polls: watched threads, scopes and the interpreter's lock. */
#define _GNU_SOURCE
#include "inprocess/core/watchdog_inside.h"

#include <string.h>

#include "inprocess/core/linux/shared.h"

#define GIL_CONDITION_FIRST 32 /* of struct _gil_runtime_state: its condition and mutex */
#define GIL_CONDITION_LAST 120
#define GIL_LATE_MAX 10 /* intervals: later rounds prove nothing */
#define GIL_PAUSE_MAX 1000000000 /* ns until its waiters are sought again */

/* --- watched threads --- */

bool machtrace_watched_is_idle(const struct machtrace_watched *watched,
                               const struct machtrace_thread_call *call)
{
    uint32_t count = atomic_load(&watched->idle_count);
    for (uint32_t index = 0; index < count; index++) {
        const struct machtrace_idle_call *idle = &watched->idle[index];
        if (idle->call == call->number && idle->sp == call->sp && idle->pc == call->pc)
            return true;
    }
    return false;
}

static void read_schedule(const struct machtrace_watched *watched, struct machtrace_watchdog_poll *poll)
{
    struct machtrace_thread_schedule schedule;
    machtrace_thread_read_schedule(&watched->files, &schedule);
    poll->has_schedule = schedule.is_known;
    poll->ran = schedule.ran;
    poll->delayed = schedule.delayed;
    poll->turns = schedule.turns;
}

static bool read_thread(struct machtrace_watchdog *watchdog, struct machtrace_watched *watched,
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
                               const struct machtrace_watched *watched,
                               const struct machtrace_watchdog_poll *poll)
{
    const struct machtrace_thread_call call = {
        .number = poll->call, .sp = poll->sp, .pc = poll->pc};
    if (poll->has_call && !poll->is_running && machtrace_watched_is_idle(watched, &call))
        return 0;
    if (!poll->has_call && !poll->is_running)
        return 0; /* whether it is idle cannot be seen */
    if (watched->task.began != 0)
        return watched->task.began;
    return watched->last_at != 0 ? watched->last_at : watchdog->now;
}

static void poll_thread(struct machtrace_watchdog *watchdog, struct machtrace_watched *watched)
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
        atomic_store(&watched->use, MACHTRACE_LEAVING); /* it has exited */
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
    machtrace_watchdog_record_poll(watchdog, &poll);
    machtrace_suspect_advance(watchdog, &watched->task, MACHTRACE_WATCHDOG_THREAD, began, key);
    watched->last_at = watchdog->now;
    /* Its first copy shows others whether an unknown wait is idle. */
    if (watched->task.phase == MACHTRACE_WATCHDOG_ENDED)
        watched->has_learnt = false;
    else if (is_silent && !watched->has_learnt) {
        watched->has_learnt = true;
        machtrace_watchdog_notify(watchdog);
    }
}

static void poll_scope(struct machtrace_watchdog *watchdog, uint32_t index)
{
    const struct machtrace_beacon *line = &machtrace_beacons[index];
    struct machtrace_suspect *suspect = &watchdog->scopes[index];
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
    machtrace_suspect_advance(watchdog, suspect, MACHTRACE_WATCHDOG_SCOPE, began, number);
}

/* --- the interpreter's lock --- */

static void find_waiters(struct machtrace_watchdog *watchdog, const struct machtrace_gil *gil)
{
    const uint64_t *threads;
    size_t count = machtrace_copying_list(&watchdog->copying, &threads);
    struct machtrace_suspect *suspect = &watchdog->gil;
    uint32_t waiters = 0, waiter = 0;
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
            if (waiters++ == 0)
                waiter = (uint32_t)threads[index];
        }
        machtrace_thread_files_close(&files);
    }
    if (waiters != 0 || suspect->phase != MACHTRACE_WATCHDOG_SEEN) {
        suspect->waiters = waiters;
        suspect->waiter = waiter;
    }
}

static void poll_gil(struct machtrace_watchdog *watchdog)
{
    const struct machtrace_python_layout *layout = &watchdog->options.layout;
    struct machtrace_suspect *suspect = &watchdog->gil;
    struct machtrace_gil gil;
    machtrace_python_read_gil(layout, &gil);
    uint64_t key = gil.switches;
    int64_t now = watchdog->now, before = watchdog->gil_at;
    watchdog->gil_at = now;
    int64_t interval = watchdog->options.interval;
    bool is_missed = watchdog->late > GIL_LATE_MAX * interval &&
                     suspect->phase != MACHTRACE_WATCHDOG_SEEN; /* all may have been stopped */
    if (!gil.is_locked || key != suspect->key || watchdog->gil_began == 0 || is_missed) {
        machtrace_suspect_end(watchdog, suspect, MACHTRACE_WATCHDOG_GIL);
        suspect->key = key;
        suspect->waiters = 0;
        /* It was taken after the poll before, when that is not long ago. */
        int64_t earliest = before > now - interval ? before : now - interval;
        watchdog->gil_began = !gil.is_locked ? 0 : before != 0 ? earliest : now;
        watchdog->gil_scan = 0;
        return;
    }
    int64_t began = watchdog->gil_began;
    suspect->limit = watchdog->options.limit;
    int64_t age = now - began;
    if (age >= MACHTRACE_FIRST_CAPTURE(suspect->limit) && now >= watchdog->gil_scan) {
        /* Again when the limit is reached, then ever less often. */
        int64_t pause = age < suspect->limit ? suspect->limit - age : age;
        watchdog->gil_scan = now + (pause < GIL_PAUSE_MAX ? pause : GIL_PAUSE_MAX);
        if (suspect->phase != MACHTRACE_WATCHDOG_SEEN)
            suspect->thread = (uint32_t)machtrace_python_thread_of(layout, gil.holder);
        find_waiters(watchdog, &gil);
    }
    /* A waiter that was seen may be between two of its waits now. */
    if (suspect->phase == MACHTRACE_WATCHDOG_SEEN ||
        (suspect->waiters != 0 && suspect->thread != 0))
        machtrace_suspect_advance(watchdog, suspect, MACHTRACE_WATCHDOG_GIL, began, key);
    else
        machtrace_suspect_end(watchdog, suspect, MACHTRACE_WATCHDOG_GIL); /* nobody is hindered */
}

/* --- all of them --- */

void machtrace_watched_clean_up(struct machtrace_watchdog *watchdog, struct machtrace_watched *watched)
{
    machtrace_suspect_end(watchdog, &watched->task, MACHTRACE_WATCHDOG_THREAD);
    machtrace_thread_files_close(&watched->files);
    atomic_store(&watched->idle_count, 0);
    watched->last_at = 0;
    atomic_store(&watched->use, MACHTRACE_FREE);
}

int64_t machtrace_watchdog_poll_all(struct machtrace_watchdog *watchdog)
{
    for (size_t index = 0; index < MACHTRACE_WATCHDOG_THREADS_MAX; index++) {
        struct machtrace_watched *watched = &watchdog->watched[index];
        uint32_t use = atomic_load(&watched->use);
        if (use == MACHTRACE_USED)
            poll_thread(watchdog, watched);
        if (atomic_load(&watched->use) == MACHTRACE_LEAVING)
            machtrace_watched_clean_up(watchdog, watched);
    }
    uint32_t count = atomic_load(&machtrace_beacon_count);
    for (uint32_t index = 0; index < count; index++)
        poll_scope(watchdog, index);
    if (watchdog->options.has_layout && watchdog->options.limit > 0)
        poll_gil(watchdog);
    return machtrace_watchdog_record_line(watchdog);
}
