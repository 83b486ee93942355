/* agent/linux/entry.h for x86-64. Instructions: Intel SDM volume 2, chapter 2 and appendix A. */
#if defined(__x86_64__) || defined(MACHTRACE_DISPLACE_X86_64)
#define _GNU_SOURCE
#include "linux/entry.h"

#include <stdatomic.h>
#include <string.h>

#include "linux/system.h"

#define JUMP_SIZE 5
#define SYNC_CORE 32 /* MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE, linux/membarrier.h */
#define REGISTER_SYNC_CORE 64

const uint64_t machtrace_island_reach = UINT64_C(1) << 30;

struct instruction {
    uint32_t length;
    uint32_t map; /* 0 one byte, 1 0f, 2 0f 38, 3 0f 3a; those of VEX and EVEX are the same */
    uint8_t opcode;
    uint8_t modrm;
    bool has_vector_prefix;
    bool has_size_prefix;
    uint32_t displacement; /* where that of a memory operand relative to rip is; 0 for none */
    uint32_t relative;     /* where that of a branch is; 0 for none */
    uint32_t relative_size;
};

static bool has_modrm(uint32_t map, uint8_t opcode)
{
    if (map > 1)
        return true;
    if (map == 1)
        return !((opcode >= 0x05 && opcode <= 0x09) || opcode == 0x0b || opcode == 0x0e ||
                 (opcode & 0xf8) == 0x30 || opcode == 0x77 || (opcode & 0xf0) == 0x80 ||
                 (opcode >= 0xa0 && opcode <= 0xa2) || (opcode >= 0xa8 && opcode <= 0xaa) ||
                 (opcode & 0xf8) == 0xc8);
    return (opcode < 0x40 && (opcode & 7) < 4) || opcode == 0x63 || opcode == 0x69 ||
           opcode == 0x6b || (opcode & 0xf0) == 0x80 || (opcode & 0xfe) == 0xc0 ||
           (opcode & 0xfe) == 0xc6 || (opcode & 0xfc) == 0xd0 || (opcode & 0xf8) == 0xd8 ||
           (opcode & 0xfe) == 0xf6 || (opcode & 0xfe) == 0xfe;
}

/* Bytes of the immediate operand, a branch's included. */
static uint32_t immediate_size(const struct instruction *one, bool is_wide, bool has_address_prefix)
{
    uint8_t opcode = one->opcode;
    uint32_t word = one->has_size_prefix ? 2 : 4;
    if (one->map == 1)
        return (opcode & 0xf0) == 0x80 ? 4
               : (opcode & 0xfc) == 0x70 || opcode == 0xa4 || opcode == 0xac || opcode == 0xba ||
                       opcode == 0xc2 || (opcode >= 0xc4 && opcode <= 0xc6)
                   ? 1
                   : 0;
    if (one->map != 0)
        return one->map == 3;
    if (opcode < 0x40)
        return (opcode & 7) == 4 ? 1 : (opcode & 7) == 5 ? word : 0;
    if ((opcode & 0xf8) == 0xb8)
        return is_wide ? 8 : word;
    if ((opcode & 0xfc) == 0xa0)
        return has_address_prefix ? 4 : 8;
    switch (opcode) {
    case 0x68: case 0x69: case 0x81: case 0xa9: case 0xc7:
        return word;
    case 0xe8: case 0xe9:
        return 4;
    case 0xc2: case 0xca:
        return 2;
    case 0xc8:
        return 3;
    case 0xf6:
        return (one->modrm & 0x30) == 0;
    case 0xf7:
        return (one->modrm & 0x30) == 0 ? word : 0;
    case 0x6a: case 0x6b: case 0x80: case 0x83: case 0xa8: case 0xc0: case 0xc1: case 0xc6:
    case 0xcd: case 0xe4: case 0xe5: case 0xe6: case 0xe7: case 0xeb:
        return 1;
    default:
        return (opcode & 0xf0) == 0x70 || (opcode & 0xf8) == 0xb0 || (opcode & 0xfc) == 0xe0;
    }
}

