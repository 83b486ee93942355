#include "cplusplus_name.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cplusplus_makers.h"

#define DEEPEST 128
#define MOST_LEVELS 8
#define MOST_MEMORY ((size_t)1 << 22)
#define ON_STACK 12288

/* What T_ stands for, of the template and the generic lambdas around. */
struct levels {
    struct pieces items[MOST_LEVELS];
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
    bool simplified, takes_arguments, in_conversion, in_arguments;
    struct pieces substitutions;
    struct levels levels;
};

typedef const struct piece *piece;

static piece read_type(struct reader *r);
static piece read_name(struct reader *r, struct name_end *end);
static piece read_encoding(struct reader *r);
static piece read_arguments(struct reader *r, bool remember);
static piece substitution(struct reader *r);

static _Noreturn void fail(struct reader *r) { machtrace_piece_fail(&r->arena); }

static char look(const struct reader *r, size_t ahead)
{
    return r->size - r->at > ahead ? r->name[r->at + ahead] : '\0';
}

static bool take(struct reader *r, char expected)
{
    if (look(r, 0) != expected)
        return false;
    r->at++;
    return true;
}

static bool take_two(struct reader *r, const char *expected)
{
    if (look(r, 0) != expected[0] || look(r, 1) != expected[1])
        return false;
    r->at += 2;
    return true;
}

static void expect(struct reader *r, char expected)
{
    if (!take(r, expected))
        fail(r);
}

static void deeper(struct reader *r)
{
    if (++r->depth > DEEPEST)
        fail(r);
}

static bool is_digit(char one) { return one >= '0' && one <= '9'; }

static struct text digits(struct reader *r, bool is_signed)
{
    size_t start = r->at;
    if (is_signed && look(r, 0) == 'n')
        r->at++;
    while (is_digit(look(r, 0)))
        r->at++;
    return (struct text){r->name + start, r->at - start};
}

static size_t sequence_number(struct reader *r)
{
    if (take(r, '_'))
        return 0;
    size_t value = 0;
    for (;;) {
        char one = look(r, 0);
        if (is_digit(one))
            value = value * 36 + (size_t)(one - '0');
        else if (one >= 'A' && one <= 'Z')
            value = value * 36 + (size_t)(one - 'A') + 10;
        else
            break;
        if (value > r->size)
            fail(r);
        r->at++;
    }
    expect(r, '_');
    return value + 1;
}

static size_t small_number(struct reader *r)
{
    struct text found = digits(r, false);
    if (found.size == 0 || found.size > 6)
        fail(r);
    size_t value = 0;
    for (size_t at = 0; at < found.size; at++)
        value = 10 * value + (size_t)(found.start[at] - '0');
    return value;
}

static struct text source_name(struct reader *r)
{
    static const char anonymous[] = "_GLOBAL__N";
    if (look(r, 0) == '0')
        fail(r);
    size_t size = small_number(r);
    if (size > r->size - r->at)
        fail(r);
    struct text found = {r->name + r->at, size};
    r->at += size;
    if (size >= sizeof anonymous - 1 && memcmp(found.start, anonymous, sizeof anonymous - 1) == 0)
        return TEXT("(anonymous namespace)");
    return found;
}

static piece plain(struct reader *r, struct text text)
{
    return machtrace_piece_of(&r->arena, text);
}

static piece lift(struct reader *r, piece_maker make, piece part, const void *extra)
{
    return machtrace_piece_lift(&r->arena, make, &part, 1, extra);
}

static piece lift_two(struct reader *r, piece_maker make, piece first, piece second)
{
    piece parts[] = {first, second};
    return machtrace_piece_lift(&r->arena, make, parts, 2, NULL);
}

static piece lift_list(struct reader *r, piece_maker make, const struct pieces *list,
                       const void *extra)
{
    return machtrace_piece_lift(&r->arena, make, list->items, list->count, extra);
}

static void substitute_later(struct reader *r, piece known)
{
    machtrace_pieces_add(&r->arena, &r->substitutions, known);
}

