/* See stack_walk.h. Every load is checked against the stack, every sum against 64 bits. */
#include "walk/stack_walk.h"

#include <stdlib.h>
#include <string.h>


#define NULL_PAGE 0x1000u /* as in unwinder/step.py */
#define TAG_SHIFT 60      /* as in unwinder/swift_async.py */
#define USER_BITS 48
#define ADDRESS_BITS ((UINT64_C(1) << TAG_SHIFT) - 1)
#define FOLDED_AT_ONCE 4096 /* frames of a deep stack that are dropped together */

static bool is_known(const uint64_t *known, unsigned number)
{
    return (known[number / 64] >> (number % 64)) & 1;
}

void machtrace_walk_begin(struct machtrace_walk *walk, size_t head, size_t outer)
{
    walk->frames = walk->watched = walk->irregular = 0;
    walk->highest_sp = 0;
    walk->next_mark = MACHTRACE_EARLY + 1;
    walk->head = head;
    walk->outer = outer;
    walk->depth = 0;
    walk->first = walk->count;
    walk->declines_async = true;
}

void machtrace_walk_part(struct machtrace_walk *walk)
{
    machtrace_walk_fold(walk);
    walk->depth = 0;
    walk->first = walk->count;
}

static bool has_passed(const struct machtrace_walk *walk, uint64_t pc, uint64_t sp)
{
    if (sp > walk->highest_sp)
        return false; /* nearly always: stacks are walked upwards */
    uint64_t early = walk->watched < MACHTRACE_EARLY ? walk->watched : MACHTRACE_EARLY;
    for (size_t index = 0; index < early; index++) {
        if (walk->early_pcs[index] == pc && walk->early_sps[index] == sp)
            return true;
    }
    bool has_mark = walk->next_mark > MACHTRACE_EARLY + 1;
    return has_mark && walk->mark_pc == pc && walk->mark_sp == sp;
}

static void watch(struct machtrace_walk *walk, uint64_t pc, uint64_t sp)
{
    if (walk->watched < MACHTRACE_EARLY) {
        walk->early_pcs[walk->watched] = pc;
        walk->early_sps[walk->watched] = sp;
    }
    walk->watched++;
    if (walk->watched == walk->next_mark) {
        walk->mark_pc = pc;
        walk->mark_sp = sp;
        walk->next_mark *= 2;
    }
}

void machtrace_walk_fold(struct machtrace_walk *walk)
{
    size_t stored = walk->count - walk->first;
    if (walk->outer > stored || walk->head >= stored - walk->outer)
        return;
    size_t to = walk->first + walk->head, from = walk->count - walk->outer;
    memmove(walk->addresses + to, walk->addresses + from, walk->outer * sizeof *walk->addresses);
    memmove(walk->codes + to, walk->codes + from, walk->outer * sizeof *walk->codes);
    walk->count = to + walk->outer;
}

int machtrace_walk_append(struct machtrace_walk *walk, uint64_t address, uint8_t code)
{
    if (walk->count >= walk->room) {
        /* Both arrays have one size, which changes when both have it. */
        size_t room = walk->room;
        void *items = walk->addresses;
        if (make_room(&items, &room, walk->count, sizeof *walk->addresses) != 0)
            return -1;
        walk->addresses = items;
        room = walk->room;
        items = walk->codes;
        if (make_room(&items, &room, walk->count, sizeof *walk->codes) != 0)
            return -1;
        walk->codes = items;
        walk->room = room;
    }
    walk->addresses[walk->count] = address;
    walk->codes[walk->count] = code;
    walk->count++;
    return 0;
}

