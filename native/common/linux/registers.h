/* The registers in the bytes of NT_PRSTATUS and of signal frames, by architecture.
 *
 * Pure functions of bytes. The size of the register set gives the architecture:
 * struct user_regs_struct (sys/user.h) of x86-64 and i386, struct user_pt_regs
 * (asm/ptrace.h) of aarch64, struct pt_regs of arm.
 */
#ifndef MACHTRACE_COMMON_LINUX_REGISTERS_H
#define MACHTRACE_COMMON_LINUX_REGISTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The stack pointer of a register set; false if the size is of no known set. */
bool machtrace_stack_pointer(const unsigned char *registers, size_t size, uint64_t *sp);

/* The address of the thread's own block, pthread_self(); false if the register set does not
 * contain it. */
bool machtrace_thread_pointer(const unsigned char *registers, size_t size, uint64_t *pointer);

/* The stack pointer that a signal saved, where the thread is on the alternate
 * stack; false if it is not.
 *
 * `stack` is the memory at and above (or a little below) `sp`. The mark looked for
 * is the kernel's struct ucontext: no uc_link, and a uc_stack that holds `sp`. */
bool machtrace_interrupted_sp(const unsigned char *stack, size_t stack_size, uint64_t sp,
                              size_t registers_size, uint64_t *interrupted);

/* If the registers show that a system call without a time limit failed with
 * EINTR, change the result to ERESTARTNOHAND; true if changed. x86-64 only:
 * aarch64 does not show the first argument, which the result has replaced. */
bool machtrace_mark_restart(unsigned char *registers, size_t size);

#endif
