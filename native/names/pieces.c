#include "names/makers.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK ((size_t)1 << 16)

_Noreturn void machtrace_piece_fail(struct arena *arena) { longjmp(arena->failed, 1); }

void *machtrace_piece_memory(struct arena *arena, size_t size)
{
    size = (size + 15) & ~(size_t)15;
    if (size > arena->left)
        machtrace_piece_fail(arena);
    arena->left -= size;
    if ((size_t)(arena->end - arena->at) < size) {
        size_t room = size > CHUNK ? size : CHUNK;
        struct chunk *chunk = malloc(sizeof *chunk + 16 + room);
        if (chunk == NULL)
            machtrace_piece_fail(arena);
        chunk->next = arena->chunks;
        arena->chunks = chunk;
        uintptr_t start = ((uintptr_t)(chunk + 1) + 15) & ~(uintptr_t)15;
        arena->at = (char *)start;
        arena->end = arena->at + room;
    }
    void *memory = arena->at;
    arena->at += size;
    return memory;
}

struct text machtrace_text_joined(struct arena *arena, const struct text *texts, uint32_t count)
{
    size_t size = 0;
    const struct text *only = NULL;
    for (uint32_t at = 0; at < count; at++)
        if (texts[at].size != 0) {
            only = size == 0 ? &texts[at] : NULL;
            size += texts[at].size;
        }
    if (size == 0)
        return (struct text){"", 0};
    if (only != NULL)
        return *only; /* texts never change, so one is as good as its copy */
    char *start = machtrace_piece_memory(arena, size);
    char *to = start;
    for (uint32_t at = 0; at < count; at++)
        if (texts[at].size != 0) {
            memcpy(to, texts[at].start, texts[at].size);
            to += texts[at].size;
        }
    return (struct text){start, size};
}

const struct piece *machtrace_piece(struct arena *arena, struct text left, struct text right,
                                    enum shape shape, struct text base)
{
    struct piece *made = machtrace_piece_memory(arena, sizeof *made);
    *made = (struct piece){.left = left, .right = right, .base = base, .shape = (uint8_t)shape};
    return made;
}

const struct piece *machtrace_piece_of(struct arena *arena, struct text text)
{
    return machtrace_piece(arena, text, TEXT(""), PLAIN, TEXT(""));
}

