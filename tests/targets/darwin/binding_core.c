/* Stands in for darwin_task/ and mach_memory.c, so that the binding of _darwin_task can be run anywhere:
 * fixed answers, and a count of what is open. */
#include "darwin_task/task.h"

#include <string.h>

#include "common/darwin/memory.h"

#define PORT UINT32_C(0xfffffff3)

void machtrace_task_open(int pid, struct machtrace_task_port *task)
{
    memset(task, 0, sizeof *task);
    if (pid == 7)
        *task = (struct machtrace_task_port){PORT, MACHTRACE_TASK_READ, 0, 0, 0};
    else
        *task = (struct machtrace_task_port){0, MACHTRACE_TASK_NONE, 1, 5, 0x10000003};
}

static uint32_t closed;

void machtrace_task_close(uint32_t port)
{
    closed = port;
}

int machtrace_task_process(int pid, struct machtrace_task_process *process)
{
    memset(process, 0, sizeof *process);
    if (pid != 7)
        return 3;
    *process = (struct machtrace_task_process){
        .parent = 1,
        .user = UINT32_MAX - 1, /* nobody */
        .real_user = 501,
        .saved_user = 502,
        .flags = 0x82000010,
        .status = 2,
        .name = "a name",
        .path = "/Applications/gr\xc3\xb6\xff",
        .cpu_type = 0x100000c,
        .cpu_subtype = (int32_t)0x80000002,
        .code_signing = 0x84000000,
        .code_signing_known = true,
    };
    return 0;
}

void machtrace_task_rights(struct machtrace_task_rights *rights)
{
    *rights = (struct machtrace_task_rights){
        .user = closed != 0 ? 0 : 501, /* so that a test sees what was closed */
        .integrity = 0xffffffff,
        .integrity_known = closed == 0,
        .has_debugger_entitlement = true,
        .address_bits = 47,
        .cpu_type = 0x1000007,
    };
}

int machtrace_task_images(uint32_t port, struct machtrace_task_images *images)
{
    *images = (struct machtrace_task_images){UINT64_C(0xffffffff00000000), 360, 1};
    return port == PORT ? 0 : 0x10000003;
}

bool machtrace_task_label_offset(uint16_t *version, uint16_t *offset)
{
    *version = 6;
    *offset = 0xfff8;
    return true;
}

int machtrace_task_threads(uint32_t port, struct machtrace_task_thread_info *infos, size_t room,
                           size_t *count)
{
    *count = 0;
    if (port != PORT)
        return 37;
    for (uint64_t id = 1; id <= 20000; id++) { /* more than are listed */
        if (*count < room)
            infos[*count] = (struct machtrace_task_thread_info){
                UINT64_MAX - id, 0xe0, 0x100, UINT64_MAX, 3, 1, "name"};
        *count += 1;
    }
    return 0;
}

int machtrace_task_copy(struct machtrace_task_capture *capture)
{
    size_t used = 0;
    for (size_t index = 0; index < capture->thread_count; index++) {
        struct machtrace_thread *thread = &capture->threads[index];
        uint64_t id = thread->id;
        memset(thread, 0, sizeof *thread);
        thread->id = id;
        thread->requested_at = 1;
        thread->stopped_at = capture->together ? 2 : 3;
        thread->resumed_at = 4;
        if (id == 99) {
            thread->outcome = MACHTRACE_GONE;
            thread->error = 37;
            continue;
        }
        memset(thread->registers, (int)id, 272);
        thread->registers_size = 272;
        size_t size = capture->stack_limit < 64 ? capture->stack_limit : 64;
        thread->stacks[0] =
            (struct machtrace_stack){capture->address_mask, size, capture->buffer + used};
        thread->stack_count = 1;
        memset(thread->stacks[0].bytes, (int)id, size);
        used += size;
        thread->pthread_or_queue = UINT64_MAX;
    }
    capture->resume_error = (int)capture->thread_count;
    return capture->port == PORT ? 0 : -308;
}

kern_return_t machtrace_mach_find_region(vm_map_read_t task, uint64_t address,
                                         struct machtrace_mach_region *region)
{
    (void)task;
    *region = (struct machtrace_mach_region){address & ~UINT64_C(0xfff), UINT64_MAX, 3, 30};
    return address == 0 ? 1 : 0;
}

kern_return_t machtrace_mach_read(vm_map_read_t task, uint64_t address, unsigned char *to,
                                  size_t size, size_t *got)
{
    *got = task == PORT && address >= 0x1000 ? size : size / 2;
    memset(to, (int)(address & 0xff), *got);
    return 0;
}
