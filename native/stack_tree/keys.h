/* Keys of stacks: BLAKE2b (RFC 7693) with 16 bytes of digest, over the keys of a stack's frames,
 * the outermost first. Stacks with equal outer frames share the work for those. */
#ifndef MACHTRACE_STACK_TREE_KEYS_H
#define MACHTRACE_STACK_TREE_KEYS_H

#include <stddef.h>
#include <stdint.h>

#define MACHTRACE_FRAME_KEY_SIZE 32u
#define MACHTRACE_STACK_KEY_SIZE 16u

struct machtrace_stacks {
    const uint32_t *depth, *frame; /* a tree in pre-order, with its root */
    size_t count;
    const unsigned char *frame_keys;
    size_t frames;
    const int32_t *nodes; /* of the stacks, ascending */
    size_t stacks;
};

/* Write the key of each stack. Returns -1 without memory, -2 if the tree or a frame is invalid. */
int machtrace_stack_keys(const struct machtrace_stacks *all, unsigned char *keys);

#endif
