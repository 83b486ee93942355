/* See index.h. */
#include "ranges/index.h"

#include <stdbool.h>
#include <stdlib.h>

#define SLOTS 64u          /* of one word */
#define MIN_ROOM 1048576 /* bytes that a map may take however few ranges there are */
#define ROOM_A_ROW 96      /* bytes that it may take for each */
#define BUCKETS_A_ROW 4

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
/* Every such processor since 2008 counts bits, but compilers may not take that for granted. */
#define COUNTS_BITS 1
#include <emmintrin.h> /* SSE2, which all of them have */
#else
#define COUNTS_BITS 0
#endif

#define PAGE_BITS 8          /* a row's slot in its page is one byte */
#define COMPARED 16u         /* rows of a page that are compared at once */
#define MIN_PAGED 6291456u /* bytes of words: fewer are quicker without pages */
#define BLOCK 128u           /* offsets that are prefetched for before they are looked up */
#define NEAR_SLOTS 65536u    /* whose words, 16 kB, stay in any first-level cache */

static inline uint32_t bits_portable(uint64_t word)
{
#if (defined(__GNUC__) || defined(__clang__)) && !defined(__x86_64__)
    return (uint32_t)__builtin_popcountll(word);
#else
    word -= (word >> 1) & 0x5555555555555555u;
    word = (word & 0x3333333333333333u) + ((word >> 2) & 0x3333333333333333u);
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
    return (uint32_t)((word * 0x0101010101010101u) >> 56);
#endif
}

static unsigned trailing_zeros(uint64_t number)
{
    unsigned zeros = 0;
    while (zeros < 63 && (number >> zeros & 1) == 0)
        zeros++;
    return zeros;
}

size_t machtrace_range_index_size(const struct machtrace_range_index *index)
{
    size_t slots = (size_t)(index->span >> index->shift);
    if (index->words != NULL) {
        size_t pages = (slots >> PAGE_BITS) + 2;
        return (slots / SLOTS + 1) * sizeof *index->words +
               (index->pages == NULL ? 0 : pages * sizeof *index->pages + index->count + COMPARED);
    }
    return index->buckets == NULL ? 0 : (slots + 2) * sizeof *index->buckets;
}

void machtrace_range_index_free(struct machtrace_range_index *index)
{
    free(index->words);
    free(index->buckets);
    free(index->pages);
    free(index->in_page);
    index->words = NULL;
    index->pages = NULL;
    index->in_page = NULL;
    index->buckets = NULL;
}

/* Whether the answers at one word's slots are `values[row]` and those that follow it. */
static bool is_run(const int32_t *values, size_t row, size_t last)
{
    for (size_t at = row; at <= last; at++) {
        if (values[at] < 0 || values[at] != values[row] + (int32_t)(at - row))
            return false;
    }
    return true;
}

static void fill_words(struct machtrace_range_index *index)
{
    size_t words = (size_t)(index->span >> index->shift) / SLOTS + 1;
    size_t row = 0; /* the next to be placed */
    for (size_t number = 0; number < words; number++) {
        struct machtrace_rank_word *word = &index->words[number];
        size_t before = row; /* rows that start before this word */
        while (row < index->count) {
            uint64_t slot = (index->starts[row] - index->first) >> index->shift;
            if (slot / SLOTS != number)
                break;
            word->bits |= (uint64_t)1 << (slot % SLOTS);
            row++;
        }
        /* The first word's first slot has a bit, so there always is a row. */
        size_t current = before == 0 ? 0 : before - 1;
        uint32_t bias = before == 0 ? 1 : 0;
        if (index->values == NULL) {
            word->before = (uint32_t)current - bias;
        } else if (is_run(index->values, current, row - 1)) {
            word->before = (uint32_t)index->values[current] - bias;
        } else {
            word->before = (uint32_t)current - bias;
            word->mapped = 1;
        }
    }
}

#if COUNTS_BITS
static bool make_pages(struct machtrace_range_index *index)
{
    size_t pages = (size_t)(index->span >> index->shift >> PAGE_BITS) + 2;
    index->pages = malloc(pages * sizeof *index->pages);
    index->in_page = calloc(index->count + COMPARED, 1); /* the last are compared with some more */
    if (index->pages == NULL || index->in_page == NULL)
        return false;
    size_t row = 0;
    for (size_t number = 0; number < pages; number++) {
        index->pages[number] = (uint32_t)row;
        for (; row < index->count; row++) {
            uint64_t slot = (index->starts[row] - index->first) >> index->shift;
            if (slot >> PAGE_BITS != number)
                break;
            index->in_page[row] = (uint8_t)slot;
        }
    }
    while ((size_t)index->same < index->count &&
           (index->values == NULL || index->values[index->same] == index->same))
        index->same++;
    return true;
}
#endif

