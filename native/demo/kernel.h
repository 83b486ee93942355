/* The program's requests to the emulated kernel, and a thread's data about itself.
 *
 * Numbers and argument orders are Darwin's (xnu: bsd/kern/syscalls.master,
 * osfmk/mach/syscall_sw.h, libsyscall/mach); the stubs are in stubs.S.
 */
#ifndef DEMO_KERNEL_H
#define DEMO_KERNEL_H

typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef int kern_return_t;
typedef uint32_t mach_port_t;

typedef struct {
    uint32_t msgh_bits, msgh_size;
    mach_port_t msgh_remote_port, msgh_local_port, msgh_voucher_port;
    uint32_t msgh_id;
} mach_msg_header_t;

enum { MACH_RCV_MSG = 2, MACH_RCV_LARGE = 4, MACH_RCV_INTERRUPTED = 0x10004005 };

/* Mach traps: negative numbers. */
kern_return_t mach_msg_trap(mach_msg_header_t *, uint32_t option, uint32_t send_size,
                            uint32_t receive_size, mach_port_t receive_name, uint32_t timeout,
                            mach_port_t notify);
mach_port_t mach_reply_port(void);
mach_port_t task_self_trap(void);
kern_return_t _kernelrpc_mach_vm_allocate_trap(mach_port_t, uint64_t *address, uint64_t size,
                                               int flags);

/* System calls: positive numbers. */
void *__bsdthread_create(void *(*function)(void *), void *argument, uint64_t stack_size,
                         void *thread, uint32_t flags);
int __bsdthread_terminate(void *stack, size_t size, mach_port_t, mach_port_t);
int __proc_info(int call, int pid, uint32_t flavor, uint64_t argument, const void *buffer,
                int size);
int __bsdthread_register(void (*thread_start)(void), void (*workqueue_start)(void),
                         uint32_t thread_size, void *, uint64_t, uint64_t);
_Noreturn void _exit(int status);

/* runtime.c */
int pthread_setname_np(const char *name);
void start_thread(void *(*function)(void *), void *argument);
void *demo_allocate(size_t size);

/* Keeps a function in the stacks of this program: it is neither inlined nor copied. */
#define OUTLINED __attribute__((noinline))
/* Behind a call that ends a function: keeps the caller in the stack too. */
#define NOT_A_TAIL_CALL __asm__ volatile("" ::: "memory")

#endif
