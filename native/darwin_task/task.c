/* task.h: task ports, threads, where dyld's list of images is, and where queues have labels. */
#include "darwin_task/task.h"

#include <dlfcn.h>
#include <errno.h>
#include <mach-o/dyld_images.h>
#include <mach/mach.h>
#include <mach/mach_traps.h>
#include <mach/task_info.h>
#include <mach/thread_info.h>
#include <string.h>
#include <unistd.h>

#include "common/darwin/threads.h"

_Static_assert(sizeof(mach_port_t) == sizeof(uint32_t), "mach_port_t");
_Static_assert(TASK_DYLD_INFO == 17, "TASK_DYLD_INFO");
/* Packed to four bytes (mach/task_info.h), so that no padding follows the format. */
_Static_assert(sizeof(task_dyld_info_data_t) == 20, "task_dyld_info");
_Static_assert(offsetof(task_dyld_info_data_t, all_image_info_format) == 16, "task_dyld_info");
_Static_assert(TASK_DYLD_INFO_COUNT == 5, "TASK_DYLD_INFO_COUNT");
_Static_assert(TASK_DYLD_ALL_IMAGE_INFO_64 == 1, "TASK_DYLD_ALL_IMAGE_INFO_64");

/* mach-o/dyld_images.h, as machtrace.formats.macho.dyld reads it: a change there must be seen. */
_Static_assert(sizeof(struct dyld_image_info) == 24, "dyld_image_info");
_Static_assert(sizeof(struct dyld_uuid_info) == 24, "dyld_uuid_info");
_Static_assert(offsetof(struct dyld_all_image_infos, infoArray) == 8, "infoArray");
_Static_assert(offsetof(struct dyld_all_image_infos, dyldImageLoadAddress) == 32, "dyld");
_Static_assert(offsetof(struct dyld_all_image_infos, uuidArrayCount) == 88, "uuidArrayCount");
_Static_assert(offsetof(struct dyld_all_image_infos, uuidArray) == 96, "uuidArray");
_Static_assert(offsetof(struct dyld_all_image_infos, sharedCacheSlide) == 152, "slide");
_Static_assert(offsetof(struct dyld_all_image_infos, sharedCacheUUID) == 160, "uuid");
_Static_assert(offsetof(struct dyld_all_image_infos, sharedCacheBaseAddress) == 176, "base");
_Static_assert(offsetof(struct dyld_all_image_infos, infoArrayChangeTimestamp) == 184, "time");
_Static_assert(offsetof(struct dyld_all_image_infos, dyldPath) == 192, "dyldPath");

_Static_assert(sizeof(thread_identifier_info_data_t) == 24, "thread_identifier_info");
_Static_assert(THREAD_IDENTIFIER_INFO_COUNT == 6, "THREAD_IDENTIFIER_INFO_COUNT");
_Static_assert(sizeof(thread_extended_info_data_t) == 112, "thread_extended_info");
_Static_assert(offsetof(thread_extended_info_data_t, pth_system_time) == 8, "pth_system_time");
_Static_assert(offsetof(thread_extended_info_data_t, pth_run_state) == 24, "pth_run_state");
_Static_assert(offsetof(thread_extended_info_data_t, pth_name) == 48, "pth_name");
_Static_assert(THREAD_EXTENDED_INFO_COUNT == 28, "THREAD_EXTENDED_INFO_COUNT");
_Static_assert(MAXTHREADNAMESIZE == MACHTRACE_THREAD_NAME_MAX, "MAXTHREADNAMESIZE");

/* No public header declares it; libsystem_kernel has it since macOS 11, and a program that is to
 * run on an older one finds it missing. */
extern int task_read_for_pid(mach_port_name_t target, int pid, mach_port_name_t *task)
    __attribute__((weak_import));

void machtrace_task_open(int pid, struct machtrace_task_port *task)
{
    *task = (struct machtrace_task_port){0, MACHTRACE_TASK_NONE, 0, 0, 0};
    mach_port_name_t port = MACH_PORT_NULL;
    if (pid == getpid()) {
        /* No right is needed. One more right to our own port, which is released later. */
        task->control_error =
            mach_port_mod_refs(mach_task_self(), mach_task_self(), MACH_PORT_RIGHT_SEND, 1);
        if (task->control_error == KERN_SUCCESS) {
            task->port = mach_task_self();
            task->kind = MACHTRACE_TASK_CONTROL;
        }
        return;
    }
    if (task_read_for_pid == NULL) {
        task->read_error = ENOSYS;
    } else if (task_read_for_pid(mach_task_self(), pid, &port) != 0) {
        task->read_error = errno != 0 ? errno : EPERM;
    } else if (MACH_PORT_VALID(port)) {
        task->port = port;
        task->kind = MACHTRACE_TASK_READ;
        return;
    } else {
        task->read_error = ESRCH; /* it ended meanwhile: success, and no port */
    }
    port = MACH_PORT_NULL;
    kern_return_t result = task_for_pid(mach_task_self(), pid, &port);
    if (result == KERN_SUCCESS && MACH_PORT_VALID(port)) {
        task->port = port;
        task->kind = MACHTRACE_TASK_CONTROL;
        return;
    }
    task->control_error = result == KERN_SUCCESS ? KERN_FAILURE : result;
    port = MACH_PORT_NULL;
    task->name_error = task_name_for_pid(mach_task_self(), pid, &port);
    if (task->name_error == KERN_SUCCESS && MACH_PORT_VALID(port))
        mach_port_deallocate(mach_task_self(), port);
}

void machtrace_task_close(uint32_t port)
{
    if (MACH_PORT_VALID(port))
        mach_port_deallocate(mach_task_self(), port);
}

int machtrace_task_images(uint32_t port, struct machtrace_task_images *images)
{
    task_dyld_info_data_t info;
    mach_msg_type_number_t count = TASK_DYLD_INFO_COUNT;
    kern_return_t result = task_info(port, TASK_DYLD_INFO, (task_info_t)&info, &count);
    if (result == KERN_SUCCESS)
        *images = (struct machtrace_task_images){info.all_image_info_addr,
                                                 info.all_image_info_size,
                                                 info.all_image_info_format};
    return result;
}

bool machtrace_task_label_offset(uint16_t *version, uint16_t *offset)
{
    /* libdispatch's layout_private.h: dqo_version, dqo_label, and more behind. Debuggers find it
     * by this name, so it stays. */
    const uint16_t *offsets = dlsym(RTLD_DEFAULT, "dispatch_queue_offsets");
    if (offsets == NULL)
        return false;
    *version = offsets[0];
    *offset = offsets[1];
    return true;
}

/* False if it has ended. */
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
        /* Of nanoseconds, though rounded to microseconds as in thread_basic_info. */
        info->cpu_ns = extended.pth_user_time + extended.pth_system_time;
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