static struct text qualifiers(struct reader *r)
{
    static const struct text all[] = {
        {"", 0},
        {" const", 6},
        {" volatile", 9},
        {" const volatile", 15},
        {" restrict", 9},
        {" const restrict", 15},
        {" volatile restrict", 18},
        {" const volatile restrict", 24},
    };
    unsigned found = take(r, 'r') ? 4 : 0;
    found |= take(r, 'V') ? 2 : 0;
    found |= take(r, 'K') ? 1 : 0;
    return all[found];
}

/* --- templates --- */

static piece with_arguments(struct reader *r, piece name, bool remember)
{
    piece arguments = read_arguments(r, remember);
    return lift_two(r, machtrace_make_with_arguments, name, arguments);
}

static piece template_parameter(struct reader *r)
{
    expect(r, 'T');
    int level = 0;
    if (take(r, 'L')) {
        level = (int)small_number(r) + 1;
        expect(r, '_');
    }
    size_t index = 0;
    if (!take(r, '_')) {
        index = small_number(r) + 1;
        expect(r, '_');
    }
    if (r->in_conversion && level == 0)
        fail(r); /* arguments that follow: not read here */
    if (level < r->levels.count && index < r->levels.items[level].count)
        return r->levels.items[level].items[index];
    if (r->lambda_level != level || level > r->levels.count || level >= MOST_LEVELS)
        fail(r);
    if (level == r->levels.count) {
        r->levels.items[level] = (struct pieces){0};
        r->levels.count++;
    }
    return plain(r, TEXT("auto"));
}

static struct text value_of(struct reader *r, struct text number)
{
    if (number.size == 0 || (number.size == 1 && number.start[0] == 'n'))
        fail(r);
    if (number.start[0] != 'n')
        return number;
    struct text parts[] = {TEXT("-"), {number.start + 1, number.size - 1}};
    return machtrace_text_joined(&r->arena, parts, 2);
}

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

static struct text constant_text(const char *text) { return (struct text){text, strlen(text)}; }

static piece integer(struct reader *r, const char *suffix)
{
    r->at++;
    struct text parts[] = {value_of(r, digits(r, true)), constant_text(suffix)};
    expect(r, 'E');
    return plain(r, machtrace_text_joined(&r->arena, parts, 2));
}

static piece literal(struct reader *r)
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
        piece found = read_encoding(r);
        expect(r, 'E');
        return found;
    }
    if (take_two(r, "Dn")) {
        (void)take(r, '0');
        expect(r, 'E');
        return plain(r, TEXT("nullptr"));
    }
    piece of = read_type(r);
    struct text value = value_of(r, digits(r, true));
    expect(r, 'E');
    return lift(r, machtrace_make_cast, of, &value);
}

/* --- expressions --- */

static piece read_expression(struct reader *r);

static piece arguments_after(struct reader *r, piece name)
{
    return look(r, 0) == 'I' ? lift_two(r, machtrace_make_adjacent, name, read_arguments(r, false))
                             : name;
}

static piece simple_identifier(struct reader *r)
{
    return arguments_after(r, plain(r, source_name(r)));
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
            scope = template_parameter(r);
            substitute_later(r, scope);
        } else if (look(r, 0) == 'S' && look(r, 1) != 't') {
            scope = substitution(r);
        } else {
            fail(r); /* other types are not read here */
        }
        scope = arguments_after(r, scope);
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
        return literal(r);
    if (letter == 'T')
        return template_parameter(r);
    if (is_digit(letter) || (letter == 's' && look(r, 1) == 'r'))
        return unresolved_name(r);
    if (take_two(r, "sp")) {
        r->in_arguments = false;
        piece found = machtrace_piece_expanded(&r->arena, read_expression(r));
        r->in_arguments = before;
        return found;
    }
    if (take_two(r, "st")) {
        r->in_arguments = false;
        piece found = lift(r, machtrace_make_applied, read_type(r), &size);
        r->in_arguments = before;
        return found;
    }
    if (take_two(r, "sZ")) {
        piece of = machtrace_piece_expanded(&r->arena, template_parameter(r));
        return lift(r, machtrace_make_applied, of, &pack_size);
    }
    const struct operation *operation = OPERATION_OF(r, prefixes);
    if (operation != NULL)
        return lift(r, machtrace_make_prefix, read_expression(r), operation);
    operation = OPERATION_OF(r, binaries);
    if (operation == NULL)
        fail(r); /* not read here */
    struct operation own = *operation;
    piece parts[2];
    parts[0] = read_expression(r);
    parts[1] = read_expression(r);
    own.is_enclosed = before && own.symbol.start[0] == '>' &&
                      (own.symbol.size == 1 || own.symbol.start[1] == '>');
    return machtrace_piece_lift(&r->arena, machtrace_make_binary, parts, 2, &own);
}

