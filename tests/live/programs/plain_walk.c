/* Stacks and rules at random: the plain walk finds what the whole walk finds, or nothing. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "walk/plain_walk.h"
#include "walk/stack_walk.h"

enum { SP = 7, FP = 6, OTHER = 3, SLOTS = 64, ADDRESSES = 6, MOST = 256 };

static uint64_t state = 88172645463325252u;

static uint32_t any(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 20) % below;
}

static uint64_t address(uint32_t number)
{
    return 0x400000 + number * 16;
}

/* Mostly what compilers make, at times anything. */
static int32_t offset(uint32_t words)
{
    if (any(50) == 0)
        return (int32_t)(any(2) ? INT32_MIN + (int32_t)any(100) : INT32_MAX - (int32_t)any(100));
    return ((int32_t)any(2 * words) - (int32_t)words) * 8 + (any(60) == 0 ? 4 : 0);
}

static void define(struct machtrace_table *table, uint32_t number)
{
    struct machtrace_recovery saved[3];
    size_t count = 0;
    if (any(2))
        saved[count++] = (struct machtrace_recovery){FP, MACHTRACE_AT_CFA, 0, 8, offset(3)};
    if (any(3) == 0)
        saved[count++] = (struct machtrace_recovery){
            (uint8_t)(any(8) == 0 ? SP : OTHER), (uint8_t)any(4), FP, any(20) ? 8 : 4, offset(3)};
    if (any(12) == 0)
        saved[count++] = (struct machtrace_recovery){FP, (uint8_t)any(4), OTHER, 8, offset(2)};
    uint32_t by = any(20);
    struct machtrace_rule rule = {
        .cfa_register = by == 0 ? OTHER : by < 8 ? FP : SP,
        .must_rise = any(2) != 0,
        .cfa_offset = any(10) ? (int32_t)(1 + any(6)) * 8 : offset(8),
        .return_address = {0, MACHTRACE_AT_CFA, 0, 8, any(10) ? -8 : offset(3)},
    };
    if (any(15) == 0)
        rule.return_address.place = (uint8_t)any(4);
    int64_t defined = machtrace_table_define(table, &rule, saved, count);
    if (defined < 0 || machtrace_table_add(table, address(number) + 8, true, (uint32_t)defined) != 0 ||
        machtrace_table_add(table, address(number) + 7, false, (uint32_t)defined) != 0)
        exit(2);
}

int main(int count, char **arguments)
{
    long rounds = count > 1 ? atol(arguments[1]) : 1000, alike = 0, deep = 0;
    for (long round = 0; round < rounds; round++) {
        struct machtrace_table table = {
            .machine = {SP, FP, 8, 17, UINT64_MAX, {UINT64_C(0xf0c8), 0}}, .seed = state};
        for (uint32_t number = 0; number < ADDRESSES; number++)
            define(&table, number);
        uint64_t *stack = malloc(SLOTS * sizeof *stack);
        uint64_t base = (uint64_t)(uintptr_t)stack;
        for (size_t slot = 0; slot < SLOTS; slot++) {
            uint32_t kind = any(40);
            stack[slot] = kind == 0  ? 0
                          : kind < 8 ? base + any(SLOTS + 4) * 8
                          : kind < 9 ? UINT64_C(1) << 60 | any(1000) * 8
                          : kind < 10 ? any(5000)
                                      : address(any(ADDRESSES + (any(40) == 0))) + 8;
        }
        struct machtrace_plain_start start = {
            .pc = address(any(ADDRESSES)) + 8,
            .sp = base,
            .fp = any(10) ? base + any(SLOTS) * 8 : any(2) ? 0 : state,
            .stack = (const unsigned char *)stack,
            .stack_size = SLOTS * sizeof *stack,
            .mask = UINT64_MAX,
        };
        uint64_t found[MOST];
        size_t depth = machtrace_plain_walk(&table, &start, found, MOST);
        struct machtrace_walk whole = {.mask = UINT64_MAX,
                                       .stack_start = base,
                                       .stack = start.stack,
                                       .stack_size = start.stack_size,
                                       .interrupted = true};
        whole.values[SP] = base;
        whole.values[FP] = start.fp;
        whole.known[0] = 1 << SP | 1 << FP | 1 << OTHER;
        machtrace_walk_begin(&whole, MOST, MOST);
        machtrace_walk_push(&whole, 0, start.pc, base, 0, true);
        enum machtrace_pause pause = machtrace_walk_run(&table, &whole);
        /* The whole walk declines where a register that nobody needs cannot be read. */
        if (depth != 0 && pause != MACHTRACE_DECLINED) {
            if (pause != MACHTRACE_ROOT || whole.count != depth ||
                memcmp(whole.addresses, found, depth * sizeof *found) != 0) {
                printf("round %ld: plain %zu frames, whole %zu and pause %d\n", round, depth,
                       whole.count, (int)pause);
                return 1;
            }
            alike++;
            deep += depth > 3;
        }
        machtrace_walk_release(&whole);
        machtrace_table_clear(&table);
        free(stack);
    }
    printf("alike %ld, of these deep %ld\n", alike, deep);
    return 0;
}
