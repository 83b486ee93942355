/* LC_FUNCTION_STARTS (mach-o/loader.h): where the functions of a Mach-O begin.
 *
 * The table is a list of ULEB128 distances, the first from the start of __TEXT; a distance of 0
 * ends it. machtrace/formats/macho/tables/function_starts.py decodes the same and reports what is
 * wrong with a malformed table.
 */
#ifndef MACHTRACE_RANGES_FUNCTION_STARTS_H
#define MACHTRACE_RANGES_FUNCTION_STARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Count the starts in a table; -1 if a distance is truncated or exceeds 64 bits. */
int64_t machtrace_function_starts_count(const unsigned char *table, size_t size);

/* Write the `count` starts of a table that was counted. Return 0; -1 if they exceed 64 bits. */
int machtrace_function_starts_decode(const unsigned char *table, uint64_t *starts, size_t count);

struct machtrace_function {
    uint64_t start; /* of the last function at or before the address */
    uint64_t next;  /* of the first one after it; UINT64_MAX if there is none */
};

/* Find the function that holds `address`, with distances counted from `base`, without decoding the
 * rest of the table. Starts of 32-bit arm have no Thumb bit. Return 0 if found, 1 if no function is
 * at or before the address, -1 if the table is malformed. */
int machtrace_function_holding(const unsigned char *table, size_t size, uint64_t base, bool is_arm,
                               uint64_t address, struct machtrace_function *function);

#endif
