/* What of recorders no hook runs: their memory, and their state after a start and a fork. See
 * recorder.h. */
#define _GNU_SOURCE
#include "recorder.h"

#include <errno.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "thread.h"

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
    int error = machtrace_self_begin() ? machtrace_stack_tree_begin(&all->tree, tree_bits) : EAGAIN;
    if (error != 0)
        return error;
    void *memory = MAP_FAILED;
    /* Where address space is limited, for fewer threads. */
    for (; most >= 4; most /= 2) {
        memory = mmap(NULL, most * sizeof *all->all + sizeof *all->counts + sizeof *all->budget,
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
    all->budget = (struct machtrace_budget *)(all->counts + 1);
    all->code_bits = machtrace_code_bits();
    all->has_ticks = has_steady_ticks();
    all->all = memory;
    return 0;
}

static void ignore(void *data, uint16_t rule, uint32_t stack, uint64_t calls)
{
    (void)data;
    (void)rule;
    (void)stack;
    (void)calls;
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
    machtrace_counts_take(all->counts, ignore, NULL);
    machtrace_budget_clear(all->budget);
    atomic_store(&all->cut, 0);
    atomic_store(&all->incomplete, 0);
    atomic_store(&all->ignored, 0);
    atomic_store(&all->app_state, 0);
    atomic_store(&all->consent, 0);
}

void machtrace_recorders_after_fork(void)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    uint32_t id = machtrace_thread_id();
    uint32_t used = atomic_load(&all->used);
    for (uint32_t index = 0; index < used; index++)
        atomic_store(&all->all[index].id, 0);
    for (struct machtrace_recorder *own = machtrace_self_recorder(); own != NULL; own = own->inner)
        atomic_store(&own->id, id);
}
