/* See function_starts.h. */
#include "ranges/function_starts.h"

#define MORE 0x80u /* of a byte: another follows */
#define MAX_LENGTH 10 /* bytes of a distance */

int64_t machtrace_function_starts_count(const unsigned char *table, size_t size)
{
    int64_t count = 0;
    for (size_t at = 0; at < size;) {
        size_t start = at;
        unsigned char any = 0;
        while (at < size && (table[at] & MORE) != 0)
            any |= table[at++] & (unsigned char)~MORE;
        if (at >= size)
            return -1;
        any |= table[at++];
        if (at - start > MAX_LENGTH || (at - start == MAX_LENGTH && table[at - 1] > 1))
            return -1;
        if (any == 0)
            break;
        count++;
    }
    return count;
}

int machtrace_function_starts_decode(const unsigned char *table, uint64_t *starts, size_t count)
{
    uint64_t start = 0;
    for (size_t index = 0; index < count; index++) {
        uint64_t distance = 0;
        unsigned shift = 0;
        while ((*table & MORE) != 0) {
            distance |= (uint64_t)(*table++ & (unsigned char)~MORE) << shift;
            shift += 7;
        }
        distance |= (uint64_t)*table++ << shift;
        if (distance > UINT64_MAX - start)
            return -1;
        start += distance;
        starts[index] = start;
    }
    return 0;
}

int machtrace_function_holding(const unsigned char *table, size_t size, uint64_t base, bool is_arm,
                               uint64_t address, struct machtrace_function *function)
{
    uint64_t start = base, previous = 0;
    bool any = false;
    for (size_t at = 0; at < size;) {
        uint64_t distance = 0;
        size_t length = 0;
        for (;; length++) {
            if (at + length >= size || length >= MAX_LENGTH)
                return -1;
            unsigned char byte = table[at + length];
            if (length == MAX_LENGTH - 1 && byte > 1)
                return -1;
            distance |= (uint64_t)(byte & (unsigned char)~MORE) << (7 * length);
            if ((byte & MORE) == 0)
                break;
        }
        at += length + 1;
        if (distance == 0)
            break;
        if (distance > UINT64_MAX - start)
            return -1;
        start += distance;
        uint64_t function_start = is_arm ? start & ~UINT64_C(1) : start;
        if (function_start > address) {
            if (!any)
                return 1;
            *function = (struct machtrace_function){previous, function_start};
            return 0;
        }
        previous = function_start;
        any = true;
    }
    if (!any)
        return 1;
    *function = (struct machtrace_function){previous, UINT64_MAX};
    return 0;
}
