/* See recorder.h. */
#define _GNU_SOURCE
#include "recorder.h"

#include "deep_stacks.h"
#include "thread.h"
#include "walk/frame_records.h"

struct machtrace_recorders machtrace_recorders;

bool machtrace_is_ignoring(void)
{
    return machtrace_self_ignoring() != 0;
}

uint64_t machtrace_ticks(void)
{
    if (!machtrace_recorders.has_ticks) {
        return machtrace_clock();
    }
#if defined(__x86_64__)
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
#else
    uint64_t value;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#endif
}

/* --- one recorder for each thread --- */

static struct machtrace_recorder *take_recorder(uint32_t id)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    for (uint32_t index = 0; index < all->most; index++) {
        struct machtrace_recorder *recorder = &all->all[index];
        uint32_t expected = 0;
        if (atomic_load_explicit(&recorder->id, memory_order_relaxed) != 0 ||
            !atomic_compare_exchange_strong(&recorder->id, &expected, id))
            continue;
        uint32_t used = atomic_load(&all->used);
        while (used <= index && !atomic_compare_exchange_weak(&all->used, &used, index + 1))
            continue;
        recorder->inner = NULL;
        atomic_store_explicit(&recorder->busy, 0, memory_order_relaxed);
        return recorder;
    }
    return NULL;
}

void machtrace_recorders_sweep(void)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    uint32_t used = atomic_load(&all->used);
    for (uint32_t index = 0; index < used; index++) {
        uint32_t id = atomic_load(&all->all[index].id);
        if (id != 0 && machtrace_thread_has_ended(id))
            atomic_compare_exchange_strong(&all->all[index].id, &id, 0);
    }
}

static struct machtrace_recorder *take_any(void)
{
    uint32_t id = machtrace_thread_id();
    struct machtrace_recorder *recorder = take_recorder(id);
    if (recorder == NULL) {
        machtrace_recorders_sweep();
        recorder = take_recorder(id);
    }
    return recorder;
}

static __attribute__((noinline)) struct machtrace_recorder *first_recorder(void)
{
    struct machtrace_recorder *recorder = take_any();
    if (recorder == NULL)
        return NULL;
    atomic_store(&recorder->thread, atomic_fetch_add(&machtrace_recorders.threads, 1) + 1);
    recorder->is_main = machtrace_thread_is_main();
    recorder->stack_low = recorder->stack_high = 0;
    atomic_signal_fence(memory_order_seq_cst);
    if (machtrace_self_recorder() == NULL)
        machtrace_thread_set_recorder(recorder);
    else /* the handler of a signal took one meanwhile */
        atomic_store(&recorder->id, 0);
    return machtrace_self_recorder();
}

static __attribute__((noinline)) struct machtrace_recorder *
inner_recorder(struct machtrace_recorder *outer)
{
    struct machtrace_recorder *recorder = take_any();
    if (recorder == NULL)
        return NULL;
    atomic_store(&recorder->thread, atomic_load(&outer->thread));
    recorder->is_main = outer->is_main;
    recorder->stack_low = outer->stack_low;
    recorder->stack_high = outer->stack_high;
    outer->inner = recorder;
    return recorder;
}

static __attribute__((noinline)) bool find_own_stack(struct machtrace_recorder *recorder,
                                                     uint64_t sp)
{
    return machtrace_thread_stack(recorder, sp, &recorder->stack_low, &recorder->stack_high);
}

/* Whether the hook that set `busy` can never continue: a handler left it by longjmp(3). Of hooks
 * on one stack, the inner one is below. */
static bool is_abandoned(const struct machtrace_recorder *recorder, uint64_t busy, uint64_t sp)
{
    return machtrace_is_on_own_stack(recorder, sp) && (!machtrace_is_on_own_stack(recorder, busy) || sp > busy) &&
           !machtrace_thread_is_on_signal_stack();
}

/* A recorder that no hook of this thread uses; NULL if there is none. */
static inline struct machtrace_recorder *enter(uint64_t sp, uint8_t *flags)
{
    struct machtrace_recorder *recorder = machtrace_self_recorder();
    if (recorder == NULL)
        recorder = first_recorder();
    for (int level = 0; recorder != NULL && level < MACHTRACE_LEVELS_MAX; level++) {
        uint64_t busy = atomic_load_explicit(&recorder->busy, memory_order_relaxed);
        if (busy == 0 || is_abandoned(recorder, busy, sp)) {
            atomic_store_explicit(&recorder->busy, sp, memory_order_relaxed);
            atomic_signal_fence(memory_order_seq_cst);
            return recorder;
        }
        *flags |= MACHTRACE_EVENT_INTERRUPT;
        recorder = recorder->inner != NULL ? recorder->inner : inner_recorder(recorder);
    }
    return NULL;
}

