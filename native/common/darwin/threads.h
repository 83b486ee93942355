/* A task's threads: their ports, which must be released, and how one is suspended, read and
 * resumed. */
#ifndef MACHTRACE_COMMON_DARWIN_THREADS_H
#define MACHTRACE_COMMON_DARWIN_THREADS_H

#include <mach/mach.h>
#include <mach/thread_info.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/darwin/clock.h"
#include "common/darwin/registers.h"
#include "common/thread.h"

_Static_assert(sizeof(thread_basic_info_data_t) == 40, "thread_basic_info");
_Static_assert(offsetof(thread_basic_info_data_t, suspend_count) == 32, "suspend_count");
_Static_assert(THREAD_BASIC_INFO_COUNT == 10, "THREAD_BASIC_INFO_COUNT");
_Static_assert(sizeof(machtrace_darwin_registers) <= MACHTRACE_REGISTERS_MAX, "registers");
_Static_assert(offsetof(struct machtrace_thread, registers) % 8 == 0, "words of registers");

#define MACHTRACE_RESUME_TRIES 8

/* Whether a result means that the thread or task has ended: its port is dead, or is about to be. */
static inline bool machtrace_mach_is_gone(kern_return_t result)
{
    return result == KERN_TERMINATED || result == KERN_INVALID_ARGUMENT ||
           result == MACH_SEND_INVALID_DEST;
}

/* Suspend a thread; false with the outcome and its times set if that fails. */
static inline bool machtrace_mach_suspend(struct machtrace_thread *thread, thread_act_t port)
{
    thread->error = 0;
    thread->requested_at = machtrace_mach_now();
    kern_return_t result = thread_suspend(port);
    thread->stopped_at = thread->resumed_at = machtrace_mach_now();
    if (result == KERN_SUCCESS)
        return true;
    thread->error = result;
    thread->outcome = machtrace_mach_is_gone(result) ? MACHTRACE_GONE : MACHTRACE_REFUSED;
    return false;
}

/* Read the registers of a suspended thread; false with the outcome set if that fails. */
static inline bool machtrace_mach_read_registers(struct machtrace_thread *thread, thread_act_t port)
{
    mach_msg_type_number_t count = MACHTRACE_DARWIN_FLAVOR_COUNT;
    kern_return_t result = thread_get_state(port, MACHTRACE_DARWIN_FLAVOR,
                                            (thread_state_t)(void *)thread->registers, &count);
    if (result == KERN_SUCCESS && count != MACHTRACE_DARWIN_FLAVOR_COUNT)
        result = KERN_FAILURE;
    if (result == KERN_SUCCESS) {
        thread->registers_size = sizeof(machtrace_darwin_registers);
        return true;
    }
    thread->error = result;
    thread->outcome = machtrace_mach_is_gone(result) ? MACHTRACE_GONE : MACHTRACE_FAILED;
    return false;
}

/* Whether it may be suspended; true if that is unknown. */
static inline bool machtrace_mach_is_suspended(thread_act_t port)
{
    thread_basic_info_data_t info;
    mach_msg_type_number_t count = THREAD_BASIC_INFO_COUNT;
    kern_return_t result = thread_info(port, THREAD_BASIC_INFO, (thread_info_t)&info, &count);
    return result == KERN_SUCCESS ? info.suspend_count > 0 : !machtrace_mach_is_gone(result);
}

/* Resume a thread that was suspended once. The result of a failing call is not trusted: a thread
 * that stays suspended may end its program. Fails only if it may still be suspended. */
static inline kern_return_t machtrace_mach_resume(thread_act_t port)
{
    kern_return_t result = thread_resume(port);
    for (int tries = 1; result != KERN_SUCCESS && machtrace_mach_is_suspended(port); tries++) {
        if (tries == MACHTRACE_RESUME_TRIES)
            return result;
        result = thread_resume(port);
    }
    return KERN_SUCCESS;
}

struct machtrace_thread_ports {
    thread_act_array_t ports;
    mach_msg_type_number_t count;
};

static inline kern_return_t machtrace_take_thread_ports(task_inspect_t task,
                                                        struct machtrace_thread_ports *list)
{
    *list = (struct machtrace_thread_ports){NULL, 0};
    kern_return_t result = task_threads(task, &list->ports, &list->count);
    if (result != KERN_SUCCESS)
        *list = (struct machtrace_thread_ports){NULL, 0};
    return result;
}

/* The ports, and the array, which the kernel has mapped for us. */
static inline void machtrace_release_thread_ports(struct machtrace_thread_ports *list)
{
    for (mach_msg_type_number_t index = 0; index < list->count; index++)
        mach_port_deallocate(mach_task_self(), list->ports[index]);
    if (list->ports != NULL)
        vm_deallocate(mach_task_self(), (vm_address_t)list->ports,
                      list->count * sizeof *list->ports);
    *list = (struct machtrace_thread_ports){NULL, 0};
}

#endif