static piece read_expression(struct reader *r)
{
    deeper(r);
    piece found = new_expression(r);
    r->depth--;
    return found;
}

/* An argument; *entry is what a parameter stands for that it is given to. */
static piece argument(struct reader *r, piece *entry)
{
    char letter = look(r, 0);
    piece found;
    if (letter == 'X') {
        r->at++;
        found = read_expression(r);
        expect(r, 'E');
    } else if (letter == 'J') {
        deeper(r);
        r->at++;
        struct pieces elements = {0};
        while (!take(r, 'E')) {
            piece ignored;
            machtrace_pieces_add(&r->arena, &elements, argument(r, &ignored));
        }
        r->depth--;
        found = lift_list(r, machtrace_make_list, &elements, NULL);
        *entry = machtrace_piece_pack(&r->arena, &elements);
        return found;
    } else if (letter == 'L') {
        found = literal(r);
    } else if (letter == 'T' && memchr("yptnk", look(r, 1), 5) != NULL) {
        fail(r); /* declarations are not read here */
    } else {
        found = read_type(r);
    }
    *entry = found;
    return found;
}

static piece read_arguments(struct reader *r, bool remember)
{
    expect(r, 'I');
    const bool takes = r->takes_arguments, in_arguments = r->in_arguments;
    r->takes_arguments = r->in_arguments = true;
    if (remember) {
        r->levels.count = 1;
        r->levels.items[0] = (struct pieces){0};
    }
    struct pieces shown = {0};
    while (!take(r, 'E')) {
        piece entry;
        piece one = argument(r, &entry);
        machtrace_pieces_add(&r->arena, &shown, one);
        if (remember) {
            r->levels.count = r->levels.count < 1 ? 1 : r->levels.count;
            machtrace_pieces_add(&r->arena, &r->levels.items[0], entry);
        }
    }
    r->takes_arguments = takes;
    r->in_arguments = in_arguments;
    return lift_list(
        r, r->simplified ? machtrace_make_folded_arguments : machtrace_make_arguments, &shown, NULL);
}

static piece unnamed_type(struct reader *r, bool clear)
{
    if (clear)
        r->levels.count = 0;
    if (take_two(r, "Ut")) {
        struct text parts[] = {TEXT("'unnamed"), digits(r, false), TEXT("'")};
        expect(r, '_');
        return plain(r, machtrace_text_joined(&r->arena, parts, 3));
    }
    if (!take_two(r, "Ul"))
        fail(r);
    const int level = r->lambda_level, count = r->levels.count;
    const bool takes = r->takes_arguments, in_arguments = r->in_arguments;
    r->lambda_level = count;
    r->takes_arguments = true;
    r->in_arguments = false;
    if (look(r, 0) == 'T' && memchr("yptnk", look(r, 1), 5) != NULL)
        fail(r); /* declarations are not read here */
    struct pieces parameters = {0};
    if (!take(r, 'v'))
        do
            machtrace_pieces_add(&r->arena, &parameters, read_type(r));
        while (look(r, 0) != 'E');
    expect(r, 'E');
    r->lambda_level = level;
    r->levels.count = count;
    r->takes_arguments = takes;
    r->in_arguments = in_arguments;
    struct text number = digits(r, false);
    expect(r, '_');
    if (r->simplified) {
        struct text parts[] = {TEXT("'lambda"), number, TEXT("'")};
        return plain(r, machtrace_text_joined(&r->arena, parts, 3));
    }
    return lift_list(r, machtrace_make_lambda, &parameters, &number);
}

/* --- types --- */