static inline void leave(struct machtrace_recorder *recorder)
{
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&recorder->busy, 0, memory_order_release);
}

/* --- the stack --- */

/* Append the addresses where the callers of an asynchronous function of Swift resume, and one: so
 * that each is behind an instruction of its function, as a return address is. The function's context
 * is below its record, and begins with the parent's and the address (as __thread_stack_async_pcs of
 * Libc reads them). */
static __attribute__((noinline)) void follow_contexts(struct machtrace_records_walk *walk,
                                                      uint64_t *frames)
{
    const uint64_t bits = machtrace_recorders.code_bits;
    uint64_t words[2]; /* parent, address */
    bool is_read = machtrace_read_memory(walk->fp - 8, words, 8) == 8;
    for (size_t steps = 0; is_read && (words[0] & bits) != 0; steps++) {
        if (steps == MACHTRACE_CONTEXTS_MAX || walk->count == MACHTRACE_FRAMES_MAX) {
            walk->end = MACHTRACE_RECORDS_FULL;
            return;
        }
        is_read = machtrace_read_memory(words[0] & bits, words, sizeof words) == sizeof words;
        if (!is_read || (words[1] & bits) == 0)
            return;
        frames[walk->count++] = (words[1] & bits) + 1;
    }
}

/* The return addresses from the innermost on; how many. */
static inline size_t take_frames(struct machtrace_recorder *recorder, uint64_t caller, uint64_t sp,
                                 uint64_t fp, uint8_t *flags)
{
    recorder->window_count = 0;
    struct machtrace_records_walk walk = {fp, 1, MACHTRACE_RECORDS_BROKEN};
    bool is_own = machtrace_is_on_own_stack(recorder, sp) || find_own_stack(recorder, sp);
    recorder->frames[0] = caller & machtrace_recorders.code_bits;
    if (!is_own)
        *flags |= MACHTRACE_EVENT_OTHER_STACK;
    machtrace_walk_frames(recorder, sp, &walk);
    if (walk.end == MACHTRACE_RECORDS_FULL)
        machtrace_take_windows(recorder, sp, &walk, fp);
    if (walk.end == MACHTRACE_RECORDS_ASYNC)
        follow_contexts(&walk, recorder->frames);
    if (walk.end == MACHTRACE_RECORDS_FULL)
        *flags |= MACHTRACE_EVENT_TRUNCATED;
    return walk.count;
}

/* Whether a return address is in a watched function. */
static bool is_watched(uint64_t address)
{
    const struct machtrace_bodies *bodies =
        atomic_load_explicit(&machtrace_recorders.bodies, memory_order_acquire);
    size_t low = 0, high = bodies == NULL ? 0 : bodies->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (bodies->ranges[middle].end >= address)
            high = middle;
        else
            low = middle + 1;
    }
    return bodies != NULL && low < bodies->count && bodies->ranges[low].start < address;
}

int machtrace_is_in_code(uint64_t address)
{
    const struct machtrace_code *code = &machtrace_recorders.code;
    uint32_t version = atomic_load_explicit(&code->version, memory_order_acquire);
    size_t low = 0, high = atomic_load_explicit(&code->count, memory_order_acquire);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (atomic_load_explicit(&code->ranges[middle].end, memory_order_acquire) >= address)
            high = middle;
        else
            low = middle + 1;
    }
    bool is_in = low < MACHTRACE_CODE_MAX &&
                 low < atomic_load_explicit(&code->count, memory_order_acquire) &&
                 atomic_load_explicit(&code->ranges[low].start, memory_order_acquire) < address;
    return version % 2 != 0 ||
                   atomic_load_explicit(&code->version, memory_order_relaxed) != version
               ? -1
               : is_in;
}

#define SLOW_QUERIES_MAX 16 /* of a thread, in a pass of the agent's */

/* The same from the kernel, for code that was mapped since: of compilers at run time, and of images
 * that are being loaded. */