static void fill_buckets(struct machtrace_range_index *index)
{
    size_t buckets = (size_t)(index->span >> index->shift) + 2;
    size_t row = 0;
    for (size_t number = 0; number < buckets; number++) {
        while (row < index->count &&
               (index->starts[row] - index->first) >> index->shift < (uint64_t)number)
            row++;
        index->buckets[number] = (uint32_t)row;
    }
}

enum machtrace_index_result machtrace_range_index_make(struct machtrace_range_index *index,
                                                       const uint64_t *starts,
                                                       const int32_t *values, size_t count)
{
    uint64_t distances = 0;
    bool unique = true;
    for (size_t row = 1; row < count; row++) {
        if (starts[row] < starts[row - 1])
            return MACHTRACE_INDEX_NOT_SORTED;
        unique &= starts[row] != starts[row - 1];
        distances |= starts[row] - starts[0];
    }
    *index = (struct machtrace_range_index){
        .starts = starts,
        .values = values,
        .count = count,
        .first = starts[0],
        .span = starts[count - 1] - starts[0],
        .shift = distances == 0 ? 0 : trailing_zeros(distances),
    };
    uint64_t room = MIN_ROOM + (uint64_t)ROOM_A_ROW * count;
    uint64_t words = (index->span >> index->shift) / SLOTS + 1;
    if (unique && words <= room / sizeof *index->words) {
        index->words = calloc((size_t)words, sizeof *index->words);
        if (index->words == NULL)
            return MACHTRACE_INDEX_NO_MEMORY;
        fill_words(index);
#if COUNTS_BITS
        /* With many rows to a page, words are no larger than pages. */
        if (words * sizeof *index->words > MIN_PAGED &&
            count / COMPARED < index->span >> index->shift >> PAGE_BITS && !make_pages(index)) {
            machtrace_range_index_free(index);
            return MACHTRACE_INDEX_NO_MEMORY;
        }
#endif
        return MACHTRACE_INDEX_MADE;
    }
    index->shift = 0;
    while (index->span >> index->shift > (uint64_t)BUCKETS_A_ROW * count)
        index->shift++;
    index->buckets = malloc(((size_t)(index->span >> index->shift) + 2) * sizeof *index->buckets);
    if (index->buckets == NULL)
        return MACHTRACE_INDEX_NO_MEMORY;
    fill_buckets(index);
    return MACHTRACE_INDEX_MADE;
}

/* --- lookups: written once, compiled with and without the instruction that counts bits --- */

#define FIND_IN_WORDS(name, attribute, count_bits)                                                 \
    attribute static void name(const struct machtrace_range_index *index, const uint64_t *offsets, \
                               size_t count, uint64_t back, int32_t *answers)                      \
    {                                                                                              \
        const struct machtrace_rank_word *words = index->words;                                    \
        const uint64_t first = index->first, span = index->span;                                   \
        const unsigned shift = index->shift;                                                       \
        for (size_t at = 0; at < count; at++) {                                                    \
            uint64_t offset = offsets[at] - back;                                                  \
            if (offsets[at] < back || offset < first) {                                            \
                answers[at] = -1;                                                                  \
                continue;                                                                          \
            }                                                                                      \
            uint64_t distance = offset - first;                                                    \
            uint64_t slot = (distance < span ? distance : span) >> shift;                          \
            const struct machtrace_rank_word *word = &words[slot / SLOTS];                         \
            uint64_t upto = word->bits << (SLOTS - 1 - slot % SLOTS);                              \
            uint32_t answer = word->before + count_bits(upto);                                     \
            answers[at] = word->mapped ? index->values[answer] : (int32_t)answer;                  \
        }                                                                                          \
    }

#if COUNTS_BITS
#define BITS_BY_INSTRUCTION(word) ((uint32_t)__builtin_popcountll(word))
FIND_IN_WORDS(find_by_instruction, __attribute__((target("popcnt"))), BITS_BY_INSTRUCTION)
#endif
FIND_IN_WORDS(find_portably, , bits_portable)

