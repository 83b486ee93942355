/* The general registers of a thread as thread_get_state returns them.
 *
 * Offsets and sizes are those of mach/arm/_structs.h and mach/i386/_structs.h, asserted here.
 */
#ifndef MACHTRACE_COMMON_DARWIN_REGISTERS_H
#define MACHTRACE_COMMON_DARWIN_REGISTERS_H

#include <mach/mach.h>
#include <mach/thread_status.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bytes below the stack pointer that a leaf may use: Apple's arm64 ABI, System V psABI. */
#define MACHTRACE_DARWIN_RED_ZONE 128

#if defined(__aarch64__)
typedef arm_thread_state64_t machtrace_darwin_registers;
#define MACHTRACE_DARWIN_FLAVOR ARM_THREAD_STATE64
#define MACHTRACE_DARWIN_FLAVOR_COUNT ARM_THREAD_STATE64_COUNT
#define MACHTRACE_DARWIN_SP (31 * 8)
/* x0 to x28, fp, lr, sp, pc, and two half words. With pointers signed (arm64e) the names are
 * others, and the offsets the same. */
#if !__has_feature(ptrauth_calls)
_Static_assert(offsetof(machtrace_darwin_registers, __fp) == 29 * 8, "fp");
_Static_assert(offsetof(machtrace_darwin_registers, __sp) == MACHTRACE_DARWIN_SP, "sp");
_Static_assert(offsetof(machtrace_darwin_registers, __pc) == 32 * 8, "pc");
#endif
_Static_assert(sizeof(machtrace_darwin_registers) == 272, "arm_thread_state64_t");
_Static_assert(ARM_THREAD_STATE64_COUNT == 68, "ARM_THREAD_STATE64_COUNT");
_Static_assert(ARM_THREAD_STATE64 == 6, "ARM_THREAD_STATE64");
#elif defined(__x86_64__)
typedef x86_thread_state64_t machtrace_darwin_registers;
#define MACHTRACE_DARWIN_FLAVOR x86_THREAD_STATE64
#define MACHTRACE_DARWIN_FLAVOR_COUNT x86_THREAD_STATE64_COUNT
#define MACHTRACE_DARWIN_SP (7 * 8)
/* rax, rbx, rcx, rdx, rdi, rsi, rbp, rsp, r8 to r15, rip, rflags, segments. */
_Static_assert(offsetof(machtrace_darwin_registers, __rbp) == 6 * 8, "rbp");
_Static_assert(offsetof(machtrace_darwin_registers, __rsp) == MACHTRACE_DARWIN_SP, "rsp");
_Static_assert(offsetof(machtrace_darwin_registers, __rip) == 16 * 8, "rip");
_Static_assert(sizeof(machtrace_darwin_registers) == 168, "x86_thread_state64_t");
_Static_assert(x86_THREAD_STATE64_COUNT == 42, "x86_THREAD_STATE64_COUNT");
_Static_assert(x86_THREAD_STATE64 == 4, "x86_THREAD_STATE64");
#endif

static inline uint64_t machtrace_darwin_sp(const unsigned char *registers)
{
    uint64_t sp;
    memcpy(&sp, registers + MACHTRACE_DARWIN_SP, sizeof sp);
    return sp;
}

#endif
