#include "names/reader.h"

static const char *builtin(char letter)
{
    switch (letter) {
    case 'v': return "void";
    case 'w': return "wchar_t";
    case 'b': return "bool";
    case 'c': return "char";
    case 'a': return "signed char";
    case 'h': return "unsigned char";
    case 's': return "short";
    case 't': return "unsigned short";
    case 'i': return "int";
    case 'j': return "unsigned int";
    case 'l': return "long";
    case 'm': return "unsigned long";
    case 'x': return "long long";
    case 'y': return "unsigned long long";
    case 'n': return "__int128";
    case 'o': return "unsigned __int128";
    case 'f': return "float";
    case 'd': return "double";
    case 'e': return "long double";
    case 'g': return "__float128";
    case 'z': return "...";
    default: return NULL;
    }
}

static piece function_type(struct reader *r)
{
    struct function_tail tail = {.exception = TEXT("")};
    tail.qualifiers = machtrace_read_qualifiers(r);
    if (take_two(r, "Do"))
        tail.exception = TEXT(" noexcept");
    expect(r, 'F');
    (void)take(r, 'Y');
    struct pieces parts = {0};
    machtrace_pieces_add(&r->arena, &parts, machtrace_read_type(r));
    while (!take(r, 'E')) {
        if (take(r, 'v'))
            continue;
        bool lvalue = look(r, 0) == 'R' && look(r, 1) == 'E';
        if (lvalue || (look(r, 0) == 'O' && look(r, 1) == 'E')) {
            r->at += 2;
            struct text both[] = {tail.qualifiers, lvalue ? TEXT(" &") : TEXT(" &&")};
            tail.qualifiers = machtrace_text_joined(&r->arena, both, 2);
            break;
        }
        machtrace_pieces_add(&r->arena, &parts, machtrace_read_type(r));
    }
    return machtrace_piece_lift(&r->arena, machtrace_make_function, parts.items, parts.count, &tail,
                                sizeof tail);
}

static piece dimensioned(struct reader *r, piece_maker make)
{
    struct text dimension = machtrace_read_digits(r, false);
    expect(r, '_'); /* an expression is not read here */
    return lift(r, make, machtrace_read_type(r), &dimension);
}

static piece fixed_point(struct reader *r)
{
    const bool saturates = take_two(r, "DS");
    const char letter = look(r, 1);
    const struct text name = letter == 'A' ? TEXT("_Accum") : TEXT("_Fract");
    const char size = look(r, 2);
    if (look(r, 0) != 'D' || (letter != 'A' && letter != 'R') || size == '\0' ||
        memchr("stijlm", size, 6) == NULL)
        fail(r);
    r->at += 3;
    const struct text parts[] = {
        saturates ? TEXT("_Sat ") : TEXT(""),
        size == 't' || size == 'j' || size == 'm' ? TEXT("unsigned ") : TEXT(""),
        size == 's' || size == 't'   ? TEXT("short ")
        : size == 'l' || size == 'm' ? TEXT("long ")
                                     : TEXT(""),
        name,
    };
    return plain(r, machtrace_text_joined(&r->arena, parts, 4));
}

static piece d_type(struct reader *r)
{
    const char *name = NULL;
    switch (look(r, 1)) {
    case 'd': name = "decimal64"; break;
    case 'e': name = "decimal128"; break;
    case 'f': name = "decimal32"; break;
    case 'h': name = "half"; break;
    case 'i': name = "char32_t"; break;
    case 's': name = "char16_t"; break;
    case 'u': name = "char8_t"; break;
    case 'a': name = "auto"; break;
    case 'c': name = "decltype(auto)"; break;
    case 'n': name = "std::nullptr_t"; break;
    case 'A':
    case 'R':
    case 'S': return fixed_point(r);
    default: fail(r); /* not read here, or with more behind it */
    }
    if (r->is_in_macho && (look(r, 1) == 'a' || look(r, 1) == 'c'))
        doubt(r); /* Apple's Clang numbers them */
    r->at += 2;
    return plain(r, constant_text(name));
}

