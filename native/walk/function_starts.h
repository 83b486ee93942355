/* LC_FUNCTION_STARTS (mach-o/loader.h): where the functions of a Mach-O begin. */
#ifndef MACHTRACE_FUNCTION_STARTS_H
#define MACHTRACE_FUNCTION_STARTS_H

#include <stddef.h>
#include <stdint.h>

/* How many starts a table of ULEB128 distances has before the distance of 0, or the end; -1 where
 * a distance is cut short or exceeds 64 bits. */
int64_t machtrace_function_starts_count(const unsigned char *table, size_t size);

/* Write them, count of them, from base on, which is not one of them. Returns 0; -1 where they
 * exceed 64 bits. The table is one that was counted. */
int machtrace_function_starts_decode(const unsigned char *table, uint64_t base, uint64_t *starts,
                                     size_t count);

#endif
