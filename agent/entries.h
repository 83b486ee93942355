/* Hooks at a function's first instruction, where a rule demands it: linux/entries.c.
 *
 * The first instructions are replaced by a jump to the rule's stub, and executed elsewhere. Darwin
 * has none: its code pages are signed, and can be changed only of a process that a debugger is
 * attached to, or whose system was modified.
 */
#ifndef MACHTRACE_AGENT_ENTRIES_H
#define MACHTRACE_AGENT_ENTRIES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "hooks.h"

static inline bool machtrace_is_at_entry(uint32_t rule)
{
    return atomic_load(&machtrace_rules[rule].is_at_entry) &&
           atomic_load(&machtrace_rules[rule].is_active);
}

#if defined(__APPLE__)

static inline bool machtrace_bind_entries(struct machtrace_imports_result *result, bool waits)
{
    (void)result;
    (void)waits;
    for (uint32_t rule = 0; rule < atomic_load(&machtrace_rule_count); rule++)
        if (machtrace_is_at_entry(rule)) {
            strcpy(machtrace_rules[rule].other, "the system allows no change of code");
            atomic_store(&machtrace_rules[rule].state, MACHTRACE_RULE_REFUSED);
        }
    return true;
}

static inline void machtrace_restore_entries(struct machtrace_imports_result *result)
{
    (void)result;
}

static inline void machtrace_entries_after_fork(void)
{
}

static inline uint64_t machtrace_entry_function(uint64_t target)
{
    return target;
}

#else

/* Install hooks of the rules whose functions are loaded; false if another thread does, and `waits`
 * is not set. */
bool machtrace_bind_entries(struct machtrace_imports_result *result, bool waits);

/* Restore every byte. */
void machtrace_restore_entries(struct machtrace_imports_result *result);

void machtrace_entries_after_fork(void);

/* The function whose displaced instructions are at an address, or the address itself. */
uint64_t machtrace_entry_function(uint64_t target);

#endif

#endif