/* Opcodes that 64-bit code does not have, or that are of extensions that are not known here. */
static bool is_unknown(const struct instruction *one)
{
    uint8_t opcode = one->opcode;
    if (one->map == 0 && one->has_vector_prefix)
        return true;
    if (one->map == 0)
        return (opcode < 0x40 && (opcode & 7) > 5) || (opcode & 0xfe) == 0x60 || opcode == 0x62 ||
               (opcode >= 0x64 && opcode <= 0x67) || (opcode & 0xf0) == 0x40 || opcode == 0x82 ||
               opcode == 0x9a || opcode == 0xce || (opcode >= 0xd4 && opcode <= 0xd6) ||
               opcode == 0xea || opcode == 0xf0 || (opcode & 0xfe) == 0xf2;
    return one->map > 3 || (one->map == 1 && !one->has_vector_prefix &&
                            (opcode == 0x04 || opcode == 0x0a || opcode == 0x0c || opcode == 0x0f ||
                             (opcode >= 0x24 && opcode <= 0x27) || (opcode & 0xfe) == 0x36 ||
                             (opcode & 0xfe) == 0xa6 || (opcode & 0xfc) == 0x78));
}

static bool decode(const uint8_t *code, uint64_t size, struct instruction *one)
{
    uint32_t at = 0, limit = size < 15 ? (uint32_t)size : 15;
    bool is_wide = false, has_address_prefix = false;
    memset(one, 0, sizeof *one);
    for (; at < limit; at++) {
        uint8_t byte = code[at];
        if (byte == 0x66)
            one->has_size_prefix = true;
        else if (byte == 0x67)
            has_address_prefix = true;
        else if (byte != 0xf0 && byte != 0xf2 && byte != 0xf3 && byte != 0x26 && byte != 0x2e &&
                 byte != 0x36 && byte != 0x3e && byte != 0x64 && byte != 0x65)
            break;
    }
    if (at >= limit)
        return false;
    if ((code[at] & 0xf0) == 0x40) {
        is_wide = (code[at] & 8) != 0;
        if (is_wide)
            one->has_size_prefix = false;
        at++;
    }
    if (at >= limit)
        return false;
    uint32_t vector = code[at] == 0xc5 ? 2 : code[at] == 0xc4 ? 3 : code[at] == 0x62 ? 4 : 0;
    if (vector != 0) {
        if (at + vector >= limit)
            return false;
        one->has_vector_prefix = true;
        one->map = vector == 2 ? 1 : vector == 3 ? code[at + 1] & 0x1fu : code[at + 1] & 7u;
        if (vector == 4 && (one->map == 5 || one->map == 6))
            one->map = 2; /* of the same form */
        at += vector;
    } else if (code[at] == 0x0f) {
        one->map = 1;
        if (++at < limit && (code[at] == 0x38 || code[at] == 0x3a))
            one->map = code[at++] == 0x38 ? 2 : 3;
        if (at >= limit)
            return false;
    }
    one->opcode = code[at++];
    if (is_unknown(one))
        return false;
    bool is_zeroing = one->has_vector_prefix && one->map == 1 && one->opcode == 0x77;
    if ((one->has_vector_prefix && !is_zeroing) || has_modrm(one->map, one->opcode)) {
        if (at >= limit)
            return false;
        one->modrm = code[at++];
        uint32_t mode = one->modrm >> 6, memory = one->modrm & 7;
        if (one->map == 0 && one->opcode == 0x8f && (one->modrm & 0x38) != 0)
            return false; /* XOP */
        if (mode != 3) {
            if (memory == 4 && at >= limit)
                return false;
            uint32_t base = memory == 4 ? code[at++] & 7u : memory;
            if (mode == 0 && memory == 5)
                one->displacement = at;
            at += mode == 1 ? 1 : mode == 2 || base == 5 ? 4 : 0;
        }
    }
    uint32_t immediate = immediate_size(one, is_wide, has_address_prefix);
    bool is_branch = one->map == 0 ? (one->opcode & 0xf0) == 0x70 || (one->opcode & 0xfc) == 0xe0 ||
                                         one->opcode == 0xe8 || one->opcode == 0xe9 ||
                                         one->opcode == 0xeb
                                   : one->map == 1 && !one->has_vector_prefix &&
                                         (one->opcode & 0xf0) == 0x80;
    if (is_branch && one->has_size_prefix)
        return false; /* whose length depends on the processor's vendor */
    if (is_branch) {
        one->relative = at;
        one->relative_size = immediate;
    }
    at += immediate;
    one->length = at;
    return at <= limit;
}

