/* The walk's loop for simple frames: from the rule at an address to the caller.
 *
 * The Python walker (unwinder/walker.py, unwinder/step.py) is the specification; this does the
 * same for rules that only add to registers and load words of one stack, and declines
 * everything else without having changed anything. Plain C, without Python, files or
 * processes: only functions that are documented to do so allocate.
 */
#ifndef MACHTRACE_WALK_STACK_WALK_H
#define MACHTRACE_WALK_STACK_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "walk/rule_table.h"

enum machtrace_pause {
    MACHTRACE_ROOT,      /* nobody called the last frame */
    MACHTRACE_NO_RULE,   /* the table has no rule at the last frame's address */
    MACHTRACE_DECLINED,  /* the last frame's caller is a matter for the exact walker */
    MACHTRACE_NO_MEMORY, /* of this process */
};

/* As in unwinder/cycle.py: states among which a return is seen at once. */
#define MACHTRACE_EARLY 512

/* As in unwinder/walker.py. */
#define MACHTRACE_MAX_FRAMES (UINT64_C(1) << 22)
#define MACHTRACE_MAX_IRREGULAR 4096

/* One stack, and its stored frames, after those of other stacks. */
struct machtrace_walk {
    uint64_t mask; /* the bits of a pointer that are address */
    uint64_t values[MACHTRACE_REGISTERS];
    uint64_t known[MACHTRACE_REGISTERS / 64];
    uint64_t stack_start;
    const unsigned char *stack;
    size_t stack_size;
    uint64_t pc;         /* of the last frame */
    bool interrupted;    /* whether that is a program counter */
    bool declines_async; /* whether a tagged frame pointer is for the exact walker */

    /* The state that ensures that the walk ends; see unwinder/walker.py. */
    uint64_t frames;    /* of this stack, all of its parts */
    uint64_t watched;   /* of those, states that were compared with earlier ones */
    uint64_t irregular; /* steps that did not rise, or whose return address was in a register */
    uint64_t highest_sp;
    uint64_t early_pcs[MACHTRACE_EARLY], early_sps[MACHTRACE_EARLY];
    uint64_t mark_pc, mark_sp, next_mark; /* the one later state that is remembered */

    size_t head, outer; /* frames stored at the inner and the outer end of a deep part */
    uint64_t depth;     /* of this part: frames found, stored or not */
    size_t first;       /* this part's first frame in the arrays */
    uint64_t *addresses;
    uint8_t *codes;
    size_t count, room;
};

/* Begin another stack, whose frames follow those already stored. */
void machtrace_walk_begin(struct machtrace_walk *walk, size_t head, size_t outer);

/* Fold the part of this stack that was walked so far, and begin the next. */
void machtrace_walk_part(struct machtrace_walk *walk);

enum machtrace_progress {
    MACHTRACE_PUSHED,
    MACHTRACE_PASSED,   /* the walk has had this state before */
    MACHTRACE_TOO_DEEP, /* there are more frames, or irregular ones, than any stack has */
    MACHTRACE_NO_ROOM,  /* there is no memory */
};

/* Append the caller of the last frame, whose stack pointer was this; only if that is progress is
 * anything changed. Regular means that the return address was on the stack. */
enum machtrace_progress machtrace_walk_push(struct machtrace_walk *walk, uint64_t last_sp,
                                            uint64_t pc, uint64_t sp, uint8_t code,
                                            bool is_regular);

/* Append a frame and nothing else. Returns 0; -1 if there is no memory. */
int machtrace_walk_append(struct machtrace_walk *walk, uint64_t address, uint8_t code);

/* Omit the frames between the stored inner and outer ones. */
void machtrace_walk_fold(struct machtrace_walk *walk);

/* Continue from the last frame, until a pause. */
enum machtrace_pause machtrace_walk_run(const struct machtrace_table *table,
                                        struct machtrace_walk *walk);

void machtrace_walk_release(struct machtrace_walk *walk);

#endif