enum machtrace_progress machtrace_walk_push(struct machtrace_walk *walk, uint64_t last_sp,
                                            uint64_t pc, uint64_t sp, uint8_t code,
                                            bool is_regular)
{
    bool rises = sp > last_sp;
    bool is_watched = walk->frames < MACHTRACE_EARLY || !rises;
    if (is_watched && has_passed(walk, pc, sp))
        return MACHTRACE_PASSED;
    bool is_first = walk->frames == 0;
    bool is_irregular = !is_first && (!rises || !is_regular);
    if ((is_irregular && walk->irregular >= MACHTRACE_MAX_IRREGULAR) ||
        walk->frames >= MACHTRACE_MAX_FRAMES)
        return MACHTRACE_TOO_DEEP;
    size_t stored = walk->count - walk->first;
    if (stored >= walk->outer && stored - walk->outer >= walk->head &&
        stored - walk->outer - walk->head >= FOLDED_AT_ONCE)
        machtrace_walk_fold(walk);
    if (machtrace_walk_append(walk, pc, code) != 0)
        return MACHTRACE_NO_ROOM;
    if (is_watched && !is_first) /* its address may be a return address too */
        watch(walk, pc, sp);
    if (sp > walk->highest_sp)
        walk->highest_sp = sp;
    walk->irregular += is_irregular;
    walk->frames++;
    walk->depth++;
    walk->pc = pc;
    return MACHTRACE_PUSHED;
}

static bool add(uint64_t value, int32_t offset, uint64_t *sum)
{
    if (offset < 0) {
        uint64_t distance = (uint64_t)(-(int64_t)offset);
        *sum = value - distance;
        return value >= distance;
    }
    *sum = value + (uint64_t)offset;
    return *sum >= value;
}

/* Four bytes, little-endian, at any alignment. */
static uint64_t half(const unsigned char *bytes)
{
    return (uint64_t)bytes[0] | (uint64_t)bytes[1] << 8 | (uint64_t)bytes[2] << 16 |
           (uint64_t)bytes[3] << 24;
}

static bool load(const struct machtrace_walk *walk, uint64_t address, unsigned size,
                 uint64_t *value)
{
    if (address < walk->stack_start)
        return false;
    uint64_t begin = address - walk->stack_start;
    if (begin > walk->stack_size || walk->stack_size - begin < size)
        return false;
    const unsigned char *bytes = walk->stack + begin;
    *value = size == 8 ? half(bytes) | half(bytes + 4) << 32 : half(bytes);
    return true;
}

/* Whether a saved frame pointer may be of a Swift async function, as in unwinder/swift_async.py. */
static bool marks_a_record(uint64_t saved)
{
    return saved >> TAG_SHIFT == 1 && (saved & ADDRESS_BITS) >> USER_BITS == 0 && saved % 8 == 0;
}

enum outcome { RECOVERED, UNKNOWN_REGISTER, ELSEWHERE };

static enum outcome recover(const struct machtrace_recovery *recovery,
                            const struct machtrace_walk *walk, uint64_t cfa, uint64_t *value)
{
    uint64_t address;
    switch ((enum machtrace_location)recovery->location) {
    case MACHTRACE_AT_CFA:
        if (!add(cfa, recovery->offset, &address) || !load(walk, address, recovery->size, value))
            return ELSEWHERE;
        return RECOVERED;
    case MACHTRACE_CFA_PLUS:
        return add(cfa, recovery->offset, value) ? RECOVERED : ELSEWHERE;
    case MACHTRACE_IN_REGISTER:
        if (!is_known(walk->known, recovery->from))
            return UNKNOWN_REGISTER;
        return add(walk->values[recovery->from], recovery->offset, value) ? RECOVERED : ELSEWHERE;
    case MACHTRACE_LOST:
        return UNKNOWN_REGISTER;
    }
    return ELSEWHERE;
}

