// Stubs of watched functions: see agent/hooks.h. Registers that may have arguments are saved, vector
// ones too, since functions of libSystem are called at a thread's first call. Registers that Swift
// passes values in (self, error, asynchronous context) are such that functions of C preserve them.
#define STUBS 1024 /* MACHTRACE_STUBS */

        .text
        .p2align 4
        .globl _machtrace_stubs
        .private_extern _machtrace_stubs

#if defined(__x86_64__)

_machtrace_stubs:
        .cfi_startproc
        .set index, 0
        .rept STUBS
        .p2align 4
        .cfi_def_cfa_offset 8
        pushq $index
        .cfi_def_cfa_offset 16
        jmp enter
        .set index, index + 1
        .endr
        .cfi_endproc

        .p2align 4
enter:
        .cfi_startproc
        .cfi_def_cfa_offset 16
        // al: how many vector registers have arguments, of a variadic function; r10: the static
        // chain. The stack stays aligned.
        pushq %rdi
        pushq %rsi
        pushq %rdx
        pushq %rcx
        pushq %r8
        pushq %r9
        pushq %rax
        pushq %r10
        .cfi_def_cfa_offset 80
        movq %rsp, %r8
        movl 64(%rsp), %edi // the stub's number
        movq 72(%rsp), %rsi // the return address
        leaq 72(%rsp), %rdx // the stack pointer at the function's first instruction
        movq %rbp, %rcx
        subq $128, %rsp
        .cfi_def_cfa_offset 208
        movups %xmm0, (%rsp)
        movups %xmm1, 16(%rsp)
        movups %xmm2, 32(%rsp)
        movups %xmm3, 48(%rsp)
        movups %xmm4, 64(%rsp)
        movups %xmm5, 80(%rsp)
        movups %xmm6, 96(%rsp)
        movups %xmm7, 112(%rsp)
        callq _machtrace_hook_entry
        movq %rax, %r11
        movups (%rsp), %xmm0
        movups 16(%rsp), %xmm1
        movups 32(%rsp), %xmm2
        movups 48(%rsp), %xmm3
        movups 64(%rsp), %xmm4
        movups 80(%rsp), %xmm5
        movups 96(%rsp), %xmm6
        movups 112(%rsp), %xmm7
        addq $128, %rsp
        .cfi_def_cfa_offset 80
        popq %r10
        popq %rax
        popq %r9
        popq %r8
        popq %rcx
        popq %rdx
        popq %rsi
        popq %rdi
        .cfi_def_cfa_offset 16
        leaq 8(%rsp), %rsp
        .cfi_def_cfa_offset 8
        jmpq *%r11
        .cfi_endproc

#else

_machtrace_stubs:
        .cfi_startproc
        .set index, 0
        .rept STUBS
        .p2align 4
        hint #34 // bti c
        mov w16, #index
        b enter
        .set index, index + 1
        .endr
        .cfi_endproc

        .p2align 4
enter:
        .cfi_startproc
        // x8: the address of a result. The caller's link register is not signed yet.
        stp x29, x30, [sp, #-224]!
        .cfi_def_cfa_offset 224
        .cfi_offset x29, -224
        .cfi_offset x30, -216
        stp x0, x1, [sp, #16]
        stp x2, x3, [sp, #32]
        stp x4, x5, [sp, #48]
        stp x6, x7, [sp, #64]
        str x8, [sp, #80]
        stp q0, q1, [sp, #96]
        stp q2, q3, [sp, #128]
        stp q4, q5, [sp, #160]
        stp q6, q7, [sp, #192]
        mov w0, w16
        mov x1, x30
        add x2, sp, #224
        mov x3, x29
        add x4, sp, #16
        mov x29, sp
        bl _machtrace_hook_entry
        mov x16, x0
        ldp x0, x1, [sp, #16]
        ldp x2, x3, [sp, #32]
        ldp x4, x5, [sp, #48]
        ldp x6, x7, [sp, #64]
        ldr x8, [sp, #80]
        ldp q0, q1, [sp, #96]
        ldp q2, q3, [sp, #128]
        ldp q4, q5, [sp, #160]
        ldp q6, q7, [sp, #192]
        ldp x29, x30, [sp], #224
        .cfi_def_cfa_offset 0
        .cfi_restore x29
        .cfi_restore x30
        br x16
        .cfi_endproc

#endif

        .subsections_via_symbols
