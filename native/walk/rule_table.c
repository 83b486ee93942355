/* See rule_table.h: a list of rules, and a hash table with open addressing that leads to them. */
#include "walk/rule_table.h"

#include <stdlib.h>
#include <string.h>

#include "walk/plain_walk.h"

static bool is_place(const struct machtrace_recovery *recovery)
{
    return recovery->location <= MACHTRACE_LOST && recovery->from < MACHTRACE_REGISTERS &&
           (recovery->size == 4 || recovery->size == 8);
}

int64_t machtrace_table_define(struct machtrace_table *table, const struct machtrace_rule *rule,
                               const struct machtrace_recovery *registers, size_t count)
{
    if (rule->cfa_register >= MACHTRACE_REGISTERS || !is_place(&rule->return_address) ||
        count > UINT8_MAX || table->rule_count >= UINT32_MAX - 1)
        return -2;
    for (size_t index = 0; index < count; index++) {
        if (registers[index].number >= MACHTRACE_REGISTERS || !is_place(&registers[index]))
            return -2;
    }
    if (table->recovery_count > UINT32_MAX - UINT8_MAX)
        return -2;
    void *items = table->recoveries;
    while (table->recovery_room - table->recovery_count < count) {
        size_t full = table->recovery_room;
        if (make_room(&items, &table->recovery_room, full, sizeof *table->recoveries) != 0)
            return -1;
        table->recoveries = items;
    }
    items = table->rules;
    if (make_room(&items, &table->rule_room, table->rule_count, sizeof *table->rules) != 0)
        return -1;
    table->rules = items;
    struct machtrace_rule *added = &table->rules[table->rule_count];
    *added = *rule;
    added->first = (uint32_t)table->recovery_count;
    added->count = (uint8_t)count;
    machtrace_plain_classify(&table->machine, added, registers);
    if (count != 0)
        memcpy(&table->recoveries[table->recovery_count], registers, count * sizeof *registers);
    table->recovery_count += count;
    return (int64_t)table->rule_count++;
}

/* Where a key is, or the free slot where it would be; the table has room. */
static struct machtrace_slot *slot_of(struct machtrace_slot *slots, size_t room, uint64_t seed,
                                      uint64_t lookup, bool interrupted)
{
    /* The finaliser of MurmurHash3: every bit of the key changes every bit of the hash. */
    uint64_t hash = lookup ^ seed;
    hash = (hash ^ (hash >> 33)) * UINT64_C(0xff51afd7ed558ccd);
    hash = (hash ^ (hash >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
    hash ^= hash >> 33;
    size_t at = (size_t)(hash + interrupted) & (room - 1);
    while (slots[at].rule != 0 &&
           (slots[at].lookup != lookup || (slots[at].interrupted != 0) != interrupted))
        at = (at + 1) & (room - 1);
    return &slots[at];
}

static int grow(struct machtrace_table *table)
{
    size_t room = table->slot_room != 0 ? table->slot_room * 2 : 64;
    if (room > SIZE_MAX / 2 / sizeof *table->slots)
        return -1;
    struct machtrace_slot *slots = calloc(room, sizeof *slots);
    if (slots == NULL)
        return -1;
    for (size_t index = 0; index < table->slot_room; index++) {
        const struct machtrace_slot *slot = &table->slots[index];
        if (slot->rule != 0)
            *slot_of(slots, room, table->seed, slot->lookup, slot->interrupted != 0) = *slot;
    }
    free(table->slots);
    table->slots = slots;
    table->slot_room = room;
    return 0;
}

int machtrace_table_add(struct machtrace_table *table, uint64_t lookup, bool interrupted,
                        uint32_t rule)
{
    if (rule >= table->rule_count)
        return -2;
    /* Half of the slots stay free, so that searches are short and end. */
    if ((table->slot_count + 1) * 2 > table->slot_room && grow(table) != 0)
        return -1;
    struct machtrace_slot *slot =
        slot_of(table->slots, table->slot_room, table->seed, lookup, interrupted);
    table->slot_count += slot->rule == 0;
    *slot = (struct machtrace_slot){lookup, rule + 1, interrupted};
    return 0;
}

const struct machtrace_rule *machtrace_table_find(const struct machtrace_table *table,
                                                  uint64_t lookup, bool interrupted)
{
    if (table->slot_room == 0)
        return NULL;
    const struct machtrace_slot *slot =
        slot_of(table->slots, table->slot_room, table->seed, lookup, interrupted);
    return slot->rule != 0 ? &table->rules[slot->rule - 1] : NULL;
}

void machtrace_table_clear(struct machtrace_table *table)
{
    free(table->rules);
    free(table->recoveries);
    free(table->slots);
    table->rules = NULL;
    table->recoveries = NULL;
    table->slots = NULL;
    table->rule_count = table->rule_room = 0;
    table->recovery_count = table->recovery_room = 0;
    table->slot_count = table->slot_room = 0;
}

size_t machtrace_table_size(const struct machtrace_table *table)
{
    return sizeof *table + table->rule_room * sizeof *table->rules +
           table->recovery_room * sizeof *table->recoveries +
           table->slot_room * sizeof *table->slots;
}
