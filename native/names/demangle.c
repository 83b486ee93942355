#include "names/demangle.h"

#include <stdlib.h>

#include "names/reader.h"

#define MAX_MEMORY ((size_t)1 << 22)
#define ON_STACK 12288

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
    struct text digits = machtrace_read_digits(r, false);
    if (digits.size == 0 || digits.size > 6)
        fail(r);
    size_t value = 0;
    for (size_t at = 0; at < digits.size; at++)
        value = 10 * value + (size_t)(digits.start[at] - '0');
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
    struct text name = {r->name + r->at, size};
    r->at += size;
    if (size >= sizeof anonymous - 1 && memcmp(name.start, anonymous, sizeof anonymous - 1) == 0)
        return TEXT("(anonymous namespace)");
    return name;
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
    unsigned flags = take(r, 'r') ? 4 : 0;
    flags |= take(r, 'V') ? 2 : 0;
    flags |= take(r, 'K') ? 1 : 0;
    return all[flags];
}

/* Whether the function is a block's code, whose name continues with that and a number. */
static bool is_block(struct reader *r)
{
    static const char invoke[] = "_block_invoke";
    const size_t size = sizeof invoke - 1;
    if (r->size - r->at < size || memcmp(r->name + r->at, invoke, size) != 0)
        return false;
    r->at += size;
    const bool is_numbered = take(r, '_');
    if (machtrace_read_digits(r, false).size == 0 && is_numbered)
        fail(r);
    if (r->at != r->size && look(r, 0) != '.')
        fail(r);
    return true;
}

static char *read_whole(struct reader *r, size_t *length)
{
    enum { BLOCK, NAME, OPENING, REST, CLOSING, PARTS };
    piece name = machtrace_read_encoding(r);
    struct text parts[PARTS] = {[NAME] = machtrace_piece_text(&r->arena, name)};
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
    char *result = malloc(*length + 1);
    char *to = result;
    for (int part = 0; result != NULL && part < PARTS; part++) {
        if (parts[part].size == 0)
            continue;
        memcpy(to, parts[part].start, parts[part].size);
        to += parts[part].size;
    }
    return result;
}

/* In a function of its own, so that longjmp() cannot clobber the reader. */
static char *read_or_fail(struct reader *r, size_t *length)
{
    return setjmp(r->arena.failed) == 0 ? read_whole(r, length) : NULL;
}

char *machtrace_cplusplus_name(const char *mangled, size_t size, int simplified, size_t *length)
{
    _Alignas(16) char first[ON_STACK];
    struct reader reader = {
        .arena = {.at = first, .end = first + sizeof first, .left = MAX_MEMORY},
        .name = mangled,
        .size = size,
        .lambda_level = -1,
        .doubtful = SIZE_MAX,
        .simplified = simplified != 0,
        .takes_arguments = true,
    };
    char *result = NULL;
    while (reader.at < 4 && look(&reader, 0) == '_')
        reader.at++;
    reader.is_in_macho = reader.at % 2 == 0;
    if (reader.at != 0 && take(&reader, 'Z'))
        result = read_or_fail(&reader, length);
    while (reader.arena.chunks != NULL) {
        struct chunk *next = reader.arena.chunks->next;
        free(reader.arena.chunks);
        reader.arena.chunks = next;
    }
    return result;
}
