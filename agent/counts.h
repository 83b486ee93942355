/* Calls by rule and stack that no ring has room for: exact sums, added by any thread without a
 * lock, and taken by the agent's own. */
#ifndef MACHTRACE_AGENT_COUNTS_H
#define MACHTRACE_AGENT_COUNTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "event.h"

#define MACHTRACE_COUNTS_CELLS 32768

struct machtrace_counts {
    struct {
        _Atomic uint64_t key; /* 1 << 63 | rule << 32 | stack; 0 for a free one */
        _Atomic uint64_t calls;
    } cells[MACHTRACE_COUNTS_CELLS];
    _Atomic uint64_t stackless[MACHTRACE_RULES_MAX]; /* by rule: there was no cell */
    _Atomic bool has_some;
};

/* Stack 0 if it is unknown. */
void machtrace_counts_add(struct machtrace_counts *counts, uint16_t rule, uint32_t stack,
                          uint64_t calls);

/* Pass what was added since the last time, and forget it. By one thread. */
void machtrace_counts_take(struct machtrace_counts *counts,
                           void (*each)(void *data, uint16_t rule, uint32_t stack, uint64_t calls),
                           void *data);

#endif