static piece substitution(struct reader *r)
{
    static const struct {
        char letter;
        const char *name, *base;
    } standard[] = {
        {'a', "std::allocator", "allocator"},       {'b', "std::basic_string", "basic_string"},
        {'s', "std::string", "string"},             {'i', "std::istream", "istream"},
        {'o', "std::ostream", "ostream"},           {'d', "std::iostream", "iostream"},
    };
    expect(r, 'S');
    char letter = look(r, 0);
    for (size_t at = 0; at < sizeof standard / sizeof *standard; at++)
        if (standard[at].letter == letter) {
            r->at++;
            if (look(r, 0) == 'B' || look(r, 0) == 'C' || look(r, 0) == 'D')
                fail(r); /* tags and constructors of these are not read here */
            return machtrace_piece(&r->arena, constant_text(standard[at].name), TEXT(""), PLAIN,
                                   constant_text(standard[at].base));
        }
    size_t index = sequence_number(r);
    if (index >= r->substitutions.count)
        fail(r);
    return r->substitutions.items[index];
}

static piece unqualified(struct reader *r, struct name_end *end, piece scope);

/* A name outside of any class; *is_known where it is a substitution alone. */
static piece unscoped(struct reader *r, struct name_end *end, bool *is_known)
{
    *is_known = false;
    piece scope = NULL;
    if (take_two(r, "St"))
        scope = plain(r, TEXT("std"));
    if (look(r, 0) == 'S') {
        if (scope != NULL)
            fail(r);
        *is_known = true;
        return substitution(r);
    }
    return unqualified(r, end, scope);
}

static piece function_type(struct reader *r)
{
    struct function_tail tail = {.exception = TEXT("")};
    tail.qualifiers = qualifiers(r);
    if (take_two(r, "Do"))
        tail.exception = TEXT(" noexcept");
    expect(r, 'F');
    (void)take(r, 'Y');
    struct pieces parts = {0};
    machtrace_pieces_add(&r->arena, &parts, read_type(r));
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
        machtrace_pieces_add(&r->arena, &parts, read_type(r));
    }
    return lift_list(r, machtrace_make_function, &parts, &tail);
}

static piece dimensioned(struct reader *r, piece_maker make)
{
    struct text dimension = digits(r, false);
    expect(r, '_'); /* an expression is not read here */
    return lift(r, make, read_type(r), &dimension);
}

static piece d_type(struct reader *r)
{
    const char *found = NULL;
    switch (look(r, 1)) {
    case 'd': found = "decimal64"; break;
    case 'e': found = "decimal128"; break;
    case 'f': found = "decimal32"; break;
    case 'h': found = "half"; break;
    case 'i': found = "char32_t"; break;
    case 's': found = "char16_t"; break;
    case 'u': found = "char8_t"; break;
    case 'a': found = "auto"; break;
    case 'c': found = "decltype(auto)"; break;
    case 'n': found = "std::nullptr_t"; break;
    default: fail(r); /* not read here, or with more behind it */
    }
    r->at += 2;
    return plain(r, constant_text(found));
}

