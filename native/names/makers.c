#include "names/makers.h"

#include <string.h>

#define JOINED(...)                                                                   \
    machtrace_text_joined(arena, (const struct text[]){__VA_ARGS__},                  \
                          sizeof((const struct text[]){__VA_ARGS__}) / sizeof(struct text))
#define TEXT_OF(piece) machtrace_piece_text(arena, piece)
#define NO_TEXT ((struct text){"", 0})

static const struct piece *plain(struct arena *arena, struct text text)
{
    return machtrace_piece_of(arena, text);
}

static const struct piece *around(struct arena *arena, const struct piece *to, struct text sign)
{
    if (to->shape == ARRAY)
        return machtrace_piece(arena, JOINED(to->left, TEXT(" ("), sign),
                               JOINED(TEXT(")"), to->right), PLAIN, NO_TEXT);
    if (to->shape == FUNCTION)
        return machtrace_piece(arena, JOINED(to->left, TEXT("("), sign),
                               JOINED(TEXT(")"), to->right), PLAIN, NO_TEXT);
    return machtrace_piece(arena, JOINED(to->left, sign), to->right, PLAIN, NO_TEXT);
}

MAKER(machtrace_make_pointer)
{
    (void)count, (void)extra;
    static const char object[] = "objc_object<";
    const struct text left = parts[0]->left;
    if (left.size >= sizeof object - 1 && memcmp(left.start, object, sizeof object - 1) == 0) {
        const size_t skipped = sizeof "objc_object" - 1;
        return plain(arena, JOINED(TEXT("id"), {left.start + skipped, left.size - skipped}));
    }
    return around(arena, parts[0], TEXT("*"));
}

MAKER(machtrace_make_reference)
{
    (void)count;
    const struct piece *to = parts[0];
    uint8_t sign = *(const uint8_t *)extra;
    if (to->referred != NULL) { /* a reference to a reference is one reference */
        if (to->sign < sign)
            sign = to->sign;
        to = to->referred;
    }
    struct piece *made = machtrace_piece_memory(arena, sizeof *made);
    *made = *around(arena, to, sign == 1 ? TEXT("&") : TEXT("&&"));
    made->referred = to;
    made->sign = sign;
    return made;
}

MAKER(machtrace_make_suffixed)
{
    (void)count;
    return plain(arena, JOINED(parts[0]->left, parts[0]->right, *(const struct text *)extra));
}

MAKER(machtrace_make_qualified)
{
    (void)count;
    const struct piece *of = parts[0];
    return machtrace_piece(arena, JOINED(of->left, *(const struct text *)extra), of->right,
                           (enum shape)of->shape, of->base);
}

MAKER(machtrace_make_prefixed)
{
    (void)count;
    return plain(arena, JOINED(*(const struct text *)extra, parts[0]->left, parts[0]->right));
}

MAKER(machtrace_make_function)
{
    const struct function_tail *tail = extra;
    const struct piece *result = parts[0];
    struct text parameters = machtrace_pieces_text(arena, parts + 1, count - 1);
    return machtrace_piece(arena, JOINED(result->left, TEXT(" ")),
                           JOINED(TEXT("("), parameters, TEXT(")"), result->right,
                                  tail->qualifiers, tail->exception),
                           FUNCTION, NO_TEXT);
}

MAKER(machtrace_make_array)
{
    (void)count;
    const struct piece *of = parts[0];
    struct text following = of->right;
    if (of->shape == ARRAY && following.size != 0 && following.start[0] == ' ') {
        following.start++;
        following.size--;
    }
    return machtrace_piece(
        arena, of->left,
        JOINED(TEXT(" ["), *(const struct text *)extra, TEXT("]"), following), ARRAY, NO_TEXT);
}

MAKER(machtrace_make_vector)
{
    (void)count;
    return plain(arena, JOINED(parts[0]->left, parts[0]->right, TEXT(" vector["),
                               *(const struct text *)extra, TEXT("]")));
}

MAKER(machtrace_make_pointer_to_member)
{
    (void)count, (void)extra;
    const struct piece *member = parts[1];
    const int opens = member->shape == ARRAY || member->shape == FUNCTION;
    const struct text opening = member->shape == ARRAY      ? TEXT(" (")
                                : member->shape == FUNCTION ? TEXT("(")
                                                            : TEXT(" ");
    return machtrace_piece(
        arena, JOINED(member->left, opening, parts[0]->left, parts[0]->right, TEXT("::*")),
        JOINED(opens ? TEXT(")") : NO_TEXT, member->right), PLAIN, NO_TEXT);
}

MAKER(machtrace_make_scoped)
{
    (void)count, (void)extra;
    return machtrace_piece(arena,
                           JOINED(parts[0]->left, parts[0]->right, TEXT("::"), parts[1]->left,
                                  parts[1]->right),
                           NO_TEXT, PLAIN, parts[1]->base);
}

