#include "names/reader.h"

static bool ends(const struct reader *r)
{
    return r->at == r->size || memchr("E._$", look(r, 0), 4) != NULL;
}

static piece function_or_object(struct reader *r)
{
    struct name_end end = {.qualifiers = TEXT("")};
    struct pieces parts = {0};
    piece name = machtrace_read_name(r, &end);
    if (ends(r))
        return name;
    if (look(r, 0) == 'U' && look(r, 1) == 'a')
        fail(r); /* enable_if is not read here */
    machtrace_pieces_add(&r->arena, &parts, name);
    struct encoding_tail tail = {.qualifiers = end.qualifiers};
    tail.has_result = end.template_arguments && !end.constructor_or_conversion;
    if (tail.has_result)
        machtrace_pieces_add(&r->arena, &parts, machtrace_read_type(r));
    if (!take(r, 'v'))
        while (!ends(r)) {
            if (look(r, 0) == 'Q')
                fail(r); /* constraints are not read here */
            machtrace_pieces_add(&r->arena, &parts, machtrace_read_type(r));
        }
    if (look(r, 0) == 'Q')
        fail(r);
    return r->simplified ? name : machtrace_piece_lift(&r->arena, machtrace_make_encoding, parts.items,
                                                       parts.count, &tail, sizeof tail);
}

static void call_offset(struct reader *r)
{
    const bool is_virtual = take(r, 'v');
    if (!is_virtual)
        expect(r, 'h');
    for (int number = 0; number < (is_virtual ? 2 : 1); number++) {
        (void)machtrace_read_digits(r, true);
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
        return lift(r, machtrace_make_prefixed, machtrace_read_type(r), &vtable);
    if (take_two(r, "TT"))
        return lift(r, machtrace_make_prefixed, machtrace_read_type(r), &vtt);
    if (take_two(r, "TI"))
        return lift(r, machtrace_make_prefixed, machtrace_read_type(r), &info);
    if (take_two(r, "TS"))
        return lift(r, machtrace_make_prefixed, machtrace_read_type(r), &info_name);
    if (take_two(r, "GV"))
        return lift(r, machtrace_make_prefixed, machtrace_read_name(r, NULL), &guard);
    if (take_two(r, "TC")) {
        piece whole = machtrace_read_type(r);
        (void)machtrace_read_digits(r, true);
        expect(r, '_');
        return lift_two(r, machtrace_make_construction_vtable, machtrace_read_type(r), whole);
    }
    if (take_two(r, "Tc")) {
        call_offset(r);
        call_offset(r);
        return lift(r, machtrace_make_prefixed, machtrace_read_encoding(r), &covariant);
    }
    const bool is_virtual = look(r, 1) == 'v';
    if (look(r, 0) != 'T' || !(is_virtual || look(r, 1) == 'h'))
        fail(r); /* not read here */
    r->at++;
    call_offset(r);
    return lift(r, machtrace_make_prefixed, machtrace_read_encoding(r),
                is_virtual ? &virtual_thunk : &thunk);
}

piece machtrace_read_encoding(struct reader *r)
{
    deeper(r);
    const struct levels around = r->levels;
    const int lambda_level = r->lambda_level;
    r->levels.count = 0;
    r->lambda_level = -1;
    const char letter = look(r, 0);
    piece result = letter == 'G' || letter == 'T' ? special(r) : function_or_object(r);
    r->levels = around;
    r->lambda_level = lambda_level;
    r->depth--;
    return machtrace_piece_closed(&r->arena, result);
}
