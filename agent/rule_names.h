/* Active rules of import slots, by the names of their functions. */
#ifndef MACHTRACE_AGENT_RULE_NAMES_H
#define MACHTRACE_AGENT_RULE_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "hooks.h"

#define MACHTRACE_NAME_SLOTS 2048

struct machtrace_names {
    int16_t rules[MACHTRACE_NAME_SLOTS]; /* the rule and one; 0 where the slot is free */
    bool has_some;
};

#define MACHTRACE_RULE_NONE (-1)

/* Whether the loader's function of this name is replaced, and by what. */
enum machtrace_replacement machtrace_replacement_of_name(const char *name);

/* Rules whose first instructions are replaced have no name here. */
void machtrace_read_rule_names(struct machtrace_names *names);

/* The rule of a function; MACHTRACE_RULE_NONE if there is none, and minus its replacement if it has one
 * all the same: of dlsym(3) only if there are rules. */
int machtrace_rule_of_name(const struct machtrace_names *names, const char *name);

#endif
