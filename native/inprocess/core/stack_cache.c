#include "inprocess/core/stack_cache.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t hash, uint64_t word)
{
    /* A multiplication by an odd number of 64 bits, and the upper half onto the lower. */
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

uint64_t machtrace_stack_hash(uint64_t seed, const uint64_t *addresses, size_t count,
                              uint64_t depth, uint32_t variant)
{
    uint64_t hash = mix(mix(seed, depth), variant);
    for (size_t index = 0; index < count; index++)
        hash = mix(hash, addresses[index]);
    return hash;
}

static struct machtrace_known_stack *lookup(struct machtrace_stack_set *set, uint64_t hash,
                                            const uint64_t *addresses, size_t count,
                                            uint64_t depth, uint32_t variant)
{
    for (size_t index = 0; index < MACHTRACE_STACK_WAYS; index++) {
        struct machtrace_known_stack *known = &set->ways[index];
        if (known->addresses != NULL && known->hash == hash && known->count == count &&
            known->depth == depth && known->variant == variant &&
            memcmp(known->addresses, addresses, count * sizeof *addresses) == 0)
            return known;
    }
    return NULL;
}

void *machtrace_stack_cache_find(const struct machtrace_stack_cache *cache,
                                 const uint64_t *addresses, size_t count, uint64_t depth,
                                 uint32_t variant)
{
    if (cache->sets == NULL)
        return NULL;
    uint64_t hash = machtrace_stack_hash(cache->seed, addresses, count, depth, variant);
    const struct machtrace_known_stack *known =
        lookup(&cache->sets[hash % MACHTRACE_STACK_SETS], hash, addresses, count, depth, variant);
    return known == NULL ? NULL : known->value;
}

static void *take_out(struct machtrace_stack_cache *cache, struct machtrace_known_stack *known)
{
    void *value = known->value;
    cache->count--;
    cache->bytes -= known->count * sizeof *known->addresses;
    free(known->addresses);
    memset(known, 0, sizeof *known);
    return value;
}

int machtrace_stack_cache_put(struct machtrace_stack_cache *cache, const uint64_t *addresses,
                              size_t count, uint64_t depth, uint32_t variant, void *value,
                              void **removed)
{
    *removed = NULL;
    if (cache->sets == NULL) {
        cache->sets = calloc(MACHTRACE_STACK_SETS, sizeof *cache->sets);
        if (cache->sets == NULL)
            return -1;
    }
    uint64_t *copy = malloc((count != 0 ? count : 1) * sizeof *copy);
    if (copy == NULL)
        return -1;
    memcpy(copy, addresses, count * sizeof *copy);
    uint64_t hash = machtrace_stack_hash(cache->seed, addresses, count, depth, variant);
    struct machtrace_stack_set *set = &cache->sets[hash % MACHTRACE_STACK_SETS];
    struct machtrace_known_stack *place = lookup(set, hash, addresses, count, depth, variant);
    for (size_t index = 0; place == NULL && index < MACHTRACE_STACK_WAYS; index++) {
        if (set->ways[index].addresses == NULL)
            place = &set->ways[index];
    }
    if (place == NULL)
        place = &set->ways[set->next++ % MACHTRACE_STACK_WAYS];
    if (place->addresses != NULL)
        *removed = take_out(cache, place);
    *place = (struct machtrace_known_stack){hash, depth, count, copy, value, variant};
    cache->count++;
    cache->bytes += count * sizeof *copy;
    return 0;
}

void *machtrace_stack_cache_pop(struct machtrace_stack_cache *cache)
{
    for (size_t set = 0; cache->sets != NULL && set < MACHTRACE_STACK_SETS; set++) {
        for (size_t way = 0; way < MACHTRACE_STACK_WAYS; way++) {
            if (cache->sets[set].ways[way].addresses != NULL)
                return take_out(cache, &cache->sets[set].ways[way]);
        }
    }
    free(cache->sets);
    cache->sets = NULL;
    return NULL;
}
