/* The walk along frame records: the caller's frame pointer, and the return address above it.
 *
 * Plain C, which allocates nothing and calls nothing. It finds the frames of code that is compiled
 * with frame pointers, and needs no unwind information.
 */
#ifndef MACHTRACE_WALK_FRAME_RECORDS_H
#define MACHTRACE_WALK_FRAME_RECORDS_H

#include <stddef.h>
#include <stdint.h>

/* A stack, or its copy. */
struct machtrace_frame_stack {
    uint64_t low, high;         /* records are between these; high is not below low */
    const unsigned char *bytes; /* at low */
    uint64_t code_bits;         /* of a return address: those of the instruction's address */
};

enum machtrace_records_end {
    MACHTRACE_RECORDS_ROOT,   /* a record without caller */
    MACHTRACE_RECORDS_BROKEN, /* the frame pointer is none of this stack's above the last */
    MACHTRACE_RECORDS_FULL,   /* there is no room for more addresses */
    MACHTRACE_RECORDS_ASYNC   /* Darwin: a record of an asynchronous function of Swift, at fp */
};

struct machtrace_records_walk {
    uint64_t fp; /* of the next record; where the walk ended */
    size_t count;
    enum machtrace_records_end end;
};

/* Append the return addresses of the records from walk->fp on, innermost first, to the walk->count
 * that there are. */
void machtrace_frame_records(const struct machtrace_frame_stack *stack,
                             struct machtrace_records_walk *walk, uint64_t *addresses,
                             size_t room);

#endif
