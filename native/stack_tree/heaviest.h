/* The heaviest functions of weighted stacks, without the tree of all of them.
 *
 * Stacks are a tree of frames, in pre-order; a frame is one or more calls, those of its inlined
 * functions. Nodes of one function with the same callers are one node of the result. From the root
 * inwards, what is lighter than the heaviest nodes so far is not entered, so that most of a large
 * tree is not read.
 */
#ifndef MACHTRACE_STACK_TREE_HEAVIEST_H
#define MACHTRACE_STACK_TREE_HEAVIEST_H

#include <stddef.h>
#include <stdint.h>

/* A tree of frames, as machtrace_tree_links describes it, and the calls of each frame. */
struct machtrace_forest {
    const uint32_t *frame;
    const int32_t *end;
    const int64_t *sums; /* the weight of each node and of all before it */
    size_t count;
    const uint32_t *first; /* by frame: its outermost call; the calls end where the next begin */
    const int32_t *image;  /* by call: with its name, the function */
    const uint64_t *name;
    size_t frames, calls;
};

/* Functions with their callers, which precede them; the first one is the root. */
struct machtrace_functions {
    uint32_t *parent;
    uint32_t *call; /* one of those that are the function */
    int64_t *total;
    size_t count;
};

/* Find the heaviest functions, at most `most` besides the root. Of equal ones, the outer ones come
 * first; what equals a function that has no room is left out as well, so that the order of nodes
 * does not matter. `node`, if it is not NULL, has room for the function of each node: the innermost
 * one that is left. Returns -1 without memory, -2 if it is no such tree. */
int machtrace_heaviest(const struct machtrace_forest *forest, size_t most,
                       struct machtrace_functions *functions, int32_t *node);

void machtrace_functions_free(struct machtrace_functions *functions);

#endif