static piece read_new_type(struct reader *r)
{
    static const uint8_t one = 1, two = 2;
    static const struct text complex = {" complex", 8}, imaginary = {" imaginary", 10};
    static const struct text keywords[] = {{"struct ", 7}, {"union ", 6}, {"enum ", 5}};
    switch (look(r, 0)) {
    case 'P':
        r->at++;
        return lift(r, machtrace_make_pointer, read_type(r), NULL);
    case 'R':
        r->at++;
        return lift(r, machtrace_make_reference, read_type(r), &one);
    case 'O':
        r->at++;
        return lift(r, machtrace_make_reference, read_type(r), &two);
    case 'C':
        r->at++;
        return lift(r, machtrace_make_suffixed, read_type(r), &complex);
    case 'G':
        r->at++;
        return lift(r, machtrace_make_suffixed, read_type(r), &imaginary);
    case 'r':
    case 'V':
    case 'K': {
        size_t start = r->at;
        struct text all = qualifiers(r);
        if (look(r, 0) == 'F' || (look(r, 0) == 'D' && look(r, 1) == 'o')) {
            r->at = start;
            return function_type(r);
        }
        return lift(r, machtrace_make_qualified, read_type(r), &all);
    }
    case 'F': return function_type(r);
    case 'A': r->at++; return dimensioned(r, machtrace_make_array);
    case 'M': {
        r->at++;
        piece owner = read_type(r);
        return lift_two(r, machtrace_make_pointer_to_member, owner, read_type(r));
    }
    case 'T': {
        const char *keyword = memchr("sue", look(r, 1), 3);
        if (keyword != NULL) {
            size_t which = look(r, 1) == 's' ? 0 : look(r, 1) == 'u' ? 1 : 2;
            r->at += 2;
            return lift(r, machtrace_make_prefixed, read_name(r, NULL), &keywords[which]);
        }
        piece found = template_parameter(r);
        if (!r->takes_arguments || look(r, 0) != 'I')
            return found;
        substitute_later(r, found);
        return with_arguments(r, found, false);
    }
    case 'D':
        if (take_two(r, "Dp"))
            return machtrace_piece_expanded(&r->arena, read_type(r));
        if (look(r, 1) == 'o')
            return function_type(r);
        if (!take_two(r, "Dv"))
            fail(r);
        return dimensioned(r, machtrace_make_vector);
    case 'u': {
        r->at++;
        const struct operation of = {source_name(r), PRIMARY, 0};
        if (!take(r, 'I'))
            return plain(r, of.symbol);
        piece inner = read_type(r);
        expect(r, 'E');
        return lift(r, machtrace_make_applied, inner, &of);
    }
    case 'U': fail(r); /* not read here */
    default: return read_name(r, NULL);
    }
}

static piece read_type(struct reader *r)
{
    const char letter = look(r, 0);
    const char *plain_type = builtin(letter);
    if (plain_type != NULL) {
        r->at++;
        return plain(r, constant_text(plain_type));
    }
    if (letter == 'D' && memchr("defhisuacn", look(r, 1), 10) != NULL)
        return d_type(r);
    deeper(r);
    piece found;
    if (letter == 'S' && look(r, 1) != 't') {
        bool is_known;
        found = unscoped(r, NULL, &is_known);
        if (look(r, 0) != 'I' || !r->takes_arguments) {
            r->depth--;
            return found;
        }
        found = with_arguments(r, found, false);
    } else {
        found = read_new_type(r);
    }
    substitute_later(r, found);
    r->depth--;
    return found;
}

/* --- names --- */

static piece operator_name(struct reader *r, struct name_end *end)
{
    static const char operators[] =
        "aN&=\0aS=\0aa&&\0ad&\0an&\0cl()\0cm,\0co~\0dV/=\0dadelete[]\0de*\0dldelete\0dv/\0eO^=\0"
        "eo^\0eq==\0ge>=\0gt>\0ix[]\0lS<<=\0le<=\0ls<<\0lt<\0mI-=\0mL*=\0mi-\0ml*\0mm--\0"
        "nanew[]\0ne!=\0ng-\0nt!\0nwnew\0oR|=\0oo||\0or|\0pL+=\0pl+\0pm->*\0pp++\0ps+\0pt->\0"
        "qu?\0rM%=\0rS>>=\0rm%\0rs>>\0ss<=>\0awco_await\0";
    static const struct text converts = {"operator ", 9};
    if (take_two(r, "cv")) {
        const bool takes = r->takes_arguments, before = r->in_conversion;
        r->takes_arguments = false;
        r->in_conversion = before || end != NULL;
        piece to = read_type(r);
        r->takes_arguments = takes;
        r->in_conversion = before;
        if (end != NULL)
            end->constructor_or_conversion = true;
        return lift(r, machtrace_make_prefixed, to, &converts);
    }
    if (take_two(r, "li")) {
        struct text parts[] = {TEXT("operator\"\" "), source_name(r)};
        return plain(r, machtrace_text_joined(&r->arena, parts, 2));
    }
    for (const char *at = operators; *at != '\0'; at += strlen(at) + 1)
        if (at[0] == look(r, 0) && at[1] == look(r, 1)) {
            r->at += 2;
            const bool is_word = at[2] >= 'a' && at[2] <= 'z';
            struct text parts[] = {is_word ? converts : TEXT("operator"), constant_text(at + 2)};
            return plain(r, machtrace_text_joined(&r->arena, parts, 2));
        }
    fail(r);
}