uint32_t machtrace_instruction_length(const uint8_t *code, uint64_t size)
{
    struct instruction one;
    return decode(code, size, &one) ? one.length : 0;
}

static int64_t offset_at(const uint8_t *bytes, uint32_t size)
{
    int32_t value;
    if (size == 1)
        return (int8_t)bytes[0];
    memcpy(&value, bytes, sizeof value);
    return value;
}

static bool is_call(const struct instruction *one)
{
    return one->map == 0 &&
           (one->opcode == 0xe8 || (one->opcode == 0xff && (one->modrm & 0x30) == 0x10));
}

/* Calls by pointers, whose return address would be the island's; what stops; and branches without a
 * long form. */
static bool is_fixed(const struct instruction *one)
{
    if (one->map == 1)
        return !one->has_vector_prefix &&
               (one->opcode == 0x05 || one->opcode == 0x34 || one->opcode == 0x0b ||
                one->opcode == 0xff || one->opcode == 0xb9);
    return one->map == 0 && ((is_call(one) && one->opcode != 0xe8) ||
                             (one->opcode & 0xfc) == 0xe0 || one->opcode == 0xcc ||
                             one->opcode == 0xcd || one->opcode == 0xf1 || one->opcode == 0xf4 ||
                             one->opcode == 0xcf || (one->opcode == 0xc7 && one->modrm == 0xf8));
}

static bool ends(const struct instruction *one)
{
    return one->map == 0 &&
           (one->opcode == 0xeb || one->opcode == 0xe9 || (one->opcode & 0xf6) == 0xc2 ||
            (one->opcode == 0xff && (one->modrm & 0x30) == 0x20));
}

/* Whether an instruction of the function branches to a replaced one. As far as it is known. */
static bool is_target(const uint8_t *code, uint64_t size, uint32_t first, uint32_t last)
{
    struct instruction one;
    for (uint64_t at = 0; at < size && decode(code + at, size - at, &one); at += one.length) {
        int64_t target = (int64_t)(at + one.length);
        if (one.relative == 0)
            continue;
        target += offset_at(code + at + one.relative, one.relative_size);
        if (target < (int64_t)last && target >= (int64_t)first + is_call(&one))
            return true;
    }
    return false;
}

static bool put_offset(uint8_t *to, uint64_t from, uint64_t target)
{
    int64_t offset = (int64_t)(target - from);
    int32_t value = (int32_t)offset;
    memcpy(to, &value, sizeof value);
    return value == offset;
}

/* Append an instruction of `address` to the code at `*at` of an island; false if it is too far. */
static bool relocate(const uint8_t *code, uint64_t address, const struct instruction *one,
                     uint8_t *island, uint64_t island_address, uint32_t *at)
{
    uint64_t next = address + one->length;
    uint8_t *to = island + *at;
    if (one->relative != 0) {
        uint64_t target = next + (uint64_t)offset_at(code + one->relative, one->relative_size);
        uint32_t length = 5;
        if (one->opcode == 0xe8 && one->map == 0) {
            /* push what is 5 bytes behind; jmp */
            static const uint8_t push[] = {0xff, 0x35, 5, 0, 0, 0, 0xe9};
            memcpy(to, push, sizeof push);
            memcpy(to + sizeof push + 4, &next, sizeof next);
            *at += (uint32_t)(sizeof push + 4 + sizeof next);
            return put_offset(to + sizeof push, island_address + *at - sizeof next, target);
        }
        to[0] = 0xe9;
        if (one->opcode != 0xe9 && one->opcode != 0xeb) {
            to[0] = 0x0f;
            to[1] = (uint8_t)(0x80 | (one->opcode & 15));
            length = 6;
        }
        *at += length;
        return put_offset(to + length - 4, island_address + *at, target);
    }
    memcpy(to, code, one->length);
    *at += one->length;
    if (one->displacement == 0)
        return true;
    uint64_t target = next + (uint64_t)offset_at(code + one->displacement, 4);
    return put_offset(to + one->displacement, island_address + *at, target);
}

