/* As much of a C library as the program needs: threads, their names, and memory. */
#include "kernel.h"

enum { PROC_INFO_CALL_SETCONTROL = 5, PROC_SELFSET_THREADNAME = 2 };
enum { STACK_SIZE = 512 * 1024, THREAD_MAGIC = 0x54485244, HEAP_SIZE = 64 * 1024 };

typedef struct {
    uint64_t signature;
    void *(*function)(void *);
    void *argument, *result;
} thread_t;

/* Memory is never given back. */
void *demo_allocate(size_t size) {
    static uint64_t next, end;
    if (next + size > end) {
        _kernelrpc_mach_vm_allocate_trap(task_self_trap(), &next, HEAP_SIZE, 1);
        end = next + HEAP_SIZE;
    }
    void *allocated = (void *)next;
    next += (size + 15) & ~(size_t)15;
    return allocated;
}

/* Names the calling thread, as on Darwin. */
int pthread_setname_np(const char *name) {
    int length = 0;
    while (name[length]) length++;
    return __proc_info(PROC_INFO_CALL_SETCONTROL, 0, PROC_SELFSET_THREADNAME, 0, name, length);
}

void thread_start(void); /* stubs.S */

void runtime_initialize(void) {
    __bsdthread_register(thread_start, 0, sizeof(thread_t), 0, 0, 0);
}

/* Where thread_start leads; the kernel gave the thread its stack. */
_Noreturn void _pthread_start(thread_t *self, mach_port_t port, void *(*function)(void *),
                              void *argument, uint64_t stack_size, uint32_t flags) {
    self->signature = THREAD_MAGIC;
    self->result = function(argument);
    __bsdthread_terminate(0, stack_size, port, 0);
    __builtin_trap();
}

void start_thread(void *(*function)(void *), void *argument) {
    thread_t *thread = demo_allocate(sizeof *thread);
    thread->function = function;
    thread->argument = argument;
    __bsdthread_create(function, argument, STACK_SIZE, thread, 0);
}