static bool is_inline_namespace(struct text name)
{
    static const char *const all[] = {"__1", "__2", "__ndk1", "__cxx11", "__fs", "_V2"};
    for (size_t at = 0; at < sizeof all / sizeof *all; at++)
        if (strlen(all[at]) == name.size && memcmp(all[at], name.start, name.size) == 0)
            return true;
    return false;
}

static piece special_member(struct reader *r, struct name_end *end, piece scope)
{
    const bool constructs = take(r, 'C');
    if (!constructs)
        expect(r, 'D');
    if (memchr(constructs ? "12345" : "01245", look(r, 0), 5) == NULL)
        fail(r); /* inherited constructors are not read here */
    r->at++;
    if (scope->base.size == 0 || scope->shape == ARRAY)
        fail(r);
    if (end != NULL)
        end->constructor_or_conversion = true;
    return lift(r, constructs ? machtrace_make_constructor : machtrace_make_destructor, scope,
                NULL);
}

static piece unqualified(struct reader *r, struct name_end *end, piece scope)
{
    static const struct text standard = {"std", 3};
    if (look(r, 0) == 'W' || (scope != NULL && look(r, 0) == 'F'))
        fail(r); /* modules and friends are not read here */
    (void)take(r, 'L');
    const char letter = look(r, 0);
    piece found;
    if (letter >= '1' && letter <= '9') {
        struct text name = source_name(r);
        found = machtrace_piece(&r->arena, name, TEXT(""), PLAIN, name);
    } else if ((letter == 'C' || letter == 'D') && scope != NULL) {
        if (look(r, 0) == 'D' && look(r, 1) == 'C')
            fail(r); /* structured bindings are not read here */
        found = special_member(r, end, scope);
    } else if (letter == 'U') {
        found = unnamed_type(r, end != NULL);
    } else {
        found = operator_name(r, end);
    }
    while (take(r, 'B')) {
        struct text parts[] = {machtrace_piece_text(&r->arena, found), TEXT("[abi:"),
                               source_name(r), TEXT("]")};
        found = machtrace_piece(&r->arena, machtrace_text_joined(&r->arena, parts, 4), TEXT(""),
                                PLAIN, found->base);
    }
    if (scope == NULL)
        return found;
    if (r->simplified && scope->left.size == standard.size &&
        memcmp(scope->left.start, standard.start, standard.size) == 0 &&
        is_inline_namespace(found->left))
        return scope;
    return lift_two(r, machtrace_make_scoped, scope, found);
}

static struct text member_qualifiers(struct reader *r)
{
    struct text both[] = {qualifiers(r), TEXT("")};
    if (take(r, 'O'))
        both[1] = TEXT(" &&");
    else if (take(r, 'R'))
        both[1] = TEXT(" &");
    return machtrace_text_joined(&r->arena, both, 2);
}

static piece nested(struct reader *r, struct name_end *end)
{
    expect(r, 'N');
    if (look(r, 0) == 'H')
        fail(r); /* explicit objects are not read here */
    struct text own = member_qualifiers(r);
    if (end != NULL)
        end->qualifiers = own;
    piece scope = NULL;
    while (!take(r, 'E')) {
        if (end != NULL)
            end->template_arguments = false;
        const char letter = look(r, 0);
        if (letter == 'T' && scope == NULL) {
            scope = template_parameter(r);
        } else if (letter == 'I') {
            if (scope == NULL || scope->shape == TEMPLATE)
                fail(r);
            scope = with_arguments(r, scope, end != NULL);
            if (end != NULL)
                end->template_arguments = true;
        } else if (letter == 'D' && scope == NULL) {
            fail(r); /* decltype is not read here */
        } else if (letter == 'S') {
            if (scope != NULL)
                fail(r);
            scope = take_two(r, "St") ? plain(r, TEXT("std")) : substitution(r);
            continue;
        } else {
            scope = unqualified(r, end, scope);
        }
        substitute_later(r, scope);
        (void)take(r, 'M');
    }
    if (scope == NULL || r->substitutions.count == 0)
        fail(r);
    r->substitutions.count--;
    return scope;
}

