/* Records that one thread writes and another takes, without a lock.
 *
 * Written records can be taken once they are published, all or nothing.
 */
#ifndef MACHTRACE_INPROCESS_CORE_RING_H
#define MACHTRACE_INPROCESS_CORE_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MACHTRACE_RING_ALIGN 16

/* Kind 0 pads the ring up to its end. */
struct machtrace_series_record {
    uint64_t size; /* with this header, a multiple of MACHTRACE_RING_ALIGN */
    uint32_t kind;
    uint32_t count;
};

struct machtrace_ring {
    unsigned char *bytes;
    size_t room;                /* a multiple of MACHTRACE_RING_ALIGN */
    _Atomic uint64_t published; /* bytes ever published */
    _Atomic uint64_t taken;     /* bytes that ever were */
    uint64_t written;           /* bytes that ever were, unpublished ones too */
    bool is_full;               /* something did not fit since the begin */
};

/* Discard what was written and not published. */
void machtrace_ring_begin(struct machtrace_ring *ring);

/* Where a record of this size goes, its header written; NULL if there is no room. */
void *machtrace_ring_add(struct machtrace_ring *ring, size_t size, uint32_t kind, uint32_t count);

/* False if something did not fit: then nothing was published. */
bool machtrace_ring_publish(struct machtrace_ring *ring);

/* The bytes of waiting whole records, at most `most`; and copy them, and free their room. */
size_t machtrace_ring_waiting(const struct machtrace_ring *ring, size_t most);
size_t machtrace_ring_take(struct machtrace_ring *ring, unsigned char *to, size_t most);

/* Copy whole records from a position on, which is not freed, and advance it; to NULL for their
 * size alone. */
size_t machtrace_ring_read(const struct machtrace_ring *ring, uint64_t *position,
                           unsigned char *to, size_t most);

#endif
