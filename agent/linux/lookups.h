/* Functions that programs look up by name, dlsym(3) and dlvsym(3): the pointer of a watched one is that
 * of its stub. */
#ifndef MACHTRACE_AGENT_LOOKUPS_H
#define MACHTRACE_AGENT_LOOKUPS_H

#include "hooks.h"

/* The function to call instead of dlsym or dlvsym; `arguments` are theirs. */
uint64_t machtrace_lookup_of(const struct machtrace_binding *binding, const uint64_t arguments[3],
                             uint64_t caller);

#endif
