/* task.h: which threads a task has. Nothing is stopped for it. */
#include "darwin_task/task.h"

#include <mach/mach.h>
#include <mach/thread_info.h>
#include <string.h>

#include "common/darwin/thread_ports.h"

_Static_assert(sizeof(thread_identifier_info_data_t) == 24, "thread_identifier_info");
_Static_assert(THREAD_IDENTIFIER_INFO_COUNT == 6, "THREAD_IDENTIFIER_INFO_COUNT");
_Static_assert(sizeof(thread_basic_info_data_t) == 40, "thread_basic_info");
_Static_assert(offsetof(thread_basic_info_data_t, suspend_count) == 32, "suspend_count");
_Static_assert(sizeof(thread_extended_info_data_t) == 112, "thread_extended_info");
_Static_assert(offsetof(thread_extended_info_data_t, pth_run_state) == 24, "pth_run_state");
_Static_assert(offsetof(thread_extended_info_data_t, pth_name) == 48, "pth_name");
_Static_assert(THREAD_EXTENDED_INFO_COUNT == 28, "THREAD_EXTENDED_INFO_COUNT");
_Static_assert(MAXTHREADNAMESIZE == MACHTRACE_THREAD_NAME_MAX, "MAXTHREADNAMESIZE");

/* False where it has ended. */
static bool describe(thread_act_t port, struct machtrace_task_thread_info *info)
{
    thread_identifier_info_data_t identity;
    mach_msg_type_number_t count = THREAD_IDENTIFIER_INFO_COUNT;
    if (thread_info(port, THREAD_IDENTIFIER_INFO, (thread_info_t)&identity, &count) !=
        KERN_SUCCESS)
        return false;
    memset(info, 0, sizeof *info);
    info->id = identity.thread_id;
    info->handle = identity.thread_handle;
    info->queue_address = identity.dispatch_qaddr;
    thread_extended_info_data_t extended;
    count = THREAD_EXTENDED_INFO_COUNT;
    if (thread_info(port, THREAD_EXTENDED_INFO, (thread_info_t)&extended, &count) ==
        KERN_SUCCESS) {
        info->run_state = extended.pth_run_state;
        memcpy(info->name, extended.pth_name, sizeof info->name - 1);
    }
    thread_basic_info_data_t basic;
    count = THREAD_BASIC_INFO_COUNT;
    if (thread_info(port, THREAD_BASIC_INFO, (thread_info_t)&basic, &count) == KERN_SUCCESS)
        info->suspend_count = basic.suspend_count;
    return true;
}

int machtrace_task_threads(uint32_t port, struct machtrace_task_thread_info *infos, size_t room,
                           size_t *count)
{
    struct machtrace_thread_ports list;
    *count = 0;
    kern_return_t result = machtrace_take_thread_ports(port, &list);
    if (result != KERN_SUCCESS)
        return result;
    for (mach_msg_type_number_t index = 0; index < list.count; index++) {
        struct machtrace_task_thread_info info;
        if (!describe(list.ports[index], &info))
            continue;
        if (*count < room)
            infos[*count] = info;
        *count += 1;
    }
    machtrace_release_thread_ports(&list);
    return KERN_SUCCESS;
}
