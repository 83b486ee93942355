/* See counts.h. */
#include "counts.h"

#define SEARCHED 64

void machtrace_counts_add(struct machtrace_counts *counts, uint16_t rule, uint32_t stack,
                          uint64_t calls)
{
    uint64_t key = UINT64_C(1) << 63 | (uint64_t)rule << 32 | stack;
    uint32_t index = (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 49);
    _Atomic uint64_t *sum = &counts->stackless[rule % MACHTRACE_RULES_MAX];
    for (uint32_t step = 0; stack != 0 && step < SEARCHED; step++) {
        uint64_t present = atomic_load(&counts->cells[index].key);
        if (present == key ||
            (present == 0 && (atomic_compare_exchange_strong(&counts->cells[index].key, &present, key) ||
                              present == key))) {
            sum = &counts->cells[index].calls;
            break;
        }
        index = (index + 1) % MACHTRACE_COUNTS_CELLS;
    }
    atomic_fetch_add(sum, calls);
    if (!atomic_load(&counts->has_some))
        atomic_store(&counts->has_some, true);
}

void machtrace_counts_take(struct machtrace_counts *counts,
                           void (*each)(void *data, uint16_t rule, uint32_t stack, uint64_t calls),
                           void *data)
{
    if (!atomic_exchange(&counts->has_some, false))
        return;
    for (uint32_t index = 0; index < MACHTRACE_COUNTS_CELLS; index++) {
        uint64_t key = atomic_load(&counts->cells[index].key);
        uint64_t calls = key == 0 ? 0 : atomic_exchange(&counts->cells[index].calls, 0);
        if (calls != 0)
            each(data, (uint16_t)(key >> 32), (uint32_t)key, calls);
    }
    for (uint32_t rule = 0; rule < MACHTRACE_RULES_MAX; rule++) {
        uint64_t calls = atomic_exchange(&counts->stackless[rule], 0);
        if (calls != 0)
            each(data, (uint16_t)rule, 0, calls);
    }
}