static void find_in_words(const struct machtrace_range_index *index, const uint64_t *offsets,
                          size_t count, uint64_t back, int32_t *answers)
{
#if COUNTS_BITS
    if (__builtin_cpu_supports("popcnt")) {
        find_by_instruction(index, offsets, count, back, answers);
        return;
    }
#endif
    find_portably(index, offsets, count, back, answers);
}

#if COUNTS_BITS
/* Of `count` sorted slots of a page, how many are at or before `slot`. */
static inline uint32_t slots_upto(const uint8_t *slots, uint32_t count, uint8_t slot)
{
    const __m128i last = _mm_set1_epi8((char)slot);
    for (uint32_t at = 0;; at += COMPARED) {
        __m128i some = _mm_loadu_si128((const __m128i *)(slots + at));
        __m128i upto = _mm_cmpeq_epi8(_mm_min_epu8(some, last), some);
        uint32_t more = (uint32_t)__builtin_ctz(~(uint32_t)_mm_movemask_epi8(upto));
        if (more < COMPARED || at + COMPARED >= count) /* what is behind the page counts for none */
            return at + more < count ? at + more : count;
    }
}

/* At most BLOCK offsets. All of the pages are read before the first answer is worked out, so that
 * the processor waits for many at a time. */
static void find_in_pages(const struct machtrace_range_index *index, const uint64_t *offsets,
                          size_t count, uint64_t back, int32_t *answers)
{
    struct {
        uint32_t row; /* the page's first */
        uint16_t rows;
        uint8_t slot;
    } pages[BLOCK];
    for (size_t at = 0; at < count; at++) {
        uint64_t offset = offsets[at] - back;
        pages[at].row = pages[at].rows = pages[at].slot = 0;
        if (offsets[at] < back || offset < index->first)
            continue;
        uint64_t distance = offset - index->first;
        uint64_t slot = (distance < index->span ? distance : index->span) >> index->shift;
        const uint32_t *page = &index->pages[slot >> PAGE_BITS];
        pages[at].row = page[0];
        pages[at].rows = (uint16_t)(page[1] - page[0]);
        pages[at].slot = (uint8_t)slot;
        __builtin_prefetch(&index->in_page[page[0]]);
    }
    for (size_t at = 0; at < count; at++) {
        const uint8_t *slots = &index->in_page[pages[at].row];
        uint32_t upto = slots_upto(slots, pages[at].rows, pages[at].slot);
        int32_t row = (int32_t)(pages[at].row + upto) - 1;
        answers[at] = row < index->same ? row : index->values[row];
    }
}

/* By the map where offsets are close together, as sorted ones are: that part of it stays in the
 * cache, and a word takes fewer instructions than a page. */
static void find_in_blocks(const struct machtrace_range_index *index, const uint64_t *offsets,
                           size_t count, uint64_t back, int32_t *answers)
{
    const uint64_t reach = (uint64_t)NEAR_SLOTS << index->shift;
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t some = count - at < BLOCK ? count - at : BLOCK;
        bool is_near = offsets[at + some - 1] - offsets[at] + reach < 2 * reach;
        (is_near ? find_in_words : find_in_pages)(index, offsets + at, some, back, answers + at);
    }
}
#endif

static void find_in_buckets(const struct machtrace_range_index *index, const uint64_t *offsets,
                            size_t count, uint64_t back, int32_t *answers)
{
    for (size_t at = 0; at < count; at++) {
        uint64_t offset = offsets[at] - back;
        if (offsets[at] < back || offset < index->first) {
            answers[at] = -1;
            continue;
        }
        uint64_t distance = offset - index->first;
        size_t bucket = (size_t)((distance < index->span ? distance : index->span) >> index->shift);
        size_t low = index->buckets[bucket], high = index->buckets[bucket + 1];
        while (low < high) { /* the first row that starts behind the offset */
            size_t middle = low + (high - low) / 2;
            if (index->starts[middle] <= offset)
                low = middle + 1;
            else
                high = middle;
        }
        answers[at] = index->values == NULL ? (int32_t)(low - 1) : index->values[low - 1];
    }
}

void machtrace_range_index_find(const struct machtrace_range_index *index, const uint64_t *offsets,
                                size_t count, uint64_t back, int32_t *answers)
{
    if (index->words == NULL) {
        find_in_buckets(index, offsets, count, back, answers);
        return;
    }
#if COUNTS_BITS
    if (index->pages != NULL) {
        find_in_blocks(index, offsets, count, back, answers);
        return;
    }
#endif
    find_in_words(index, offsets, count, back, answers);
}
