/* Recorders: what a thread writes when it calls a watched function.
 *
 * Each thread takes one at its first call, from memory that was mapped at the start. If a signal
 * interrupts a hook, and its handler calls a watched function, that call is recorded by a second
 * one. No lock is taken and nothing is allocated; system calls are made at a thread's first call,
 * when it is on another stack than its own, and to wake the agent's thread.
 *
 * The sources that hooks run (this one, budget.c, counts.c, stack_tree.c, hooks.c and walk/frame_records.c)
 * are compiled without vector registers, which may have arguments of the watched function.
 */
#ifndef MACHTRACE_AGENT_RECORDER_H
#define MACHTRACE_AGENT_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "budget.h"
#include "counts.h"
#include "event.h"
#include "stack_tree.h"

#define MACHTRACE_FRAMES_MAX 16384
#define MACHTRACE_WINDOWS_MAX 63 /* so that a stack has at most a million frames */
#define MACHTRACE_CONTEXTS_MAX 1024 /* that are followed: a chain that is damaged may be a circle */
#define MACHTRACE_WINDOW 8192 /* bytes of another stack that are copied at once */
#define MACHTRACE_PAGES 64     /* whose rights a recorder remembers */
#define MACHTRACE_LEVELS_MAX 4 /* hooks that interrupt each other, of one thread */

/* Addresses of the tree's outermost nodes that are none of code. */
#define MACHTRACE_MARK_CUT 1     /* outer frames are missing: there are too many; 2: see budget.h */
#define MACHTRACE_MARK_ERA 16    /* and the number of the era: see images.h */
#define MACHTRACE_MARK_END 65536 /* code is above */

/* A frame of the last stack. */
struct machtrace_level {
    uint64_t address;
    uint32_t node;
    uint32_t watched; /* functions, from the outermost frame on */
};

struct machtrace_recorder {
    _Atomic uint32_t id;     /* the thread's, of the kernel; 0 while the recorder is free */
    _Atomic uint32_t thread; /* the agent's number for the thread, never reused */
    bool is_main;
    struct machtrace_recorder *inner; /* for hooks that interrupt this one's */
    _Atomic uint64_t busy;            /* the stack pointer of the hook that runs; 0 for none */
    uint64_t stack_low, stack_high;   /* the thread's own stack; it may grow below */

    /* The last stack. */
    uint32_t generation;
    uint32_t base; /* parent of the outermost node */
    size_t cached;
    struct machtrace_level levels[MACHTRACE_FRAMES_MAX]; /* outermost frame first */

    /* Pages that code.ranges does not have: twice the address, and one if it is executable. For one
     * pass of the agent's thread. */
    uint64_t pages[MACHTRACE_PAGES];
    uint32_t pages_pass;
    uint32_t slow_queries; /* in that pass */

    uint64_t frames[MACHTRACE_FRAMES_MAX]; /* of the stack that is taken now, innermost first */
    uint64_t windows[MACHTRACE_WINDOWS_MAX]; /* where the frames behind these begin: deep_stacks.h */
    size_t window_count;
    _Alignas(16) unsigned char window[MACHTRACE_WINDOW];
    _Atomic uint64_t counted; /* calls without event, since the ring was full */
    _Atomic uint64_t calls[MACHTRACE_RULES_MAX];
    struct machtrace_event_ring ring;
};

/* Code of watched functions, by address. */
struct machtrace_bodies {
    const struct machtrace_bodies *earlier;
    uint32_t stubs; /* that were known */
    size_t count;
    struct {
        uint64_t start, end;
    } ranges[];
};

#define MACHTRACE_CODE_MAX 4096

/* Executable mappings, by address. While `version` is odd they change. */
struct machtrace_code {
    _Atomic uint32_t version;
    _Atomic uint32_t count;
    struct {
        _Atomic uint64_t start, end;
    } ranges[MACHTRACE_CODE_MAX];
};

