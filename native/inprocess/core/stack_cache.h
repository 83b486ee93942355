/* Objects for stacks, by their addresses: a cache of fixed size.
 *
 * Plain C: it allocates only in machtrace_stack_cache_put.
 */
#ifndef MACHTRACE_INPROCESS_CORE_STACK_CACHE_H
#define MACHTRACE_INPROCESS_CORE_STACK_CACHE_H

#include <stddef.h>
#include <stdint.h>

#define MACHTRACE_STACK_SETS 1024
#define MACHTRACE_STACK_WAYS 4

struct machtrace_known_stack {
    uint64_t hash;
    uint64_t depth; /* of the stack, more than its addresses where its middle was left out */
    size_t count;
    uint64_t *addresses; /* owned; NULL if the entry is free */
    void *value;
    uint32_t variant;
};

struct machtrace_stack_set {
    struct machtrace_known_stack ways[MACHTRACE_STACK_WAYS];
    unsigned next; /* the next to be replaced */
};

struct machtrace_stack_cache {
    struct machtrace_stack_set *sets; /* NULL before the first is put in */
    size_t count, bytes;
    uint64_t seed; /* so that nobody can choose addresses that collide */
};

/* A hash that depends on each address' position: the same frames in another order, or once
 * more, have another. */
uint64_t machtrace_stack_hash(uint64_t seed, const uint64_t *addresses, size_t count,
                              uint64_t depth, uint32_t variant);

/* The value stored for exactly these addresses, which are compared; NULL if there is nothing. */
void *machtrace_stack_cache_find(const struct machtrace_stack_cache *cache,
                                 const uint64_t *addresses, size_t count, uint64_t depth,
                                 uint32_t variant);

/* Store a value, and remove the one that it replaces, if any. Returns 0; -1 where there is
 * no memory. */
int machtrace_stack_cache_put(struct machtrace_stack_cache *cache, const uint64_t *addresses,
                              size_t count, uint64_t depth, uint32_t variant, void *value,
                              void **removed);

/* Remove one value, until there is none: NULL. */
void *machtrace_stack_cache_pop(struct machtrace_stack_cache *cache);

#endif
