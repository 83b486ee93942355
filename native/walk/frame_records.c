/* See frame_records.h. */
#include "walk/frame_records.h"

#define NULL_PAGE 0x1000u
#define RECORD_SIZE 16
#define WORD 8

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
    uint64_t low = stack->low, fp = walk->fp;
    size_t count = walk->count;
    walk->end = MACHTRACE_RECORDS_ROOT;
    while (fp != 0) {
        if (fp < low || fp > stack->high || stack->high - fp < RECORD_SIZE || fp % WORD != 0) {
            walk->end = MACHTRACE_RECORDS_BROKEN;
            break;
        }
        const uint64_t *record = (const uint64_t *)(const void *)(stack->bytes + (fp - stack->low));
        uint64_t caller = record[1] & stack->code_bits;
        if (caller < NULL_PAGE)
            break;
        if (count == room) {
            walk->end = MACHTRACE_RECORDS_FULL;
            break;
        }
        addresses[count++] = caller;
        /* Each record is above the last, so the walk ends. */
        low = fp + RECORD_SIZE;
        fp = record[0];
    }
    walk->fp = fp;
    walk->count = count;
}
