/* task.h: stop, copy, resume.
 *
 * While anything is suspended only the kernel is called: task_suspend2, thread_suspend,
 * thread_get_state, vm_region_recurse_64, vm_read_overwrite, and the calls that undo the first two.
 */
#include "darwin_task/task.h"

#include <mach/mach.h>
#include <mach/thread_info.h>
#include <stdlib.h>

#include "common/darwin/registers.h"
#include "common/darwin/clock.h"
#include "common/darwin/memory.h"
#include "common/darwin/threads.h"

struct requested_thread {
    thread_act_t port;      /* MACH_PORT_NULL if there is no such thread */
    uint64_t queue_address; /* where the thread keeps its queue */
};

static void copy_stopped(struct machtrace_task_capture *capture, struct machtrace_thread *thread,
                         const struct requested_thread *requested, size_t *used)
{
    if (!machtrace_mach_read_registers(thread, requested->port))
        return;
    uint64_t sp = machtrace_darwin_sp(thread->registers) & capture->address_mask;
    machtrace_mach_copy_stack(capture->port, sp, capture->stack_limit, capture->buffer + *used,
                              capture->room - *used, &thread->stacks[0]);
    thread->stack_count = 1;
    *used += thread->stacks[0].size;
    uint64_t queue;
    size_t got;
    if (requested->queue_address != 0 &&
        machtrace_mach_read(capture->port, requested->queue_address, (unsigned char *)&queue,
                            sizeof queue, &got) == KERN_SUCCESS &&
        got == sizeof queue)
        thread->pthread_or_queue = queue;
    thread->outcome = MACHTRACE_COPIED;
}

static void copy_one_at_a_time(struct machtrace_task_capture *capture,
                               const struct requested_thread *requested)
{
    size_t used = 0;
    for (size_t index = 0; index < capture->thread_count; index++) {
        struct machtrace_thread *thread = &capture->threads[index];
        if (requested[index].port == MACH_PORT_NULL ||
            !machtrace_mach_suspend(thread, requested[index].port))
            continue;
        copy_stopped(capture, thread, &requested[index], &used);
        kern_return_t result = machtrace_mach_resume(requested[index].port);
        thread->resumed_at = machtrace_mach_now();
        if (result != KERN_SUCCESS)
            capture->resume_error = result;
    }
}

static kern_return_t copy_together(struct machtrace_task_capture *capture,
                                   const struct requested_thread *requested)
{
    task_suspension_token_t token = MACH_PORT_NULL;
    size_t used = 0;
    int64_t requested_at = machtrace_mach_now();
    kern_return_t result = task_suspend2(capture->port, &token);
    int64_t stopped_at = machtrace_mach_now();
    if (result != KERN_SUCCESS)
        return result;
    for (size_t index = 0; index < capture->thread_count; index++)
        if (requested[index].port != MACH_PORT_NULL)
            copy_stopped(capture, &capture->threads[index], &requested[index], &used);
    /* The call consumes the token. If it fails the token is released, which resumes as well,
     * whatever the reason. */
    kern_return_t resumed = task_resume2(token);
    if (resumed != KERN_SUCCESS && mach_port_deallocate(mach_task_self(), token) != KERN_SUCCESS &&
        !machtrace_mach_is_gone(resumed))
        capture->resume_error = resumed;
    int64_t resumed_at = machtrace_mach_now();
    for (size_t index = 0; index < capture->thread_count; index++) {
        capture->threads[index].requested_at = requested_at;
        capture->threads[index].stopped_at = stopped_at;
        capture->threads[index].resumed_at = resumed_at;
    }
    return KERN_SUCCESS;
}

/* Find the ports of the requested threads. */
static void match(const struct machtrace_thread_ports *list,
                  const struct machtrace_task_capture *capture, struct requested_thread *requested)
{
    for (mach_msg_type_number_t position = 0; position < list->count; position++) {
        thread_identifier_info_data_t info;
        mach_msg_type_number_t count = THREAD_IDENTIFIER_INFO_COUNT;
        if (thread_info(list->ports[position], THREAD_IDENTIFIER_INFO, (thread_info_t)&info,
                        &count) != KERN_SUCCESS)
            continue;
        /* Mostly all are requested, in this very order. */
        for (size_t step = 0; step < capture->thread_count; step++) {
            size_t index = (position + step) % capture->thread_count;
            if (capture->threads[index].id == info.thread_id) {
                requested[index] =
                    (struct requested_thread){list->ports[position], info.dispatch_qaddr};
                break;
            }
        }
    }
}

int machtrace_task_copy(struct machtrace_task_capture *capture)
{
    struct machtrace_thread_ports list = {NULL, 0};
    kern_return_t result = KERN_RESOURCE_SHORTAGE;
    capture->resume_error = 0;
    struct requested_thread *requested = calloc(capture->thread_count + 1, sizeof *requested);
    if (requested != NULL)
        result = machtrace_take_thread_ports(capture->port, &list);
    int64_t now = machtrace_mach_now();
    for (size_t index = 0; index < capture->thread_count; index++)
        machtrace_thread_begin(&capture->threads[index], MACHTRACE_GONE, 0, now);
    if (result == KERN_SUCCESS) {
        match(&list, capture, requested);
        if (capture->together)
            result = copy_together(capture, requested);
        else
            copy_one_at_a_time(capture, requested);
    }
    for (size_t index = 0; result != KERN_SUCCESS && index < capture->thread_count; index++)
        machtrace_thread_begin(&capture->threads[index], MACHTRACE_REFUSED, result,
                               machtrace_mach_now());
    machtrace_release_thread_ports(&list);
    free(requested);
    return result;
}
