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

_Static_assert(sizeof(machtrace_darwin_registers) <= MACHTRACE_INPROCESS_REGISTERS_MAX,
               "registers");
_Static_assert(offsetof(struct machtrace_inprocess_thread, registers) % 8 == 0,
               "words of registers");

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

/* Sets the error if there was something to read, and it could not be read. */
static void add_stack(const struct machtrace_inprocess_capture *capture,
                      struct machtrace_inprocess_thread *thread, uint64_t sp)
{
    struct machtrace_inprocess_stack *stack = &thread->stacks[0];
    *stack = (struct machtrace_inprocess_stack){sp, 0, NULL};
    thread->stack_count = 1;
    if (capture->stack_limit == 0 || thread->room == 0)
        return;
    uint64_t start, end;
    kern_return_t result =
        machtrace_mach_find_stack(mach_task_self(), sp, MACHTRACE_DARWIN_RED_ZONE,
                                  capture->stack_limit, &start, &end);
    if (result == KERN_INVALID_ADDRESS)
        return; /* it is on no stack */
    size_t got = 0;
    if (result == KERN_SUCCESS) {
        size_t size = end - start < thread->room ? (size_t)(end - start) : thread->room;
        result = machtrace_mach_read(mach_task_self(), start, thread->buffer, size, &got);
    }
    thread->error = result;
    if (got != 0)
        *stack = (struct machtrace_inprocess_stack){start, got, thread->buffer};
}

static void copy_stack(const struct machtrace_inprocess_capture *capture,
                       struct machtrace_inprocess_thread *thread)
{
    thread->registers_size = sizeof(machtrace_darwin_registers);
    add_stack(capture, thread, machtrace_darwin_sp(thread->registers));
    thread->outcome = thread->error == 0 ? MACHTRACE_INPROCESS_COPIED : MACHTRACE_INPROCESS_FAILED;
}

void machtrace_copy_suspended(const struct machtrace_inprocess_capture *capture,
                              struct machtrace_inprocess_thread *thread, thread_act_t port)
{
    mach_msg_type_number_t count = MACHTRACE_DARWIN_FLAVOR_COUNT;
    kern_return_t result =
        thread_get_state(port, MACHTRACE_DARWIN_FLAVOR,
                         (thread_state_t)(void *)thread->registers, &count);
    if (result == KERN_SUCCESS && count != MACHTRACE_DARWIN_FLAVOR_COUNT)
        result = KERN_FAILURE;
    if (result != KERN_SUCCESS) {
        thread->error = result;
        thread->outcome =
            machtrace_mach_is_gone(result) ? MACHTRACE_INPROCESS_GONE : MACHTRACE_INPROCESS_FAILED;
        return;
    }
    strip_signatures(thread->registers);
    copy_stack(capture, thread);
}

void machtrace_inprocess_copy_here(const struct machtrace_inprocess_capture *capture,
                                   struct machtrace_inprocess_thread *thread)
{
    struct machtrace_here here;
    memset(&here, 0, sizeof here);
    MACHTRACE_TAKE_HERE(&here);
    uint64_t words[MACHTRACE_INPROCESS_REGISTERS_MAX / 8] = {0};
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
    thread->pthread = (uint64_t)(uintptr_t)pthread_self();
    memcpy(thread->registers, words, sizeof(machtrace_darwin_registers));
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