void machtrace_pieces_add(struct arena *arena, struct pieces *list, const struct piece *item)
{
    if (list->count == list->room) {
        uint32_t room = list->room == 0 ? 8 : 2 * list->room;
        const struct piece **items = machtrace_piece_memory(arena, room * sizeof *items);
        if (list->count != 0)
            memcpy(items, list->items, list->count * sizeof *items);
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = item;
}

struct text machtrace_piece_text(struct arena *arena, const struct piece *piece)
{
    if (piece->right.size == 0)
        return piece->left;
    struct text both[] = {piece->left, piece->right};
    return machtrace_text_joined(arena, both, 2);
}

static struct piece *copy_of(struct arena *arena, const struct piece *piece)
{
    struct piece *made = machtrace_piece_memory(arena, sizeof *made);
    *made = *piece;
    return made;
}

const struct piece *machtrace_piece_closed(struct arena *arena, const struct piece *piece)
{
    if (piece->scope == 0)
        return piece;
    struct piece *made = copy_of(arena, piece);
    made->scope = 0;
    made->recipe = NULL;
    return made;
}

const struct piece *machtrace_piece_parameter(struct arena *arena, const struct piece *piece,
                                              uint32_t scope, uint8_t level, uint32_t index)
{
    struct recipe *recipe = machtrace_piece_memory(arena, sizeof *recipe);
    *recipe = (struct recipe){.level = level, .index = index};
    struct piece *made = copy_of(arena, piece);
    made->scope = scope;
    made->level = level;
    made->recipe = recipe;
    return made;
}

struct text machtrace_pieces_text(struct arena *arena, const struct piece *const *items,
                                  uint32_t count)
{
    struct text *texts = machtrace_piece_memory(arena, (5 * (size_t)count + 1) * sizeof *texts);
    uint32_t used = 0;
    for (uint32_t at = 0; at < count; at++) {
        if (items[at]->left.size + items[at]->right.size == 0)
            continue;
        if (used != 0)
            texts[used++] = TEXT(", ");
        const int has_comma = items[at]->precedence >= COMMA; /* its own, not the list's */
        if (has_comma)
            texts[used++] = TEXT("(");
        texts[used++] = items[at]->left;
        texts[used++] = items[at]->right;
        if (has_comma)
            texts[used++] = TEXT(")");
    }
    return machtrace_text_joined(arena, texts, used);
}

static const struct piece nothing = {.left = {"", 0}, .right = {"", 0}, .base = {"", 0}};

static const struct piece *element(const struct piece *piece, uint32_t index)
{
    if (!piece->is_pack)
        return piece;
    return index < piece->count ? piece->elements[index] : &nothing;
}

const struct piece *machtrace_piece_pack(struct arena *arena, const struct pieces *elements)
{
    struct piece *made = machtrace_piece_memory(arena, sizeof *made);
    *made = elements->count != 0 ? *elements->items[0] : nothing;
    made->elements = elements->items;
    made->count = elements->count;
    made->is_pack = 1;
    return made;
}

/* The piece, with the scope of its parts and how it is built from them. */
static const struct piece *with_recipe(struct arena *arena, const struct piece *piece,
                                       struct recipe recipe)
{
    uint32_t scope = 0;
    uint8_t level = 0;
    for (uint32_t at = 0; at < recipe.count; at++) {
        const struct piece *part = recipe.parts[at];
        if (part->scope == 0 || part->scope == scope)
            continue;
        scope = scope == 0 ? part->scope : MIXED_SCOPES;
        level = part->level;
    }
    if (scope == 0)
        return piece;
    struct recipe *own = machtrace_piece_memory(arena, sizeof *own);
    *own = recipe;
    own->parts = machtrace_piece_memory(arena, recipe.count * sizeof *own->parts);
    memcpy(own->parts, recipe.parts, recipe.count * sizeof *own->parts);
    if (recipe.extra_size != 0) {
        void *extra = machtrace_piece_memory(arena, recipe.extra_size);
        memcpy(extra, recipe.extra, recipe.extra_size);
        own->extra = extra;
    }
    struct piece *made = copy_of(arena, piece);
    made->scope = scope;
    made->level = level;
    made->recipe = own;
    return made;
}

const struct piece *machtrace_piece_expanded(struct arena *arena, const struct piece *pattern)
{
    struct text texts[] = {pattern->left, pattern->right, TEXT("...")};
    const struct text shown = pattern->is_pack
                                  ? machtrace_pieces_text(arena, pattern->elements, pattern->count)
                                  : machtrace_text_joined(arena, texts, 3);
    const struct recipe recipe = {.parts = &pattern, .count = 1};
    return with_recipe(arena, machtrace_piece_of(arena, shown), recipe);
}

static const struct piece *lifted(struct arena *arena, piece_maker make,
                                  const struct piece *const *parts, uint32_t count,
                                  const void *extra)
{
    const struct piece *made = make(arena, parts, count, extra);
    for (uint32_t at = 0; at < count; at++) {
        if (!parts[at]->is_pack)
            continue;
        struct piece *each = copy_of(arena, made);
        each->is_pack = 1;
        each->count = parts[at]->count;
        each->elements = machtrace_piece_memory(arena, (each->count + 1) * sizeof *each->elements);
        const struct piece **own = machtrace_piece_memory(arena, count * sizeof *own);
        for (uint32_t index = 0; index < each->count; index++) {
            for (uint32_t part = 0; part < count; part++)
                own[part] = element(parts[part], index);
            each->elements[index] = lifted(arena, make, own, count, extra);
        }
        return each;
    }
    return made;
}

const struct piece *machtrace_piece_lift(struct arena *arena, piece_maker make,
                                         const struct piece *const *parts, uint32_t count,
                                         const void *extra, size_t extra_size)
{
    const struct recipe recipe = {
        .make = make,
        .parts = (const struct piece **)parts,
        .extra = extra,
        .extra_size = extra_size,
        .count = count,
    };
    return with_recipe(arena, lifted(arena, make, parts, count, extra), recipe);
}
