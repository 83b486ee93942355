/* See stack_tree.h. docs/agent-spool.md states the same formulas for readers. */
#define _GNU_SOURCE
#include "stack_tree.h"

#include <errno.h>
#include <sys/mman.h>


/* Odd, so that they have inverses modulo powers of two. */
#define SCATTER UINT32_C(0x9e3779b1)
#define SCATTER_INVERSE UINT32_C(0x0e8b2f51) /* modulo 2^32, checked below */
#define SPREAD UINT64_C(0x9e3779b97f4a7c15)

_Static_assert((uint32_t)(SCATTER * (uint64_t)SCATTER_INVERSE) == 1, "an inverse");

static uint32_t mask_of(const struct machtrace_stack_tree *tree)
{
    return (UINT32_C(1) << tree->bits) - 1;
}

/* Multiply, fold the upper half onto the lower, multiply. */
static uint32_t scatter(const struct machtrace_stack_tree *tree, uint32_t parent)
{
    uint32_t mask = mask_of(tree);
    uint32_t value = parent * SCATTER & mask;
    value ^= value >> ((tree->bits + 1) / 2);
    return value * SCATTER & mask;
}

/* The fold is its own inverse, since it moves at least half of the bits out. */
static uint32_t gather(const struct machtrace_stack_tree *tree, uint32_t value)
{
    uint32_t mask = mask_of(tree);
    value = value * SCATTER_INVERSE & mask;
    value ^= value >> ((tree->bits + 1) / 2);
    return value * SCATTER_INVERSE & mask;
}

static uint32_t spread(const struct machtrace_stack_tree *tree, uint64_t address)
{
    return (uint32_t)((address ^ address >> 32) * SPREAD >> (64 - tree->bits));
}

size_t machtrace_stack_tree_size(uint32_t bits)
{
    return ((size_t)1 << bits) * (sizeof(uint64_t) + sizeof(uint16_t));
}

int machtrace_stack_tree_begin(struct machtrace_stack_tree *tree, uint32_t bits)
{
    if (bits < MACHTRACE_TREE_BITS_MIN || bits > MACHTRACE_TREE_BITS_MAX)
        return EINVAL;
    void *memory = mmap(NULL, machtrace_stack_tree_size(bits), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return errno;
    size_t slots = (size_t)1 << bits;
    tree->addresses = memory;
    tree->distances = (_Atomic uint16_t *)(tree->addresses + slots);
    tree->bits = bits;
    tree->most = (uint32_t)(slots - slots / 8);
    atomic_store(&tree->count, 0);
    atomic_store(&tree->refused, 0);
    /* The root's slot is taken, by what no node equals. */
    atomic_store(&tree->distances[MACHTRACE_TREE_ROOT], UINT16_MAX);
    atomic_store(&tree->addresses[MACHTRACE_TREE_ROOT], UINT64_MAX);
    return 0;
}

void machtrace_stack_tree_end(struct machtrace_stack_tree *tree)
{
    munmap((void *)tree->addresses, machtrace_stack_tree_size(tree->bits));
    tree->addresses = NULL;
    tree->distances = NULL;
}

/* Every thread searches the same slots in the same order, and a slot that has an address and a
 * distance never changes. A thread passes a slot only if it can never hold its node; so equal nodes
 * are in one slot. A slot with an address and no distance yet belongs to the first of the nodes
 * with this address that sets the distance, which need not be the one that set the address. */
uint32_t machtrace_stack_tree_insert(struct machtrace_stack_tree *tree, uint32_t parent,
                                     uint64_t address)
{
    uint32_t mask = mask_of(tree);
    uint32_t slot = (scatter(tree, parent) + spread(tree, address)) & mask;
    for (uint16_t distance = 1; distance <= MACHTRACE_TREE_DISTANCE_MAX; distance++) {
        uint64_t present = atomic_load_explicit(&tree->addresses[slot], memory_order_acquire);
        if (present == 0) {
            if (atomic_load_explicit(&tree->count, memory_order_relaxed) >= tree->most)
                break;
            if (atomic_compare_exchange_strong(&tree->addresses[slot], &present, address)) {
                atomic_fetch_add_explicit(&tree->count, 1, memory_order_relaxed);
                present = address;
            }
        }
        if (present == address) {
            uint16_t stored =
                atomic_load_explicit(&tree->distances[slot], memory_order_acquire);
            if (stored == distance ||
                (stored == 0 &&
                 (atomic_compare_exchange_strong(&tree->distances[slot], &stored, distance) ||
                  stored == distance)))
                return slot;
        }
        slot = (slot + 1) & mask;
    }
    atomic_fetch_add_explicit(&tree->refused, 1, memory_order_relaxed);
    return MACHTRACE_TREE_ROOT;
}

uint32_t machtrace_stack_tree_find(const struct machtrace_stack_tree *tree, uint32_t parent,
                                   uint64_t address)
{
    uint32_t mask = mask_of(tree);
    uint32_t slot = (scatter(tree, parent) + spread(tree, address)) & mask;
    for (uint16_t distance = 1; distance <= MACHTRACE_TREE_DISTANCE_MAX; distance++) {
        uint64_t present = atomic_load_explicit(&tree->addresses[slot], memory_order_acquire);
        if (present == 0)
            break;
        if (present == address &&
            atomic_load_explicit(&tree->distances[slot], memory_order_acquire) == distance)
            return slot;
        slot = (slot + 1) & mask;
    }
    return MACHTRACE_TREE_ROOT;
}

uint64_t machtrace_stack_tree_address(const struct machtrace_stack_tree *tree, uint32_t node)
{
    return atomic_load_explicit(&tree->addresses[node], memory_order_acquire);
}

uint32_t machtrace_stack_tree_distance(const struct machtrace_stack_tree *tree, uint32_t node)
{
    return atomic_load_explicit(&tree->distances[node], memory_order_acquire) - 1u;
}

uint32_t machtrace_stack_tree_parent(const struct machtrace_stack_tree *tree, uint32_t node)
{
    uint64_t address = machtrace_stack_tree_address(tree, node);
    uint32_t home = node - machtrace_stack_tree_distance(tree, node);
    return gather(tree, (home - spread(tree, address)) & mask_of(tree));
}

size_t machtrace_stack_tree_read(const struct machtrace_stack_tree *tree, uint32_t node,
                                 uint64_t *addresses, size_t room)
{
    size_t count = 0;
    while (node != MACHTRACE_TREE_ROOT) {
        if (count < room)
            addresses[count] = machtrace_stack_tree_address(tree, node);
        count++;
        node = machtrace_stack_tree_parent(tree, node);
    }
    return count;
}
