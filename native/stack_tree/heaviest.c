/* See heaviest.h. */
#include "stack_tree/heaviest.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A function that may be among the heaviest. */
struct candidate {
    uint32_t parent, call, depth;
    int64_t total;
};

/* A node of frames that is part of a candidate, up to one of its calls. */
struct member {
    uint32_t node, call, of;
};

struct members {
    struct member *row;
    size_t count, room;
};

struct search {
    const struct machtrace_forest *forest;
    struct candidate *all;
    size_t count, room;
    size_t level;    /* the first candidate of the present depth */
    uint32_t *table; /* candidates of the present depth; 0: no entry */
    size_t mask;
    struct candidate *best; /* a heap, the lightest first */
    size_t best_count, most;
};

static inline uint64_t hash_of(const struct search *all, uint32_t parent, uint32_t call)
{
    uint64_t value = all->forest->name[call] * UINT64_C(0x9e3779b97f4a7c15);
    value ^= (uint64_t)(uint32_t)all->forest->image[call] << 32 | parent;
    value *= UINT64_C(0xff51afd7ed558ccd);
    return value ^ value >> 32;
}

static inline bool is_function(const struct search *all, const struct candidate *at,
                               uint32_t parent, uint32_t call)
{
    const struct machtrace_forest *forest = all->forest;
    return at->parent == parent && forest->name[at->call] == forest->name[call] &&
           forest->image[at->call] == forest->image[call];
}

static int grow(struct search *all)
{
    size_t mask = all->mask * 2 + 1;
    uint32_t *table = calloc(mask + 1, sizeof *table);
    if (table == NULL)
        return -1;
    free(all->table);
    all->table = table;
    all->mask = mask;
    for (size_t number = all->level; number < all->count; number++) {
        size_t at = hash_of(all, all->all[number].parent, all->all[number].call) & mask;
        while (table[at] != 0)
            at = (at + 1) & mask;
        table[at] = (uint32_t)number;
    }
    return 0;
}

/* Return the candidate of a caller and a call, which is added if it is new; 0 without memory. */
static uint32_t candidate_of(struct search *all, uint32_t parent, uint32_t call, uint32_t depth)
{
    size_t at = hash_of(all, parent, call) & all->mask;
    for (uint32_t number; (number = all->table[at]) != 0; at = (at + 1) & all->mask)
        if (is_function(all, &all->all[number], parent, call))
            return number;
    if (all->count == UINT32_MAX)
        return 0;
    if (all->count == all->room) {
        size_t room = all->room * 2;
        struct candidate *longer = realloc(all->all, room * sizeof *longer);
        if (longer == NULL)
            return 0;
        all->all = longer;
        all->room = room;
    }
    uint32_t number = (uint32_t)all->count++;
    all->all[number] = (struct candidate){.parent = parent, .call = call, .depth = depth};
    all->table[at] = number;
    if ((all->count - all->level) * 2 > all->mask && grow(all) != 0)
        return 0;
    return number;
}

static int add_member(struct members *to, struct member row)
{
    if (to->count == to->room) {
        size_t room = to->room == 0 ? 1024 : to->room * 2;
        struct member *longer = realloc(to->row, room * sizeof *longer);
        if (longer == NULL)
            return -1;
        to->row = longer;
        to->room = room;
    }
    to->row[to->count++] = row;
    return 0;
}

static inline bool is_lighter(const struct candidate *left, const struct candidate *right)
{
    return left->total != right->total ? left->total < right->total : left->depth > right->depth;
}

/* Put a candidate where the heap has room for it, at a place or below it. */
static void sink(struct search *all, size_t at, struct candidate one)
{
    struct candidate *heap = all->best;
    for (size_t child; (child = 2 * at + 1) < all->best_count; at = child) {
        if (child + 1 < all->best_count && is_lighter(&heap[child + 1], &heap[child]))
            child++;
        if (!is_lighter(&heap[child], &one))
            break;
        heap[at] = heap[child];
    }
    heap[at] = one;
}

