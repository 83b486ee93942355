#include "names/reader.h"

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
    if (index >= r->substitutions.count)
        fail(r);
    return r->substitutions.items[index];
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
    piece found;
    const char letter = look(r, 0);
    if (letter == 'N') {
        found = nested(r, end);
    } else if (letter == 'Z') {
        found = local(r, end);
    } else {
        bool is_known;
        found = machtrace_read_unscoped(r, end, &is_known);
        if (look(r, 0) == 'I') {
            if (!is_known)
                substitute_later(r, found);
            found = machtrace_read_with_arguments(r, found, end != NULL);
            if (end != NULL)
                end->template_arguments = true;
        } else if (is_known) {
            fail(r);
        }
    }
    r->depth--;
    return found;
}
