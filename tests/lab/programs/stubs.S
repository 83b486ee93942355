// dyld_stub_binder: finds what a stub is for, binds its pointer, and goes on there.
.text
.p2align 2
.globl dyld_stub_binder
dyld_stub_binder:
#ifdef __aarch64__
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    sub sp, sp, #208
    stp x0, x1, [x29, #-16]
    stp x2, x3, [x29, #-32]
    stp x4, x5, [x29, #-48]
    stp x6, x7, [x29, #-64]
    stp x8, x9, [x29, #-80]
    stp q0, q1, [x29, #-112]
    stp q2, q3, [x29, #-144]
    stp q4, q5, [x29, #-176]
    stp q6, q7, [x29, #-208]
    ldr x0, [x29, #24]
    ldr x1, [x29, #16]
    bl _bind
    mov x16, x0
    ldp x0, x1, [x29, #-16]
    ldp x2, x3, [x29, #-32]
    ldp x4, x5, [x29, #-48]
    ldp x6, x7, [x29, #-64]
    ldp x8, x9, [x29, #-80]
    ldp q0, q1, [x29, #-112]
    ldp q2, q3, [x29, #-144]
    ldp q4, q5, [x29, #-176]
    ldp q6, q7, [x29, #-208]
    mov sp, x29
    ldp x29, x30, [sp], #16
    add sp, sp, #16
    br x16
#elif defined(__i386__)
    subl $20, %esp
    movl 20(%esp), %eax
    movl %eax, (%esp)
    movl 24(%esp), %eax
    movl %eax, 4(%esp)
    calll _bind
    addl $28, %esp
    jmpl *%eax
#else
    pushq %rbp
    movq %rsp, %rbp
    subq $96, %rsp
    movq %rdi, (%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movq %rax, 48(%rsp)
    movdqa %xmm0, 64(%rsp)
    movdqa %xmm1, 80(%rsp)
    movq 8(%rbp), %rdi
    movq 16(%rbp), %rsi
    callq _bind
    movq %rax, %r11
    movdqa 64(%rsp), %xmm0
    movdqa 80(%rsp), %xmm1
    movq (%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movq 48(%rsp), %rax
    movq %rbp, %rsp
    popq %rbp
    addq $16, %rsp
    jmpq *%r11
#endif
.subsections_via_symbols