static __attribute__((noinline)) bool query_code(struct machtrace_recorder *recorder,
                                                 uint64_t address)
{
    uint32_t pass = atomic_load_explicit(&machtrace_recorders.passes, memory_order_relaxed);
    uint64_t page = (address - 1) & ~UINT64_C(4095);
    uint64_t *entry = &recorder->pages[page / 4096 % MACHTRACE_PAGES];
    struct machtrace_mapping mapping;
    if (machtrace_is_on_own_stack(recorder, address) || address >> 56 != 0)
        return false;
    if (recorder->pages_pass != pass) {
        for (size_t index = 0; index < MACHTRACE_PAGES; index++)
            *(volatile uint64_t *)&recorder->pages[index] = 0;
        recorder->pages_pass = pass;
        recorder->slow_queries = 0;
    }
    if ((*entry & ~UINT64_C(1)) != page << 1) {
        if (atomic_load_explicit(&machtrace_recorders.is_slow, memory_order_relaxed) &&
            recorder->slow_queries++ >= SLOW_QUERIES_MAX)
            return false;
        *entry = page << 1 |
                 (machtrace_find_mapping(recorder, address - 1, &mapping) && mapping.is_executable);
    }
    return *entry & 1;
}

bool machtrace_is_code(struct machtrace_recorder *recorder, uint64_t address)
{
    return machtrace_is_in_code(address) == 1 || query_code(recorder, address);
}

/* How many frames lead to code, up to the first that does not: code without frame pointers leaves
 * other values where a record would be. The innermost one is no word of the stack's records, and
 * the outermost `matching` ones were checked before. */
static inline size_t count_code(struct machtrace_recorder *recorder, size_t count,
                                size_t matching)
{
    for (size_t position = count - matching; position-- > 1;)
        if (!machtrace_is_code(recorder, recorder->frames[position]))
            return position;
    return count;
}

/* How many of the outermost frames the last stack has too. */
static inline size_t count_matching(const struct machtrace_recorder *recorder, size_t count)
{
    size_t common = recorder->cached < count ? recorder->cached : count;
    const uint64_t *frame = recorder->frames + count;
    size_t index = 0;
    while (index < common && recorder->levels[index].address == *--frame)
        index++;
    return index;
}

/* Insert the frames that the last stack does not have. Sets the number of frames that lead to code,
 * and that of watched functions. */
static inline uint32_t node_of(struct machtrace_recorder *recorder, uint64_t sp, uint64_t fp,
                               size_t *frames, uint8_t *flags, uint8_t *depth)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    size_t count = *frames;
    uint32_t generation = atomic_load_explicit(&all->generation, memory_order_acquire);
    uint32_t base = atomic_load_explicit(&all->root, memory_order_relaxed);
    if ((*flags & MACHTRACE_EVENT_TRUNCATED) != 0) {
        base = machtrace_stack_tree_insert(&all->tree, base, MACHTRACE_MARK_CUT);
        atomic_fetch_add_explicit(&all->cut, 1, memory_order_relaxed);
    }
    if (recorder->window_count != 0)
        base = machtrace_insert_windows(recorder, base, sp, fp, &count, flags);
    if (generation != recorder->generation || base != recorder->base) {
        recorder->cached = 0;
        recorder->generation = generation;
        recorder->base = base;
    }
    size_t matching, valid;
    while (matching = count_matching(recorder, count),
           (valid = count_code(recorder, count, matching)) != count) {
        *flags |= MACHTRACE_EVENT_NO_FRAME_POINTER;
        count = valid;
    }
    size_t index = matching;
    const uint64_t *frame = recorder->frames + count - index;
    uint32_t node = index == 0 ? base : recorder->levels[index - 1].node;
    uint32_t watched = index == 0 ? 0 : recorder->levels[index - 1].watched;
    for (; index < count; index++) {
        uint64_t address = *--frame;
        uint32_t next = machtrace_stack_tree_insert(&all->tree, node, address);
        if (next == MACHTRACE_TREE_ROOT) {
            atomic_fetch_add_explicit(&all->incomplete, 1, memory_order_relaxed);
            *flags |= MACHTRACE_EVENT_INCOMPLETE;
            break;
        }
        watched += is_watched(address);
        node = next;
        struct machtrace_level *level = &recorder->levels[index];
        level->address = address;
        level->node = node;
        level->watched = watched;
    }
    if (index > matching)
        recorder->cached = index;
    *frames = count;
    *depth = watched < UINT8_MAX ? (uint8_t)watched : UINT8_MAX;
    return node;
}

