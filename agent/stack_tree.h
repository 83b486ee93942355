/* Stacks as nodes of a tree: a node is an address and the node of its caller.
 *
 * The number of a stack's innermost node is the stack's identity. Two stacks have the same number
 * if and only if they are equal: a hash chooses where the search begins, and then the address and
 * the parent are compared in full.
 *
 * A node's number is its index in an open-addressed table. The index where the search for a node
 * begins is
 *
 *     home = (scatter(parent) + spread(address)) mod slots
 *
 * where scatter is a permutation of the numbers of nodes. So the address, and how far from home the
 * node is stored, determine the parent, and a node takes 8 + 2 bytes. The table is filled to 7/8:
 * 11.43 bytes a node.
 *
 * Nodes are inserted without locks, and by the handlers of signals too. Nothing is allocated after
 * the begin, and nothing is ever removed.
 */
#ifndef MACHTRACE_AGENT_STACK_TREE_H
#define MACHTRACE_AGENT_STACK_TREE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MACHTRACE_TREE_BITS_MIN 8
#define MACHTRACE_TREE_BITS_MAX 28
#define MACHTRACE_TREE_DISTANCE_MAX 8192 /* slots from home */

/* The parent of outermost frames: a stack without frames. */
#define MACHTRACE_TREE_ROOT 0u

struct machtrace_stack_tree {
    _Atomic uint64_t *addresses; /* by slot; 0 where it is free */
    _Atomic uint16_t *distances; /* by slot: from home, and one; 0 until it is known */
    uint32_t bits;               /* there are 1 << bits slots */
    uint32_t most;               /* nodes that are stored */
    _Atomic uint32_t count;      /* nodes that are */
    _Atomic uint64_t refused;    /* insertions for which there was no room */
};

/* Map an empty tree. Returns 0, or an errno. */
int machtrace_stack_tree_begin(struct machtrace_stack_tree *tree, uint32_t bits);
void machtrace_stack_tree_end(struct machtrace_stack_tree *tree);

/* The node of a frame, which is inserted if it is new; the root if there is no room for it. The
 * address is not 0. */
uint32_t machtrace_stack_tree_insert(struct machtrace_stack_tree *tree, uint32_t parent,
                                     uint64_t address);

/* The node of a frame; the root if there is none. */
uint32_t machtrace_stack_tree_find(const struct machtrace_stack_tree *tree, uint32_t parent,
                                   uint64_t address);

/* Of a node: its frame's address, its parent, and its distance from home. */
uint64_t machtrace_stack_tree_address(const struct machtrace_stack_tree *tree, uint32_t node);
uint32_t machtrace_stack_tree_parent(const struct machtrace_stack_tree *tree, uint32_t node);
uint32_t machtrace_stack_tree_distance(const struct machtrace_stack_tree *tree, uint32_t node);

/* Copy a stack's addresses, innermost first, as many as there is room for; how many it has. */
size_t machtrace_stack_tree_read(const struct machtrace_stack_tree *tree, uint32_t node,
                                 uint64_t *addresses, size_t room);

/* Bytes of the mapping. */
size_t machtrace_stack_tree_size(uint32_t bits);

#endif
