/* Copying the calling thread: its registers, and the stack that they lead to.
 *
 * All of it may be run in the handler of a signal. The stack is read by process_vm_readv(2), to
 * which unmapped memory is an error and no fault.
 */
#define _GNU_SOURCE
#include "inprocess/core/linux/shared.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/linux/registers.h"
#include "inprocess/core/current_registers.h"

/* The range that holds `sp`, or the next one above it; empty if there is none. */
static struct machtrace_range range_at(const struct machtrace_inprocess_capture *capture,
                                       uint64_t sp)
{
    size_t low = 0;
    size_t high = capture->range_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (capture->ranges[middle].end > sp)
            high = middle;
        else
            low = middle + 1;
    }
    return low < capture->range_count ? capture->ranges[low] : (struct machtrace_range){sp, sp};
}

#define RED_ZONE 128            /* System V psABI for x86-64, 3.2.2; others have none */
#define STACK_GAP (UINT64_C(1) << 20) /* stack_guard_gap: 256 pages below a growing stack */
#define SIGNAL_FRAME_REACH 65536 /* bytes of a stack that are searched for a signal's frame */

static uint64_t thread_pointer(void)
{
    uint64_t value;
#if defined(__x86_64__)
    __asm__("movq %%fs:0, %0" : "=r"(value));
#else
    __asm__("mrs %0, tpidr_el0" : "=r"(value));
#endif
    return value;
}

/* As many bytes as can be read; whole pages at the far end. */
static ssize_t read_memory(uint64_t address, unsigned char *to, size_t size)
{
    struct iovec here = {to, size};
    struct iovec there = {(void *)(uintptr_t)address, size};
    return syscall(SYS_process_vm_readv, (pid_t)syscall(SYS_getpid), &here, 1UL, &there, 1UL, 0UL);
}

size_t machtrace_inprocess_read(uint64_t address, void *to, size_t size)
{
    size_t done = 0;
    ssize_t got = 0;
    /* The kernel copies 2 GiB at a time at most. */
    while (done < size && (got = read_memory(address + done, (unsigned char *)to + done,
                                             size - done)) > 0)
        done += (size_t)got;
    return done;
}

/* Where the stack that holds `sp` ends at the latest. */
static uint64_t stack_end(const struct machtrace_inprocess_capture *capture, uint64_t sp,
                          uint64_t pthread)
{
    /* A range that begins above it: the main stack has grown, or another is new. */
    uint64_t end = range_at(capture, sp).end;
    /* A thread's own block is at the end of the stack that was made for it, and the kernel shows
     * further mappings after it as one with it. */
    if (pthread > sp && pthread < end)
        end = pthread;
    return end - sp > capture->stack_limit ? sp + capture->stack_limit : end;
}

static void add_stack(const struct machtrace_inprocess_capture *capture,
                      struct machtrace_thread *thread, uint64_t sp, size_t used)
{
    const uint64_t page = 4096; /* of this size or a multiple */
    struct machtrace_stack *stack = &thread->stacks[thread->stack_count];
    uint64_t end = stack_end(capture, sp, thread->pthread_or_queue);
    uint64_t start = sp < RED_ZONE ? 0 : sp - RED_ZONE;
    size_t room = thread->room - used;
    ssize_t size = -1;
    for (int attempt = 0; attempt < 3 && size <= 0 && start < end; attempt++) {
        /* The red zone may lie in the guard page below the stack; or sp, if it has overflowed. */
        if (attempt == 1)
            start = sp & ~(page - 1);
        if (attempt == 2) {
            uint64_t above = range_at(capture, sp).start;
            if (above <= sp || above - sp > STACK_GAP || above >= end)
                break;
            start = above;
        }
        size_t wanted = end - start < room ? (size_t)(end - start) : room;
        size = wanted == 0 ? 0 : read_memory(start, thread->buffer + used, wanted);
    }
    if (size <= 0) {
        *stack = (struct machtrace_stack){sp, 0, NULL};
        if (thread->stack_count == 0 && size < 0)
            thread->error = errno;
    } else {
        *stack = (struct machtrace_stack){start, (size_t)size, thread->buffer + used};
    }
    thread->stack_count++;
}