static void discriminator(struct reader *r)
{
    const size_t start = r->at;
    if (look(r, 0) == '_' && is_digit(look(r, 1))) {
        r->at += 2;
    } else if (look(r, 0) == '_' && look(r, 1) == '_') {
        r->at += 2;
        if (digits(r, false).size == 0 || !take(r, '_'))
            r->at = start;
    } else if (is_digit(look(r, 0))) {
        (void)digits(r, false);
        if (r->at != r->size)
            r->at = start;
    }
}

static piece local(struct reader *r, struct name_end *end)
{
    static const struct text string = {"::string literal", 16};
    expect(r, 'Z');
    piece function = read_encoding(r);
    expect(r, 'E');
    if (take(r, 's')) {
        discriminator(r);
        return lift(r, machtrace_make_suffixed, function, &string);
    }
    const struct levels around = r->levels;
    r->levels.count = 0;
    piece entity;
    if (take(r, 'd')) {
        (void)digits(r, true);
        expect(r, '_');
        entity = read_name(r, end);
    } else {
        entity = read_name(r, end);
        discriminator(r);
    }
    if (end == NULL)
        r->levels = around;
    return lift_two(r, machtrace_make_scoped, function, entity);
}

static piece read_name(struct reader *r, struct name_end *end)
{
    deeper(r);
    piece found;
    const char letter = look(r, 0);
    if (letter == 'N') {
        found = nested(r, end);
    } else if (letter == 'Z') {
        found = local(r, end);
    } else {
        bool is_known;
        found = unscoped(r, end, &is_known);
        if (look(r, 0) == 'I') {
            if (!is_known)
                substitute_later(r, found);
            found = with_arguments(r, found, end != NULL);
            if (end != NULL)
                end->template_arguments = true;
        } else if (is_known) {
            fail(r);
        }
    }
    r->depth--;
    return found;
}

/* --- functions and special objects --- */

static bool ends(const struct reader *r)
{
    return r->at == r->size || memchr("E._$", look(r, 0), 4) != NULL;
}

static piece function_or_object(struct reader *r)
{
    struct name_end end = {.qualifiers = TEXT("")};
    struct pieces parts = {0};
    piece name = read_name(r, &end);
    if (ends(r))
        return name;
    if (look(r, 0) == 'U' && look(r, 1) == 'a')
        fail(r); /* enable_if is not read here */
    machtrace_pieces_add(&r->arena, &parts, name);
    struct encoding_tail tail = {.qualifiers = end.qualifiers};
    tail.has_result = end.template_arguments && !end.constructor_or_conversion;
    if (tail.has_result)
        machtrace_pieces_add(&r->arena, &parts, read_type(r));
    if (!take(r, 'v'))
        while (!ends(r)) {
            if (look(r, 0) == 'Q')
                fail(r); /* constraints are not read here */
            machtrace_pieces_add(&r->arena, &parts, read_type(r));
        }
    if (look(r, 0) == 'Q')
        fail(r);
    return r->simplified ? name : lift_list(r, machtrace_make_encoding, &parts, &tail);
}

static void call_offset(struct reader *r)
{
    const bool is_virtual = take(r, 'v');
    if (!is_virtual)
        expect(r, 'h');
    for (int number = 0; number < (is_virtual ? 2 : 1); number++) {
        (void)digits(r, true);
        expect(r, '_');
    }
}

