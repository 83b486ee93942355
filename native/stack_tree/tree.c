/* See tree.h. */
#include "stack_tree/tree.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define ROOT 0u
#define EMPTY 0u /* of the table: the root is nobody's callee */
#define FIRST_ROOM 1024u
#define WALKS 12u
#define FEW 24u /* siblings that are sorted by insertion */

struct joining {
    uint64_t *key; /* by node: its caller above its frame; in order of arrival, callers first */
    size_t count, room;
    uint32_t *table; /* node by the hash of its key */
    size_t mask;
};

static inline uint64_t mixed(uint64_t key)
{
    uint64_t value = key * UINT64_C(0x9e3779b97f4a7c15);
    return value ^ value >> 32;
}

static int grow(struct joining *all)
{
    size_t mask = all->mask * 2 + 1, room = (mask + 1) / 4 * 3;
    uint64_t *key = realloc(all->key, room * sizeof *key);
    if (key == NULL)
        return -1;
    all->key = key;
    all->room = room;
    free(all->table); /* it is filled from the keys */
    all->table = calloc(mask + 1, sizeof *all->table);
    if (all->table == NULL)
        return -1;
    all->mask = mask;
    for (size_t node = 1; node < all->count; node++) {
        size_t at = mixed(key[node]) & mask;
        while (all->table[at] != EMPTY)
            at = (at + 1) & mask;
        all->table[at] = (uint32_t)node;
    }
    return 0;
}

static int start(struct joining *all)
{
    *all = (struct joining){.count = 1, .mask = FIRST_ROOM / 2 - 1};
    if (grow(all) != 0)
        return -1;
    all->key[ROOT] = 0;
    return 0;
}

/* Return the node of a caller and a frame, which is added if it is new; 0 without memory. */
static inline uint32_t node_of(struct joining *all, uint64_t key)
{
    size_t at = mixed(key) & all->mask;
    for (uint32_t node; (node = all->table[at]) != EMPTY; at = (at + 1) & all->mask)
        if (all->key[node] == key)
            return node;
    if (all->count == all->room) {
        if (grow(all) != 0)
            return 0;
        return node_of(all, key);
    }
    uint32_t node = (uint32_t)all->count++;
    all->key[node] = key;
    all->table[at] = node;
    return node;
}

/* Rows from one of depth 1 to the next. Several are walked in turns: the entry of the next row of
 * each is fetched while the others use theirs, since most time is waiting for memory. */
struct walk {
    size_t begin, row, end;
    uint32_t *path; /* nodes by depth */
    size_t room, last;
    uint64_t key; /* of `row` */
};

static size_t depth_of(const struct machtrace_rows *rows, const struct walk *walk, size_t row)
{
    return rows->depth != NULL ? rows->depth[row] : row - walk->begin + 1;
}

/* Return where the next walk ends that begins at a row; `stack` counts stacks. */
static size_t next_end(const struct machtrace_rows *rows, size_t row, size_t *stack)
{
    if (rows->depth == NULL) {
        while (*stack < rows->stacks && (size_t)rows->ends[*stack] <= row)
            ++*stack; /* empty stacks */
        return *stack < rows->stacks ? (size_t)rows->ends[*stack] : rows->count;
    }
    for (row++; row < rows->count && rows->depth[row] != 1; row++)
        ;
    return row;
}

static enum machtrace_tree_result look_ahead(const struct joining *all, struct walk *walk,
                                             const struct machtrace_rows *rows)
{
    size_t here = depth_of(rows, walk, walk->row);
    if (here == 0 || here > walk->last + 1)
        return MACHTRACE_TREE_NO_CALLER;
    if (here >= walk->room) {
        size_t room = walk->room == 0 ? 256 : walk->room * 2;
        uint32_t *path = realloc(walk->path, room * sizeof *path);
        if (path == NULL)
            return MACHTRACE_TREE_NO_MEMORY;
        walk->path = path;
        walk->room = room;
        path[0] = ROOT;
    }
    walk->key = (uint64_t)walk->path[here - 1] << 32 | rows->frame[walk->row];
    __builtin_prefetch(&all->table[mixed(walk->key) & all->mask]);
    return MACHTRACE_TREE_DONE;
}

static enum machtrace_tree_result add_rows(struct joining *all, const struct machtrace_rows *rows,
                                           int32_t *node)
{
    struct walk walks[WALKS] = {0};
    size_t start = 0, active = 0, stack = 0;
    enum machtrace_tree_result result = MACHTRACE_TREE_DONE;
    do {
        active = 0;
        for (size_t number = 0; number < WALKS && result == MACHTRACE_TREE_DONE; number++) {
            struct walk *walk = &walks[number];
            if (walk->row < walk->end) {
                size_t row = walk->row++, here = depth_of(rows, walk, row);
                uint32_t added = node_of(all, walk->key);
                if (added == 0 || all->count > INT32_MAX) {
                    result = added == 0 ? MACHTRACE_TREE_NO_MEMORY : MACHTRACE_TREE_TOO_LARGE;
                    break;
                }
                walk->path[here] = added;
                walk->last = here;
                node[row] = (int32_t)added;
            }
            if (walk->row == walk->end) {
                walk->begin = walk->row = start;
                walk->end = start = start < rows->count ? next_end(rows, start, &stack) : start;
                walk->last = 0;
            }
            if (walk->row < walk->end) {
                active++;
                result = look_ahead(all, walk, rows);
            }
        }
    } while (active > 0 && result == MACHTRACE_TREE_DONE);
    for (size_t number = 0; number < WALKS; number++)
        free(walks[number].path);
    return result;
}

