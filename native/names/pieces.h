/* Pieces of a demangled C++ name, as demangler/itanium/nodes.py has them: the text left
 * of the name that a declarator surrounds, and the text right of it. */
#ifndef MACHTRACE_NAMES_PIECES_H
#define MACHTRACE_NAMES_PIECES_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

enum shape { PLAIN, ARRAY, FUNCTION, TEMPLATE };

struct text {
    const char *start;
    size_t size;
};

struct piece {
    struct text left, right;
    struct text base;              /* the name of a class's constructors */
    const struct piece *referred;  /* of a reference: its target */
    const struct piece **elements; /* of a parameter pack: one for each element */
    uint32_t count;
    uint8_t sign; /* of a reference: how many & */
    uint8_t shape;
    uint8_t is_pack;
    uint8_t precedence; /* of an expression: Precedence in demangler/itanium/nodes.py */
    uint8_t level;  /* of scope */
    /* Of what depends on a template parameter: which arguments it was built with; otherwise 0. */
    uint32_t scope;
    const struct recipe *recipe; /* of the same: how it is built with others; may be NULL */
};

#define MIXED_SCOPES UINT32_MAX

struct pieces {
    const struct piece **items;
    uint32_t count, room;
};

struct chunk {
    struct chunk *next;
    size_t used, size;
};

/* Memory of one name; all of it is freed together. Its first part is on the stack. */
struct arena {
    struct chunk *chunks;
    char *at, *end;
    size_t left; /* bytes that may still be allocated */
    jmp_buf failed;
};

typedef const struct piece *(*piece_maker)(struct arena *arena, const struct piece *const *parts,
                                           uint32_t count, const void *extra);

/* How a piece is built: by make() from parts; a parameter, if there are none; an expansion, if
 * there is no make(). */
struct recipe {
    piece_maker make;
    const struct piece **parts;
    const void *extra;
    size_t extra_size;
    uint32_t count, index;
    uint8_t level;
};

#define TEXT(literal) ((struct text){literal, sizeof(literal) - 1})

_Noreturn void machtrace_piece_fail(struct arena *arena);
void *machtrace_piece_memory(struct arena *arena, size_t size);
struct text machtrace_text_joined(struct arena *arena, const struct text *texts, uint32_t count);
const struct piece *machtrace_piece(struct arena *arena, struct text left, struct text right,
                                    enum shape shape, struct text base);
const struct piece *machtrace_piece_of(struct arena *arena, struct text text);
void machtrace_pieces_add(struct arena *arena, struct pieces *list, const struct piece *item);
struct text machtrace_piece_text(struct arena *arena, const struct piece *piece);
/* The texts of a list with commas; those without a text leave none. A comma operator is in
 * parentheses. */
struct text machtrace_pieces_text(struct arena *arena, const struct piece *const *items,
                                  uint32_t count);
/* The expansion over the elements in turn. */
const struct piece *machtrace_piece_pack(struct arena *arena, const struct pieces *elements);
/* The piece as one that depends on no template parameter. */
const struct piece *machtrace_piece_closed(struct arena *arena, const struct piece *piece);
/* The piece as one that stands for a template parameter. */
const struct piece *machtrace_piece_parameter(struct arena *arena, const struct piece *piece,
                                              uint32_t scope, uint8_t level, uint32_t index);
/* A pack expansion. */
const struct piece *machtrace_piece_expanded(struct arena *arena, const struct piece *pattern);
/* The result of make() for parts; built again for each element of a pack among them. */
const struct piece *machtrace_piece_lift(struct arena *arena, piece_maker make,
                                         const struct piece *const *parts, uint32_t count,
                                         const void *extra, size_t extra_size);

#endif