static piece special(struct reader *r)
{
    static const struct text vtable = {"vtable for ", 11}, vtt = {"VTT for ", 8},
                             info = {"typeinfo for ", 13}, info_name = {"typeinfo name for ", 18},
                             guard = {"guard variable for ", 19},
                             covariant = {"covariant return thunk to ", 26},
                             virtual_thunk = {"virtual thunk to ", 17},
                             thunk = {"non-virtual thunk to ", 21};
    if (take_two(r, "TV"))
        return lift(r, machtrace_make_prefixed, read_type(r), &vtable);
    if (take_two(r, "TT"))
        return lift(r, machtrace_make_prefixed, read_type(r), &vtt);
    if (take_two(r, "TI"))
        return lift(r, machtrace_make_prefixed, read_type(r), &info);
    if (take_two(r, "TS"))
        return lift(r, machtrace_make_prefixed, read_type(r), &info_name);
    if (take_two(r, "GV"))
        return lift(r, machtrace_make_prefixed, read_name(r, NULL), &guard);
    if (take_two(r, "TC")) {
        piece whole = read_type(r);
        (void)digits(r, true);
        expect(r, '_');
        return lift_two(r, machtrace_make_construction_vtable, read_type(r), whole);
    }
    if (take_two(r, "Tc")) {
        call_offset(r);
        call_offset(r);
        return lift(r, machtrace_make_prefixed, read_encoding(r), &covariant);
    }
    const bool is_virtual = look(r, 1) == 'v';
    if (look(r, 0) != 'T' || !(is_virtual || look(r, 1) == 'h'))
        fail(r); /* not read here */
    r->at++;
    call_offset(r);
    return lift(r, machtrace_make_prefixed, read_encoding(r), is_virtual ? &virtual_thunk : &thunk);
}

static piece read_encoding(struct reader *r)
{
    deeper(r);
    const struct levels around = r->levels;
    r->levels.count = 0;
    const char letter = look(r, 0);
    piece found = letter == 'G' || letter == 'T' ? special(r) : function_or_object(r);
    r->levels = around;
    r->depth--;
    return found;
}

/* Whether the function is a block's code, whose name goes on with that and a number. */
static bool is_block(struct reader *r)
{
    static const char invoke[] = "_block_invoke";
    const size_t size = sizeof invoke - 1;
    if (r->size - r->at < size || memcmp(r->name + r->at, invoke, size) != 0)
        return false;
    r->at += size;
    const bool is_numbered = take(r, '_');
    if (digits(r, false).size == 0 && is_numbered)
        fail(r);
    if (r->at != r->size && look(r, 0) != '.')
        fail(r);
    return true;
}

static char *whole(struct reader *r, size_t *length)
{
    enum { BLOCK, NAME, OPENING, REST, CLOSING, PARTS };
    struct text parts[PARTS] = {[NAME] = machtrace_piece_text(&r->arena, read_encoding(r))};
    if (is_block(r))
        parts[BLOCK] = TEXT("invocation function for block in ");
    if (r->at != r->size) {
        if (look(r, 0) != '.' && look(r, 0) != '$')
            fail(r);
        if (!r->simplified) {
            parts[OPENING] = TEXT(" (");
            parts[REST] = (struct text){r->name + r->at, r->size - r->at};
            parts[CLOSING] = TEXT(")");
        }
    }
    *length = 0;
    for (int part = 0; part < PARTS; part++)
        *length += parts[part].size;
    char *found = malloc(*length + 1);
    char *to = found;
    for (int part = 0; found != NULL && part < PARTS; part++) {
        if (parts[part].size == 0)
            continue;
        memcpy(to, parts[part].start, parts[part].size);
        to += parts[part].size;
    }
    return found;
}

/* In a function of its own, so that the reader is not among what longjmp() may spoil. */
static char *tried(struct reader *r, size_t *length)
{
    return setjmp(r->arena.failed) == 0 ? whole(r, length) : NULL;
}

char *machtrace_cplusplus_name(const char *mangled, size_t size, int simplified, size_t *length)
{
    _Alignas(16) char first[ON_STACK];
    struct reader reader = {
        .arena = {.at = first, .end = first + sizeof first, .left = MOST_MEMORY},
        .name = mangled,
        .size = size,
        .lambda_level = -1,
        .simplified = simplified != 0,
        .takes_arguments = true,
    };
    char *found = NULL;
    while (reader.at < 4 && look(&reader, 0) == '_')
        reader.at++;
    if (reader.at != 0 && take(&reader, 'Z'))
        found = tried(&reader, length);
    while (reader.arena.chunks != NULL) {
        struct chunk *next = reader.arena.chunks->next;
        free(reader.arena.chunks);
        reader.arena.chunks = next;
    }
    return found;
}
