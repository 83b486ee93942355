/* See rule_names.h. */
#include "rule_names.h"

#include <string.h>

#include "entries.h"

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
    uint32_t count = atomic_load(&machtrace_rule_count);
    for (uint32_t rule = 0; rule < count; rule++) {
        if (!atomic_load(&machtrace_rules[rule].is_active) || machtrace_is_at_entry(rule))
            continue;
        uint32_t index = hash_of(machtrace_rules[rule].symbol) % MACHTRACE_NAME_SLOTS;
        while (names->rules[index] != 0)
            index = (index + 1) % MACHTRACE_NAME_SLOTS;
        names->rules[index] = (int16_t)(rule + 1);
        names->has_some = true;
    }
}

enum machtrace_replacement machtrace_replacement_of_name(const char *name)
{
    static const char *const names[MACHTRACE_REPLACEMENTS] = {
        [MACHTRACE_DLOPEN] = "dlopen",
        [MACHTRACE_DLCLOSE] = "dlclose",
#if !defined(__APPLE__)
        [MACHTRACE_DLSYM] = "dlsym",
        [MACHTRACE_DLVSYM] = "dlvsym",
#endif
    };
    for (int replacement = 1; replacement < MACHTRACE_REPLACEMENTS; replacement++)
        if (names[replacement] != NULL && strcmp(names[replacement], name) == 0)
            return (enum machtrace_replacement)replacement;
    return MACHTRACE_NOT_REPLACED;
}

int machtrace_rule_of_name(const struct machtrace_names *names, const char *name)
{
    uint32_t index = hash_of(name) % MACHTRACE_NAME_SLOTS;
    for (; names->rules[index] != 0; index = (index + 1) % MACHTRACE_NAME_SLOTS)
        if (strcmp(machtrace_rules[names->rules[index] - 1].symbol, name) == 0)
            return names->rules[index] - 1;
    enum machtrace_replacement replacement = machtrace_replacement_of_name(name);
    if (replacement >= MACHTRACE_DLSYM && !names->has_some)
        replacement = MACHTRACE_NOT_REPLACED;
    return MACHTRACE_RULE_NONE - (int)replacement;
}
