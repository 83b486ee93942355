/* The walk of a stack whose every frame needs two registers, and words that lie above it.
 *
 * Nearly all stacks of compiled code are like that. No other register is recovered, which is most
 * of the work of stack_walk.h; if a frame needs more, that one does the whole walk.
 */
#ifndef MACHTRACE_WALK_PLAIN_WALK_H
#define MACHTRACE_WALK_PLAIN_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "walk/rule_table.h"

/* The start of a walk, and its stack, up to whose end it may read. */
struct machtrace_plain_start {
    uint64_t pc; /* a program counter, no return address */
    uint64_t sp;
    uint64_t fp;
    const unsigned char *stack; /* at sp */
    size_t stack_size;
    uint64_t mask; /* the bits of a pointer that are address */
};

/* The rule at an address, if it is plain; sets rule->plain and rule->fp_offset. */
void machtrace_plain_classify(const struct machtrace_machine *machine, struct machtrace_rule *rule,
                              const struct machtrace_recovery *registers);

/* Walk to the end of the stack. Returns how many addresses were found, innermost first; 0 where a
 * frame is not plain, a rule is missing, or there is no room. */
size_t machtrace_plain_walk(const struct machtrace_table *table,
                            const struct machtrace_plain_start *start, uint64_t *addresses,
                            size_t room);

#endif
