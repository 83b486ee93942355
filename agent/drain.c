/* See drain.h. */
#define _GNU_SOURCE
#include "drain.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "app_state.h"
#include "hooks.h"
#include "images.h"
#include "recorder.h"
#include "spool.h"
#include "thread.h"

#define BATCH 512
#define PENDING (1u << 16) /* bytes of a record of nodes */
#define NODE_MOST 24       /* bytes of a node: distance, offset, image, address */
#define CHAIN_MOST 16
#define IDLE_INTERVALS 4
#define SWEEP_PERIOD 1000000000 /* ns */

struct logged_rule {
    uint32_t state;
    bool counts_only, is_logged;
};

struct drain {
    struct machtrace_spool spool;
    pthread_t thread;
    uint32_t interval_ms;
    _Atomic uint32_t stops;
    _Atomic uint32_t requested, done; /* passes that a flush waits for */
    pthread_mutex_t lock;             /* of the spool's log, for incidents */

    uint64_t *sent;          /* a bit for each node that is in the spool */
    uint64_t *sent_images;   /* and for each image */
    uint32_t *last_threads;  /* by recorder: the last thread in the spool */
    struct logged_rule rules[MACHTRACE_RULES_MAX];

    uint64_t first_ticks, first_ns, now_ticks, now_ns; /* the clock of events, and CLOCK_MONOTONIC */
    uint64_t swept_at;

    struct machtrace_event batch[BATCH];
    uint32_t chain[MACHTRACE_FRAMES_MAX + 2];
    unsigned char pending[PENDING];
    size_t pending_size;
    uint32_t pending_image; /* of the last node in it */
    const struct machtrace_agent_image *last_image;
    uint32_t last_era;
};

static struct drain *drain;

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
    uint64_t span = drain->now_ticks - drain->first_ticks;
    if (span == 0)
        return drain->now_ns;
    bool is_before = ticks <= drain->now_ticks;
    uint64_t away = is_before ? drain->now_ticks - ticks : ticks - drain->now_ticks;
    uint64_t ns = (uint64_t)((unsigned __int128)away * (drain->now_ns - drain->first_ns) / span);
    return is_before ? drain->now_ns - ns : drain->now_ns + ns;
}

/* --- the log --- */

static bool is_set(const uint64_t *bits, uint32_t number)
{
    return bits[number / 64] >> number % 64 & 1;
}

static void set(uint64_t *bits, uint32_t number)
{
    bits[number / 64] |= UINT64_C(1) << number % 64;
}

static bool log_record(enum machtrace_spool_kind kind, const void *payload, size_t size)
{
    pthread_mutex_lock(&drain->lock);
    bool is_stored = machtrace_spool_log(&drain->spool, kind, payload, size);
    pthread_mutex_unlock(&drain->lock);
    return is_stored;
}

bool machtrace_drain_log(enum machtrace_spool_kind kind, const void *payload, uint32_t size)
{
    return drain != NULL && log_record(kind, payload, size);
}

/* Whether the image is in the log, also now. */
static bool send_image(const struct machtrace_agent_image *image)
{
    struct {
        uint32_t number, id_size;
        uint64_t start, size, bias;
        uint32_t path_size, flags;
        unsigned char text[MACHTRACE_IMAGE_ID_MAX + MACHTRACE_AGENT_PATH_MAX];
    } record;
    uint32_t index = (uint32_t)(image - machtrace_image(0));
    if (is_set(drain->sent_images, index))
        return true;
    memset(&record, 0, sizeof record);
    record.number = index + 1;
    record.id_size = image->id_size;
    record.start = image->start;
    record.size = image->end - image->start;
    record.bias = image->bias;
    record.path_size = (uint32_t)strlen(image->path);
    record.flags = image->is_program;
    memcpy(record.text, image->id, image->id_size);
    memcpy(record.text + image->id_size, image->path, record.path_size);
    if (!log_record(MACHTRACE_SPOOL_IMAGE, &record,
                    sizeof record - sizeof record.text + image->id_size + record.path_size))
        return false;
    set(drain->sent_images, index);
    return true;
}

