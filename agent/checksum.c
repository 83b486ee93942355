/* Eight bytes a step: "slicing by 8", Kounavis and Berry, 2005. */
#include "checksum.h"

#include <stdbool.h>
#include <stdatomic.h>

static uint32_t tables[8][256];
static _Atomic bool is_ready;

/* Threads that are here at once write the same. */
static void prepare(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? UINT32_C(0xedb88320) : 0);
        tables[0][byte] = value;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int table = 1; table < 8; table++) {
            uint32_t last = tables[table - 1][byte];
            tables[table][byte] = last >> 8 ^ tables[0][last & 0xff];
        }
    atomic_store(&is_ready, true);
}

uint32_t machtrace_checksum(uint32_t checksum, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    if (!atomic_load(&is_ready))
        prepare();
    checksum = ~checksum;
    for (; size >= 8; size -= 8, at += 8) {
        uint32_t low = checksum ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 |
                                   (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        checksum = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^
                   tables[5][low >> 16 & 0xff] ^ tables[4][low >> 24] ^ tables[3][at[4]] ^
                   tables[2][at[5]] ^ tables[1][at[6]] ^ tables[0][at[7]];
    }
    for (; size > 0; size--, at++)
        checksum = checksum >> 8 ^ tables[0][(checksum ^ *at) & 0xff];
    return ~checksum;
}
