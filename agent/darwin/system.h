/* System calls that leave errno alone, and whose functions in the program may be watched: what a
 * hook may call. Their numbers are those of bsd/kern/syscalls.master of xnu. */
#ifndef MACHTRACE_AGENT_DARWIN_SYSTEM_H
#define MACHTRACE_AGENT_DARWIN_SYSTEM_H

#include <stddef.h>
#include <stdint.h>

enum {
    MACHTRACE_SYS_SIGALTSTACK = 53,
    MACHTRACE_SYS_PTHREAD_SIGMASK = 329,
    MACHTRACE_SYS_THREAD_SELFID = 372,
    MACHTRACE_SYS_ULOCK_WAIT = 515,
    MACHTRACE_SYS_ULOCK_WAKE = 516
};

/* The result, or a negative errno: the carry flag is set for errors. */
static inline long machtrace_system(long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
#if defined(__x86_64__)
    long result = number | 2 << 24; /* SYSCALL_CLASS_UNIX of mach/i386/syscall_sw.h */
    unsigned char is_error;
    register uint64_t r10 __asm__("r10") = d;
    __asm__ volatile("syscall; setc %1"
                     : "+a"(result), "=q"(is_error), "+d"(c)
                     : "D"(a), "S"(b), "r"(r10)
                     : "rcx", "r8", "r9", "r11", "memory", "cc");
    return is_error != 0 ? -result : result;
#elif defined(__aarch64__)
    register long x16 __asm__("x16") = number;
    register uint64_t x0 __asm__("x0") = a;
    register uint64_t x1 __asm__("x1") = b;
    register uint64_t x2 __asm__("x2") = c;
    register uint64_t x3 __asm__("x3") = d;
    long is_error;
    __asm__ volatile("svc #0x80\n\tcset %1, cs"
                     : "+r"(x0), "=r"(is_error), "+r"(x1)
                     : "r"(x2), "r"(x3), "r"(x16)
                     : "memory", "cc");
    return is_error != 0 ? -(long)x0 : (long)x0;
#endif
}

static inline uint64_t machtrace_address_of(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

#endif