static void log_thread(uint32_t number, uint32_t id)
{
    struct {
        uint32_t number, id;
        char name[16];
    } record = {number, id, ""};
    size_t size = id == 0 ? 0 : machtrace_thread_name(id, record.name, sizeof record.name);
    log_record(MACHTRACE_SPOOL_THREAD, &record, 8 + size);
}

static void log_rules(void)
{
    struct {
        uint32_t number, state, slots, flags;
        uint64_t target;
        char symbols[2 * MACHTRACE_SYMBOL_MAX];
    } record;
    uint32_t count = atomic_load(&machtrace_rule_count);
    for (uint32_t index = 0; index < count; index++) {
        struct machtrace_watched *rule = &machtrace_rules[index];
        uint32_t state = atomic_load(&rule->state);
        struct logged_rule *last = &drain->rules[index];
        bool counts_only = atomic_load(&rule->counts_only);
        if (!atomic_load(&rule->is_active) ||
            (last->is_logged && last->state == state && last->counts_only == counts_only))
            continue;
        *last = (struct logged_rule){state, counts_only, true};
        memset(&record, 0, sizeof record);
        record.number = index;
        record.state = state;
        record.slots = atomic_load(&rule->slots);
        record.flags = (counts_only ? 1 : 0) | (atomic_load(&rule->is_at_entry) ? 2 : 0);
        record.target = atomic_load(&rule->target);
        size_t length = strlen(rule->symbol);
        memcpy(record.symbols, rule->symbol, length);
        if (state >= MACHTRACE_RULE_INHERITED) {
            strcpy(record.symbols + length + 1, rule->other);
            length += 1 + strlen(rule->other);
        }
        const struct machtrace_agent_image *image =
            machtrace_image_at(record.target, MACHTRACE_ERA_NOW);
        if (image != NULL)
            send_image(image);
        log_record(MACHTRACE_SPOOL_RULE, &record, sizeof record - sizeof record.symbols + length);
    }
}

/* --- nodes --- */

static void put(uint64_t value)
{
    for (; value >= 128; value >>= 7)
        drain->pending[drain->pending_size++] = (unsigned char)(value | 128);
    drain->pending[drain->pending_size++] = (unsigned char)value;
}

static void send_nodes(void)
{
    if (drain->pending_size != 0)
        log_record(MACHTRACE_SPOOL_NODES, drain->pending, drain->pending_size);
    drain->pending_size = 0;
    drain->pending_image = 0;
}

static bool log_has_room(size_t size)
{
    return drain->spool.head->log_size - drain->spool.log_used > drain->pending_size + size;
}

/* The number of the image that has a node's address, from 1; 0 if none has it. */
static uint32_t image_of(uint64_t address, uint32_t era)
{
    if (address < MACHTRACE_MARK_END)
        return 0;
    const struct machtrace_agent_image *image = drain->last_image;
    if (image == NULL || era != drain->last_era || address < image->start ||
        address >= image->end)
        image = machtrace_image_at(address, era);
    drain->last_image = image;
    drain->last_era = era;
    return image == NULL ? 0 : (uint32_t)(image - machtrace_image(0)) + 1;
}

/* Whether the images of nodes are in the log. */
static bool send_images(const uint32_t *nodes, size_t count, uint32_t era)
{
    for (size_t index = 0; index < count; index++) {
        uint64_t address = machtrace_stack_tree_address(&machtrace_recorders.tree, nodes[index]);
        uint32_t number = image_of(address, era);
        if (number != 0 && !send_image(machtrace_image(number - 1)))
            return false;
    }
    return true;
}

static void put_node(uint32_t node, uint32_t era)
{
    const struct machtrace_stack_tree *tree = &machtrace_recorders.tree;
    uint64_t address = machtrace_stack_tree_address(tree, node);
    uint32_t number = image_of(address, era);
    uint64_t offset = number == 0 ? 0 : address - machtrace_image(number - 1)->start;
    put(machtrace_stack_tree_distance(tree, node));
    put(offset << 1 | (number != drain->pending_image));
    if (number != drain->pending_image)
        put(number);
    if (number == 0)
        put(address);
    drain->pending_image = number;
}

/* The node itself, if it and its parents are in the spool or were put there now; else the innermost
 * of its callers that is. */
