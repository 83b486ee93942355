/* See plain_walk.h. Every load is checked against the stack. */
#include "walk/plain_walk.h"

#include <string.h>

#define NULL_PAGE 0x1000u /* as in unwinder/step.py */
#define TAG_SHIFT 60      /* as in unwinder/swift_async.py */
#define WORD 8

static bool is_preserved(const struct machtrace_machine *machine, unsigned number)
{
    return (machine->preserved[number / 64] >> (number % 64)) & 1;
}

/* A word written before the call that created the next frame. */
static bool is_saved(const struct machtrace_recovery *recovery)
{
    return recovery->location == MACHTRACE_AT_CFA && recovery->size == WORD;
}

void machtrace_plain_classify(const struct machtrace_machine *machine, struct machtrace_rule *rule,
                              const struct machtrace_recovery *registers)
{
    rule->plain = MACHTRACE_NOT_PLAIN;
    rule->fp_offset = 0;
    if (machine->pointer_size != WORD || machine->sp >= MACHTRACE_REGISTERS ||
        machine->fp >= MACHTRACE_REGISTERS)
        return;
    if (rule->return_address.location == MACHTRACE_LOST) {
        rule->plain = MACHTRACE_OUTERMOST;
        return;
    }
    bool by_sp = rule->cfa_register == machine->sp;
    if (!is_saved(&rule->return_address) || (!by_sp && rule->cfa_register != machine->fp))
        return;
    enum machtrace_plainness plain =
        is_preserved(machine, machine->fp) ? MACHTRACE_FP_STAYS : MACHTRACE_FP_LOST;
    for (unsigned index = 0; index < rule->count; index++) {
        const struct machtrace_recovery *saved = &registers[index];
        if (saved->number == machine->sp)
            return;
        if (saved->number != machine->fp)
            continue;
        if (is_saved(saved)) {
            plain = MACHTRACE_FP_SAVED;
            rule->fp_offset = saved->offset;
        } else if (saved->location == MACHTRACE_LOST) {
            plain = MACHTRACE_FP_LOST;
        } else {
            return;
        }
    }
    rule->plain = (uint8_t)plain;
}

/* The word `offset` bytes from `at`, which is a distance from the walk's first stack pointer. */
static bool load(const struct machtrace_plain_start *start, uint64_t at, int32_t offset,
                 uint64_t *value)
{
    /* Both are far from the ends of their types: `at` is within a stack. */
    uint64_t from = at + (uint64_t)(int64_t)offset;
    if (from > start->stack_size || start->stack_size - from < WORD)
        return false;
    memcpy(value, start->stack + from, WORD);
    return true;
}

size_t machtrace_plain_walk(const struct machtrace_table *table,
                            const struct machtrace_plain_start *start, uint64_t *addresses,
                            size_t room)
{
    const struct machtrace_machine *machine = &table->machine;
    uint64_t address_bits = start->mask & machine->code_bits;
    uint64_t pc = start->pc, sp = start->sp, fp = start->fp;
    bool has_fp = true;
    for (size_t count = 0; count < room;) {
        bool interrupted = count == 0;
        addresses[count++] = pc;
        const struct machtrace_rule *rule =
            machtrace_table_find(table, pc - !interrupted, interrupted);
        if (rule == NULL || rule->plain == MACHTRACE_NOT_PLAIN)
            return 0;
        if (rule->plain == MACHTRACE_OUTERMOST)
            return count;
        uint64_t base = sp;
        if (rule->cfa_register != machine->sp) {
            if (!has_fp)
                return 0;
            if (fp == 0)
                return count;
            base = fp;
        }
        uint64_t cfa = base + (uint64_t)(int64_t)rule->cfa_offset;
        /* Above the last, in the stack: so no frame repeats, and no sum has wrapped. */
        uint64_t at = cfa - start->sp;
        if (cfa <= sp || at > start->stack_size || cfa % WORD != 0)
            return 0;
        if (!load(start, at, rule->return_address.offset, &pc))
            return 0;
        pc &= address_bits;
        if (pc < NULL_PAGE)
            return count;
        if (rule->plain == MACHTRACE_FP_SAVED) {
            if (!load(start, at, rule->fp_offset, &fp) || fp >> TAG_SHIFT != 0)
                return 0;
            has_fp = true;
        } else if (rule->plain == MACHTRACE_FP_LOST) {
            has_fp = false;
        }
        sp = cfa;
    }
    return 0;
}
