/* See recorder.h. */
#define _GNU_SOURCE
#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "linux/system.h"
#include "walk/frame_records.h"

struct machtrace_recorders machtrace_recorders;

/* In the block that every thread has from its start, so that no access allocates. */
static _Thread_local struct {
    struct machtrace_recorder *recorder;
    uint32_t ignoring;
    uint64_t signals; /* that were blocked before */
} self __attribute__((tls_model("initial-exec")));

/* --- start --- */

bool machtrace_is_ignoring(void)
{
    return self.ignoring != 0;
}

/* Whether the processor's counter has one frequency in all states: "invariant TSC", Intel SDM
 * 17.17.1. */
static bool has_steady_ticks(void)
{
#if defined(__x86_64__)
    uint32_t eax, ebx, ecx, edx;
    return __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) != 0 && (edx >> 8 & 1) != 0;
#else
    return true;
#endif
}

int machtrace_recorders_begin(uint32_t most, uint32_t tree_bits)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    if (all->all != NULL)
        return 0;
    int error = machtrace_stack_tree_begin(&all->tree, tree_bits);
    if (error != 0)
        return error;
    void *memory = MAP_FAILED;
    /* Where address space is limited, for fewer threads. */
    for (; most >= 4; most /= 2) {
        memory = mmap(NULL, most * sizeof *all->all + sizeof *all->counts,
                      PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory != MAP_FAILED)
            break;
    }
    if (memory == MAP_FAILED) {
        machtrace_stack_tree_end(&all->tree);
        return ENOMEM;
    }
    all->most = most;
    all->counts = (struct machtrace_counts *)((struct machtrace_recorder *)memory + most);
    all->code_bits = UINT64_MAX;
    all->main_stack = getauxval(AT_EXECFN);
    all->has_ticks = has_steady_ticks();
#if defined(__aarch64__)
    all->code_bits = (UINT64_C(1) << 48) - 1; /* signatures and tags are above */
#endif
    all->all = memory;
    return 0;
}

#define ALL_SIGNALS (~(UINT64_C(3) << 31)) /* but 32 and 33, which are the C library's */

void machtrace_ignore_enter(void)
{
    uint64_t all = ALL_SIGNALS, before = 0;
    machtrace_system(SYS_rt_sigprocmask, SIG_BLOCK, machtrace_address_of(&all),
                     machtrace_address_of(&before), sizeof all, 0, 0);
    if (self.ignoring++ == 0)
        self.signals = before;
    atomic_signal_fence(memory_order_seq_cst);
}

void machtrace_ignore_leave(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    if (--self.ignoring == 0)
        machtrace_system(SYS_rt_sigprocmask, SIG_SETMASK, machtrace_address_of(&self.signals), 0,
                         sizeof self.signals, 0, 0);
}

