/* Events: one call of a watched function each; and the rings that threads write them to.
 *
 * A ring has one writer and one reader, and takes no lock. It is mapped before it is used.
 */
#ifndef MACHTRACE_AGENT_EVENT_H
#define MACHTRACE_AGENT_EVENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MACHTRACE_RULES_MAX 512

/* In an event and in a cell, the bits above the rule's are the state of the app at the call: consent
 * in two bits, and whether it is in the background. */
#define MACHTRACE_STATE_SHIFT 9
#define MACHTRACE_CONSENT_BITS (3u << MACHTRACE_STATE_SHIFT)
#define MACHTRACE_CONSENT_IS_GIVEN (2u << MACHTRACE_STATE_SHIFT)
#define MACHTRACE_BACKGROUND_BIT (4u << MACHTRACE_STATE_SHIFT)

_Static_assert(MACHTRACE_RULES_MAX == 1 << MACHTRACE_STATE_SHIFT, "rules have the bits below");

/* The flags of an event. */
enum machtrace_event_flag {
    MACHTRACE_EVENT_MAIN_THREAD = 1,
    MACHTRACE_EVENT_TRUNCATED = 2,  /* there were more frames than a recorder has room for */
    MACHTRACE_EVENT_INCOMPLETE = 4, /* the tree or the spool had no room for the inner frames */
    MACHTRACE_EVENT_NESTED = 8,     /* called by a watched function */
    MACHTRACE_EVENT_INTERRUPT = 16, /* by the handler of a signal that interrupted a hook */
    MACHTRACE_EVENT_OTHER_STACK = 32, /* the thread was not on its own stack */
    MACHTRACE_EVENT_NO_FRAME_POINTER = 64 /* outer frames are missing: they lead to no code */
};

struct machtrace_event {
    uint64_t time;   /* in a ring: ticks of the processor's clock; in a spool: CLOCK_MONOTONIC, ns */
    uint32_t stack;  /* its innermost node */
    uint32_t thread; /* the agent's number for it */
    uint16_t rule; /* and the state of the app */
    uint8_t depth; /* watched functions among its frames; 255 and more */
    uint8_t flags;
    uint32_t calls; /* that this stands for */
};

_Static_assert(sizeof(struct machtrace_event) == 24, "as in docs/agent-spool.md");

#define MACHTRACE_EVENT_RING 4096 /* events; a power of two */

struct machtrace_event_ring {
    _Alignas(64) _Atomic uint32_t written;
    uint32_t taken_seen; /* by the writer, at its last check */
    _Alignas(64) _Atomic uint32_t taken;
    _Alignas(64) struct machtrace_event events[MACHTRACE_EVENT_RING];
};

/* False if the ring is full. By its writer alone. */
static inline bool machtrace_event_ring_add(struct machtrace_event_ring *ring,
                                            const struct machtrace_event *event)
{
    uint32_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    if (written - ring->taken_seen >= MACHTRACE_EVENT_RING) {
        ring->taken_seen = atomic_load_explicit(&ring->taken, memory_order_acquire);
        if (written - ring->taken_seen >= MACHTRACE_EVENT_RING)
            return false;
    }
    ring->events[written % MACHTRACE_EVENT_RING] = *event;
    atomic_store_explicit(&ring->written, written + 1, memory_order_release);
    return true;
}

/* The first waiting events that are consecutive in memory; how many. By its reader alone, which
 * then releases them. */
static inline size_t machtrace_event_ring_peek(struct machtrace_event_ring *ring,
                                               struct machtrace_event **events)
{
    uint32_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed);
    uint32_t waiting = atomic_load_explicit(&ring->written, memory_order_acquire) - taken;
    uint32_t index = taken % MACHTRACE_EVENT_RING;
    *events = &ring->events[index];
    return waiting < MACHTRACE_EVENT_RING - index ? waiting : MACHTRACE_EVENT_RING - index;
}

static inline void machtrace_event_ring_release(struct machtrace_event_ring *ring, size_t count)
{
    uint32_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed);
    atomic_store_explicit(&ring->taken, taken + (uint32_t)count, memory_order_release);
}

#endif