struct machtrace_recorders {
    struct machtrace_recorder *all;
    uint32_t most;
    _Atomic uint32_t used;        /* those that ever were */
    _Atomic uint32_t threads;     /* numbers given */
    struct machtrace_stack_tree tree;
    struct machtrace_counts *counts;
    struct machtrace_budget *budget;
    uint64_t code_bits;  /* of a return address: those of the instruction's address */
    _Atomic bool is_slow; /* a mapping is found by reading all of them: before Linux 6.11 */
    bool has_ticks;      /* whether the processor's counter is a clock */
    _Atomic uint32_t generation;  /* a change of it makes all cached stacks invalid */
    _Atomic uint32_t root;        /* parent of outermost nodes, of this era */
    _Atomic(const struct machtrace_bodies *) bodies;
    struct machtrace_code code;
    _Atomic uint32_t passes;  /* of the agent's thread */
    _Atomic uint32_t endings; /* how often the process was about to end, or to be replaced */
    _Atomic uint16_t app_state; /* as in events; see event.h */
    /* Of a hook that gave consent: ticks, the low three bits of which are the state; 0 once that is
     * in the spool. */
    _Atomic uint64_t consent;
    _Atomic uint64_t calls[MACHTRACE_RULES_MAX]; /* of threads for which there is no recorder */
    _Atomic uint64_t cut, incomplete, ignored;   /* see struct machtrace_spool_losses */
    _Atomic uint32_t wake;                       /* a futex: a ring is half full */
};

extern struct machtrace_recorders machtrace_recorders;

/* Map recorders and the tree, once for a process. Returns 0 or an errno. */
int machtrace_recorders_begin(uint32_t most, uint32_t tree_bits);

static inline bool machtrace_is_on_own_stack(const struct machtrace_recorder *recorder, uint64_t sp)
{
    return sp >= recorder->stack_low && sp < recorder->stack_high;
}

enum machtrace_stacks {
    MACHTRACE_STACKS_ALL,
    MACHTRACE_STACKS_BUDGET, /* as many as the call site's budget has */
    MACHTRACE_STACKS_NONE    /* calls are only counted */
};

/* Record a call of a watched function, at its first instruction. `caller` is its return address,
 * `sp` the stack pointer and `fp` the caller's frame pointer. */
void machtrace_record(uint16_t rule, enum machtrace_stacks stacks, uint64_t caller, uint64_t sp,
                      uint64_t fp);

/* The node of the calling thread's stack, whose innermost frame has this return address; its number
 * of frames, and as many addresses as there is room for, innermost first. By the same cache, but
 * nothing is recorded. The root if there is no room for the stack; then the frames are set all the
 * same, unless there is no recorder for the thread. */
uint32_t machtrace_stack_here(uint64_t caller, uint64_t sp, uint64_t fp, uint64_t *frames,
                              size_t capacity, size_t *depth);

/* Let calls from now on be those after consent. By hooks. */
void machtrace_give_consent(void);

/* 1 if an address is in an executable mapping as far as they are known, 0 if not; -1 if they change
 * now. */
int machtrace_is_in_code(uint64_t address);

/* The same, from the kernel if it is unknown. */
bool machtrace_is_code(struct machtrace_recorder *recorder, uint64_t address);

/* From here on, up to the same number of leaves, calls by this thread are the agent's own. Signals
 * are blocked meanwhile, so that no handler's calls are taken for its. */
void machtrace_ignore_enter(void);
void machtrace_ignore_leave(void);
bool machtrace_is_ignoring(void);

/* Release the recorders of threads that ended. */
void machtrace_recorders_sweep(void);

/* The clock of events in rings. */
uint64_t machtrace_ticks(void);

/* Forget what was recorded. Nothing is recorded meanwhile. */
void machtrace_recorders_clear(void);

/* In the child of a fork: release other threads' recorders. */
void machtrace_recorders_after_fork(void);

#endif