static void note(struct search *all, struct candidate one)
{
    struct candidate *heap = all->best;
    if (all->best_count == all->most) {
        if (is_lighter(&heap[0], &one))
            sink(all, 0, one);
        return;
    }
    size_t at = all->best_count++;
    for (; at > 0 && is_lighter(&one, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = one;
}

static inline bool is_out(const struct search *all, const struct candidate *one)
{
    return all->best_count == all->most && is_lighter(one, &all->best[0]);
}

static inline int64_t total_of(const struct machtrace_forest *forest, size_t node)
{
    int64_t last = forest->sums[forest->end[node] - 1];
    return node == 0 ? last : last - forest->sums[node - 1];
}

static int add_call(struct search *all, struct members *next, const struct member *from,
                    struct member row)
{
    int64_t total = total_of(all->forest, row.node);
    if (total == 0)
        return 0;
    row.of = candidate_of(all, from->of, row.call, all->all[from->of].depth + 1);
    if (row.of == 0)
        return -1;
    all->all[row.of].total += total;
    return add_member(next, row);
}

/* Add what the members of one depth call. */
static int enter(struct search *all, const struct members *level, struct members *next)
{
    const struct machtrace_forest *forest = all->forest;
    for (size_t row = 0; row < level->count; row++) {
        const struct member *from = &level->row[row];
        uint32_t node = from->node;
        if (node != 0 && from->call + 1 < forest->first[forest->frame[node] + 1]) {
            struct member further = {.node = node, .call = from->call + 1};
            if (add_call(all, next, from, further) != 0)
                return -1;
            continue;
        }
        uint32_t end = (uint32_t)forest->end[node];
        for (uint32_t child = node + 1; child < end; child = (uint32_t)forest->end[child]) {
            struct member first = {.node = child, .call = forest->first[forest->frame[child]]};
            if (add_call(all, next, from, first) != 0)
                return -1;
        }
    }
    return 0;
}

/* Leave out the candidates of the present depth that are too light, and their members. */
static int leave_heavy(struct search *all, struct members *next, int32_t *node)
{
    size_t size = all->count - all->level, left = all->level;
    uint32_t *number = malloc((size + 1) * sizeof *number);
    if (number == NULL)
        return -1;
    for (size_t at = all->level; at < all->count; at++) {
        const struct candidate *one = &all->all[at];
        note(all, *one);
        size_t slot = hash_of(all, one->parent, one->call) & all->mask;
        for (; all->table[slot] != 0; slot = (slot + 1) & all->mask)
            all->table[slot] = 0;
    }
    for (size_t at = all->level; at < all->count; at++) {
        bool stays = !is_out(all, &all->all[at]);
        number[at - all->level] = stays ? (uint32_t)left : 0;
        if (stays)
            all->all[left++] = all->all[at];
    }
    size_t rows = 0;
    for (size_t row = 0; row < next->count; row++) {
        struct member one = next->row[row];
        one.of = number[one.of - all->level];
        if (one.of == 0)
            continue;
        next->row[rows++] = one;
        if (node != NULL)
            node[one.node] = (int32_t)one.of;
    }
    next->count = rows;
    all->count = left;
    free(number);
    return 0;
}

/* Number the candidates that stay; others have the number of their caller. */
static int finish(struct search *all, struct machtrace_functions *functions, int32_t *node)
{
    uint32_t *number = calloc(all->count, sizeof *number);
    functions->parent = malloc((all->most + 1) * sizeof *functions->parent);
    functions->call = malloc((all->most + 1) * sizeof *functions->call);
    functions->total = malloc((all->most + 1) * sizeof *functions->total);
    if (number == NULL || functions->parent == NULL || functions->call == NULL ||
        functions->total == NULL) {
        free(number);
        machtrace_functions_free(functions);
        return -1;
    }
    size_t inside = 0;
    for (size_t at = 1; at < all->count; at++)
        inside += !is_out(all, &all->all[at]);
    functions->parent[0] = functions->call[0] = 0;
    functions->total[0] = all->all[0].total;
    functions->count = 1;
    for (size_t at = 1; at < all->count; at++) {
        const struct candidate *one = &all->all[at];
        bool stays = inside <= all->most ? !is_out(all, one) : is_lighter(&all->best[0], one);
        number[at] = number[one->parent];
        if (!stays)
            continue;
        functions->parent[functions->count] = number[at];
        functions->call[functions->count] = one->call;
        functions->total[functions->count] = one->total;
        number[at] = (uint32_t)functions->count++;
    }
    if (node != NULL) {
        const struct machtrace_forest *forest = all->forest;
        for (size_t at = 0; at < forest->count; at++)
            node[at] = node[at] < 0 ? -1 : (int32_t)number[node[at]];
        for (size_t at = 0; at < forest->count; at++)
            for (int32_t child = (int32_t)at + 1; child < forest->end[at];
                 child = forest->end[child])
                if (node[child] < 0)
                    node[child] = node[at];
    }
    free(number);
    return 0;
}

/* Return how many functions there may be; 0 if it is no such tree. */
static size_t most_of(const struct machtrace_forest *forest)
{
    size_t most = 1;
    if (forest->count == 0 || forest->count > INT32_MAX || forest->calls > UINT32_MAX ||
        forest->end[0] != (int32_t)forest->count)
        return 0;
    for (size_t frame = 0; frame < forest->frames; frame++)
        if (forest->first[frame] >= forest->first[frame + 1])
            return 0;
    if (forest->first[forest->frames] != forest->calls)
        return 0;
    for (size_t node = 1; node < forest->count; node++) {
        uint32_t frame = forest->frame[node];
        if (frame >= forest->frames || forest->end[node] <= (int32_t)node ||
            (size_t)forest->end[node] > forest->count)
            return 0;
        most += forest->first[frame + 1] - forest->first[frame];
    }
    return most;
}

int machtrace_heaviest(const struct machtrace_forest *forest, size_t most,
                       struct machtrace_functions *functions, int32_t *node)
{
    struct search all = {.forest = forest, .count = 1, .room = 1024, .mask = 1023, .most = most};
    struct members level = {0}, next = {0};
    *functions = (struct machtrace_functions){0};
    size_t there = most_of(forest);
    if (most == 0 || there == 0)
        return -2;
    if (all.most > there)
        all.most = there;
    all.all = malloc(all.room * sizeof *all.all);
    all.table = calloc(all.mask + 1, sizeof *all.table);
    all.best = malloc(all.most * sizeof *all.best);
    int result = -1;
    if (all.all == NULL || all.table == NULL || all.best == NULL)
        goto done;
    all.all[0] = (struct candidate){.total = total_of(forest, 0)};
    if (node != NULL)
        memset(node, 0xff, forest->count * sizeof *node);
    if (node != NULL)
        node[0] = 0;
    if (add_member(&level, (struct member){0}) != 0)
        goto done;
    while (level.count > 0) {
        all.level = all.count;
        next.count = 0;
        if (enter(&all, &level, &next) != 0 || leave_heavy(&all, &next, node) != 0)
            goto done;
        struct members used = level;
        level = next;
        next = used;
    }
    result = finish(&all, functions, node);
done:
    free(level.row);
    free(next.row);
    free(all.all);
    free(all.table);
    free(all.best);
    return result;
}

void machtrace_functions_free(struct machtrace_functions *functions)
{
    free(functions->parent);
    free(functions->call);
    free(functions->total);
    *functions = (struct machtrace_functions){0};
}