/* Step to the caller, or return the reason why not; then nothing has changed. */
static bool step(const struct machtrace_table *table, const struct machtrace_rule *rule,
                 struct machtrace_walk *walk, enum machtrace_pause *pause)
{
    const struct machtrace_machine *machine = &table->machine;
    *pause = MACHTRACE_DECLINED;
    if (rule->return_address.location == MACHTRACE_LOST) {
        *pause = MACHTRACE_ROOT;
        return false;
    }
    if (!is_known(walk->known, rule->cfa_register))
        return false;
    uint64_t base = walk->values[rule->cfa_register];
    if (rule->cfa_register == machine->fp && base == 0) {
        *pause = MACHTRACE_ROOT;
        return false;
    }
    if (base >> TAG_SHIFT == 1)
        base &= ADDRESS_BITS;
    uint64_t cfa;
    if (!add(base & walk->mask, rule->cfa_offset, &cfa) || (cfa & (machine->pointer_size - 1u)) != 0)
        return false;
    uint64_t pc;
    if (recover(&rule->return_address, walk, cfa, &pc) != RECOVERED)
        return false;
    pc &= walk->mask & machine->code_bits;
    if (pc < NULL_PAGE) {
        *pause = MACHTRACE_ROOT;
        return false;
    }

    /* All of the caller's registers are computed before any of this frame's is overwritten. */
    const struct machtrace_recovery *saved = &table->recoveries[rule->first];
    uint64_t values[UINT8_MAX];
    bool recovered[UINT8_MAX];
    uint64_t sp = cfa;
    bool has_sp = true;
    for (unsigned index = 0; index < rule->count; index++) {
        enum outcome outcome = recover(&saved[index], walk, cfa, &values[index]);
        if (outcome == ELSEWHERE)
            return false;
        recovered[index] = outcome == RECOVERED;
        if (saved[index].number == machine->sp) {
            has_sp = recovered[index];
            sp = has_sp ? values[index] : cfa;
        }
        if (saved[index].number == machine->fp && recovered[index] && walk->declines_async &&
            marks_a_record(values[index]))
            return false;
    }
    if (!has_sp || !is_known(walk->known, machine->sp))
        return false;
    uint64_t last_sp = walk->values[machine->sp];
    if (rule->must_rise && sp <= last_sp)
        return false;
    bool is_regular = rule->return_address.location == MACHTRACE_AT_CFA;
    switch (machtrace_walk_push(walk, last_sp, pc, sp, rule->code, is_regular)) {
    case MACHTRACE_PUSHED:
        break;
    case MACHTRACE_NO_ROOM:
        *pause = MACHTRACE_NO_MEMORY;
        return false;
    default:
        return false;
    }

    for (unsigned word = 0; word < MACHTRACE_REGISTERS / 64; word++)
        walk->known[word] &= machine->preserved[word];
    walk->known[machine->sp / 64] |= UINT64_C(1) << (machine->sp % 64);
    walk->values[machine->sp] = cfa;
    for (unsigned index = 0; index < rule->count; index++) {
        unsigned number = saved[index].number;
        if (number >= machine->register_count)
            continue;
        uint64_t bit = UINT64_C(1) << (number % 64);
        if (recovered[index]) {
            walk->known[number / 64] |= bit;
            walk->values[number] = values[index];
        } else {
            walk->known[number / 64] &= ~bit;
        }
    }
    walk->interrupted = false;
    return true;
}

enum machtrace_pause machtrace_walk_run(const struct machtrace_table *table,
                                        struct machtrace_walk *walk)
{
    if (walk->frames == 0)
        return MACHTRACE_DECLINED;
    for (;;) {
        uint64_t lookup = walk->pc - (walk->interrupted ? 0 : 1);
        const struct machtrace_rule *rule =
            machtrace_table_find(table, lookup, walk->interrupted);
        if (rule == NULL)
            return MACHTRACE_NO_RULE;
        enum machtrace_pause pause;
        if (!step(table, rule, walk, &pause))
            return pause;
    }
}

void machtrace_walk_release(struct machtrace_walk *walk)
{
    free(walk->addresses);
    free(walk->codes);
    walk->addresses = NULL;
    walk->codes = NULL;
    walk->count = walk->room = walk->first = 0;
}
