/* agent/linux/entry.h for arm64. Instructions: Arm ARM (DDI 0487), C4.1 and C6.2. */
#if defined(__aarch64__) || defined(MACHTRACE_DISPLACE_ARM64)
#include "linux/entry.h"

#include <stdatomic.h>
#include <string.h>

#define RANGE_OF_B (INT64_C(1) << 27)

const uint64_t machtrace_island_reach = UINT64_C(100) << 20;

/* Instructions that stay in front of the patch, since they are targets of indirect calls: bti,
 * paciasp, pacibsp. */
static bool is_mark(uint32_t word)
{
    return (word & 0xffffff3f) == 0xd503241f || word == 0xd503233f || word == 0xd503237f;
}

uint32_t machtrace_instruction_length(const uint8_t *code, uint64_t size)
{
    (void)code;
    return size < 4 ? 0 : 4;
}

static int64_t signed_field(uint32_t word, uint32_t shift, uint32_t bits)
{
    return (int64_t)((uint64_t)(word >> shift) << (64 - bits)) >> (64 - bits);
}

static uint32_t word_at(const uint8_t *code, uint64_t offset)
{
    uint32_t word;
    memcpy(&word, code + offset, sizeof word);
    return word;
}

enum form { OTHER, BRANCH, CALL, CONDITIONAL, TEST, ADDRESS, PAGE, LOAD };

/* How an instruction depends on its address; and which offset it has. */
static enum form form_of(uint32_t word, int64_t *offset)
{
    *offset = 4 * signed_field(word, 5, 19);
    if ((word & 0x7c000000) == 0x14000000) {
        *offset = 4 * signed_field(word, 0, 26);
        return word >> 31 != 0 ? CALL : BRANCH;
    }
    if ((word & 0xff000000) == 0x54000000 || (word & 0x7e000000) == 0x34000000)
        return CONDITIONAL; /* b.cond, bc.cond, cbz, cbnz */
    if ((word & 0x7e000000) == 0x36000000) {
        *offset = 4 * signed_field(word, 5, 14);
        return TEST;
    }
    if ((word & 0x1f000000) == 0x10000000) {
        *offset = 4 * signed_field(word, 5, 19) + (word >> 29 & 3);
        return word >> 31 != 0 ? PAGE : ADDRESS;
    }
    return (word & 0x3b000000) == 0x18000000 ? LOAD : OTHER;
}

/* Calls, whose return address would be the island's; and what stops. */
static bool is_fixed(uint32_t word)
{
    return (word & 0xfffffc1f) == 0xd63f0000 /* blr */ ||
           (word & 0xfefff800) == 0xd63f0800 /* blraa, blrab, blraaz, blrabz */ ||
           (word & 0xff000000) == 0xd4000000 /* svc, brk, hlt */ || (word & 0xffff0000) == 0;
}

static bool put_branch(uint8_t *to, uint64_t from, uint64_t target)
{
    int64_t offset = (int64_t)(target - from);
    uint32_t word = 0x14000000 | ((uint32_t)(offset >> 2) & 0x03ffffff);
    memcpy(to, &word, sizeof word);
    return offset >= -RANGE_OF_B && offset < RANGE_OF_B;
}

static void put(uint8_t *to, uint32_t *at, uint32_t word)
{
    memcpy(to + *at, &word, sizeof word);
    *at += (uint32_t)sizeof word;
}

/* Append an instruction of `address`, and the branch to the one behind; false if it is too far. */
static bool relocate(uint32_t word, uint64_t address, uint8_t *island, uint64_t island_address,
                     uint32_t *at)
{
    int64_t offset;
    enum form form = form_of(word, &offset);
    uint64_t target = address + (uint64_t)offset;
    bool is_near = true;
    switch (form) {
    case BRANCH:
        is_near = put_branch(island + *at, island_address + *at, target);
        *at += 4;
        break;
    case CONDITIONAL:
    case TEST: {
        uint32_t field = form == TEST ? UINT32_C(0x3fff) << 5 : UINT32_C(0x7ffff) << 5;
        put(island, at, (word & ~field) | 2u << 5);
        is_near = put_branch(island + *at, island_address + *at, address + 4);
        *at += 4;
        is_near &= put_branch(island + *at, island_address + *at, target);
        *at += 4;
        return is_near;
    }
    case ADDRESS:
    case PAGE:
    case LOAD: {
        /* The address is 8 bytes behind what uses it: ldr x, #8; or ldr x17, #12; ldr x, [x17] */
        uint32_t data = word & 31, size = word >> 30;
        if (form == PAGE)
            target = (address & ~UINT64_C(0xfff)) + ((uint64_t)offset << 12);
        if (form != LOAD) {
            put(island, at, 0x58000040 | data);
        } else {
            static const uint32_t general[] = {0xb9400220, 0xf9400220, 0xb9800220, 0xf9800220};
            static const uint32_t vector[] = {0xbd400220, 0xfd400220, 0x3dc00220, 0};
            uint32_t load = (word >> 26 & 1) != 0 ? vector[size] : general[size];
            if (load == 0)
                return false;
            put(island, at, 0x58000071);
            put(island, at, load | data);
        }
        is_near = put_branch(island + *at, island_address + *at, address + 4);
        *at += 4;
        memcpy(island + *at, &target, sizeof target);
        *at += (uint32_t)sizeof target;
        return is_near;
    }
    default:
        put(island, at, word);
    }
    is_near &= put_branch(island + *at, island_address + *at, address + 4);
    *at += 4;
    return is_near;
}

static bool is_target(const uint8_t *code, uint64_t size, uint32_t patch)
{
    for (uint64_t at = 0; at + 4 <= size; at += 4) {
        int64_t offset;
        enum form form = form_of(word_at(code, at), &offset);
        if ((form == BRANCH || form == CONDITIONAL || form == TEST) &&
            (int64_t)at + offset == (int64_t)patch)
            return true;
    }
    return false;
}

enum machtrace_refusal machtrace_displace(const uint8_t *code, uint64_t address, uint64_t size,
                                          uint64_t island, uint64_t stub,
                                          struct machtrace_displaced *result)
{
    memset(result, 0, sizeof *result);
    uint32_t at = 0, first = 0;
    put(result->island, &at, 0x58000050); /* ldr x16, #8 */
    put(result->island, &at, 0xd61f0200); /* br x16 */
    memcpy(result->island + at, &stub, sizeof stub);
    at = MACHTRACE_ISLAND_ENTRY;
    while (first + 4 <= size && is_mark(word_at(code, first)))
        first += 4;
    if (first + 4 > size)
        return MACHTRACE_REFUSED_SHORT;
    int64_t offset;
    uint32_t word = word_at(code, first);
    if (form_of(word, &offset) == CALL || is_fixed(word))
        return MACHTRACE_REFUSED_INSTRUCTION;
    if (is_target(code, size, first))
        return MACHTRACE_REFUSED_TARGET;
    result->offset = first;
    result->size = result->patch_size = 4;
    bool is_near = relocate(word, address + first, result->island, island, &at);
    result->island_size = at;
    return put_branch(result->patch, address + first, island) && is_near
               ? MACHTRACE_NOT_REFUSED
               : MACHTRACE_REFUSED_DISTANCE;
}

void machtrace_replace_code(uint8_t *at, const uint8_t *bytes, uint32_t size)
{
    atomic_store((_Atomic uint32_t *)(uintptr_t)at, word_at(bytes, 0));
    __builtin___clear_cache((char *)at, (char *)at + size);
}

#endif
