/* See frame_records.h. */
#include "walk/frame_records.h"

#define NULL_PAGE 0x1000u
#define RECORD_SIZE 16
#define WORD 8
#define TAG_SHIFT 60 /* of the frame pointer that asynchronous functions of Swift store */

/* Stacks of other functions may have words that no store of this program shows to a checker. */
#if defined(__clang__)
__attribute__((no_sanitize("address", "thread")))
#elif defined(__GNUC__)
__attribute__((no_sanitize_address, no_sanitize_thread))
#endif
void machtrace_frame_records(const struct machtrace_frame_stack *stack,
                             struct machtrace_records_walk *walk, uint64_t *addresses,
                             size_t room)
{
    /* In locals, since a store to `addresses` might change what a pointer leads to. */
    const uint64_t start = stack->low, bits = stack->code_bits;
    const unsigned char *bytes = stack->bytes;
    const uint64_t size = stack->high - start;
    /* Offsets of the lowest record that is valid, and of the highest and one. */
    uint64_t low = 0, limit = size < RECORD_SIZE ? 0 : size - RECORD_SIZE + 1;
    uint64_t fp = walk->fp;
    size_t count = walk->count;
    walk->end = MACHTRACE_RECORDS_ROOT;
    while (fp != 0) {
        uint64_t offset = fp - start;
        if (offset < low || offset >= limit || fp % WORD != 0) {
            walk->end = MACHTRACE_RECORDS_BROKEN;
#if defined(__APPLE__)
            if (fp >> TAG_SHIFT == 1 && low != 0) {
                /* The last record's: what that function returns to is no caller of it. */
                walk->end = MACHTRACE_RECORDS_ASYNC;
                fp = start + low - RECORD_SIZE;
                count--;
            }
#endif
            break;
        }
        const uint64_t *record = (const uint64_t *)(const void *)(bytes + offset);
        uint64_t caller = record[1] & bits;
        if (caller < NULL_PAGE)
            break;
        if (count == room) {
            walk->end = MACHTRACE_RECORDS_FULL;
            break;
        }
        addresses[count++] = caller;
        /* Each record is above the last, so the walk ends. */
        low = offset + RECORD_SIZE;
        fp = record[0];
    }
    walk->fp = fp;
    walk->count = count;
}
