/* See drain.h. */
#define _GNU_SOURCE
#include "drain.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "app_state.h"
#include "drain_inside.h"
#include "imports.h"
#include "thread.h"

#define IDLE_INTERVALS 4
#define SWEEP_PERIOD 1000000000 /* ns */

struct machtrace_drain *machtrace_drain;

/* --- time --- */

static uint64_t monotonic(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void read_clocks(uint64_t *ticks, uint64_t *ns)
{
    uint64_t shortest = UINT64_MAX;
    for (int attempt = 0; attempt < 3; attempt++) {
        uint64_t before = machtrace_ticks();
        uint64_t time = monotonic();
        uint64_t after = machtrace_ticks();
        if (after - before < shortest) {
            shortest = after - before;
            *ticks = before + (after - before) / 2;
            *ns = time;
        }
    }
}

static uint64_t time_of(uint64_t ticks)
{
    uint64_t span = machtrace_drain->now_ticks - machtrace_drain->first_ticks;
    if (span == 0)
        return machtrace_drain->now_ns;
    bool is_before = ticks <= machtrace_drain->now_ticks;
    uint64_t away =
        is_before ? machtrace_drain->now_ticks - ticks : ticks - machtrace_drain->now_ticks;
    uint64_t elapsed = machtrace_drain->now_ns - machtrace_drain->first_ns;
    uint64_t ns = (uint64_t)((unsigned __int128)away * elapsed / span);
    return is_before ? machtrace_drain->now_ns - ns : machtrace_drain->now_ns + ns;
}

/* --- passes --- */

static void drain_ring(uint32_t index)
{
    struct machtrace_recorder *recorder = &machtrace_recorders.all[index];
    struct machtrace_event *events;
    size_t waiting;
    /* Not for ever, if the thread writes as fast as this reads. */
    for (size_t left = MACHTRACE_EVENT_RING;
         left > 0 && (waiting = machtrace_event_ring_peek(&recorder->ring, &events)) != 0;) {
        size_t count = waiting < MACHTRACE_DRAIN_BATCH ? waiting : MACHTRACE_DRAIN_BATCH;
        count = count < left ? count : left;
        left -= count;
        memcpy(machtrace_drain->batch, events, count * sizeof *events);
        machtrace_event_ring_release(&recorder->ring, count);
        for (size_t at = 0; at < count; at++) {
            struct machtrace_event *event = &machtrace_drain->batch[at];
            event->time = time_of(event->time);
            if (!machtrace_bit_is_set(machtrace_drain->sent, event->stack) && event->stack != MACHTRACE_TREE_ROOT) {
                uint32_t stack = machtrace_drain_send_stack(event->stack);
                if (stack != event->stack)
                    event->flags |= MACHTRACE_EVENT_INCOMPLETE;
                event->stack = stack;
            }
            if (event->thread != machtrace_drain->last_threads[index]) {
                machtrace_drain->last_threads[index] = event->thread;
                machtrace_drain_log_thread(event->thread, event->thread == atomic_load(&recorder->thread)
                                              ? atomic_load(&recorder->id)
                                              : 0);
            }
        }
        machtrace_drain_send_nodes();
        machtrace_spool_events(&machtrace_drain->spool, machtrace_drain->batch, count);
    }
}

static void add_calls(uint16_t rule, uint32_t stack, uint64_t calls)
{
    if (stack != MACHTRACE_TREE_ROOT)
        stack = machtrace_drain_send_stack(stack);
    machtrace_drain_send_nodes();
    machtrace_spool_count(&machtrace_drain->spool, rule, stack, calls);
}

/* Of calls whose site had no budget. */
static void add_site(void *data, uint16_t rule, uint32_t node, uint64_t calls)
{
    (void)data;
    add_calls(rule, node, calls);
}

static void add_counts(void *data, uint16_t rule, uint32_t stack, uint64_t calls)
{
    (void)data;
    add_calls(rule, stack, calls);
    atomic_fetch_add(&machtrace_drain->spool.head->losses.events_counted, calls);
}

static void store_sums(uint32_t endings)
{
    _Atomic uint64_t *state = &machtrace_drain->spool.head->state;
    bool has_changed = false;
    struct machtrace_recorders *all = &machtrace_recorders;
    _Atomic uint64_t *calls = machtrace_spool_calls(&machtrace_drain->spool);
    uint32_t used = atomic_load(&all->used);
    uint32_t rules = atomic_load(&machtrace_rule_count);
    for (uint32_t rule = 0; rule < rules; rule++) {
        if (!atomic_load(&machtrace_rules[rule].is_active))
            continue;
        uint64_t sum = atomic_load(&all->calls[rule]);
        for (uint32_t index = 0; index < used; index++)
            sum += atomic_load_explicit(&all->all[index].calls[rule], memory_order_relaxed);
        has_changed |= sum != machtrace_drain->sums[rule];
        machtrace_drain->sums[rule] = sum;
        atomic_store(&calls[rule], sum - machtrace_drain->before[rule]);
    }
    struct machtrace_spool_losses *losses = &machtrace_drain->spool.head->losses;
    const uint64_t values[3] = {atomic_load(&all->incomplete), atomic_load(&all->cut),
                                atomic_load(&all->ignored)};
    _Atomic uint64_t *const words[3] = {&losses->stacks_full, &losses->stacks_cut,
                                        &losses->ignored};
    for (int index = 0; index < 3; index++) {
        machtrace_drain->losses[index] = values[index];
        atomic_store(words[index], values[index] - machtrace_drain->losses_before[index]);
    }
    if (endings != machtrace_drain->endings)
        atomic_store(state, MACHTRACE_SPOOL_ENDING);
    else if (has_changed)
        atomic_store(state, MACHTRACE_SPOOL_RUNNING);
    machtrace_drain->endings = endings;
}

static void send_program(void)
{
    for (uint32_t index = 0; index < machtrace_image_count(); index++) {
        if (machtrace_image(index)->is_program)
            machtrace_drain_send_image(machtrace_image(index));
    }
}

/* --- rotation --- */

#define ROTATION_PAUSE 1000000000 /* ns between rotations since the log is full, or that fail */

static _Atomic uint32_t reporter_id; /* the kernel's number; 0 while none runs */

static void *report(void *argument)
{
    struct machtrace_drain *drain = argument;
    char older[MACHTRACE_AGENT_PATH_MAX + 2];
    machtrace_ignore_enter();
    atomic_store(&reporter_id, machtrace_thread_id());
    snprintf(older, sizeof older, "%s.1", drain->path);
    drain->options.finished(older, drain->options.context);
    atomic_store(&reporter_id, 0);
    atomic_store(&drain->is_reporting, false);
    return NULL;
}

static void end_reports(struct machtrace_drain *drain)
{
    if (drain->has_reporter)
        pthread_join(drain->reporter, NULL);
    drain->has_reporter = false;
}

/* By a thread of its own, so that calls are moved to the spool meanwhile. */
static void report_finished(void)
{
    struct machtrace_drain *drain = machtrace_drain;
    drain->must_report = false;
    if (drain->options.finished == NULL)
        return;
    end_reports(drain);
    atomic_store(&drain->is_reporting, true);
    drain->has_reporter = pthread_create(&drain->reporter, NULL, report, drain) == 0;
    if (!drain->has_reporter)
        report(drain);
}

static bool should_rotate(void)
{
    const struct machtrace_drain *drain = machtrace_drain;
    uint64_t age = drain->now_ns - drain->rotated_at;
    uint64_t most = (uint64_t)drain->options.rotate_seconds * 1000000000;
    bool is_full = drain->spool.log_used > drain->spool.head->log_size / 8 * 7;
    if (drain->must_report || atomic_load(&drain->is_reporting)) /* of PATH.1 */
        return false;
    return atomic_load(&drain->must_rotate) ||
           (most != 0 && (age >= most || (is_full && age >= ROTATION_PAUSE)));
}

/* What the next spool does not have: everything that was sent to this one. */
static void forget_sent(void)
{
    struct machtrace_drain *drain = machtrace_drain;
    memset(drain->sent, 0, ((size_t)1 << machtrace_recorders.tree.bits) / 8);
    memset(drain->sent_images, 0, MACHTRACE_IMAGES_MAX / 8 + 8);
    memset(drain->last_threads, 0, machtrace_recorders.most * sizeof(uint32_t));
    memset(drain->rules, 0, sizeof drain->rules);
    memcpy(drain->before, drain->sums, sizeof drain->before);
    memcpy(drain->losses_before, drain->losses, sizeof drain->losses_before);
}

static void rotate(void)
{
    struct machtrace_drain *drain = machtrace_drain;
    machtrace_drain_lock_without_incidents();
    int error = machtrace_spool_rotate(&drain->spool, drain->path, drain->options.older);
    if (error == 0)
        forget_sent();
    pthread_mutex_unlock(&drain->lock);
    drain->rotated_at = drain->now_ns;
    atomic_store(&drain->rotation_error, error);
    atomic_store(&drain->must_rotate, false);
    if (error != 0)
        return;
    send_program();
    drain->must_report = drain->spool.has_earlier;
}

/* Whether there were events. */
static bool pass(void)
{
    uint64_t events = atomic_load(&machtrace_drain->spool.head->events);
    read_clocks(&machtrace_drain->now_ticks, &machtrace_drain->now_ns);
    atomic_fetch_add(&machtrace_recorders.passes, 1);
    uint32_t endings = atomic_load(&machtrace_recorders.endings);
    machtrace_budget_refill(machtrace_recorders.budget, machtrace_drain->now_ns);
    if (atomic_load(&machtrace_imports_are_pending) || machtrace_images_are_stale()) {
        struct machtrace_imports_result result;
        if (atomic_load(&machtrace_drain->stops) == 0)
            machtrace_bind_imports(&result);
        machtrace_images_update(true);
    }
    machtrace_settle_late(atomic_load(&machtrace_drain->stops) == 0);
    machtrace_drain_log_rules();
    uint64_t consent = atomic_exchange(&machtrace_recorders.consent, 0);
    if (consent != 0)
        machtrace_log_mark(time_of(consent), consent & 7, "");
    uint32_t used = atomic_load(&machtrace_recorders.used);
    for (uint32_t index = 0; index < used; index++)
        drain_ring(index);
    machtrace_drain_send_incidents();
    machtrace_counts_take(machtrace_recorders.counts, add_counts, NULL);
    machtrace_budget_drain(machtrace_recorders.budget, add_site, NULL);
    store_sums(endings);
    if (machtrace_drain->now_ns - machtrace_drain->swept_at >= SWEEP_PERIOD) {
        machtrace_recorders_sweep();
        machtrace_drain->swept_at = machtrace_drain->now_ns;
    }
    return atomic_load(&machtrace_drain->spool.head->events) != events;
}

/* Longer where nothing was recorded the last time; a ring that is half full ends it. */
_Atomic bool machtrace_code_changes, machtrace_drain_is_parked;
_Atomic uint32_t machtrace_drain_thread;

static void wait_for_work(uint32_t seen, bool is_idle)
{
    uint32_t interval = is_idle ? IDLE_INTERVALS * machtrace_drain->interval_ms : machtrace_drain->interval_ms;
    do {
        atomic_store(&machtrace_drain_is_parked, true);
        machtrace_wait(&machtrace_recorders.wake, seen, interval);
        atomic_store(&machtrace_drain_is_parked, false);
        seen = atomic_load(&machtrace_recorders.wake);
        interval = 1;
    } while (atomic_load(&machtrace_code_changes));
}

static void *run(void *argument)
{
    (void)argument;
    machtrace_ignore_enter();
    atomic_store(&machtrace_drain_thread, machtrace_thread_id());
#if defined(__APPLE__)
    pthread_setname_np("machtrace");
#else
    pthread_setname_np(pthread_self(), "machtrace");
#endif
    send_program();
    machtrace_drain->must_report = machtrace_drain->spool.has_earlier;
    for (;;) {
        uint32_t seen = atomic_load(&machtrace_recorders.wake);
        uint32_t requested = atomic_load(&machtrace_drain->requested);
        bool stops = atomic_load(&machtrace_drain->stops) != 0;
        bool is_idle = !pass();
        if (!stops && should_rotate())
            rotate();
        if (machtrace_drain->must_report && atomic_load(&machtrace_drain->may_report))
            report_finished();
        atomic_store(&machtrace_drain->done, requested);
        if (stops) {
            atomic_store(&machtrace_drain_thread, 0);
            return NULL;
        }
        wait_for_work(seen, is_idle);
    }
}

/* --- begin and end --- */

static int start_thread(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&machtrace_drain->thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Absolute, so that the program may change its folder. */
static int set_path(struct machtrace_drain *drain, const char *path)
{
    size_t used = 0;
    if (path[0] != '/') {
        if (getcwd(drain->path, sizeof drain->path) == NULL)
            return errno;
        used = strlen(drain->path);
        drain->path[used++] = '/';
    }
    if (used + strlen(path) >= sizeof drain->path)
        return ENAMETOOLONG;
    strcpy(drain->path + used, path);
    return 0;
}

int machtrace_drain_begin(const struct machtrace_drain_options *options)
{
    uint32_t bits = machtrace_recorders.tree.bits;
    size_t nodes = ((size_t)1 << bits) / 8;
    size_t images = MACHTRACE_IMAGES_MAX / 8 + 8;
    size_t threads = machtrace_recorders.most * sizeof(uint32_t);
    size_t room = sizeof(struct machtrace_drain) + nodes + images + threads;
    struct machtrace_drain *made = mmap(NULL, room, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED)
        return errno;
    made->options = *options;
    int error = set_path(made, options->path);
    if (error == 0)
        error = machtrace_spool_create(&made->spool, made->path, options->size, bits, options->older);
    if (error == 0) {
        machtrace_drain = made;
        pthread_mutex_init(&machtrace_drain->lock, NULL);
        machtrace_drain->sent = (uint64_t *)(machtrace_drain + 1);
        machtrace_drain->sent_images = (uint64_t *)((unsigned char *)machtrace_drain->sent + nodes);
        machtrace_drain->last_threads = (uint32_t *)((unsigned char *)machtrace_drain->sent_images + images);
        machtrace_drain->interval_ms = options->interval_ms;
        machtrace_drain->endings = atomic_load(&machtrace_recorders.endings);
        read_clocks(&machtrace_drain->first_ticks, &machtrace_drain->first_ns);
        machtrace_drain->rotated_at = machtrace_drain->first_ns;
        error = start_thread();
        if (error != 0)
            machtrace_spool_end(&made->spool, MACHTRACE_SPOOL_STOPPED);
    }
    if (error != 0) {
        machtrace_drain = NULL;
        munmap(made, room);
    }
    return error;
}

void machtrace_drain_flush(void)
{
    if (machtrace_drain == NULL)
        return;
    uint32_t wanted = atomic_fetch_add(&machtrace_drain->requested, 1) + 1;
    while ((int32_t)(atomic_load(&machtrace_drain->done) - wanted) < 0) {
        machtrace_wake(&machtrace_recorders.wake);
        usleep(200);
    }
}

void machtrace_drain_report(void)
{
    atomic_store(&machtrace_drain->may_report, true);
    machtrace_wake(&machtrace_recorders.wake);
}

int machtrace_drain_rotate(void)
{
    atomic_store(&machtrace_drain->must_rotate, true);
    while (machtrace_drain_flush(), atomic_load(&machtrace_drain->must_rotate))
        usleep(5000);
    return atomic_load(&machtrace_drain->rotation_error);
}

bool machtrace_drain_is_ending(void)
{
    /* The end waits for the reporter: for no other thread is the structure certain to exist. */
    return machtrace_thread_id() == atomic_load(&reporter_id) &&
           atomic_load(&machtrace_drain->stops) != 0;
}

void machtrace_drain_end(void)
{
    if (machtrace_drain == NULL)
        return;
    atomic_store(&machtrace_drain->stops, 1);
    machtrace_wake(&machtrace_recorders.wake);
    pthread_join(machtrace_drain->thread, NULL);
    end_reports(machtrace_drain);
    machtrace_spool_end(&machtrace_drain->spool, MACHTRACE_SPOOL_STOPPED);
    struct machtrace_drain *last = machtrace_drain;
    machtrace_drain = NULL;
    size_t nodes = ((size_t)1 << machtrace_recorders.tree.bits) / 8;
    munmap(last, sizeof *last + nodes + MACHTRACE_IMAGES_MAX / 8 + 8 +
                     machtrace_recorders.most * sizeof(uint32_t));
}

void machtrace_drain_after_fork(void)
{
    atomic_store(&machtrace_drain_thread, 0);
    atomic_store(&reporter_id, 0);
    if (machtrace_drain != NULL)
        machtrace_spool_after_fork(&machtrace_drain->spool);
    machtrace_drain = NULL;
}
