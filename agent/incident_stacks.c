/* Stacks of copied threads as nodes of the tree. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "images.h"
#include "inprocess/core/capture.h"
#include "incidents.h"
#include "recorder.h"
#include "thread.h"
#include "walk/frame_records.h"

#define SEARCH_MAX 65536 /* bytes from the stack pointer on */

#if defined(__aarch64__) /* struct user_pt_regs (asm/ptrace.h), arm_thread_state64_t */
enum { FP_WORD = 29, PC_WORD = 32 };
#elif defined(__APPLE__)
enum { FP_WORD = 6, PC_WORD = 16 }; /* x86_thread_state64_t */
#else
enum { FP_WORD = 4, PC_WORD = 16 }; /* struct user_regs_struct (sys/user.h) */
#endif

static uint64_t frames[MACHTRACE_FRAMES_MAX]; /* of the one thread that takes such stacks */

static uint64_t word_at(const unsigned char *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

#if defined(__linux__)
/* Whether the instruction before an address is a call. */
static bool is_return_address(uint64_t address)
{
    unsigned char code[8];
    if (machtrace_is_in_code(address) == 0 ||
        machtrace_inprocess_read(address - 8, code, 8) != 8)
        return false;
#if defined(__aarch64__)
    uint32_t word;
    memcpy(&word, code + 4, 4);
    return (word & 0xfc000000) == 0x94000000 || (word & 0xfefff000) == 0xd63f0000;
#else
    if (code[3] == 0xe8)
        return true;
    /* call r/m: 0xff /2, its operand in the register, or in memory with 0, 1 or 4 bytes more. */
    static const unsigned char sizes[] = {2, 3, 4, 6, 7};
    for (size_t index = 0; index < sizeof sizes; index++)
        if (code[8 - sizes[index]] == 0xff && (code[9 - sizes[index]] & 0x38) == 0x10)
            return true;
    return false;
#endif
}

/* Of a thread that waits no more than sp and pc are known, and the C library's functions have no
 * frame records. So the function that called it is the first return address of other code, and its
 * own record the first above that leads to another one. */
static size_t search(const struct machtrace_frame_stack *stack, uint64_t sp)
{
    const struct machtrace_agent_image *home = machtrace_image_at(frames[0], MACHTRACE_ERA_NOW);
    uint64_t at = sp, high = stack->high - stack->low > SEARCH_MAX && sp + SEARCH_MAX < stack->high
                                 ? sp + SEARCH_MAX
                                 : stack->high;
    size_t count = 1;
    bool is_own = home == NULL || home->is_program;
    for (; at + 16 <= high; at += 8) {
        const unsigned char *bytes = stack->bytes + (at - stack->low);
        uint64_t value = word_at(bytes) & stack->code_bits;
        bool is_record = false;
        if (count == 1 && is_return_address(value) &&
            (is_own || value < home->start || value >= home->end)) {
            frames[count++] = value;
            continue;
        }
        uint64_t caller = word_at(bytes + 8) & stack->code_bits;
        uint64_t next = word_at(bytes);
        if (next > at && next % 8 == 0 && next <= stack->high - 16 && is_return_address(caller))
            is_record =
                is_return_address(word_at(stack->bytes + (next - stack->low) + 8) & stack->code_bits);
        if (!is_record)
            continue;
        struct machtrace_records_walk walk = {at, count, MACHTRACE_RECORDS_BROKEN};
        machtrace_frame_records(stack, &walk, frames, MACHTRACE_FRAMES_MAX);
        return walk.count;
    }
    return count;
}
#endif

uint32_t machtrace_stack_of_copy(const struct machtrace_thread *thread, uint32_t *flags)
{
    const struct machtrace_stack *copy = &thread->stacks[0];
    struct machtrace_frame_stack stack = {copy->start, copy->start + copy->size, copy->bytes,
                                          machtrace_recorders.code_bits};
    const unsigned char *registers = thread->registers;
    bool is_whole = thread->registers_size > 16;
    size_t count = 1;
    frames[0] = word_at(registers + (is_whole ? PC_WORD : 1) * 8);
    if (copy->size >= 16 && is_whole) {
        struct machtrace_records_walk walk = {word_at(registers + FP_WORD * 8), 1,
                                              MACHTRACE_RECORDS_BROKEN};
        frames[0]++; /* as if it were a return address: the instruction is before */
        machtrace_frame_records(&stack, &walk, frames, MACHTRACE_FRAMES_MAX);
        count = walk.count;
    }
#if defined(__linux__)
    if (copy->size >= 16 && !is_whole) {
        *flags |= MACHTRACE_INCIDENT_SEARCHED;
        count = search(&stack, word_at(registers));
    }
#else
    (void)flags;
#endif
    uint32_t node = atomic_load(&machtrace_recorders.root);
    while (count > 0 && machtrace_is_in_code(frames[count - 1]) == 0)
        count--; /* the last record of a stack has anything */
    while (count-- > 0) {
        uint32_t inner =
            machtrace_stack_tree_insert(&machtrace_recorders.tree, node, frames[count]);
        if (inner == MACHTRACE_TREE_ROOT)
            break;
        node = inner;
    }
    return node;
}
