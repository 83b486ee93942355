/* Active rules of import slots, by the names of their functions. */
#ifndef MACHTRACE_AGENT_RULE_NAMES_H
#define MACHTRACE_AGENT_RULE_NAMES_H

#include <stdint.h>

#define MACHTRACE_NAME_SLOTS 2048

struct machtrace_names {
    int16_t rules[MACHTRACE_NAME_SLOTS]; /* the rule and one; 0 where the slot is free */
    uint32_t count;
};

/* What has to be replaced though no rule has its name. */
#define MACHTRACE_RULE_DLOPEN (-2)
#define MACHTRACE_RULE_DLCLOSE (-3)

/* Rules whose first instructions are replaced have no name here. */
void machtrace_read_rule_names(struct machtrace_names *names);

/* The rule of a function; one of the above, or -1 if there is none. */
int machtrace_rule_of_name(const struct machtrace_names *names, const char *name);

#endif
