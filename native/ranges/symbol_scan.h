/* One answer from a Mach-O's tables as they lie in the file, without an index of all symbols.
 *
 * A process that wants one name should not have to sort half a million. The rules are those of
 * machtrace/symbols/table.py, which tests hold this to.
 */
#ifndef MACHTRACE_RANGES_SYMBOL_SCAN_H
#define MACHTRACE_RANGES_SYMBOL_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ranges/function_starts.h"

struct machtrace_symbol_scan {
    const unsigned char *table; /* struct nlist or nlist_64, little-endian */
    size_t count;
    bool is_64;
    const unsigned char *strings; /* the string table */
    size_t strings_size;
    const unsigned char *sections; /* 256: whether symbols of a section count */
    uint64_t base;                 /* of the image: no symbol counts that is before it */
    struct machtrace_function bounds; /* only symbols from start on, and before next */
};

struct machtrace_symbol_span {
    uint64_t start; /* of the symbols that name the address */
    uint64_t end;   /* what the bounds or the next symbol leave */
};

/* Finds what names `address`; false if nothing does, or where no symbol of a function is local:
 * in an image that was stripped of those, a name before an address may be another function's. */
bool machtrace_symbol_at(const struct machtrace_symbol_scan *scan, uint64_t address,
                         struct machtrace_symbol_span *span);

/* The rows whose symbols are at `start`: those that others can see first, else in the table's
 * order. Returns how many there are, and fills in at most `room`. */
size_t machtrace_symbols_at(const struct machtrace_symbol_scan *scan, uint64_t start,
                            uint32_t *rows, size_t room);

#endif
