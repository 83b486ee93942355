/* The walk's loop for frames that need no thought: from the rule at an address to the caller.
 *
 * The Python walker (unwinder/walker.py, unwinder/step.py) says what is right; this does the
 * same for rules that only add to registers and load words of one stack, and declines
 * everything else without having changed anything. Plain C: it allocates only in the
 * functions that say so, and knows nothing of Python, files or processes.
 */
#ifndef MACHTRACE_STACK_WALK_H
#define MACHTRACE_STACK_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* DWARF numbers of all architectures are below this. */
#define MACHTRACE_REGISTERS 128

/* What is the same in every frame of a process. */
struct machtrace_machine {
    uint8_t sp;
    uint8_t fp;
    uint8_t pointer_size;   /* the CFA is a multiple of it */
    uint8_t register_count; /* what a rule says of another is left out */
    uint64_t code_bits;     /* of a return address: those that say where the instruction is */
    uint64_t preserved[MACHTRACE_REGISTERS / 64]; /* by calls, a bit for each number */
};

enum machtrace_place {
    MACHTRACE_AT_CFA,      /* in memory, offset bytes from the CFA */
    MACHTRACE_CFA_PLUS,    /* the CFA and offset */
    MACHTRACE_IN_REGISTER, /* another register and offset */
    MACHTRACE_LOST,        /* of the return address: nobody called */
};

struct machtrace_recovery {
    uint8_t number; /* which register it is of; not looked at for the return address */
    uint8_t place;
    uint8_t from; /* the other register */
    uint8_t size; /* bytes in memory: 4 or 8 */
    int32_t offset;
};

struct machtrace_rule {
    uint32_t first; /* of its registers, in the table's recoveries */
    uint8_t count;
    uint8_t cfa_register;
    uint8_t code; /* kept beside the address that the rule finds */
    bool must_rise; /* a chain of frame pointers: each frame is above the one before */
    int32_t cfa_offset;
    struct machtrace_recovery return_address;
};

struct machtrace_slot {
    uint64_t lookup;
    uint32_t rule; /* its number and one; 0 where the slot is free */
    uint32_t interrupted;
};

/* Rules, and which of them holds at which address. */
struct machtrace_table {
    struct machtrace_machine machine;
    struct machtrace_rule *rules;
    size_t rule_count, rule_room;
    struct machtrace_recovery *recoveries;
    size_t recovery_count, recovery_room;
    struct machtrace_slot *slots;
    size_t slot_count, slot_room; /* room is a power of two, or 0 */
    uint64_t seed;                /* so that nobody can choose addresses that collide */
};

/* Add a rule. Returns its number; -1 where there is no memory; -2 where it names a register
 * that cannot be. */
int64_t machtrace_table_define(struct machtrace_table *table, const struct machtrace_rule *rule,
                               const struct machtrace_recovery *registers, size_t count);

/* Let a rule hold at an address. Returns 0; -1 where there is no memory, -2 for no such rule. */
int machtrace_table_add(struct machtrace_table *table, uint64_t lookup, bool interrupted,
                        uint32_t rule);

void machtrace_table_clear(struct machtrace_table *table);
size_t machtrace_table_size(const struct machtrace_table *table); /* in bytes */

enum machtrace_pause {
    MACHTRACE_ROOT,      /* nobody called the last frame */
    MACHTRACE_NO_RULE,   /* the table has no rule at the last frame's address */
    MACHTRACE_DECLINED,  /* the last frame's caller is a matter for the exact walker */
    MACHTRACE_NO_MEMORY, /* of this process */
};

/* As in unwinder/cycle.py: states among which a return is seen at once. */
#define MACHTRACE_EARLY 512

/* As in unwinder/walker.py. */
#define MACHTRACE_MOST_FRAMES (UINT64_C(1) << 22)
#define MACHTRACE_MOST_IRREGULAR 4096

/* One stack, and the frames that are kept of it, behind those of other stacks. */
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

    /* What sees to it that the walk ends; unwinder/walker.py says how. */
    uint64_t frames;    /* of this stack, all of its parts */
    uint64_t watched;   /* of those, states that were compared with earlier ones */
    uint64_t irregular; /* steps that did not go up, or found the address elsewhere than there */
    uint64_t highest_sp;
    uint64_t early_pcs[MACHTRACE_EARLY], early_sps[MACHTRACE_EARLY];
    uint64_t mark_pc, mark_sp, next_mark; /* the one later state that is remembered */

    size_t head, outer; /* of a deep part so many innermost and outermost frames are kept */
    uint64_t depth;     /* of this part: frames found, kept or not */
    size_t first;       /* this part's first frame in the arrays */
    uint64_t *addresses;
    uint8_t *codes;
    size_t count, room;
};

/* Begin another stack, whose frames go behind those that are there. */
void machtrace_walk_begin(struct machtrace_walk *walk, size_t head, size_t outer);

/* Fold the part of this stack that was walked so far, and begin the next. */
void machtrace_walk_part(struct machtrace_walk *walk);

enum machtrace_progress {
    MACHTRACE_PUSHED,
    MACHTRACE_PASSED,   /* the walk has been there before */
    MACHTRACE_TOO_DEEP, /* there are more frames, or irregular ones, than any stack has */
    MACHTRACE_NO_ROOM,  /* there is no memory */
};

/* Append the caller of the last frame, whose stack pointer was this; only if that is progress is
 * anything changed. Regular means that the return address was on the stack. */
enum machtrace_progress machtrace_walk_push(struct machtrace_walk *walk, uint64_t last_sp,
                                            uint64_t pc, uint64_t sp, uint8_t code,
                                            bool is_regular);

/* Append a frame and nothing else. Returns 0; -1 where there is no memory. */
int machtrace_walk_keep(struct machtrace_walk *walk, uint64_t address, uint8_t code);

/* Leave out what is between the innermost and the outermost frames that are kept. */
void machtrace_walk_fold(struct machtrace_walk *walk);

/* Go on from the last frame, until there is something to say. */
enum machtrace_pause machtrace_walk_run(const struct machtrace_table *table,
                                        struct machtrace_walk *walk);

void machtrace_walk_release(struct machtrace_walk *walk);

#endif