/* Whether nothing but padding is behind the function, up to an offset. */
static bool is_padded(const uint8_t *code, uint64_t address, uint64_t size, uint32_t end)
{
    struct instruction one;
    uint64_t at = size, aligned = (address + size + 15) & ~UINT64_C(15);
    if (address + end > aligned)
        return false;
    for (; at < end; at += one.length) {
        if (!decode(code + at, aligned - address - at, &one))
            return false;
        bool is_nop = (one.map == 0 && (one.opcode == 0x90 || one.opcode == 0xcc)) ||
                      (one.map == 1 && one.opcode == 0x1f);
        if (!is_nop)
            return false;
    }
    return true;
}

enum machtrace_refusal machtrace_displace(const uint8_t *code, uint64_t address, uint64_t size,
                                          uint64_t island, uint64_t stub,
                                          struct machtrace_displaced *result)
{
    static const uint8_t mark[] = {0xf3, 0x0f, 0x1e, 0xfa}, far_jump[] = {0xff, 0x25, 0, 0, 0, 0};
    struct instruction one;
    memset(result, 0, sizeof *result);
    memcpy(result->island, far_jump, sizeof far_jump);
    memcpy(result->island + sizeof far_jump, &stub, sizeof stub);
    memcpy(result->island + MACHTRACE_ISLAND_ENTRY, mark, sizeof mark);
    uint32_t at = MACHTRACE_ISLAND_ENTRY + sizeof mark, first;
    first = size >= sizeof mark && memcmp(code, mark, sizeof mark) == 0 ? sizeof mark : 0;
    bool has_ended = false;
    while (result->size < JUMP_SIZE) {
        uint32_t offset = first + result->size;
        if (offset == size && result->size != 0 &&
            is_padded(code, address, size, first + JUMP_SIZE)) {
            result->size = JUMP_SIZE;
            break;
        }
        if (has_ended || offset >= size)
            return MACHTRACE_REFUSED_SHORT;
        if (!decode(code + offset, size - offset, &one) || is_fixed(&one))
            return MACHTRACE_REFUSED_INSTRUCTION;
        if (!relocate(code + offset, address + offset, &one, result->island, island, &at))
            return MACHTRACE_REFUSED_DISTANCE;
        result->boundaries |= 1u << result->size;
        result->size += one.length;
        result->has_call |= is_call(&one);
        has_ended = ends(&one);
    }
    result->boundaries &= ~1u;
    if (is_target(code, size, first, first + result->size))
        return MACHTRACE_REFUSED_TARGET;
    result->offset = first;
    result->patch_size = JUMP_SIZE;
    result->patch[0] = result->island[at] = 0xe9;
    result->island_size = at + JUMP_SIZE;
    if ((address + first) % 8 == 7)
        return MACHTRACE_REFUSED_INSTRUCTION; /* two bytes of it could not be written at once */
    return put_offset(result->island + at + 1, island + at + JUMP_SIZE,
                      address + first + result->size) &&
                   put_offset(result->patch + 1, address + first + JUMP_SIZE, island)
               ? MACHTRACE_NOT_REFUSED
               : MACHTRACE_REFUSED_DISTANCE;
}

static void write_two(uint8_t *at, uint8_t first, uint8_t second)
{
    _Atomic uint64_t *word = (_Atomic uint64_t *)((uintptr_t)at & ~(uintptr_t)7);
    uint32_t shift = (uint32_t)((uintptr_t)at & 7) * 8;
    uint64_t value = atomic_load(word);
    value &= ~(UINT64_C(0xffff) << shift);
    atomic_store(word, value | (uint64_t)(first | second << 8) << shift);
    machtrace_system(SYS_membarrier, SYNC_CORE, 0, 0, 0, 0, 0);
}

/* Threads that come there meanwhile wait, in a jump to itself. */
void machtrace_replace_code(uint8_t *at, const uint8_t *bytes, uint32_t size)
{
    machtrace_system(SYS_membarrier, REGISTER_SYNC_CORE, 0, 0, 0, 0, 0);
    write_two(at, 0xeb, 0xfe);
    for (uint32_t index = 2; index < size; index++)
        ((volatile uint8_t *)at)[index] = bytes[index];
    machtrace_system(SYS_membarrier, SYNC_CORE, 0, 0, 0, 0, 0);
    write_two(at, bytes[0], bytes[1]);
}

#endif