static uint32_t send_stack(uint32_t node)
{
    const struct machtrace_stack_tree *tree = &machtrace_recorders.tree;
    const size_t most = sizeof drain->chain / sizeof *drain->chain;
    uint32_t parent = node, outermost = node, era = 0;
    size_t count = 0;
    for (; parent != MACHTRACE_TREE_ROOT && !is_set(drain->sent, parent) && count < most;
         parent = machtrace_stack_tree_parent(tree, parent))
        drain->chain[count++] = parent;
    if (count == 0)
        return node;
    for (uint32_t above = parent; above != MACHTRACE_TREE_ROOT;
         above = machtrace_stack_tree_parent(tree, above))
        outermost = above;
    if (parent == MACHTRACE_TREE_ROOT)
        outermost = drain->chain[count - 1];
    uint64_t mark = machtrace_stack_tree_address(tree, outermost);
    if (mark >= MACHTRACE_MARK_ERA && mark < MACHTRACE_MARK_END)
        era = (uint32_t)mark - MACHTRACE_MARK_ERA;
    while (count > 0) {
        size_t some = (PENDING - CHAIN_MOST) / NODE_MOST;
        some = count < some ? count : some;
        size_t size = CHAIN_MOST + some * NODE_MOST;
        if (size > PENDING - drain->pending_size)
            send_nodes();
        if (!send_images(drain->chain + count - some, some, era) || !log_has_room(size + 64))
            return parent;
        put(parent);
        put(some);
        for (; some > 0; some--) {
            parent = drain->chain[--count];
            put_node(parent, era);
            set(drain->sent, parent);
        }
    }
    return node;
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
        size_t count = waiting < BATCH ? waiting : BATCH;
        count = count < left ? count : left;
        left -= count;
        memcpy(drain->batch, events, count * sizeof *events);
        machtrace_event_ring_release(&recorder->ring, count);
        for (size_t at = 0; at < count; at++) {
            struct machtrace_event *event = &drain->batch[at];
            event->time = time_of(event->time);
            if (!is_set(drain->sent, event->stack) && event->stack != MACHTRACE_TREE_ROOT) {
                uint32_t stack = send_stack(event->stack);
                if (stack != event->stack)
                    event->flags |= MACHTRACE_EVENT_INCOMPLETE;
                event->stack = stack;
            }
            if (event->thread != drain->last_threads[index]) {
                drain->last_threads[index] = event->thread;
                log_thread(event->thread, event->thread == atomic_load(&recorder->thread)
                                              ? atomic_load(&recorder->id)
                                              : 0);
            }
        }
        send_nodes();
        machtrace_spool_events(&drain->spool, drain->batch, count);
    }
}

static void add_counts(void *data, uint16_t rule, uint32_t stack, uint64_t calls)
{
    (void)data;
    if (stack != MACHTRACE_TREE_ROOT)
        stack = send_stack(stack);
    send_nodes();
    machtrace_spool_count(&drain->spool, rule, stack, calls);
    atomic_fetch_add(&drain->spool.head->losses.events_counted, calls);
}

static void store_sums(void)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    _Atomic uint64_t *calls = machtrace_spool_calls(&drain->spool);
    uint32_t used = atomic_load(&all->used);
    uint32_t rules = atomic_load(&machtrace_rule_count);
    for (uint32_t rule = 0; rule < rules; rule++) {
        if (!atomic_load(&machtrace_rules[rule].is_active))
            continue;
        uint64_t sum = atomic_load(&all->calls[rule]);
        for (uint32_t index = 0; index < used; index++)
            sum += atomic_load_explicit(&all->all[index].calls[rule], memory_order_relaxed);
        atomic_store(&calls[rule], sum);
    }
    struct machtrace_spool_losses *losses = &drain->spool.head->losses;
    atomic_store(&losses->stacks_full, atomic_load(&all->incomplete));
    atomic_store(&losses->stacks_cut, atomic_load(&all->cut));
    atomic_store(&losses->ignored, atomic_load(&all->ignored));
}

