/* Shared by the files that read C++ names: where the reader is in a name, and which file reads
 * which part of the grammar. Anything that is not read here ends the whole name, by fail(). */
#ifndef MACHTRACE_NAMES_READER_H
#define MACHTRACE_NAMES_READER_H

#include <stdbool.h>
#include <string.h>

#include "names/makers.h"

#define MAX_DEPTH 128
#define MAX_LEVELS 8

typedef const struct piece *piece;

/* The arguments that T_ stands for, of the enclosing template and generic lambdas. */
struct levels {
    struct pieces items[MAX_LEVELS];
    uint32_t scopes[MAX_LEVELS]; /* which arguments these are, of all in the name */
    int count;
};

/* How a name ends: this decides whether a return type follows. */
struct name_end {
    bool template_arguments, constructor_or_conversion;
    struct text qualifiers;
};

struct reader {
    struct arena arena;
    const char *name;
    size_t size, at;
    unsigned depth;
    int lambda_level;
    bool is_in_macho;
    size_t doubtful; /* number of the first substitution that compilers number differently */
    bool simplified, takes_arguments, in_conversion, in_arguments;
    struct pieces substitutions;
    struct levels levels;
    uint32_t scopes; /* used so far */
};

/* demangle.c */
struct text machtrace_read_digits(struct reader *r, bool is_signed);
size_t machtrace_read_number(struct reader *r);
struct text machtrace_read_source_name(struct reader *r);
struct text machtrace_read_qualifiers(struct reader *r);

/* names.c; end may be NULL */
piece machtrace_read_name(struct reader *r, struct name_end *end);
piece machtrace_read_substitution(struct reader *r);
/* A name outside of any class; *is_known where it is a substitution alone. */
piece machtrace_read_unscoped(struct reader *r, struct name_end *end, bool *is_known);

/* scope is NULL outside of any class */
piece machtrace_read_unqualified(struct reader *r, struct name_end *end, piece scope);

/* types.c; remember: T_ stands for these arguments from here on */
piece machtrace_read_type(struct reader *r);
piece machtrace_read_template_parameter(struct reader *r);
/* A piece with the template arguments of here. */
piece machtrace_rebuilt(struct reader *r, piece known);
piece machtrace_read_arguments(struct reader *r, bool remember);
piece machtrace_read_with_arguments(struct reader *r, piece name, bool remember);

/* expressions.c */
piece machtrace_read_expression(struct reader *r);
piece machtrace_read_literal(struct reader *r);

/* encodings.c: functions, and objects that the compiler makes */
piece machtrace_read_encoding(struct reader *r);

static inline _Noreturn void fail(struct reader *r) { machtrace_piece_fail(&r->arena); }

static inline char look(const struct reader *r, size_t ahead)
{
    return r->size - r->at > ahead ? r->name[r->at + ahead] : '\0';
}

static inline bool take(struct reader *r, char expected)
{
    if (look(r, 0) != expected)
        return false;
    r->at++;
    return true;
}

static inline bool take_two(struct reader *r, const char *expected)
{
    if (look(r, 0) != expected[0] || look(r, 1) != expected[1])
        return false;
    r->at += 2;
    return true;
}

static inline void expect(struct reader *r, char expected)
{
    if (!take(r, expected))
        fail(r);
}

static inline void deeper(struct reader *r)
{
    if (++r->depth > MAX_DEPTH)
        fail(r);
}

static inline bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

static inline piece plain(struct reader *r, struct text text)
{
    return machtrace_piece_of(&r->arena, text);
}

static inline piece lift_sized(struct reader *r, piece_maker make, piece part, const void *extra,
                               size_t size)
{
    return machtrace_piece_lift(&r->arena, make, &part, 1, extra, size);
}

#define lift(r, make, part, extra) lift_sized(r, make, part, extra, sizeof *(extra))

static inline piece lift_one(struct reader *r, piece_maker make, piece part)
{
    return machtrace_piece_lift(&r->arena, make, &part, 1, NULL, 0);
}

static inline piece lift_two(struct reader *r, piece_maker make, piece first, piece second)
{
    piece parts[] = {first, second};
    return machtrace_piece_lift(&r->arena, make, parts, 2, NULL, 0);
}

static inline piece lift_list(struct reader *r, piece_maker make, const struct pieces *list)
{
    return machtrace_piece_lift(&r->arena, make, list->items, list->count, NULL, 0);
}

static inline void doubt(struct reader *r)
{
    if (r->doubtful > r->substitutions.count)
        r->doubtful = r->substitutions.count;
}

static inline void substitute_later(struct reader *r, piece known)
{
    machtrace_pieces_add(&r->arena, &r->substitutions, known);
}

static inline struct text constant_text(const char *text)
{
    return (struct text){text, strlen(text)};
}

#endif
