/* The registers of the function that this is expanded in, at that point of it.
 *
 * Those that calls preserve, the stack pointer and the program counter, in DWARF's numbers
 * (System V psABI for x86-64, figure 3.36; DWARF for the Arm 64-bit Architecture, 4.1). A walk
 * that begins there needs no others.
 */
#ifndef MACHTRACE_INPROCESS_CORE_CURRENT_REGISTERS_H
#define MACHTRACE_INPROCESS_CORE_CURRENT_REGISTERS_H

#include <stdint.h>

#define MACHTRACE_HERE_MAX 33

struct machtrace_here {
    uint64_t pc;
    uint64_t values[MACHTRACE_HERE_MAX]; /* by DWARF number; others are 0 */
    uint64_t known;                       /* a bit for each number */
};

#if defined(__x86_64__)

#define MACHTRACE_HERE_SP 7
#define MACHTRACE_HERE_FP 6
#define MACHTRACE_HERE_KNOWN UINT64_C(0xf0c8) /* rbx, rbp, rsp, r12 to r15 */
#define MACHTRACE_TAKE_HERE(here)                                                                \
    do {                                                                                         \
        (here)->known = MACHTRACE_HERE_KNOWN;                                                    \
        __asm__ volatile("movq %%rbx, 24(%0)\n\t"                                                \
                         "movq %%rbp, 48(%0)\n\t"                                                \
                         "movq %%rsp, 56(%0)\n\t"                                                \
                         "movq %%r12, 96(%0)\n\t"                                                \
                         "movq %%r13, 104(%0)\n\t"                                               \
                         "movq %%r14, 112(%0)\n\t"                                               \
                         "movq %%r15, 120(%0)\n\t"                                               \
                         "leaq 0f(%%rip), %%rax\n\t"                                             \
                         "movq %%rax, (%1)\n"                                                    \
                         "0:"                                                                    \
                         :                                                                       \
                         : "r"((here)->values), "r"(&(here)->pc)                                 \
                         : "rax", "memory");                                                     \
    } while (0)

#elif defined(__aarch64__)

#define MACHTRACE_HERE_SP 31
#define MACHTRACE_HERE_FP 29
#define MACHTRACE_HERE_KNOWN UINT64_C(0xfff80000) /* x19 to x30, sp */
#define MACHTRACE_TAKE_HERE(here)                                                                \
    do {                                                                                         \
        (here)->known = MACHTRACE_HERE_KNOWN;                                                    \
        __asm__ volatile("stp x19, x20, [%0, #152]\n\t"                                          \
                         "stp x21, x22, [%0, #168]\n\t"                                          \
                         "stp x23, x24, [%0, #184]\n\t"                                          \
                         "stp x25, x26, [%0, #200]\n\t"                                          \
                         "stp x27, x28, [%0, #216]\n\t"                                          \
                         "stp x29, x30, [%0, #232]\n\t"                                          \
                         "mov x16, sp\n\t"                                                       \
                         "str x16, [%0, #248]\n\t"                                               \
                         "adr x16, 0f\n\t"                                                       \
                         "str x16, [%1]\n"                                                       \
                         "0:"                                                                    \
                         :                                                                       \
                         : "r"((here)->values), "r"(&(here)->pc)                                 \
                         : "x16", "memory");                                                     \
    } while (0)

#endif

#endif