/* Whether there were events. */
static bool pass(void)
{
    uint64_t events = atomic_load(&drain->spool.head->events);
    read_clocks(&drain->now_ticks, &drain->now_ns);
    atomic_fetch_add(&machtrace_recorders.passes, 1);
    if (atomic_load(&machtrace_imports_are_pending) || machtrace_images_are_stale()) {
        struct machtrace_imports_result result;
        if (atomic_load(&drain->stops) == 0)
            machtrace_bind_imports(&result);
        machtrace_images_update(true);
    }
    log_rules();
    uint64_t consent = atomic_exchange(&machtrace_recorders.consent, 0);
    if (consent != 0)
        machtrace_log_mark(time_of(consent), consent & 7, "");
    uint32_t used = atomic_load(&machtrace_recorders.used);
    for (uint32_t index = 0; index < used; index++)
        drain_ring(index);
    machtrace_counts_take(machtrace_recorders.counts, add_counts, NULL);
    store_sums();
    if (drain->now_ns - drain->swept_at >= SWEEP_PERIOD) {
        machtrace_recorders_sweep();
        drain->swept_at = drain->now_ns;
    }
    return atomic_load(&drain->spool.head->events) != events;
}

/* Longer where nothing was recorded the last time; a ring that is half full ends it. */
_Atomic bool machtrace_code_changes, machtrace_drain_is_parked;
_Atomic uint32_t machtrace_drain_thread;

static void wait_for_work(uint32_t seen, bool is_idle)
{
    uint32_t interval = is_idle ? IDLE_INTERVALS * drain->interval_ms : drain->interval_ms;
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
    for (uint32_t index = 0; index < machtrace_image_count(); index++) {
        if (machtrace_image(index)->is_program)
            send_image(machtrace_image(index));
    }
    for (;;) {
        uint32_t seen = atomic_load(&machtrace_recorders.wake);
        uint32_t requested = atomic_load(&drain->requested);
        bool stops = atomic_load(&drain->stops) != 0;
        bool is_idle = !pass();
        atomic_store(&drain->done, requested);
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
    int error = pthread_create(&drain->thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

int machtrace_drain_begin(const char *path, uint64_t size, uint32_t older, uint32_t interval_ms)
{
    uint32_t bits = machtrace_recorders.tree.bits;
    size_t nodes = ((size_t)1 << bits) / 8;
    size_t images = MACHTRACE_IMAGES_MAX / 8 + 8;
    size_t threads = machtrace_recorders.most * sizeof(uint32_t);
    size_t room = sizeof *drain + nodes + images + threads;
    struct drain *made = mmap(NULL, room, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED)
        return errno;
    int error = machtrace_spool_create(&made->spool, path, size, bits, older);
    if (error == 0) {
        drain = made;
        pthread_mutex_init(&drain->lock, NULL);
        drain->sent = (uint64_t *)(drain + 1);
        drain->sent_images = (uint64_t *)((unsigned char *)drain->sent + nodes);
        drain->last_threads = (uint32_t *)((unsigned char *)drain->sent_images + images);
        drain->interval_ms = interval_ms;
        read_clocks(&drain->first_ticks, &drain->first_ns);
        error = start_thread();
        if (error != 0)
            machtrace_spool_end(&made->spool, MACHTRACE_SPOOL_STOPPED);
    }
    if (error != 0) {
        drain = NULL;
        munmap(made, room);
    }
    return error;
}

void machtrace_drain_flush(void)
{
    if (drain == NULL)
        return;
    uint32_t wanted = atomic_fetch_add(&drain->requested, 1) + 1;
    while ((int32_t)(atomic_load(&drain->done) - wanted) < 0) {
        machtrace_wake(&machtrace_recorders.wake);
        usleep(200);
    }
}

void machtrace_drain_end(void)
{
    if (drain == NULL)
        return;
    atomic_store(&drain->stops, 1);
    machtrace_wake(&machtrace_recorders.wake);
    pthread_join(drain->thread, NULL);
    machtrace_spool_end(&drain->spool, MACHTRACE_SPOOL_STOPPED);
    struct drain *last = drain;
    drain = NULL;
    size_t nodes = ((size_t)1 << machtrace_recorders.tree.bits) / 8;
    munmap(last, sizeof *last + nodes + MACHTRACE_IMAGES_MAX / 8 + 8 +
                     machtrace_recorders.most * sizeof(uint32_t));
}

void machtrace_drain_after_fork(void)
{
    atomic_store(&machtrace_drain_thread, 0);
    if (drain != NULL)
        machtrace_spool_after_fork(&drain->spool);
    drain = NULL;
}