static piece read_new_type(struct reader *r)
{
    static const uint8_t one = 1, two = 2;
    static const struct text complex = {" complex", 8}, imaginary = {" imaginary", 10};
    static const struct text keywords[] = {{"struct ", 7}, {"union ", 6}, {"enum ", 5}};
    switch (look(r, 0)) {
    case 'P':
        r->at++;
        return lift_one(r, machtrace_make_pointer, machtrace_read_type(r));
    case 'R':
        r->at++;
        return lift(r, machtrace_make_reference, machtrace_read_type(r), &one);
    case 'O':
        r->at++;
        return lift(r, machtrace_make_reference, machtrace_read_type(r), &two);
    case 'C':
        r->at++;
        return lift(r, machtrace_make_suffixed, machtrace_read_type(r), &complex);
    case 'G':
        r->at++;
        return lift(r, machtrace_make_suffixed, machtrace_read_type(r), &imaginary);
    case 'r':
    case 'V':
    case 'K': {
        size_t start = r->at;
        struct text all = machtrace_read_qualifiers(r);
        if (look(r, 0) == 'F' || (look(r, 0) == 'D' && look(r, 1) == 'o')) {
            r->at = start;
            return function_type(r);
        }
        return lift(r, machtrace_make_qualified, machtrace_read_type(r), &all);
    }
    case 'F': return function_type(r);
    case 'A': r->at++; return dimensioned(r, machtrace_make_array);
    case 'M': {
        r->at++;
        piece owner = machtrace_read_type(r);
        return lift_two(r, machtrace_make_pointer_to_member, owner, machtrace_read_type(r));
    }
    case 'T': {
        const char *keyword = memchr("sue", look(r, 1), 3);
        if (keyword != NULL) {
            size_t which = look(r, 1) == 's' ? 0 : look(r, 1) == 'u' ? 1 : 2;
            r->at += 2;
            return lift(r, machtrace_make_prefixed, machtrace_read_name(r, NULL), &keywords[which]);
        }
        piece result = machtrace_read_template_parameter(r);
        if (!r->takes_arguments || look(r, 0) != 'I')
            return result;
        substitute_later(r, result);
        return machtrace_read_with_arguments(r, result, false);
    }
    case 'D':
        if (take_two(r, "Dp"))
            return machtrace_piece_expanded(&r->arena, machtrace_read_type(r));
        if (look(r, 1) == 'o')
            return function_type(r);
        if (!take_two(r, "Dv"))
            fail(r);
        return dimensioned(r, machtrace_make_vector);
    case 'u': {
        r->at++;
        const struct operation of = {machtrace_read_source_name(r), PRIMARY, 0};
        if (!take(r, 'I'))
            return plain(r, of.symbol);
        piece inner = machtrace_read_type(r);
        expect(r, 'E');
        return lift(r, machtrace_make_applied, inner, &of);
    }
    case 'U': fail(r); /* not read here */
    default: return machtrace_read_name(r, NULL);
    }
}

piece machtrace_read_type(struct reader *r)
{
    const char letter = look(r, 0);
    const char *plain_type = builtin(letter);
    if (plain_type != NULL) {
        r->at++;
        return plain(r, constant_text(plain_type));
    }
    if (letter == 'D' && memchr("defhisuacnARS", look(r, 1), 13) != NULL)
        return d_type(r);
    deeper(r);
    piece result;
    if (letter == 'S' && look(r, 1) != 't') {
        bool is_known;
        result = machtrace_read_unscoped(r, NULL, &is_known);
        if (look(r, 0) != 'I' || !r->takes_arguments) {
            r->depth--;
            return result;
        }
        result = machtrace_read_with_arguments(r, result, false);
    } else {
        result = read_new_type(r);
    }
    substitute_later(r, result);
    r->depth--;
    return result;
}

piece machtrace_read_with_arguments(struct reader *r, piece name, bool remember)
{
    piece arguments = machtrace_read_arguments(r, remember);
    return lift_two(r, machtrace_make_with_arguments, name, arguments);
}

