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

const struct piece *machtrace_piece_scoped(struct arena *arena, const struct piece *piece,
                                           uint32_t scope, uint8_t level)
{
    if (piece->scope == scope)
        return piece;
    struct piece *made = machtrace_piece_memory(arena, sizeof *made);
    *made = *piece;
    made->scope = scope;
    made->level = level;
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

const struct piece *machtrace_piece_expanded(struct arena *arena, const struct piece *pattern)
{
    struct text texts[] = {pattern->left, pattern->right, TEXT("...")};
    const struct text shown = pattern->is_pack
                                  ? machtrace_pieces_text(arena, pattern->elements, pattern->count)
                                  : machtrace_text_joined(arena, texts, 3);
    return machtrace_piece_scoped(arena, machtrace_piece_of(arena, shown), pattern->scope,
                                  pattern->level);
}

static const struct piece *with_scope(struct arena *arena, const struct piece *made,
                                      const struct piece *const *parts, uint32_t count)
{
    uint32_t scope = 0;
    uint8_t level = 0;
    for (uint32_t at = 0; at < count; at++) {
        if (parts[at]->scope == 0 || parts[at]->scope == scope)
            continue;
        scope = scope == 0 ? parts[at]->scope : MIXED_SCOPES;
        level = parts[at]->level;
    }
    return machtrace_piece_scoped(arena, made, scope, level);
}

const struct piece *machtrace_piece_lift(struct arena *arena, piece_maker make,
                                         const struct piece *const *parts, uint32_t count,
                                         const void *extra)
{
    const struct piece *made = with_scope(arena, make(arena, parts, count, extra), parts, count);
    for (uint32_t at = 0; at < count; at++) {
        if (!parts[at]->is_pack)
            continue;
        struct piece *lifted = machtrace_piece_memory(arena, sizeof *lifted);
        *lifted = *made;
        lifted->is_pack = 1;
        lifted->count = parts[at]->count;
        lifted->elements =
            machtrace_piece_memory(arena, (lifted->count + 1) * sizeof *lifted->elements);
        const struct piece **own = machtrace_piece_memory(arena, count * sizeof *own);
        for (uint32_t index = 0; index < lifted->count; index++) {
            for (uint32_t part = 0; part < count; part++)
                own[part] = element(parts[part], index);
            lifted->elements[index] = machtrace_piece_lift(arena, make, own, count, extra);
        }
        return lifted;
    }
    return made;
}
