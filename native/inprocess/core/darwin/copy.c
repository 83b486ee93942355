/* inprocess/core/capture.h for Darwin: registers and stack of one thread.
 *
 * The kernel reads both, so that memory unmapped meanwhile is an error, not a fault.
 */
#include "inprocess/core/darwin/shared.h"

#include <pthread.h>
#include <string.h>

#include "common/darwin/registers.h"
#include "common/darwin/clock.h"
#include "common/darwin/memory.h"
#include "common/darwin/threads.h"
#include "inprocess/core/current_registers.h"

#if defined(__aarch64__)
/* mach/arm/_structs.h has these flags after the registers. If both this program and the thread's
 * are arm64e the kernel signs the registers: fp, sp and pc always, lr if the program had not. It
 * then clears the first flag. */
#define FLAGS (33 * 8 + 4)
#define NO_PTRAUTH 1u
#define IB_SIGNED_LR 2u
#if defined(__DARWIN_ARM_THREAD_STATE64_FLAGS_NO_PTRAUTH) /* by the headers for arm64e only */
_Static_assert(__DARWIN_ARM_THREAD_STATE64_FLAGS_NO_PTRAUTH == NO_PTRAUTH, "NO_PTRAUTH");
_Static_assert(__DARWIN_ARM_THREAD_STATE64_FLAGS_IB_SIGNED_LR == IB_SIGNED_LR, "IB_SIGNED_LR");
_Static_assert(offsetof(machtrace_darwin_registers, __opaque_flags) == FLAGS, "flags");
#endif

/* xpaclri by the number that processors without signatures have no instruction for: it does
 * nothing there. */
static uint64_t stripped(uint64_t pointer)
{
    register uint64_t lr __asm__("x30") = pointer;
    __asm__("hint #7" : "+r"(lr));
    return lr;
}

static void strip(unsigned char *registers, size_t number)
{
    uint64_t value;
    memcpy(&value, registers + 8 * number, sizeof value);
    value = stripped(value);
    memcpy(registers + 8 * number, &value, sizeof value);
}

static void strip_signatures(unsigned char *registers)
{
    uint32_t flags;
    memcpy(&flags, registers + FLAGS, sizeof flags);
    if ((flags & NO_PTRAUTH) != 0)
        return;
    strip(registers, 29); /* fp */
    strip(registers, 31); /* sp */
    strip(registers, 32); /* pc */
    if ((flags & IB_SIGNED_LR) == 0)
        strip(registers, 30);
}
#else
static void strip_signatures(unsigned char *registers)
{
    (void)registers;
}
#endif

static void copy_stack(const struct machtrace_inprocess_capture *capture,
                       struct machtrace_thread *thread)
{
    thread->stack_count = 1;
    thread->error = machtrace_mach_copy_stack(
        mach_task_self(), machtrace_darwin_sp(thread->registers), capture->stack_limit,
        thread->buffer, thread->room, &thread->stacks[0]);
    thread->outcome = thread->error == 0 ? MACHTRACE_COPIED : MACHTRACE_FAILED;
}

void machtrace_copy_suspended(const struct machtrace_inprocess_capture *capture,
                              struct machtrace_thread *thread, thread_act_t port)
{
    if (!machtrace_mach_read_registers(thread, port))
        return;
    strip_signatures(thread->registers);
    copy_stack(capture, thread);
}

void machtrace_inprocess_copy_here(const struct machtrace_inprocess_capture *capture,
                                   struct machtrace_thread *thread)
{
    struct machtrace_here here;
    memset(&here, 0, sizeof here);
    MACHTRACE_TAKE_HERE(&here);
    uint64_t words[MACHTRACE_REGISTERS_MAX / 8] = {0};
#if defined(__aarch64__)
    for (size_t index = 0; index < 32; index++)
        words[index] = here.values[index]; /* x0 to x30, sp */
    words[32] = here.pc;
#else
    static const unsigned char order[16] = {0, 3, 2, 1, 5, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (size_t index = 0; index < 16; index++)
        words[index] = here.values[order[index]];
    words[16] = here.pc;
#endif
    thread->error = 0;
    thread->uninterruptible = 0;
    thread->pthread_or_queue = (uint64_t)(uintptr_t)pthread_self();
    thread->registers_size = sizeof(machtrace_darwin_registers);
    memcpy(thread->registers, words, thread->registers_size);
    thread->requested_at = thread->stopped_at = machtrace_mach_now();
    copy_stack(capture, thread);
    thread->resumed_at = thread->stopped_at;
}

size_t machtrace_inprocess_read(uint64_t address, void *to, size_t size)
{
    size_t got;
    machtrace_mach_read(mach_task_self(), address, to, size, &got);
    return got;
}

uint64_t machtrace_inprocess_stack_end(void)
{
    return (uint64_t)(uintptr_t)pthread_get_stackaddr_np(pthread_self());
}
