/* Stacks as one tree, in a canonical order.
 *
 * Rows are frames with depths. A row is called by the last row before it whose depth is less by
 * one, so that a list of stacks, each with depths 1, 2, ... from the outermost frame, is such rows,
 * and a tree in pre-order is, too.
 */
#ifndef MACHTRACE_STACK_TREE_TREE_H
#define MACHTRACE_STACK_TREE_TREE_H

#include <stddef.h>
#include <stdint.h>

enum machtrace_tree_result {
    MACHTRACE_TREE_DONE,
    MACHTRACE_TREE_NO_MEMORY,
    MACHTRACE_TREE_NO_CALLER, /* a depth is 0, or more than one beyond that of the row before */
    MACHTRACE_TREE_TOO_LARGE,
};

/* Frames, with their depths; or stacks behind each other, the outermost frame of each first, with
 * the end of each: these ascend up to the number of frames. */
struct machtrace_rows {
    const uint32_t *depth; /* NULL: stacks */
    const uint32_t *frame;
    size_t count;
    const int64_t *ends;
    size_t stacks;
};

/* Distinct nodes in pre-order, siblings by frame; number 0 is the root, of depth 0. */
struct machtrace_tree {
    uint32_t *depth;
    uint32_t *frame;
    size_t count;
};

/* Join rows into a tree. `node` has room for the number of the node of each row. */
enum machtrace_tree_result machtrace_tree_join(const struct machtrace_rows *rows,
                                               struct machtrace_tree *tree, int32_t *node);

/* Write the caller of each node of a tree in pre-order, and the node after the last one below it.
 * Returns -1 without memory, -2 if it is no such tree. */
int machtrace_tree_links(const uint32_t *depth, size_t count, int32_t *parent, int32_t *end);

void machtrace_tree_free(struct machtrace_tree *tree);

#endif
