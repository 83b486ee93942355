/* Adding rules: see hooks.h. */
#include "hooks.h"

#include <string.h>

#include "machtrace.h"
#include "recorder.h"

static int rule_of(const char *symbol)
{
    uint32_t count = atomic_load(&machtrace_rule_count);
    for (uint32_t index = 0; index < count; index++)
        if (strcmp(machtrace_rules[index].symbol, symbol) == 0)
            return (int)index;
    return -1;
}

int machtrace_add_rule(const char *symbol, uint32_t flags)
{
    size_t length = strlen(symbol);
    int number = rule_of(symbol);
    uint32_t count = atomic_load(&machtrace_rule_count);
    if (length == 0 || length >= MACHTRACE_SYMBOL_MAX ||
        (number < 0 && count == MACHTRACE_RULES_MAX))
        return -1;
    struct machtrace_watched *rule = &machtrace_rules[number < 0 ? (int)count : number];
    atomic_store(&rule->stacks, (flags & MACHTRACE_COUNT_ONLY) != 0 ? MACHTRACE_STACKS_NONE
                                : (flags & MACHTRACE_BUDGET) != 0   ? MACHTRACE_STACKS_BUDGET
                                                                    : MACHTRACE_STACKS_ALL);
    atomic_store(&rule->is_at_entry, (flags & MACHTRACE_AT_ENTRY) != 0);
    atomic_store(&rule->gives_consent, (flags & MACHTRACE_GIVES_CONSENT) != 0);
    atomic_store(&rule->is_active, true);
    if (number < 0) {
        memcpy(rule->symbol, symbol, length + 1);
        atomic_store(&machtrace_rule_count, count + 1);
    }
    atomic_fetch_add(&machtrace_rules_version, 1);
    return (int)(rule - machtrace_rules);
}

void machtrace_deactivate_rules(void)
{
    uint32_t count = atomic_load(&machtrace_rule_count);
    for (uint32_t index = 0; index < count; index++) {
        struct machtrace_watched *rule = &machtrace_rules[index];
        atomic_store(&rule->is_active, false);
        atomic_store(&rule->state, MACHTRACE_RULE_UNUSED);
        atomic_store(&rule->slots, 0);
    }
    atomic_fetch_add(&machtrace_rules_version, 1);
}
