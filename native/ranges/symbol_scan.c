/* See symbol_scan.h. */
#include "ranges/symbol_scan.h"

#include <string.h>

#define N_STAB 0xe0u
#define N_PEXT 0x10u
#define N_TYPE 0x0eu
#define N_EXT 0x01u
#define N_SECT 0x0eu

#define NLIST_SIZE 12u
#define NLIST_64_SIZE 16u

struct symbol {
    uint64_t value;
    bool counts; /* it is in a requested section, and has a name */
    bool is_external;
    bool is_local; /* it is in such a section of the image, and no other file was linked with it */
    bool is_label; /* and no compiler would name it so */
};

static inline uint32_t number32(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Shared caches call their local symbols "<redacted>". */
static inline bool is_named(const struct machtrace_symbol_scan *scan, uint32_t name)
{
    return name < scan->strings_size && scan->strings[name] != 0 && scan->strings[name] != '<';
}

static inline struct symbol symbol_of(const struct machtrace_symbol_scan *scan, size_t row)
{
    const unsigned char *at = scan->table + row * (scan->is_64 ? NLIST_64_SIZE : NLIST_SIZE);
    unsigned char type = at[4];
    uint32_t name = number32(at);
    uint64_t value = number32(at + 8);
    if (scan->is_64)
        value |= (uint64_t)number32(at + 12) << 32;
    bool is_function = (type & (N_STAB | N_TYPE)) == N_SECT && scan->sections[at[5]] && name != 0;
    bool counts = is_function && value >= scan->bounds.start && value < scan->bounds.next;
    bool is_external = (type & (N_PEXT | N_EXT)) == N_EXT;
    return (struct symbol){
        .value = value,
        .counts = counts,
        .is_external = is_external,
        .is_local = is_function && !is_external && value >= scan->base && is_named(scan, name),
        .is_label = counts && (type & (N_PEXT | N_EXT)) == 0 &&
                    (name >= scan->strings_size || scan->strings[name] != '_'),
    };
}

bool machtrace_symbol_at(const struct machtrace_symbol_scan *scan, uint64_t address,
                         struct machtrace_symbol_span *span)
{
    /* Without labels, and with them: the last symbol up to the address, and the next. */
    uint64_t last[2] = {0, 0}, next[2] = {scan->bounds.next, scan->bounds.next};
    bool any[2] = {false, false}, starts_here = false, has_locals = false;
    for (size_t row = 0; row < scan->count; row++) {
        struct symbol symbol = symbol_of(scan, row);
        has_locals |= symbol.is_local;
        if (!symbol.counts)
            continue;
        starts_here |= symbol.value == scan->bounds.start;
        for (int all = symbol.is_label ? 1 : 0; all < 2; all++) {
            if (symbol.value > address) {
                if (symbol.value < next[all])
                    next[all] = symbol.value;
            } else if (!any[all] || symbol.value > last[all]) {
                last[all] = symbol.value;
                any[all] = true;
            }
        }
    }
    if (!any[1] || !has_locals)
        return false;
    if (!starts_here) {
        *span = (struct machtrace_symbol_span){last[1], next[1]};
        return true;
    }
    /* Inside a function that has a name, labels name nothing. */
    *span = (struct machtrace_symbol_span){any[0] ? last[0] : scan->bounds.start, next[0]};
    return true;
}

size_t machtrace_symbols_at(const struct machtrace_symbol_scan *scan, uint64_t start,
                            uint32_t *rows, size_t room)
{
    size_t count = 0;
    for (int external = 1; external >= 0; external--) {
        for (size_t row = 0; row < scan->count; row++) {
            struct symbol symbol = symbol_of(scan, row);
            if (symbol.counts && symbol.value == start && symbol.is_external == (external != 0)) {
                if (count < room)
                    rows[count] = (uint32_t)row;
                count++;
            }
        }
    }
    return count;
}
