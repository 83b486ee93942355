/* See budget.h. */
#include "budget.h"

#define SEARCHED 64
#define SECOND UINT64_C(1000000000)

static struct machtrace_site *site_of(struct machtrace_budget *budget, uint16_t rule,
                                      uint32_t node)
{
    uint64_t key = UINT64_C(1) << 63 | (uint64_t)rule << 32 | node;
    uint32_t index = (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 51);
    for (uint32_t step = 0; node != MACHTRACE_TREE_ROOT && step < SEARCHED; step++) {
        struct machtrace_site *site = &budget->sites[index];
        uint64_t present = atomic_load_explicit(&site->key, memory_order_relaxed);
        if (present == key ||
            (present == 0 &&
             (atomic_compare_exchange_strong(&site->key, &present, key) || present == key)))
            return site;
        index = (index + 1) % MACHTRACE_BUDGET_SITES;
    }
    return &budget->shared[rule % MACHTRACE_RULES_MAX];
}

/* A bucket has no more than a burst: tokens that came before the last ones are lost. A thread repeats
 * this only if another one took a token meanwhile. */
static bool spend(struct machtrace_budget *budget, struct machtrace_site *site)
{
    uint64_t tokens = atomic_load_explicit(&budget->tokens, memory_order_relaxed);
    uint64_t least = tokens < MACHTRACE_BUDGET_BURST ? 0 : tokens - MACHTRACE_BUDGET_BURST;
    uint64_t spent = atomic_load_explicit(&site->spent, memory_order_relaxed);
    while (spent < tokens)
        if (atomic_compare_exchange_weak(&site->spent, &spent, (spent < least ? least : spent) + 1))
            return true;
    return false;
}

bool machtrace_budget_take(struct machtrace_budget *budget, struct machtrace_stack_tree *tree,
                           uint32_t root, uint16_t rule, uint64_t caller)
{
    uint32_t mark = machtrace_stack_tree_insert(tree, root, MACHTRACE_MARK_SITE);
    uint32_t node = mark == MACHTRACE_TREE_ROOT || caller == 0
                        ? MACHTRACE_TREE_ROOT
                        : machtrace_stack_tree_insert(tree, mark, caller);
    struct machtrace_site *site = site_of(budget, rule, node);
    if (spend(budget, site))
        return true;
    atomic_fetch_add(&site->calls, 1);
    if (!atomic_load(&budget->has_some))
        atomic_store(&budget->has_some, true);
    return false;
}

void machtrace_budget_refill(struct machtrace_budget *budget, uint64_t ns)
{
    if (budget->began == 0)
        budget->began = ns;
    uint64_t elapsed = ns - budget->began;
    atomic_store(&budget->tokens,
                 MACHTRACE_BUDGET_BURST + elapsed / SECOND * MACHTRACE_BUDGET_BURST +
                     elapsed % SECOND * MACHTRACE_BUDGET_BURST / SECOND);
}

void machtrace_budget_drain(struct machtrace_budget *budget,
                            void (*each)(void *data, uint16_t rule, uint32_t node, uint64_t calls),
                            void *data)
{
    if (!atomic_exchange(&budget->has_some, false))
        return;
    for (uint32_t index = 0; index < MACHTRACE_BUDGET_SITES; index++) {
        uint64_t key = atomic_load(&budget->sites[index].key);
        uint64_t calls = key == 0 ? 0 : atomic_exchange(&budget->sites[index].calls, 0);
        if (calls != 0)
            each(data, (uint16_t)(key >> 32), (uint32_t)key, calls);
    }
    for (uint32_t rule = 0; rule < MACHTRACE_RULES_MAX; rule++) {
        uint64_t calls = atomic_exchange(&budget->shared[rule].calls, 0);
        if (calls != 0)
            each(data, (uint16_t)rule, 0, calls);
    }
}

static void clear(struct machtrace_site *site)
{
    if (atomic_load(&site->spent) != 0) /* pages without sites stay untouched */
        atomic_store(&site->spent, 0);
    if (atomic_load(&site->calls) != 0)
        atomic_store(&site->calls, 0);
}

void machtrace_budget_clear(struct machtrace_budget *budget)
{
    for (uint32_t index = 0; index < MACHTRACE_BUDGET_SITES; index++) {
        if (atomic_load(&budget->sites[index].key) != 0)
            atomic_store(&budget->sites[index].key, 0);
        clear(&budget->sites[index]);
    }
    for (uint32_t rule = 0; rule < MACHTRACE_RULES_MAX; rule++)
        clear(&budget->shared[rule]);
    budget->began = 0;
    atomic_store(&budget->has_some, false);
    atomic_store(&budget->tokens, MACHTRACE_BUDGET_BURST);
}
