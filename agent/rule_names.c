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
    static const struct {
        const char *name;
        enum machtrace_replacement replacement;
    } all[] = {{"dlopen", MACHTRACE_DLOPEN},  {"dlclose", MACHTRACE_DLCLOSE},
#if !defined(__APPLE__)
               {"dlsym", MACHTRACE_DLSYM},    {"dlvsym", MACHTRACE_DLVSYM},
               {"_exit", MACHTRACE_ENDS},     {"_Exit", MACHTRACE_ENDS},
               {"quick_exit", MACHTRACE_ENDS}, {"abort", MACHTRACE_ENDS},
               {"execve", MACHTRACE_ENDS},    {"execv", MACHTRACE_ENDS},
               {"execvp", MACHTRACE_ENDS},    {"execvpe", MACHTRACE_ENDS},
               {"execl", MACHTRACE_ENDS},     {"execlp", MACHTRACE_ENDS},
               {"execle", MACHTRACE_ENDS},    {"fexecve", MACHTRACE_ENDS},
               {"execveat", MACHTRACE_ENDS},
#endif
    };
    for (size_t index = 0; index < sizeof all / sizeof *all; index++)
        if (strcmp(all[index].name, name) == 0)
            return all[index].replacement;
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
