/* Stacks that a cache must distinguish. Prints errors and the number of checks. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inprocess/core/stack_cache.h"

static int checks, faults;

static void check(int is_right, const char *what)
{
    checks++;
    if (!is_right) {
        faults++;
        printf("wrong: %s\n", what);
    }
}

static char names[8192];

static void *find(const struct machtrace_stack_cache *cache, const uint64_t *stack, size_t count)
{
    return machtrace_stack_cache_find(cache, stack, count, count, 0);
}

static void *put(struct machtrace_stack_cache *cache, const uint64_t *stack, size_t count, void *name)
{
    void *removed;
    check(machtrace_stack_cache_put(cache, stack, count, count, 0, name, &removed) == 0, "no room");
    return removed;
}

/* Several of these stacks have equal sums or xors of addresses. */
static void orders_and_repetitions(void)
{
    static const uint64_t stacks[][6] = {
        {1, 2, 3},       {2, 1, 3},    {3, 2, 1},          {1, 3, 2},          {1, 2, 3, 4, 4},
        {1, 2, 3, 5, 5}, {4, 4, 1, 2, 3}, {1, 1, 1, 2, 3}, {1, 2, 3, 3, 3}, {1, 2, 3, 0},
    };
    static const size_t counts[] = {3, 3, 3, 3, 5, 5, 5, 5, 5, 4};
    enum { COUNT = sizeof counts / sizeof *counts };
    struct machtrace_stack_cache cache = {.seed = 77};
    for (size_t one = 0; one < COUNT; one++) {
        uint64_t hash = machtrace_stack_hash(77, stacks[one], counts[one], counts[one], 0);
        for (size_t other = 0; other < one; other++)
            check(hash != machtrace_stack_hash(77, stacks[other], counts[other], counts[other], 0),
                  "two stacks have one hash");
        check(find(&cache, stacks[one], counts[one]) == NULL, "found before it was put in");
        put(&cache, stacks[one], counts[one], &names[one]);
    }
    for (size_t one = 0; one < COUNT; one++)
        check(find(&cache, stacks[one], counts[one]) == &names[one], "not found");
    check(machtrace_stack_cache_find(&cache, stacks[0], 3, 4, 0) == NULL, "of another depth");
    check(machtrace_stack_cache_find(&cache, stacks[0], 3, 3, 1) == NULL, "of another variant");
    while (machtrace_stack_cache_pop(&cache) != NULL)
        ;
    check(cache.count == 0 && cache.bytes == 0, "something is left");
}

/* The hash of a stack is a step of the hash before, xored with the last address: so the last one can
 * be chosen to give any hash. The addresses are still compared. */
static void collision(void)
{
    uint64_t seed = 5;
    uint64_t one[2] = {0x1111, 0x2222}, other[2] = {0x3333, 0};
    other[1] = one[1] ^ machtrace_stack_hash(seed, one, 1, 2, 0) ^
               machtrace_stack_hash(seed, other, 1, 2, 0);
    check(machtrace_stack_hash(seed, one, 2, 2, 0) == machtrace_stack_hash(seed, other, 2, 2, 0),
          "not the collision that was meant");
    struct machtrace_stack_cache cache = {.seed = seed};
    put(&cache, one, 2, &names[1]);
    check(find(&cache, other, 2) == NULL, "a stack with the same hash was taken for it");
    put(&cache, other, 2, &names[2]);
    check(find(&cache, one, 2) == &names[1] && find(&cache, other, 2) == &names[2],
          "stacks with one hash are not kept apart");
    check(put(&cache, one, 2, &names[3]) == &names[1], "what was replaced is not told");
    check(cache.count == 2, "one stack is there twice");
    while (machtrace_stack_cache_pop(&cache) != NULL)
        ;
}

static void bounds(void)
{
    struct machtrace_stack_cache cache = {.seed = 9};
    size_t most = (size_t)MACHTRACE_STACK_SETS * MACHTRACE_STACK_WAYS, gone = 0, found = 0;
    for (uint64_t index = 0; index < 8 * most; index++) {
        uint64_t stack[3] = {index, index * 7, 3};
        gone += put(&cache, stack, 3, &names[index % sizeof names]) != NULL;
        check(cache.count <= most && cache.bytes <= most * sizeof stack, "it grows");
        check(find(&cache, stack, 3) == &names[index % sizeof names], "what came last is gone");
    }
    check(gone + cache.count == 8 * most, "values were lost");
    while (machtrace_stack_cache_pop(&cache) != NULL)
        found++;
    check(gone + found == 8 * most, "values are left behind");
}

int main(void)
{
    orders_and_repetitions();
    collision();
    bounds();
    printf("checks %d, faults %d\n", checks, faults);
    return faults != 0;
}
