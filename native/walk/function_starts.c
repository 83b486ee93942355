/* See function_starts.h; macho/function_starts.py does the same, and says what is amiss. */
#include "walk/function_starts.h"

#define MORE 0x80u /* of a byte: another follows */
#define LONGEST 10 /* bytes of a distance */

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
        if (at - start > LONGEST || (at - start == LONGEST && table[at - 1] > 1))
            return -1;
        if (any == 0)
            break;
        count++;
    }
    return count;
}

int machtrace_function_starts_decode(const unsigned char *table, uint64_t base, uint64_t *starts,
                                     size_t count)
{
    for (size_t index = 0; index < count; index++) {
        uint64_t distance = 0;
        unsigned shift = 0;
        while ((*table & MORE) != 0) {
            distance |= (uint64_t)(*table++ & (unsigned char)~MORE) << shift;
            shift += 7;
        }
        distance |= (uint64_t)*table++ << shift;
        if (distance > UINT64_MAX - base)
            return -1;
        base += distance;
        starts[index] = base;
    }
    return 0;
}
