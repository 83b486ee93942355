/* Insert generated stacks into a tree from several threads, and read each back.
 *
 *     tree BITS STACKS THREADS
 *
 * Prints "stacks N nodes N refused N merged N differing N bytes N ns N": merged are stacks whose
 * node is not the stack, differing those whose node differs between threads, bytes the tree's per
 * node, ns the time of a stack, its verification not counted.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "stack_tree.h"

#define DEPTH 40

static struct machtrace_stack_tree tree;
static _Atomic uint32_t *nodes;
static _Atomic uint64_t merged, differing;
static uint64_t stacks;
static unsigned threads;

static uint64_t mix(uint64_t value)
{
    value ^= value >> 31;
    value *= UINT64_C(0x7fb5d329728ea185);
    value ^= value >> 27;
    value *= UINT64_C(0x81dadef4bc2dd44d);
    return value ^ value >> 33;
}

/* Return addresses of one image, some bytes apart; and of anywhere in 64 bits. */
static uint64_t near(uint64_t number)
{
    return UINT64_C(0x7f3200001000) + number * 5;
}

static uint64_t far(uint64_t number)
{
    return mix(number) | 1;
}

/* Orders of ten frames: equal sums, equal sets. */
static size_t permutation(uint64_t index, uint64_t *frames)
{
    uint64_t left[10];
    size_t depth = 0;
    index %= 3628800;
    for (size_t frame = 0; frame < 10; frame++)
        left[frame] = near(frame);
    for (size_t count = 10; count > 0; count--) {
        size_t chosen = (size_t)(index % count);
        index /= count;
        frames[depth++] = left[chosen];
        left[chosen] = left[count - 1];
    }
    return depth;
}

/* Recursion of one, of two and of three functions, each to some depth: a frame that occurs twice
 * cancels itself where addresses are combined by XOR. */
static size_t recursion(uint64_t index, uint64_t *frames)
{
    size_t depth = 0;
    frames[depth++] = near(100);
    for (uint64_t function = 0; function < 3; function++) {
        uint64_t times = index % 12;
        index /= 12;
        for (uint64_t time = 0; time < times; time++)
            frames[depth++] = near(101 + function);
    }
    frames[depth++] = near(200 + index);
    return depth;
}

/* One task: equal outermost and innermost frames, other continuations between them. */
static size_t task(uint64_t index, uint64_t *frames)
{
    size_t depth = 0;
    frames[depth++] = near(1000);
    frames[depth++] = near(1001);
    frames[depth++] = near(2000 + index % 1000);
    frames[depth++] = near(4000 + index / 1000);
    frames[depth++] = near(1002);
    return depth;
}

/* Equal innermost frames of other origins. */
static size_t equal_tops(uint64_t index, uint64_t *frames)
{
    size_t depth = 0;
    frames[depth++] = far(index);
    for (uint64_t frame = 0; frame < 4; frame++)
        frames[depth++] = near(6000 + frame);
    return depth;
}

/* Calls of a program: each frame has eight callees, at addresses of all 64 bits. */
static size_t program(uint64_t index, uint64_t *frames)
{
    size_t depth = 0;
    index += 8;
    for (int shift = 24; shift >= 0; shift -= 3)
        if (index >> shift != 0)
            frames[depth++] = far(index >> shift | UINT64_C(1) << 60);
    return depth;
}

static size_t generate(uint64_t index, uint64_t *frames)
{
    uint64_t within = index / 10;
    switch (index % 10) {
    case 0:
    case 1:
    case 2:
        return permutation(within * 3 + index % 10, frames);
    case 3:
        return task(within, frames);
    case 4:
        return equal_tops(within, frames);
    case 5:
    case 6:
        return recursion(within * 2 + index % 10 - 5, frames);
    default:
        return program(within * 3 + index % 10 - 7, frames);
    }
}

static uint32_t insert(const uint64_t *frames, size_t depth)
{
    uint32_t node = MACHTRACE_TREE_ROOT;
    for (size_t frame = 0; frame < depth; frame++) {
        node = machtrace_stack_tree_insert(&tree, node, frames[frame]);
        if (node == MACHTRACE_TREE_ROOT)
            break;
    }
    return node;
}

static void *insert_all(void *argument)
{
    uint64_t seed = (uintptr_t)argument;
    uint64_t frames[DEPTH];
    for (uint64_t step = 0; step < stacks; step++) {
        /* Every second thread from the last to the first, and each from elsewhere. */
        uint64_t index = (step + seed * (stacks / threads)) % stacks;
        if (seed % 2 != 0)
            index = stacks - 1 - index;
        uint32_t node = insert(frames, generate(index, frames));
        uint32_t other = atomic_exchange(&nodes[index], node);
        if (other != node && other != 0)
            atomic_fetch_add(&differing, 1);
    }
    return NULL;
}

static void *check_all(void *argument)
{
    uint64_t seed = (uintptr_t)argument;
    for (uint64_t index = seed; index < stacks; index += threads) {
        uint64_t frames[DEPTH], present[DEPTH];
        size_t depth = generate(index, frames);
        uint32_t node = atomic_load(&nodes[index]);
        if (node == MACHTRACE_TREE_ROOT)
            continue; /* refused */
        bool is_equal = machtrace_stack_tree_read(&tree, node, present, DEPTH) == depth;
        uint32_t again = MACHTRACE_TREE_ROOT;
        for (size_t frame = 0; frame < depth && is_equal; frame++) {
            is_equal = present[depth - 1 - frame] == frames[frame];
            again = machtrace_stack_tree_find(&tree, again, frames[frame]);
        }
        if (!is_equal || again != node)
            atomic_fetch_add(&merged, 1);
    }
    return NULL;
}

static void run(void *(*function)(void *))
{
    pthread_t running[64];
    for (unsigned thread = 0; thread < threads; thread++)
        pthread_create(&running[thread], NULL, function, (void *)(uintptr_t)thread);
    for (unsigned thread = 0; thread < threads; thread++)
        pthread_join(running[thread], NULL);
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    uint32_t bits = (uint32_t)strtoul(arguments[1], NULL, 10);
    stacks = strtoull(arguments[2], NULL, 10);
    threads = (unsigned)strtoul(arguments[3], NULL, 10);
    if (stacks == 0 || threads == 0 || threads > 64)
        return 2;
    int error = machtrace_stack_tree_begin(&tree, bits);
    if (error != 0) {
        fprintf(stderr, "%s\n", strerror(error));
        return 1;
    }
    nodes = calloc(stacks, sizeof *nodes);
    if (nodes == NULL)
        return 1;
    int64_t began = now();
    run(insert_all);
    int64_t took = now() - began;
    run(check_all);
    uint32_t stored = atomic_load(&tree.count);
    printf("stacks %" PRIu64 " nodes %" PRIu32 " refused %" PRIu64 " merged %" PRIu64
           " differing %" PRIu64 " bytes %.2f ns %.0f\n",
           stacks, stored, atomic_load(&tree.refused), atomic_load(&merged),
           atomic_load(&differing), (double)machtrace_stack_tree_size(bits) / stored,
           (double)took / (double)stacks / threads);
    machtrace_stack_tree_end(&tree);
    free((void *)nodes);
    return 0;
}
