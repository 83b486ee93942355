/* The thread ports of a task, and how they are given back. */
#ifndef MACHTRACE_TASK_PORTS_H
#define MACHTRACE_TASK_PORTS_H

#include <mach/mach.h>

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
