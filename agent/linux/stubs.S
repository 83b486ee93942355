/* Stubs of watched functions: see agent/hooks.h. */
#define STUBS 2048 /* MACHTRACE_STUBS */

    .text
    .balign 4096
    .globl machtrace_stubs
    .hidden machtrace_stubs
    .type machtrace_stubs, %function

#if defined(__x86_64__)

machtrace_stubs:
    .cfi_startproc
    .set number, 0
    .rept STUBS
    .balign 16
    .cfi_def_cfa_offset 8
    endbr64
    pushq $number
    .cfi_def_cfa_offset 16
    jmp enter
    .set number, number + 1
    .endr
    .cfi_endproc
    .size machtrace_stubs, . - machtrace_stubs

    .balign 16
    .type enter, %function
enter:
    .cfi_startproc
    .cfi_def_cfa_offset 16
    /* The arguments, al (how many vector registers have some, of a variadic function) and r10 (the
     * static chain). Vector registers are not touched. 64 bytes: the stack stays aligned. */
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    pushq %rcx
    .cfi_adjust_cfa_offset 8
    pushq %r8
    .cfi_adjust_cfa_offset 8
    pushq %r9
    .cfi_adjust_cfa_offset 8
    pushq %rax
    .cfi_adjust_cfa_offset 8
    pushq %r10
    .cfi_adjust_cfa_offset 8
    movl 64(%rsp), %edi /* the stub's number */
    movq 72(%rsp), %rsi /* the return address */
    leaq 72(%rsp), %rdx /* the stack pointer at the function's first instruction */
    movq %rbp, %rcx
    movq %rsp, %r8
    call machtrace_hook_entry
    movq %rax, %r11
    cmpq $1, %r11 /* MACHTRACE_NOT_BOUND */
    jne 1f
    movl 64(%rsp), %edi
    call machtrace_late_of
    movq %rax, 64(%rsp)
    movl $1, %r11d
1:
    popq %r10
    .cfi_adjust_cfa_offset -8
    popq %rax
    .cfi_adjust_cfa_offset -8
    popq %r9
    .cfi_adjust_cfa_offset -8
    popq %r8
    .cfi_adjust_cfa_offset -8
    popq %rcx
    .cfi_adjust_cfa_offset -8
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    cmpq $1, %r11
    je 2f
    leaq 8(%rsp), %rsp
    .cfi_adjust_cfa_offset -8
    jmp *%r11
2:
    /* As an entry of the linkage table does. */
    .cfi_adjust_cfa_offset 8
    popq %r11
    .cfi_adjust_cfa_offset -8
    pushq 8(%r11)
    .cfi_adjust_cfa_offset 8
    pushq (%r11)
    .cfi_adjust_cfa_offset 8
    jmp *16(%r11)
    .cfi_endproc
    .size enter, . - enter

#elif defined(__aarch64__)

machtrace_stubs:
    .cfi_startproc
    .set number, 0
    .rept STUBS
    .balign 16
    hint #34 /* bti c */
    mov w16, #number
    b enter
    .set number, number + 1
    .endr
    .cfi_endproc
    .size machtrace_stubs, . - machtrace_stubs

    .balign 16
    .type enter, %function
enter:
    .cfi_startproc
    /* The arguments, x8 (the address of a result) and the caller's record. */
    stp x29, x30, [sp, #-96]!
    .cfi_def_cfa_offset 96
    .cfi_offset x29, -96
    .cfi_offset x30, -88
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    stp x8, x16, [sp, #80]
    mov w0, w16
    mov x1, x30
    add x2, sp, #96
    mov x3, x29
    add x4, sp, #16
    bl machtrace_hook_entry
    mov x16, x0
    cmp x16, #1 /* MACHTRACE_NOT_BOUND */
    b.ne 1f
    ldr w0, [sp, #88]
    bl machtrace_late_of
    str x0, [sp, #88]
    mov x16, #1
1:
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldp x8, x17, [sp, #80]
    ldp x29, x30, [sp], #96
    .cfi_def_cfa_offset 0
    .cfi_restore x29
    .cfi_restore x30
    cmp x16, #1
    b.eq 2f
    br x16
2:
    /* As an entry of the linkage table does. */
    ldr x16, [x17, #8]
    stp x16, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset x30, -8
    ldr x16, [x17]
    ldr x17, [x17, #16]
    br x17
    .cfi_endproc
    .size enter, . - enter

#endif

    .section .note.GNU-stack, "", %progbits
