/* A ring of records: see ring.h. */
#include "inprocess/core/ring.h"

#include <string.h>

#define SKIP 0

void machtrace_ring_begin(struct machtrace_ring *ring)
{
    ring->written = atomic_load(&ring->published);
    ring->is_full = false;
}

void *machtrace_ring_add(struct machtrace_ring *ring, size_t size, uint32_t kind, uint32_t count)
{
    size = (size + MACHTRACE_RING_ALIGN - 1) & ~(size_t)(MACHTRACE_RING_ALIGN - 1);
    size_t at = (size_t)(ring->written % ring->room);
    size_t skipped = ring->room - at < size ? ring->room - at : 0;
    uint64_t used = ring->written - atomic_load(&ring->taken);
    if (ring->is_full || size > ring->room || used + skipped + size > ring->room) {
        ring->is_full = true;
        return NULL;
    }
    struct machtrace_series_record header = {skipped, SKIP, 0};
    if (skipped != 0) {
        memcpy(ring->bytes + at, &header, sizeof header);
        at = 0;
    }
    header = (struct machtrace_series_record){size, kind, count};
    memcpy(ring->bytes + at, &header, sizeof header);
    ring->written += skipped + size;
    return ring->bytes + at;
}

bool machtrace_ring_publish(struct machtrace_ring *ring)
{
    if (!ring->is_full)
        atomic_store(&ring->published, ring->written);
    return !ring->is_full;
}

size_t machtrace_ring_read(const struct machtrace_ring *ring, uint64_t *position,
                           unsigned char *to, size_t most)
{
    uint64_t upto = atomic_load(&ring->published);
    size_t size = 0;
    while (*position != upto) {
        const unsigned char *place = ring->bytes + *position % ring->room;
        struct machtrace_series_record header;
        memcpy(&header, place, sizeof header);
        if (header.kind != SKIP) {
            if (header.size > most - size)
                break;
            if (to != NULL)
                memcpy(to + size, place, (size_t)header.size);
            size += (size_t)header.size;
        }
        *position += header.size;
    }
    return size;
}

size_t machtrace_ring_waiting(const struct machtrace_ring *ring, size_t most)
{
    uint64_t position = atomic_load(&ring->taken);
    return machtrace_ring_read(ring, &position, NULL, most);
}

size_t machtrace_ring_take(struct machtrace_ring *ring, unsigned char *to, size_t most)
{
    uint64_t position = atomic_load(&ring->taken);
    size_t size = machtrace_ring_read(ring, &position, to, most);
    atomic_store(&ring->taken, position);
    return size;
}