static piece parameter(struct reader *r, size_t level, size_t index)
{
    struct levels *levels = &r->levels;
    if (r->in_conversion && level == 0)
        fail(r); /* arguments that follow: not read here */
    piece known;
    if (level < (size_t)levels->count && index < levels->items[level].count) {
        known = levels->items[level].items[index];
    } else {
        if (r->lambda_level != (int)level || level > (size_t)levels->count || level >= MAX_LEVELS)
            fail(r);
        if (level == (size_t)levels->count) {
            levels->items[level] = (struct pieces){0};
            levels->scopes[level] = ++r->scopes;
            levels->count++;
        }
        known = plain(r, TEXT("auto"));
    }
    return machtrace_piece_parameter(&r->arena, known, levels->scopes[level], (uint8_t)level,
                                     (uint32_t)index);
}

piece machtrace_read_template_parameter(struct reader *r)
{
    expect(r, 'T');
    size_t level = 0;
    if (take(r, 'L')) {
        level = machtrace_read_number(r) + 1;
        expect(r, '_');
    }
    size_t index = 0;
    if (!take(r, '_')) {
        index = machtrace_read_number(r) + 1;
        expect(r, '_');
    }
    return parameter(r, level, index);
}

piece machtrace_rebuilt(struct reader *r, piece known)
{
    if (known->scope == 0)
        return known;
    const struct recipe *recipe = known->recipe;
    if (recipe == NULL)
        fail(r);
    if (recipe->count == 0)
        return parameter(r, recipe->level, recipe->index);
    deeper(r);
    piece *parts = machtrace_piece_memory(&r->arena, recipe->count * sizeof *parts);
    for (uint32_t at = 0; at < recipe->count; at++)
        parts[at] = machtrace_rebuilt(r, recipe->parts[at]);
    piece result = recipe->make == NULL
                       ? machtrace_piece_expanded(&r->arena, parts[0])
                       : machtrace_piece_lift(&r->arena, recipe->make, parts, recipe->count,
                                              recipe->extra, recipe->extra_size);
    r->depth--;
    return result;
}

/* An argument; *entry is the substitution of its parameter. */
static piece argument(struct reader *r, piece *entry)
{
    char letter = look(r, 0);
    piece result;
    if (letter == 'X') {
        r->at++;
        result = machtrace_read_expression(r);
        expect(r, 'E');
    } else if (letter == 'J' || letter == 'I') {
        deeper(r);
        r->at++;
        struct pieces elements = {0};
        while (!take(r, 'E')) {
            piece ignored;
            machtrace_pieces_add(&r->arena, &elements, argument(r, &ignored));
        }
        r->depth--;
        result = lift_list(r, machtrace_make_list, &elements);
        *entry = machtrace_piece_pack(&r->arena, &elements);
        return result;
    } else if (letter == 'L') {
        result = machtrace_read_literal(r);
    } else if (letter == 'T' && memchr("yptnk", look(r, 1), 5) != NULL) {
        fail(r); /* declarations are not read here */
    } else {
        result = machtrace_read_type(r);
    }
    *entry = result;
    return result;
}

piece machtrace_read_arguments(struct reader *r, bool remember)
{
    expect(r, 'I');
    const bool takes = r->takes_arguments, in_arguments = r->in_arguments;
    r->takes_arguments = r->in_arguments = true;
    if (remember) {
        r->levels.count = 1;
        r->levels.items[0] = (struct pieces){0};
        r->levels.scopes[0] = ++r->scopes;
    }
    struct pieces shown = {0};
    while (!take(r, 'E')) {
        piece entry;
        piece item = argument(r, &entry);
        machtrace_pieces_add(&r->arena, &shown, item);
        if (remember) {
            r->levels.count = r->levels.count < 1 ? 1 : r->levels.count;
            machtrace_pieces_add(&r->arena, &r->levels.items[0], entry);
        }
    }
    r->takes_arguments = takes;
    r->in_arguments = in_arguments;
    const piece_maker make =
        r->simplified ? machtrace_make_folded_arguments : machtrace_make_arguments;
    return lift_list(r, make, &shown);
}