MAKER(machtrace_make_adjacent)
{
    (void)count, (void)extra;
    return plain(arena, JOINED(parts[0]->left, parts[0]->right, parts[1]->left, parts[1]->right));
}

MAKER(machtrace_make_arguments)
{
    (void)extra;
    return plain(arena, JOINED(TEXT("<"), machtrace_pieces_text(arena, parts, count), TEXT(">")));
}

MAKER(machtrace_make_folded_arguments)
{
    (void)extra;
    for (uint32_t at = 0; at < count; at++)
        if (parts[at]->left.size + parts[at]->right.size != 0)
            return plain(arena, TEXT("<...>"));
    return plain(arena, TEXT("<>"));
}

MAKER(machtrace_make_with_arguments)
{
    (void)count, (void)extra;
    return machtrace_piece(arena, JOINED(parts[0]->left, parts[0]->right, parts[1]->left), NO_TEXT,
                           TEMPLATE, parts[0]->base);
}

MAKER(machtrace_make_list)
{
    (void)extra;
    return plain(arena, machtrace_pieces_text(arena, parts, count));
}

MAKER(machtrace_make_constructor)
{
    (void)count, (void)extra;
    return machtrace_piece(arena, parts[0]->base, NO_TEXT, PLAIN, parts[0]->base);
}

MAKER(machtrace_make_destructor)
{
    (void)count, (void)extra;
    return machtrace_piece(arena, JOINED(TEXT("~"), parts[0]->base), NO_TEXT, PLAIN,
                           parts[0]->base);
}

MAKER(machtrace_make_encoding)
{
    const struct encoding_tail *tail = extra;
    const uint32_t first = tail->has_result ? 2 : 1;
    struct text shown = machtrace_pieces_text(arena, parts + first, count - first);
    struct text name = TEXT_OF(parts[0]);
    if (!tail->has_result)
        return plain(arena, JOINED(name, TEXT("("), shown, TEXT(")"), tail->qualifiers));
    const struct piece *result = parts[1];
    const struct text space = result->right.size != 0 ? NO_TEXT : TEXT(" ");
    return plain(arena, JOINED(result->left, space, name, TEXT("("), shown, TEXT(")"),
                               result->right, tail->qualifiers));
}

MAKER(machtrace_make_lambda)
{
    struct text shown = machtrace_pieces_text(arena, parts, count);
    return plain(arena, JOINED(TEXT("'lambda"), *(const struct text *)extra, TEXT("'("), shown,
                               TEXT(")")));
}

static const struct piece *expression(struct arena *arena, struct text text, uint8_t precedence)
{
    struct piece *made = machtrace_piece_memory(arena, sizeof *made);
    *made = (struct piece){.left = text, .right = NO_TEXT, .base = NO_TEXT};
    made->precedence = precedence;
    return made;
}

MAKER(machtrace_make_cast)
{
    (void)count;
    return expression(arena,
                      JOINED(TEXT("("), parts[0]->left, parts[0]->right, TEXT(")"),
                             *(const struct text *)extra),
                      CAST);
}

/* The text of an operand, in parentheses unless it binds tighter than the limit. */
static struct text operand(struct arena *arena, const struct piece *of, unsigned limit)
{
    if (of->precedence >= limit)
        return JOINED(TEXT("("), of->left, of->right, TEXT(")"));
    return TEXT_OF(of);
}

MAKER(machtrace_make_prefix)
{
    (void)count;
    const struct operation *operation = extra;
    return expression(arena, JOINED(operation->symbol, operand(arena, parts[0], UNARY)),
                      operation->precedence);
}

MAKER(machtrace_make_binary)
{
    (void)count;
    const struct operation *operation = extra;
    const unsigned level = operation->precedence;
    const int assigns = level == ASSIGN;
    const int is_comma = operation->symbol.size == 1 && operation->symbol.start[0] == ',';
    struct text first = operand(arena, parts[0], assigns ? OR_IF : level + 1);
    struct text second = operand(arena, parts[1], level + (assigns ? 1 : 0));
    struct text text = JOINED(operation->is_enclosed ? TEXT("(") : NO_TEXT, first,
                              is_comma ? NO_TEXT : TEXT(" "), operation->symbol, TEXT(" "), second,
                              operation->is_enclosed ? TEXT(")") : NO_TEXT);
    return expression(arena, text, operation->is_enclosed ? PRIMARY : operation->precedence);
}

MAKER(machtrace_make_applied)
{
    (void)count;
    const struct operation *operation = extra;
    return expression(arena,
                      JOINED(operation->symbol, TEXT("("), parts[0]->left, parts[0]->right,
                             TEXT(")")),
                      operation->precedence);
}

MAKER(machtrace_make_construction_vtable)
{
    (void)count, (void)extra;
    return plain(arena, JOINED(TEXT("construction vtable for "), TEXT_OF(parts[0]), TEXT("-in-"),
                               TEXT_OF(parts[1])));
}
