/* Which of many sorted starts is the last at or before an offset: a rank over a map of bits.
 *
 * One 16-byte word has a bit for each of 64 slots, set if a range starts in it, and the answer
 * before the first of them. So a lookup reads one cache line, whatever the number of ranges. Where
 * starts are too far apart for that, a table of buckets leads to a few of them, which are searched.
 *
 * The map of a large image exceeds a processor's own cache, and random lookups wait for memory.
 * There, a table has the first row of each page of 256 slots, and each row its slot in its page,
 * one byte: two cache lines a lookup and more instructions, but an eighth of the memory. Pages are
 * built for x86-64 only (by GCC and clang).
 */
#ifndef MACHTRACE_RANGES_INDEX_H
#define MACHTRACE_RANGES_INDEX_H

#include <stddef.h>
#include <stdint.h>

struct machtrace_rank_word {
    uint64_t bits;
    uint32_t before; /* of the answer: added to the number of bits up to the slot */
    uint32_t mapped; /* whether that is a row whose value has to be looked up */
};

struct machtrace_range_index {
    const uint64_t *starts; /* ascending; the caller keeps them */
    const int32_t *values;  /* one a row, or NULL if the row itself is the answer */
    size_t count;
    uint64_t first;                    /* starts[0] */
    uint64_t span;                     /* from there to the last start */
    unsigned shift;                    /* bits of a distance that one slot or bucket has */
    struct machtrace_rank_word *words; /* or NULL */
    uint32_t *buckets;                 /* or NULL: rows before each bucket, and one more */
    uint32_t *pages;                   /* or NULL: rows before each page, and one more */
    uint8_t *in_page;                  /* a row's slot in its page */
    int32_t same;                      /* the first rows, which are themselves the answers */
};

enum machtrace_index_result {
    MACHTRACE_INDEX_MADE,
    MACHTRACE_INDEX_NOT_SORTED,
    MACHTRACE_INDEX_NO_MEMORY,
};

/* Fills in the index; count is not 0 and below 2^31. */
enum machtrace_index_result machtrace_range_index_make(struct machtrace_range_index *index,
                                                       const uint64_t *starts,
                                                       const int32_t *values, size_t count);

/* How many bytes were allocated. */
size_t machtrace_range_index_size(const struct machtrace_range_index *index);

void machtrace_range_index_free(struct machtrace_range_index *index);

/* For each offset less `back` the value of the last row that starts at or before it; -1 before the
 * first. May run in several threads at once. */
void machtrace_range_index_find(const struct machtrace_range_index *index, const uint64_t *offsets,
                                size_t count, uint64_t back, int32_t *answers);

#endif
