/* See rule_names.h. */
#include "rule_names.h"

#include <string.h>

#include "entries.h"
#include "hooks.h"

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (; *name != '\0'; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

void machtrace_read_rule_names(struct machtrace_names *names)
{
    memset(names, 0, sizeof *names);
    names->count = atomic_load(&machtrace_rule_count);
    for (uint32_t rule = 0; rule < names->count; rule++) {
        if (!atomic_load(&machtrace_rules[rule].is_active) || machtrace_is_at_entry(rule))
            continue;
        uint32_t index = hash_of(machtrace_rules[rule].symbol) % MACHTRACE_NAME_SLOTS;
        while (names->rules[index] != 0)
            index = (index + 1) % MACHTRACE_NAME_SLOTS;
        names->rules[index] = (int16_t)(rule + 1);
    }
}

int machtrace_rule_of_name(const struct machtrace_names *names, const char *name)
{
    uint32_t index = hash_of(name) % MACHTRACE_NAME_SLOTS;
    for (; names->rules[index] != 0; index = (index + 1) % MACHTRACE_NAME_SLOTS)
        if (strcmp(machtrace_rules[names->rules[index] - 1].symbol, name) == 0)
            return names->rules[index] - 1;
    return strcmp(name, "dlopen") == 0    ? MACHTRACE_RULE_DLOPEN
           : strcmp(name, "dlclose") == 0 ? MACHTRACE_RULE_DLCLOSE
                                          : -1;
}
