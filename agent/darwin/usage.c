/* agent/usage.h for Darwin: thread_info(THREAD_BASIC_INFO), getrusage(2) and task_info(TASK_VM_INFO). */
#include "usage.h"

#include <mach/mach.h>
#include <mach/task_info.h>
#include <sys/resource.h>

#include "common/darwin/threads.h"
#include "darwin/thread_states.h"
#include "inprocess/core/capture.h"

static int64_t nanoseconds(int64_t seconds, int64_t microseconds)
{
    return (seconds * 1000000 + microseconds) * 1000;
}

/* A thread by its port; false if it has ended. */
static bool read_thread(thread_act_t port, struct machtrace_thread_state *state)
{
    thread_identifier_info_data_t identity;
    thread_basic_info_data_t basic;
    mach_msg_type_number_t identity_count = THREAD_IDENTIFIER_INFO_COUNT;
    mach_msg_type_number_t basic_count = THREAD_BASIC_INFO_COUNT;
    if (thread_info(port, THREAD_IDENTIFIER_INFO, (thread_info_t)&identity, &identity_count) !=
            KERN_SUCCESS ||
        thread_info(port, THREAD_BASIC_INFO, (thread_info_t)&basic, &basic_count) != KERN_SUCCESS)
        return false;
    state->id = identity.thread_id;
    state->run_state = basic.run_state;
    state->ran = nanoseconds(basic.user_time.seconds, basic.user_time.microseconds) +
                 nanoseconds(basic.system_time.seconds, basic.system_time.microseconds);
    return true;
}

bool machtrace_thread_state_of(uint64_t id, struct machtrace_thread_state *state)
{
    struct machtrace_thread_ports list;
    bool is_found = false;
    if (machtrace_take_thread_ports(mach_task_self(), &list) != KERN_SUCCESS)
        return false;
    for (mach_msg_type_number_t index = 0; index < list.count && !is_found; index++)
        is_found = read_thread(list.ports[index], state) && state->id == id;
    machtrace_release_thread_ports(&list);
    return is_found;
}

void machtrace_usage_read(struct machtrace_usage *usage)
{
    struct machtrace_thread_ports list;
    struct machtrace_thread_state state;
    uint64_t own = machtrace_inprocess_id();
    usage->count = 0;
    if (machtrace_take_thread_ports(mach_task_self(), &list) != KERN_SUCCESS)
        return;
    for (mach_msg_type_number_t index = 0;
         index < list.count && usage->count < MACHTRACE_USAGE_THREADS; index++) {
        if (!read_thread(list.ports[index], &state) || state.id == own)
            continue;
        usage->threads[usage->count].thread = (uint32_t)state.id;
        usage->threads[usage->count].ran = (uint64_t)state.ran;
        usage->threads[usage->count++].faults = (uint64_t)state.ran;
    }
    machtrace_release_thread_ports(&list);
}

int64_t machtrace_usage_processor(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
    return nanoseconds(usage.ru_utime.tv_sec, usage.ru_utime.tv_usec) +
           nanoseconds(usage.ru_stime.tv_sec, usage.ru_stime.tv_usec);
}

int64_t machtrace_usage_memory(void)
{
    task_vm_info_data_t info;
    mach_msg_type_number_t count = TASK_VM_INFO_REV1_COUNT;
    kern_return_t result =
        task_info(mach_task_self(), TASK_VM_INFO, (task_info_t)&info, &count);
    return result == KERN_SUCCESS && count >= TASK_VM_INFO_REV1_COUNT
               ? (int64_t)info.phys_footprint
               : -1;
}
