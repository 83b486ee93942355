#include "names/reader.h"

static piece unnamed_type(struct reader *r, bool clear)
{
    if (clear)
        r->levels.count = 0;
    if (take_two(r, "Ut")) {
        struct text parts[] = {TEXT("'unnamed"), machtrace_read_digits(r, false), TEXT("'")};
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
            machtrace_pieces_add(&r->arena, &parameters, machtrace_read_type(r));
        while (look(r, 0) != 'E');
    expect(r, 'E');
    r->lambda_level = level;
    r->levels.count = count;
    r->takes_arguments = takes;
    r->in_arguments = in_arguments;
    struct text number = machtrace_read_digits(r, false);
    expect(r, '_');
    if (r->simplified) {
        struct text parts[] = {TEXT("'lambda"), number, TEXT("'")};
        return plain(r, machtrace_text_joined(&r->arena, parts, 3));
    }
    struct piece *result = machtrace_piece_memory(&r->arena, sizeof *result);
    *result = *machtrace_piece_lift(&r->arena, machtrace_make_lambda, parameters.items,
                                    parameters.count, &number, sizeof number);
    if (count == 0)
        result->scope = 0;
    result->recipe = NULL; /* its own parameters are settled; those around it: not read here */
    return result;
}

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
        piece to = machtrace_read_type(r);
        r->takes_arguments = takes;
        r->in_conversion = before;
        if (end != NULL)
            end->constructor_or_conversion = true;
        return lift(r, machtrace_make_prefixed, to, &converts);
    }
    if (take_two(r, "li")) {
        struct text parts[] = {TEXT("operator\"\" "), machtrace_read_source_name(r)};
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
    return lift_one(r, constructs ? machtrace_make_constructor : machtrace_make_destructor, scope);
}

piece machtrace_read_unqualified(struct reader *r, struct name_end *end, piece scope)
{
    static const struct text standard = {"std", 3};
    if (look(r, 0) == 'W' || (scope != NULL && look(r, 0) == 'F'))
        fail(r); /* modules and friends are not read here */
    (void)take(r, 'L');
    const char letter = look(r, 0);
    piece result;
    if (letter >= '1' && letter <= '9') {
        struct text name = machtrace_read_source_name(r);
        result = machtrace_piece(&r->arena, name, TEXT(""), PLAIN, name);
    } else if ((letter == 'C' || letter == 'D') && scope != NULL) {
        if (look(r, 0) == 'D' && look(r, 1) == 'C')
            fail(r); /* structured bindings are not read here */
        result = special_member(r, end, scope);
    } else if (letter == 'U') {
        result = unnamed_type(r, end != NULL);
    } else {
        result = operator_name(r, end);
    }
    while (take(r, 'B')) {
        struct text parts[] = {machtrace_piece_text(&r->arena, result), TEXT("[abi:"),
                               machtrace_read_source_name(r), TEXT("]")};
        result = machtrace_piece(&r->arena, machtrace_text_joined(&r->arena, parts, 4), TEXT(""),
                                 PLAIN, result->base);
    }
    if (scope == NULL)
        return result;
    if (r->simplified && scope->left.size == standard.size &&
        memcmp(scope->left.start, standard.start, standard.size) == 0 &&
        is_inline_namespace(result->left))
        return scope;
    return lift_two(r, machtrace_make_scoped, scope, result);
}

static size_t sequence_number(struct reader *r)
{
    if (take(r, '_'))
        return 0;
    size_t value = 0;
    for (;;) {
        char digit = look(r, 0);
        if (is_digit(digit))
            value = value * 36 + (size_t)(digit - '0');
        else if (digit >= 'A' && digit <= 'Z')
            value = value * 36 + (size_t)(digit - 'A') + 10;
        else
            break;
        if (value > r->size)
            fail(r);
        r->at++;
    }
    expect(r, '_');
    return value + 1;
}

piece machtrace_read_substitution(struct reader *r)
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
    if (index >= r->substitutions.count || index >= r->doubtful)
        fail(r);
    piece known = r->substitutions.items[index];
    if (known->scope != 0 && (known->level >= r->levels.count ||
                              r->levels.scopes[known->level] != known->scope))
        return machtrace_rebuilt(r, known); /* a parameter of another template than here */
    return known;
}

piece machtrace_read_unscoped(struct reader *r, struct name_end *end, bool *is_known)
{
    *is_known = false;
    piece scope = NULL;
    if (take_two(r, "St"))
        scope = plain(r, TEXT("std"));
    if (look(r, 0) == 'S') {
        if (scope != NULL)
            fail(r);
        *is_known = true;
        return machtrace_read_substitution(r);
    }
    return machtrace_read_unqualified(r, end, scope);
}

static struct text member_qualifiers(struct reader *r)
{
    struct text both[] = {machtrace_read_qualifiers(r), TEXT("")};
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
            scope = machtrace_read_template_parameter(r);
        } else if (letter == 'I') {
            if (scope == NULL || scope->shape == TEMPLATE)
                fail(r);
            scope = machtrace_read_with_arguments(r, scope, end != NULL);
            if (end != NULL)
                end->template_arguments = true;
        } else if (letter == 'D' && scope == NULL) {
            fail(r); /* decltype is not read here */
        } else if (letter == 'S') {
            if (scope != NULL)
                fail(r);
            scope = take_two(r, "St") ? plain(r, TEXT("std")) : machtrace_read_substitution(r);
            continue;
        } else {
            scope = machtrace_read_unqualified(r, end, scope);
        }
        if (take(r, 'M'))
            doubt(r); /* not all compilers number variables that a lambda initialises */
        substitute_later(r, scope);
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
        if (machtrace_read_digits(r, false).size == 0 || !take(r, '_'))
            r->at = start;
    } else if (is_digit(look(r, 0))) {
        (void)machtrace_read_digits(r, false);
        if (r->at != r->size)
            r->at = start;
    }
}

static piece local(struct reader *r, struct name_end *end)
{
    static const struct text string = {"::string literal", 16};
    expect(r, 'Z');
    piece function = machtrace_read_encoding(r);
    expect(r, 'E');
    if (take(r, 's')) {
        discriminator(r);
        return lift(r, machtrace_make_suffixed, function, &string);
    }
    const struct levels around = r->levels;
    r->levels.count = 0;
    piece entity;
    if (take(r, 'd')) {
        (void)machtrace_read_digits(r, true);
        expect(r, '_');
        entity = machtrace_read_name(r, end);
    } else {
        entity = machtrace_read_name(r, end);
        discriminator(r);
    }
    if (end == NULL)
        r->levels = around;
    return lift_two(r, machtrace_make_scoped, function, entity);
}

piece machtrace_read_name(struct reader *r, struct name_end *end)
{
    deeper(r);
    piece result;
    const char letter = look(r, 0);
    if (letter == 'N') {
        result = nested(r, end);
    } else if (letter == 'Z') {
        result = local(r, end);
    } else {
        bool is_known;
        result = machtrace_read_unscoped(r, end, &is_known);
        if (look(r, 0) == 'I') {
            if (!is_known)
                substitute_later(r, result);
            result = machtrace_read_with_arguments(r, result, end != NULL);
            if (end != NULL)
                end->template_arguments = true;
        } else if (is_known) {
            fail(r);
        }
    }
    r->depth--;
    return result;
}
