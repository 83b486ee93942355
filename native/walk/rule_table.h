/* Unwind rules that only add to registers and load words, by address.
 *
 * Plain C: only functions that are documented to do so allocate.
 */
#ifndef MACHTRACE_WALK_RULE_TABLE_H
#define MACHTRACE_WALK_RULE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* DWARF numbers of all architectures are below this. */
#define MACHTRACE_REGISTERS 128

/* Constants of a process. */
struct machtrace_machine {
    uint8_t sp;
    uint8_t fp;
    uint8_t pointer_size;   /* the CFA is a multiple of it */
    uint8_t register_count; /* a rule's recoveries of other registers are omitted */
    uint64_t code_bits;     /* of a return address: those of the instruction's address */
    uint64_t preserved[MACHTRACE_REGISTERS / 64]; /* by calls, a bit for each number */
};

enum machtrace_location {
    MACHTRACE_AT_CFA,      /* in memory, offset bytes from the CFA */
    MACHTRACE_CFA_PLUS,    /* the CFA and offset */
    MACHTRACE_IN_REGISTER, /* another register and offset */
    MACHTRACE_LOST,        /* of the return address: nobody called */
};

struct machtrace_recovery {
    uint8_t number; /* the register; ignored for the return address */
    uint8_t location;
    uint8_t from; /* the other register */
    uint8_t size; /* bytes in memory: 4 or 8 */
    int32_t offset;
};

/* How a simple rule recovers the frame pointer: see plain_walk.h. */
enum machtrace_plainness {
    MACHTRACE_NOT_PLAIN,
    MACHTRACE_FP_STAYS,
    MACHTRACE_FP_SAVED, /* in memory, fp_offset bytes from the CFA */
    MACHTRACE_FP_LOST,
    MACHTRACE_OUTERMOST, /* nobody called */
};

struct machtrace_rule {
    uint32_t first; /* of its registers, in the table's recoveries */
    uint8_t count;
    uint8_t cfa_register;
    uint8_t code; /* stored beside the address that the rule finds */
    bool must_rise; /* a chain of frame pointers: each frame is above the one before */
    uint8_t plain;  /* enum machtrace_plainness; set by machtrace_table_define, as fp_offset is */
    int32_t cfa_offset;
    int32_t fp_offset;
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

/* Add a rule. Returns its number; -1 if there is no memory; -2 if it names an invalid
 * register. */
int64_t machtrace_table_define(struct machtrace_table *table, const struct machtrace_rule *rule,
                               const struct machtrace_recovery *registers, size_t count);

/* Let a rule hold at an address. Returns 0; -1 if there is no memory, -2 for no such rule. */
int machtrace_table_add(struct machtrace_table *table, uint64_t lookup, bool interrupted,
                        uint32_t rule);

/* The rule that holds at an address, or NULL. */
const struct machtrace_rule *machtrace_table_find(const struct machtrace_table *table,
                                                  uint64_t lookup, bool interrupted);

void machtrace_table_clear(struct machtrace_table *table);
size_t machtrace_table_size(const struct machtrace_table *table); /* in bytes */

/* Room for at least one more item of a growing array; 0, or -1 if there is no memory. */
static inline int make_room(void **items, size_t *room, size_t count, size_t item_size)
{
    if (count < *room)
        return 0;
    size_t larger = *room != 0 ? *room * 2 : 64;
    if (larger > SIZE_MAX / 2 / item_size)
        return -1;
    void *moved = realloc(*items, larger * item_size);
    if (moved == NULL)
        return -1;
    *items = moved;
    *room = larger;
    return 0;
}

#endif
