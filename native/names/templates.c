#include "names/reader.h"

piece machtrace_read_with_arguments(struct reader *r, piece name, bool remember)
{
    piece arguments = machtrace_read_arguments(r, remember);
    return lift_two(r, machtrace_make_with_arguments, name, arguments);
}

piece machtrace_read_template_parameter(struct reader *r)
{
    expect(r, 'T');
    int level = 0;
    if (take(r, 'L')) {
        level = (int)machtrace_read_number(r) + 1;
        expect(r, '_');
    }
    size_t index = 0;
    if (!take(r, '_')) {
        index = machtrace_read_number(r) + 1;
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

/* An argument; *entry is what a parameter stands for that it is given to. */
static piece argument(struct reader *r, piece *entry)
{
    char letter = look(r, 0);
    piece found;
    if (letter == 'X') {
        r->at++;
        found = machtrace_read_expression(r);
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
        found = machtrace_read_literal(r);
    } else if (letter == 'T' && memchr("yptnk", look(r, 1), 5) != NULL) {
        fail(r); /* declarations are not read here */
    } else {
        found = machtrace_read_type(r);
    }
    *entry = found;
    return found;
}

piece machtrace_read_arguments(struct reader *r, bool remember)
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
    const piece_maker make =
        r->simplified ? machtrace_make_folded_arguments : machtrace_make_arguments;
    return lift_list(r, make, &shown, NULL);
}
