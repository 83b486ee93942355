// Frames that touch each page before sp moves, as Apple's compiler makes them when it checks stacks.
#if defined(__aarch64__) || defined(__x86_64__)
.text
.p2align 2
.globl _probed_frame
_probed_frame:
    .cfi_startproc
#ifdef __aarch64__
    stp x28, x27, [sp, #-32]!
    .cfi_def_cfa_offset 32
    stp x29, x30, [sp, #16]
    add x29, sp, #16
    .cfi_def_cfa x29, 16
    .cfi_offset x30, -8
    .cfi_offset x29, -16
    .cfi_offset x27, -24
    .cfi_offset x28, -32
    mov w9, #4480
    movk w9, #1, lsl #16
    bl ___chkstk_darwin
    sub sp, sp, #17, lsl #12
    sub sp, sp, #384
    mov x28, x0
    mov x0, sp
    mov w1, #4464
    movk w1, #1, lsl #16
    bl _touch
    add x0, x0, x28
    add sp, sp, #17, lsl #12
    add sp, sp, #384
    ldp x29, x30, [sp, #16]
    ldp x28, x27, [sp], #32
    ret
#else
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    movl $70016, %eax
    callq ___chkstk_darwin
    subq %rax, %rsp
    movq %rdi, -8(%rbp)
    movq %rsp, %rdi
    movl $70000, %esi
    callq _touch
    addq -8(%rbp), %rax
    addq $70016, %rsp
    popq %rbp
    retq
#endif
    .cfi_endproc

// The same without a frame pointer.
.globl _probed_without_frame
.p2align 2
_probed_without_frame:
    .cfi_startproc
#ifdef __aarch64__
    str x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset x30, -16
    mov w9, #20480
    bl ___chkstk_darwin
    sub sp, sp, #5, lsl #12
    .cfi_def_cfa_offset 20496
    mov x0, sp
    mov x1, #20480
    bl _touch
    add sp, sp, #5, lsl #12
    .cfi_def_cfa_offset 16
    ldr x30, [sp], #16
    .cfi_def_cfa_offset 0
    ret
#else
    // Assemblers' compact encoding of such a frame is wrong: this has none, and so is in DWARF.
    .cfi_same_value %r12
    movl $20488, %eax
    callq ___chkstk_darwin
    subq %rax, %rsp
    .cfi_def_cfa_offset 20496
    movq %rsp, %rdi
    movl $20480, %esi
    callq _touch
    addq $20488, %rsp
    .cfi_def_cfa_offset 8
    retq
#endif
    .cfi_endproc
#endif
.subsections_via_symbols
