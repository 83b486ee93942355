/* Where the fields of task_darwin.h are, for tests that read them from outside. */
#include "darwin_task/task.h"

#define PORT(field) offsetof(struct machtrace_task_port, field)
#define PROCESS(field) offsetof(struct machtrace_task_process, field)
#define RIGHTS(field) offsetof(struct machtrace_task_rights, field)
#define INFO(field) offsetof(struct machtrace_task_thread_info, field)
#define THREAD(field) offsetof(struct machtrace_thread, field)
#define CAPTURE(field) offsetof(struct machtrace_task_capture, field)

const uint64_t layout_task_port[] = {
    sizeof(struct machtrace_task_port), PORT(port), PORT(kind), PORT(read_error),
    PORT(control_error), PORT(name_error),
};
const uint64_t layout_task_process[] = {
    sizeof(struct machtrace_task_process), PROCESS(parent), PROCESS(user), PROCESS(flags),
    PROCESS(status), PROCESS(name), PROCESS(path), PROCESS(cpu_type), PROCESS(code_signing),
};
const uint64_t layout_task_rights[] = {
    sizeof(struct machtrace_task_rights), RIGHTS(user), RIGHTS(integrity), RIGHTS(integrity_known),
    RIGHTS(has_debugger_entitlement), RIGHTS(is_translated), RIGHTS(address_bits),
};
const uint64_t layout_task_info[] = {
    sizeof(struct machtrace_task_thread_info), INFO(id), INFO(handle), INFO(queue_address),
    INFO(cpu_ns), INFO(run_state), INFO(suspend_count), INFO(name),
};
const uint64_t layout_task_thread[] = {
    sizeof(struct machtrace_thread),
    THREAD(id),
    THREAD(outcome),
    THREAD(error),
    THREAD(registers),
    THREAD(registers_size),
    THREAD(stacks),
    THREAD(stack_count),
    THREAD(pthread_or_queue),
    THREAD(requested_at),
    THREAD(stopped_at),
    THREAD(resumed_at),
};
const uint64_t layout_task_capture[] = {
    sizeof(struct machtrace_task_capture), CAPTURE(port), CAPTURE(address_mask),
    CAPTURE(stack_limit), CAPTURE(together), CAPTURE(threads), CAPTURE(thread_count),
    CAPTURE(buffer), CAPTURE(room), CAPTURE(resume_error),
};
