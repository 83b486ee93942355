#include "names/reader.h"

struct text machtrace_read_digits(struct reader *r, bool is_signed)
{
    size_t start = r->at;
    if (is_signed && look(r, 0) == 'n')
        r->at++;
    while (is_digit(look(r, 0)))
        r->at++;
    return (struct text){r->name + start, r->at - start};
}

size_t machtrace_read_number(struct reader *r)
{
    struct text found = machtrace_read_digits(r, false);
    if (found.size == 0 || found.size > 6)
        fail(r);
    size_t value = 0;
    for (size_t at = 0; at < found.size; at++)
        value = 10 * value + (size_t)(found.start[at] - '0');
    return value;
}

struct text machtrace_read_source_name(struct reader *r)
{
    static const char anonymous[] = "_GLOBAL__N";
    if (look(r, 0) == '0')
        fail(r);
    size_t size = machtrace_read_number(r);
    if (size > r->size - r->at)
        fail(r);
    struct text found = {r->name + r->at, size};
    r->at += size;
    if (size >= sizeof anonymous - 1 && memcmp(found.start, anonymous, sizeof anonymous - 1) == 0)
        return TEXT("(anonymous namespace)");
    return found;
}

struct text machtrace_read_qualifiers(struct reader *r)
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