uint64_t machtrace_ticks(void)
{
    if (!machtrace_recorders.has_ticks) {
        struct timespec time = {0, 0};
        machtrace_system(SYS_clock_gettime, CLOCK_MONOTONIC, machtrace_address_of(&time), 0, 0, 0,
                         0);
        return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
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

/* --- the thread's own stack --- */

/* PROCMAP_QUERY (linux/fs.h), of Linux 6.11 and later: the words of its structure that are used. */
#define QUERY_MAPPING UINT64_C(0xc0686611)
#define QUERY_WORDS 13
enum { QUERY_ADDRESS = 2, QUERY_START = 3, QUERY_END = 4, QUERY_RIGHTS = 5 };
#define SLOW_QUERIES_MAX 16 /* of a thread, in a pass of the agent's */
#define QUERY_EXECUTABLE 4 /* PROCMAP_QUERY_VMA_EXECUTABLE */

struct mapping {
    uint64_t start, end;
    bool is_executable;
};

static bool read_hex(const unsigned char **at, const unsigned char *end, uint64_t *value)
{
    const unsigned char *first = *at;
    for (*value = 0; *at < end; ++*at) {
        unsigned char digit = **at;
        if (digit >= '0' && digit <= '9')
            *value = *value << 4 | (uint64_t)(digit - '0');
        else if (digit >= 'a' && digit <= 'f')
            *value = *value << 4 | (uint64_t)(digit - 'a' + 10);
        else
            break;
    }
    return *at > first;
}

/* The mapping of an address in the text of /proc/self/maps. */
static bool search_text(long file, uint64_t address, unsigned char *text, size_t room,
                        struct mapping *mapping)
{
    size_t size = 0;
    for (;;) {
        long got = machtrace_system(SYS_read, (uint64_t)file, machtrace_address_of(text + size),
                                    room - size, 0, 0, 0);
        if (got <= 0)
            return false;
        size += (size_t)got;
        const unsigned char *at = text, *limit = text + size, *line = text;
        for (;;) {
            while (at < limit && *at != '\n')
                at++;
            if (at == limit)
                break;
            const unsigned char *field = line;
            if (read_hex(&field, at, &mapping->start) && *field++ == '-' &&
                read_hex(&field, at, &mapping->end) && address >= mapping->start &&
                address < mapping->end) {
                mapping->is_executable = at - field > 3 && field[3] == 'x'; /* " r-xp" */
                return true;
            }
            line = ++at;
        }
        /* The last line may not be whole. */
        size = 0;
        for (; line < limit; line++)
            text[size++] = *line;
        if (size == room)
            return false;
    }
}

static bool find_mapping(struct machtrace_recorder *recorder, uint64_t address,
                         struct mapping *mapping)
{
    static const char path[] = "/proc/self/maps";
    long file = machtrace_system(SYS_openat, (uint64_t)AT_FDCWD, machtrace_address_of(path),
                                 O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (file < 0)
        return false;
    volatile uint64_t query[QUERY_WORDS]; /* so that it is not cleared by memset(3) */
    for (int word = 0; word < QUERY_WORDS; word++)
        query[word] = 0;
    query[0] = sizeof query;
    query[QUERY_ADDRESS] = address;
    long result = machtrace_system(SYS_ioctl, (uint64_t)file, QUERY_MAPPING,
                                   machtrace_address_of((const void *)(uintptr_t)query), 0, 0, 0);
    bool is_found = result == 0;
    if (is_found) {
        mapping->start = query[QUERY_START];
        mapping->end = query[QUERY_END];
        mapping->is_executable = (query[QUERY_RIGHTS] & QUERY_EXECUTABLE) != 0;
    } else if (result != -ENOENT) {
        atomic_store_explicit(&machtrace_recorders.is_slow, true, memory_order_relaxed);
        is_found = search_text(file, address, recorder->window, sizeof recorder->window, mapping);
    }
    machtrace_system(SYS_close, (uint64_t)file, 0, 0, 0, 0, 0);
    return is_found;
}

static uint64_t thread_pointer(void)
{
    uint64_t value;
#if defined(__x86_64__)
    __asm__("movq %%fs:0, %0" : "=r"(value));
#else
    __asm__("mrs %0, tpidr_el0" : "=r"(value));
#endif
    return value;
}

/* Whether the thread is on its own stack, whose bounds are set then: the thread's own block is at
 * the end of the stack that was made for it, and the name of the program at that of the main
 * thread's. */
static __attribute__((noinline)) bool find_own_stack(struct machtrace_recorder *recorder,
                                                     uint64_t sp)
{
    struct mapping mapping;
    uint64_t block = recorder->is_main ? machtrace_recorders.main_stack : thread_pointer();
    if (block <= sp || !find_mapping(recorder, sp, &mapping) || block >= mapping.end)
        return false;
    recorder->stack_low = mapping.start;
    recorder->stack_high = block;
    return true;
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
    uint64_t process = (uint64_t)machtrace_system(SYS_getpid, 0, 0, 0, 0, 0, 0);
    for (uint32_t index = 0; index < used; index++) {
        uint32_t id = atomic_load(&all->all[index].id);
        if (id != 0 && machtrace_system(SYS_tgkill, process, id, 0, 0, 0, 0) == -ESRCH)
            atomic_compare_exchange_strong(&all->all[index].id, &id, 0);
    }
}

static struct machtrace_recorder *take_any(void)
{
    uint32_t id = (uint32_t)machtrace_system(SYS_gettid, 0, 0, 0, 0, 0, 0);
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
    recorder->is_main = atomic_load(&recorder->id) ==
                        (uint32_t)machtrace_system(SYS_getpid, 0, 0, 0, 0, 0, 0);
    recorder->stack_low = recorder->stack_high = 0;
    atomic_signal_fence(memory_order_seq_cst);
    if (self.recorder == NULL)
        self.recorder = recorder;
    else /* the handler of a signal took one meanwhile */
        atomic_store(&recorder->id, 0);
    return self.recorder;
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

static bool is_on_own_stack(const struct machtrace_recorder *recorder, uint64_t sp)
{
    return sp >= recorder->stack_low && sp < recorder->stack_high;
}

/* Whether this is the handler of a signal, on the stack that sigaltstack(2) set. */
static __attribute__((noinline)) bool is_on_signal_stack(void)
{
    uint64_t stack[3] = {0, 0, 0}; /* struct stack_t: address, flags, size */
    machtrace_system(SYS_sigaltstack, 0, machtrace_address_of(stack), 0, 0, 0, 0);
    return ((uint32_t)stack[1] & SS_ONSTACK) != 0;
}

/* Whether the hook that set `busy` can never continue: a handler left it by longjmp(3). Of hooks
 * on one stack, the inner one is below. */
static bool is_abandoned(const struct machtrace_recorder *recorder, uint64_t busy, uint64_t sp)
{
    return is_on_own_stack(recorder, sp) && (!is_on_own_stack(recorder, busy) || sp > busy) &&
           !is_on_signal_stack();
}

/* A recorder that no hook of this thread uses; NULL if there is none. */
static inline struct machtrace_recorder *enter(uint64_t sp, uint8_t *flags)
{
    struct machtrace_recorder *recorder = self.recorder;
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

/* Walk a stack that may be unmapped anywhere: through copies made by the kernel. */
static __attribute__((noinline)) void walk_other(struct machtrace_recorder *recorder,
                                                 struct machtrace_records_walk *walk)
{
    uint64_t process = (uint64_t)machtrace_system(SYS_getpid, 0, 0, 0, 0, 0, 0);
    do {
        uint64_t from = walk->fp;
        uint64_t here[2] = {machtrace_address_of(recorder->window), sizeof recorder->window};
        uint64_t there[2] = {from, sizeof recorder->window};
        long got = machtrace_system(SYS_process_vm_readv, process, machtrace_address_of(here), 1,
                                    machtrace_address_of(there), 1, 0);
        if (got < 16)
            return;
        struct machtrace_frame_stack stack = {from, from + (uint64_t)got, recorder->window,
                                              machtrace_recorders.code_bits};
        machtrace_frame_records(&stack, walk, recorder->frames, MACHTRACE_FRAMES_MAX);
        if (walk->fp <= from)
            return;
    } while (walk->end == MACHTRACE_RECORDS_BROKEN && walk->fp % sizeof(uint64_t) == 0 &&
             !is_on_own_stack(recorder, walk->fp));
}

/* The return addresses from the innermost on; how many. */
static inline size_t take_frames(struct machtrace_recorder *recorder, uint64_t caller, uint64_t sp,
                                 uint64_t fp, uint8_t *flags)
{
    struct machtrace_records_walk walk = {fp, 1, MACHTRACE_RECORDS_BROKEN};
    bool is_own = is_on_own_stack(recorder, sp) || find_own_stack(recorder, sp);
    recorder->frames[0] = caller & machtrace_recorders.code_bits;
    if (!is_own) {
        *flags |= MACHTRACE_EVENT_OTHER_STACK;
        walk_other(recorder, &walk);
        sp = recorder->stack_low;
    }
    if (walk.end == MACHTRACE_RECORDS_BROKEN && is_on_own_stack(recorder, walk.fp)) {
        struct machtrace_frame_stack stack = {sp, recorder->stack_high,
                                              (const unsigned char *)(uintptr_t)sp,
                                              machtrace_recorders.code_bits};
        machtrace_frame_records(&stack, &walk, recorder->frames, MACHTRACE_FRAMES_MAX);
    }
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

/* 1 if an address is in an executable mapping as far as they are known, 0 if not; -1 if they change
 * now. */
static int is_in_code(uint64_t address)
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

/* The same from the kernel, for code that was mapped since: of compilers at run time, and of images
 * that are being loaded. */
static __attribute__((noinline)) bool query_code(struct machtrace_recorder *recorder,
                                                 uint64_t address)
{
    uint32_t pass = atomic_load_explicit(&machtrace_recorders.passes, memory_order_relaxed);
    uint64_t page = (address - 1) & ~UINT64_C(4095);
    uint64_t *entry = &recorder->pages[page / 4096 % MACHTRACE_PAGES];
    struct mapping mapping;
    if (is_on_own_stack(recorder, address) || address >> 56 != 0)
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
                 (find_mapping(recorder, address - 1, &mapping) && mapping.is_executable);
    }
    return *entry & 1;
}

static bool is_code(struct machtrace_recorder *recorder, uint64_t address)
{
    return is_in_code(address) == 1 || query_code(recorder, address);
}

/* How many frames lead to code, up to the first that does not: code without frame pointers leaves
 * other values where a record would be. The innermost one is no word of the stack's records, and
 * the outermost `matching` ones were checked before. */
static inline size_t count_code(struct machtrace_recorder *recorder, size_t count,
                                size_t matching)
{
    for (size_t position = count - matching; position-- > 1;)
        if (!is_code(recorder, recorder->frames[position]))
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
static inline uint32_t node_of(struct machtrace_recorder *recorder, size_t *frames, uint8_t *flags,
                               uint8_t *depth)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    size_t count = *frames;
    uint32_t generation = atomic_load_explicit(&all->generation, memory_order_acquire);
    uint32_t base = atomic_load_explicit(&all->root, memory_order_relaxed);
    if ((*flags & MACHTRACE_EVENT_TRUNCATED) != 0) {
        base = machtrace_stack_tree_insert(&all->tree, base, MACHTRACE_MARK_CUT);
        atomic_fetch_add_explicit(&all->cut, 1, memory_order_relaxed);
    }
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

static void wake(void)
{
    atomic_fetch_add(&machtrace_recorders.wake, 1);
    machtrace_system(SYS_futex, machtrace_address_of((void *)&machtrace_recorders.wake),
                     FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
}

static inline void count_call(_Atomic uint64_t *calls)
{
    /* Written by one thread at a time, and read by others. */
    uint64_t value = atomic_load_explicit(calls, memory_order_relaxed);
    atomic_store_explicit(calls, value + 1, memory_order_relaxed);
}

void machtrace_record(uint16_t rule, bool has_stack, uint64_t caller, uint64_t sp, uint64_t fp)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    if (self.ignoring != 0) {
        atomic_fetch_add_explicit(&all->ignored, 1, memory_order_relaxed);
        return;
    }
    struct machtrace_event event = {.rule = rule, .calls = 1};
    struct machtrace_recorder *recorder = enter(sp, &event.flags);
    if (recorder == NULL) {
        atomic_fetch_add_explicit(&all->calls[rule], 1, memory_order_relaxed);
        if (has_stack)
            machtrace_counts_add(all->counts, rule, 0, 1);
        return;
    }
    count_call(&recorder->calls[rule]);
    if (has_stack) {
        event.time = machtrace_ticks();
        event.thread = atomic_load_explicit(&recorder->thread, memory_order_relaxed);
        if (recorder->is_main)
            event.flags |= MACHTRACE_EVENT_MAIN_THREAD;
        size_t count = take_frames(recorder, caller, sp, fp, &event.flags);
        event.stack = node_of(recorder, &count, &event.flags, &event.depth);
        if (event.depth != 0)
            event.flags |= MACHTRACE_EVENT_NESTED;
        if (!machtrace_event_ring_add(&recorder->ring, &event)) {
            count_call(&recorder->counted);
            machtrace_counts_add(all->counts, rule, event.stack, 1);
        } else if ((atomic_load_explicit(&recorder->ring.written, memory_order_relaxed) &
                    (MACHTRACE_EVENT_RING / 2 - 1)) == 0) {
            wake();
        }
    }
    leave(recorder);
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
    uint32_t node = node_of(recorder, &count, &flags, &watched);
    for (size_t index = 0; index < count && index < capacity; index++)
        frames[index] = recorder->frames[index];
    *depth = count;
    leave(recorder);
    return (flags & MACHTRACE_EVENT_INCOMPLETE) != 0 ? MACHTRACE_TREE_ROOT : node;
}

void machtrace_recorders_clear(void)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    uint32_t used = atomic_load(&all->used);
    for (uint32_t index = 0; index < used; index++) {
        struct machtrace_recorder *recorder = &all->all[index];
        /* Of a parent, whose spool has it. */
        atomic_store(&recorder->ring.taken, atomic_load(&recorder->ring.written));
        atomic_store(&recorder->counted, 0);
        for (uint32_t rule = 0; rule < MACHTRACE_RULES_MAX; rule++)
            atomic_store(&recorder->calls[rule], 0);
    }
    for (uint32_t rule = 0; rule < MACHTRACE_RULES_MAX; rule++)
        atomic_store(&all->calls[rule], 0);
    atomic_store(&all->cut, 0);
    atomic_store(&all->incomplete, 0);
    atomic_store(&all->ignored, 0);
}

void machtrace_recorders_after_fork(void)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    uint32_t id = (uint32_t)machtrace_system(SYS_gettid, 0, 0, 0, 0, 0, 0);
    uint32_t used = atomic_load(&all->used);
    for (uint32_t index = 0; index < used; index++)
        atomic_store(&all->all[index].id, 0);
    for (struct machtrace_recorder *own = self.recorder; own != NULL; own = own->inner)
        atomic_store(&own->id, id);
}