static int by_key(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Sort siblings by frame, each a frame above a node's number. */
static void sort_siblings(uint64_t *rows, size_t count)
{
    if (count > FEW) {
        qsort(rows, count, sizeof *rows, by_key);
        return;
    }
    for (size_t next = 1; next < count; next++) {
        uint64_t row = rows[next];
        size_t at = next;
        for (; at > 0 && rows[at - 1] > row; at--)
            rows[at] = rows[at - 1];
        rows[at] = row;
    }
}

/* Number nodes in pre-order: a node's first callee follows it, and each sibling follows the last
 * node below the one before. */
static enum machtrace_tree_result put_in_order(const struct joining *all,
                                               struct machtrace_tree *tree, int32_t *number)
{
    size_t count = all->count;
    uint32_t *first = calloc(count + 1, sizeof *first); /* of a node's callees, in `callees` */
    uint64_t *callees = malloc(count * sizeof *callees);
    uint32_t *size = malloc(count * sizeof *size); /* nodes below and itself */
    tree->depth = malloc(count * sizeof *tree->depth);
    tree->frame = malloc(count * sizeof *tree->frame);
    enum machtrace_tree_result result = MACHTRACE_TREE_NO_MEMORY;
    if (first == NULL || callees == NULL || size == NULL || tree->depth == NULL ||
        tree->frame == NULL)
        goto done;
    for (size_t node = 1; node < count; node++)
        first[(all->key[node] >> 32) + 1]++;
    for (size_t node = 0; node < count; node++) {
        first[node + 1] += first[node];
        size[node] = 1;
    }
    for (size_t node = count - 1; node > 0; node--) {
        size_t parent = all->key[node] >> 32;
        size[parent] += size[node];
        callees[--first[parent + 1]] = all->key[node] << 32 | node;
    }
    /* Now the callees of n are those from first[n + 1] to first[n + 2]; the last node has none.
     * Callers arrive before callees, so that a node has its number when its callees get theirs. */
    number[ROOT] = 0;
    tree->depth[0] = 0;
    tree->frame[0] = 0;
    for (size_t node = 0; node + 1 < count; node++) {
        size_t begin = first[node + 1], end = first[node + 2];
        sort_siblings(callees + begin, end - begin);
        uint32_t depth = tree->depth[number[node]] + 1;
        int32_t next = number[node] + 1;
        for (size_t at = begin; at < end; at++) {
            uint32_t below = (uint32_t)callees[at];
            number[below] = next;
            tree->depth[next] = depth;
            tree->frame[next] = (uint32_t)(callees[at] >> 32);
            next += (int32_t)size[below];
        }
    }
    tree->count = count;
    result = MACHTRACE_TREE_DONE;
done:
    free(first);
    free(callees);
    free(size);
    if (result != MACHTRACE_TREE_DONE)
        machtrace_tree_free(tree);
    return result;
}

enum machtrace_tree_result machtrace_tree_join(const struct machtrace_rows *rows,
                                               struct machtrace_tree *tree, int32_t *node)
{
    struct joining all;
    *tree = (struct machtrace_tree){0};
    enum machtrace_tree_result result = MACHTRACE_TREE_NO_MEMORY;
    int32_t *number = NULL;
    if (start(&all) == 0)
        result = add_rows(&all, rows, node);
    if (result == MACHTRACE_TREE_DONE) {
        number = malloc(all.count * sizeof *number);
        result = number == NULL ? MACHTRACE_TREE_NO_MEMORY : put_in_order(&all, tree, number);
    }
    if (result == MACHTRACE_TREE_DONE)
        for (size_t row = 0; row < rows->count; row++)
            node[row] = number[node[row]];
    free(number);
    free(all.key);
    free(all.table);
    return result;
}

int machtrace_tree_links(const uint32_t *depth, size_t count, int32_t *parent, int32_t *end)
{
    size_t room = 256;
    int32_t *path = malloc(room * sizeof *path); /* nodes whose end is not known yet, by depth */
    size_t last = 0;
    if (path == NULL)
        return -1;
    for (size_t node = 0; node < count; node++) {
        size_t here = depth[node];
        if (node == 0 ? here != 0 : here == 0 || here > last + 1) {
            free(path);
            return -2;
        }
        if (here >= room) {
            int32_t *longer = realloc(path, room * 2 * sizeof *path);
            if (longer == NULL) {
                free(path);
                return -1;
            }
            path = longer;
            room *= 2;
        }
        for (size_t at = here; node > 0 && at <= last; at++)
            end[path[at]] = (int32_t)node;
        path[here] = (int32_t)node;
        parent[node] = here == 0 ? 0 : path[here - 1];
        last = here;
    }
    for (size_t at = 0; count > 0 && at <= last; at++)
        end[path[at]] = (int32_t)count;
    free(path);
    return 0;
}

void machtrace_tree_free(struct machtrace_tree *tree)
{
    free(tree->depth);
    free(tree->frame);
    *tree = (struct machtrace_tree){0};
}