static void add_stacks(const struct machtrace_inprocess_capture *capture,
                       struct machtrace_thread *thread)
{
    uint64_t sp;
    if (!machtrace_stack_pointer(thread->registers, thread->registers_size, &sp))
        return;
    add_stack(capture, thread, sp, 0);
    struct machtrace_stack first = thread->stacks[0];
    size_t reach = first.size < SIGNAL_FRAME_REACH ? first.size : SIGNAL_FRAME_REACH;
    uint64_t interrupted;
    if (first.size == 0 || first.size >= thread->room ||
        !machtrace_interrupted_sp(first.bytes, reach, sp, thread->registers_size, &interrupted))
        return;
    add_stack(capture, thread, interrupted, first.size);
    if (thread->stacks[1].size == 0)
        thread->stack_count = 1;
}

static void take_registers(struct machtrace_thread *thread, const uint64_t *words,
                           size_t count)
{
    unsigned char *to = thread->registers;
    const unsigned char *from = (const unsigned char *)words;
    thread->registers_size = count * sizeof *words;
    for (size_t index = 0; index < thread->registers_size; index++)
        to[index] = from[index];
}

static void take_context(struct machtrace_thread *thread, const ucontext_t *context)
{
#if defined(__x86_64__)
    /* struct user_regs_struct (sys/user.h), from mcontext_t's gregs (sys/ucontext.h). */
    static const signed char order[27] = {
        REG_R15, REG_R14, REG_R13, REG_R12, REG_RBP, REG_RBX, REG_R11, REG_R10, REG_R9,
        REG_R8,  REG_RAX, REG_RCX, REG_RDX, REG_RSI, REG_RDI, -1,      REG_RIP, -1,
        REG_EFL, REG_RSP, -1,      -1,      -1,      -1,      -1,      -1,      -1,
    };
    uint64_t words[27];
    for (size_t index = 0; index < 27; index++)
        words[index] = order[index] < 0 ? 0 : (uint64_t)context->uc_mcontext.gregs[order[index]];
    words[15] = UINT64_MAX; /* orig_rax: no system call */
    words[17] = (uint64_t)context->uc_mcontext.gregs[REG_CSGSFS] & 0xffff;
    words[21] = thread->pthread_or_queue; /* fs_base */
    take_registers(thread, words, 27);
#else
    /* struct user_pt_regs (asm/ptrace.h), from struct sigcontext (asm/sigcontext.h). */
    uint64_t words[34];
    for (size_t index = 0; index < 31; index++)
        words[index] = context->uc_mcontext.regs[index];
    words[31] = context->uc_mcontext.sp;
    words[32] = context->uc_mcontext.pc;
    words[33] = context->uc_mcontext.pstate;
    take_registers(thread, words, 34);
#endif
}

static enum machtrace_outcome outcome_of(const struct machtrace_thread *thread)
{
    bool is_lost = thread->stack_count != 0 && thread->stacks[0].size == 0 && thread->error != 0;
    return is_lost ? MACHTRACE_FAILED : MACHTRACE_COPIED;
}

void machtrace_copy_interrupted(const struct machtrace_inprocess_capture *capture,
                                struct machtrace_thread *thread,
                                const ucontext_t *context)
{
    thread->pthread_or_queue = thread_pointer();
    take_context(thread, context);
    add_stacks(capture, thread);
    thread->outcome = outcome_of(thread);
}

void machtrace_inprocess_copy_here(const struct machtrace_inprocess_capture *capture,
                                   struct machtrace_thread *thread)
{
    struct machtrace_here here;
    memset(&here, 0, sizeof here);
    MACHTRACE_TAKE_HERE(&here);
#if defined(__x86_64__)
    static const signed char order[27] = {15, 14, 13, 12, 6,  3,  -1, -1, -1, -1, -1, -1, -1, -1,
                                          -1, -1, 16, -1, -1, 7,  -1, -1, -1, -1, -1, -1, -1};
    enum { COUNT = 27, PC = 16 };
    uint64_t words[COUNT];
    for (size_t index = 0; index < COUNT; index++)
        words[index] = order[index] < 0 || index == PC ? 0 : here.values[order[index]];
#else
    enum { COUNT = 34, PC = 32 };
    uint64_t words[COUNT] = {0};
    for (size_t index = 0; index < 32; index++)
        words[index] = here.values[index];
#endif
    words[PC] = here.pc;
    thread->error = 0;
    thread->uninterruptible = 0;
    thread->stack_count = 0;
    thread->pthread_or_queue = thread_pointer();
    take_registers(thread, words, COUNT);
    thread->requested_at = thread->stopped_at = machtrace_now();
    add_stacks(capture, thread);
    thread->resumed_at = thread->stopped_at;
    thread->outcome = outcome_of(thread);
}
