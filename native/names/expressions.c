#include "names/reader.h"

static struct text value_of(struct reader *r, struct text number)
{
    if (number.size == 0 || (number.size == 1 && number.start[0] == 'n'))
        fail(r);
    if (number.start[0] != 'n')
        return number;
    struct text parts[] = {TEXT("-"), {number.start + 1, number.size - 1}};
    return machtrace_text_joined(&r->arena, parts, 2);
}

static piece integer(struct reader *r, const char *suffix)
{
    r->at++;
    struct text parts[] = {value_of(r, machtrace_read_digits(r, true)), constant_text(suffix)};
    expect(r, 'E');
    return plain(r, machtrace_text_joined(&r->arena, parts, 2));
}

piece machtrace_read_literal(struct reader *r)
{
    expect(r, 'L');
    char letter = look(r, 0);
    switch (letter) {
    case 'i': return integer(r, "");
    case 'j': return integer(r, "u");
    case 'l': return integer(r, "l");
    case 'm': return integer(r, "ul");
    case 'x': return integer(r, "ll");
    case 'y': return integer(r, "ull");
    case 'f':
    case 'd':
    case 'e':
    case 'A':
    case 'T':
    case 'U':
        fail(r); /* not read here */
    default: break;
    }
    if (letter == 'b' && (look(r, 1) == '0' || look(r, 1) == '1') && look(r, 2) == 'E') {
        r->at += 3;
        return plain(r, r->name[r->at - 2] == '1' ? TEXT("true") : TEXT("false"));
    }
    if (take_two(r, "_Z") || take(r, 'Z')) {
        piece result = machtrace_read_encoding(r);
        expect(r, 'E');
        return result;
    }
    if (take_two(r, "Dn")) {
        (void)take(r, '0');
        expect(r, 'E');
        return plain(r, TEXT("nullptr"));
    }
    piece of = machtrace_read_type(r);
    struct text value = value_of(r, machtrace_read_digits(r, true));
    expect(r, 'E');
    return lift(r, machtrace_make_cast, of, &value);
}

static piece arguments_after(struct reader *r, piece name)
{
    if (look(r, 0) != 'I')
        return name;
    return lift_two(r, machtrace_make_adjacent, name, machtrace_read_arguments(r, false));
}

static piece simple_identifier(struct reader *r)
{
    return arguments_after(r, plain(r, machtrace_read_source_name(r)));
}

static piece unresolved_name(struct reader *r)
{
    if (!take_two(r, "sr"))
        return simple_identifier(r); /* names of operators and destructors are not read here */
    piece scope;
    if (is_digit(look(r, 0))) {
        scope = simple_identifier(r);
        while (!take(r, 'E'))
            scope = lift_two(r, machtrace_make_scoped, scope, simple_identifier(r));
    } else {
        if (look(r, 0) == 'T') {
            scope = machtrace_read_template_parameter(r);
            substitute_later(r, scope);
        } else if (look(r, 0) == 'S') {
            bool is_known;
            scope = machtrace_read_unscoped(r, NULL, &is_known);
            if (!is_known)
                substitute_later(r, scope);
        } else {
            fail(r); /* other types are not read here */
        }
        if (look(r, 0) == 'I') {
            scope = arguments_after(r, scope);
            substitute_later(r, scope);
        }
    }
    return lift_two(r, machtrace_make_scoped, scope, simple_identifier(r));
}

struct known_operator {
    char code[3];
    struct operation operation;
};

static const struct known_operator prefixes[] = {
    {"ad", {{"&", 1}, UNARY, 0}}, {"co", {{"~", 1}, UNARY, 0}}, {"de", {{"*", 1}, UNARY, 0}},
    {"ng", {{"-", 1}, UNARY, 0}}, {"nt", {{"!", 1}, UNARY, 0}}, {"ps", {{"+", 1}, UNARY, 0}},
};

static const struct known_operator binaries[] = {
    {"ml", {{"*", 1}, 5, 0}},   {"dv", {{"/", 1}, 5, 0}},   {"rm", {{"%", 1}, 5, 0}},
    {"pl", {{"+", 1}, 6, 0}},   {"mi", {{"-", 1}, 6, 0}},   {"ls", {{"<<", 2}, 7, 0}},
    {"rs", {{">>", 2}, 7, 0}},  {"ss", {{"<=>", 3}, 8, 0}}, {"ge", {{">=", 2}, 9, 0}},
    {"gt", {{">", 1}, 9, 0}},   {"le", {{"<=", 2}, 9, 0}},  {"lt", {{"<", 1}, 9, 0}},
    {"eq", {{"==", 2}, 10, 0}}, {"ne", {{"!=", 2}, 10, 0}}, {"an", {{"&", 1}, 11, 0}},
    {"eo", {{"^", 1}, 12, 0}},  {"or", {{"|", 1}, 13, 0}},  {"aa", {{"&&", 2}, 14, 0}},
    {"oo", {{"||", 2}, 15, 0}}, {"cm", {{",", 1}, 18, 0}},
};

static const struct operation *operation_of(struct reader *r, const struct known_operator *known,
                                            size_t count)
{
    for (size_t at = 0; at < count; at++)
        if (take_two(r, known[at].code))
            return &known[at].operation;
    return NULL;
}

#define OPERATION_OF(r, known) operation_of(r, known, sizeof known / sizeof *known)

static piece new_expression(struct reader *r)
{
    static const struct operation size = {{"sizeof ", 7}, UNARY, 0},
                                  pack_size = {{"sizeof...", 9}, PRIMARY, 0};
    const bool before = r->in_arguments;
    const char letter = look(r, 0);
    if (letter == 'L')
        return machtrace_read_literal(r);
    if (letter == 'T')
        return machtrace_read_template_parameter(r);
    if (is_digit(letter) || (letter == 's' && look(r, 1) == 'r'))
        return unresolved_name(r);
    if (take_two(r, "sp")) {
        r->in_arguments = false;
        piece result = machtrace_piece_expanded(&r->arena, machtrace_read_expression(r));
        r->in_arguments = before;
        return result;
    }
    if (take_two(r, "st")) {
        r->in_arguments = false;
        piece result = lift(r, machtrace_make_applied, machtrace_read_type(r), &size);
        r->in_arguments = before;
        return result;
    }
    if (take_two(r, "sZ")) {
        piece of = machtrace_piece_expanded(&r->arena, machtrace_read_template_parameter(r));
        return lift(r, machtrace_make_applied, of, &pack_size);
    }
    const struct operation *operation = OPERATION_OF(r, prefixes);
    if (operation != NULL)
        return lift(r, machtrace_make_prefix, machtrace_read_expression(r), operation);
    operation = OPERATION_OF(r, binaries);
    if (operation == NULL)
        fail(r); /* not read here */
    struct operation own = *operation;
    piece parts[2];
    parts[0] = machtrace_read_expression(r);
    parts[1] = machtrace_read_expression(r);
    own.is_enclosed = before && own.symbol.start[0] == '>' &&
                      (own.symbol.size == 1 || own.symbol.start[1] == '>');
    return machtrace_piece_lift(&r->arena, machtrace_make_binary, parts, 2, &own, sizeof own);
}

piece machtrace_read_expression(struct reader *r)
{
    deeper(r);
    piece result = new_expression(r);
    r->depth--;
    return result;
}
