/* Functions that programs look up by name, dlsym(3) and dlvsym(3): the pointer of a watched one is that
 * of its stub. */
#ifndef MACHTRACE_AGENT_LOOKUPS_H
#define MACHTRACE_AGENT_LOOKUPS_H

#include "hooks.h"

/* The function to call instead of dlsym or dlvsym; `arguments` are theirs. */
uint64_t machtrace_lookup_of(const struct machtrace_binding *binding, const uint64_t arguments[3],
                             uint64_t caller);

/* Whether an address is an entry of the program's linkage table. That of a program at a fixed address is
 * a function's address in all images, if the program takes it, and leads to the program's slot. */
bool machtrace_is_linkage(uint64_t address);

/* What the loader will likely bind for an image that is held: as far as that is known without the
 * image's own scope; 0 for nothing. */
uint64_t machtrace_likely_target(const char *name, void *handle);

#endif