/* --- calls --- */

static inline void count_call(_Atomic uint64_t *calls)
{
    /* Written by one thread at a time, and read by others. */
    uint64_t value = atomic_load_explicit(calls, memory_order_relaxed);
    atomic_store_explicit(calls, value + 1, memory_order_relaxed);
}

void machtrace_record(uint16_t rule, enum machtrace_stacks stacks, uint64_t caller, uint64_t sp,
                      uint64_t fp)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    if (machtrace_self_ignoring() != 0 ||
        (machtrace_self_recorder() == NULL && machtrace_thread_is_of_upload())) {
        atomic_fetch_add_explicit(&all->ignored, 1, memory_order_relaxed);
        return;
    }
    uint16_t state = atomic_load_explicit(&all->app_state, memory_order_acquire);
    struct machtrace_event event = {.rule = rule | state, .calls = 1};
    struct machtrace_recorder *recorder = enter(sp, &event.flags);
    if (recorder == NULL) {
        atomic_fetch_add_explicit(&all->calls[rule], 1, memory_order_relaxed);
        if (stacks != MACHTRACE_STACKS_NONE)
            machtrace_counts_add(all->counts, rule, 0, 1);
        return;
    }
    count_call(&recorder->calls[rule]);
    if (stacks == MACHTRACE_STACKS_ALL ||
        (stacks == MACHTRACE_STACKS_BUDGET &&
         machtrace_budget_take(all->budget, &all->tree,
                               atomic_load_explicit(&all->root, memory_order_relaxed), event.rule,
                               caller & all->code_bits))) {
        event.time = machtrace_ticks();
        event.thread = atomic_load_explicit(&recorder->thread, memory_order_relaxed);
        if (recorder->is_main)
            event.flags |= MACHTRACE_EVENT_MAIN_THREAD;
        size_t count = take_frames(recorder, caller, sp, fp, &event.flags);
        event.stack = node_of(recorder, sp, fp, &count, &event.flags, &event.depth);
        if (event.depth != 0)
            event.flags |= MACHTRACE_EVENT_NESTED;
        if (!machtrace_event_ring_add(&recorder->ring, &event)) {
            count_call(&recorder->counted);
            machtrace_counts_add(all->counts, event.rule, event.stack, 1);
        } else if ((atomic_load_explicit(&recorder->ring.written, memory_order_relaxed) &
                    (MACHTRACE_EVENT_RING / 2 - 1)) == 0) {
            machtrace_wake(&all->wake);
        }
    }
    leave(recorder);
}

void machtrace_give_consent(void)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    uint16_t state = atomic_load(&all->app_state);
    while ((state & MACHTRACE_CONSENT_BITS) != MACHTRACE_CONSENT_IS_GIVEN) {
        uint16_t next = (uint16_t)((state & ~MACHTRACE_CONSENT_BITS) | MACHTRACE_CONSENT_IS_GIVEN);
        if (atomic_compare_exchange_weak(&all->app_state, &state, next)) {
            atomic_store(&all->consent,
                         (machtrace_ticks() & ~UINT64_C(7)) | next >> MACHTRACE_STATE_SHIFT);
            return;
        }
    }
}

uint32_t machtrace_stack_here(uint64_t caller, uint64_t sp, uint64_t fp, uint64_t *frames,
                              size_t capacity, size_t *depth)
{
    uint8_t flags = 0, watched;
    struct machtrace_recorder *recorder = enter(sp, &flags);
    *depth = 0;
    if (recorder == NULL)
        return MACHTRACE_TREE_ROOT;
    size_t count = take_frames(recorder, caller, sp, fp, &flags);
    uint32_t node = node_of(recorder, sp, fp, &count, &flags, &watched);
    for (size_t index = 0; index < count && index < capacity; index++)
        frames[index] = recorder->frames[index];
    if (recorder->window_count != 0 && (flags & MACHTRACE_EVENT_INCOMPLETE) == 0)
        count = machtrace_stack_tree_read(&machtrace_recorders.tree, node, frames, capacity) -
                (atomic_load(&machtrace_recorders.root) != MACHTRACE_TREE_ROOT);
    *depth = count;
    leave(recorder);
    return (flags & MACHTRACE_EVENT_INCOMPLETE) != 0 ? MACHTRACE_TREE_ROOT : node;
}
