// setjmp and longjmp, in the order in which libplatform's do their work, without its munging.
#ifdef __arm__
.syntax unified
#ifdef __thumb__
.thumb
.thumb_func _set_jump
.thumb_func _long_jump
#endif
#endif
.text
.p2align 2
.globl _set_jump
_set_jump:
#ifdef __aarch64__
    mov x12, sp
    stp x19, x20, [x0]
    stp x21, x22, [x0, #16]
    stp x23, x24, [x0, #32]
    stp x25, x26, [x0, #48]
    stp x27, x28, [x0, #64]
    stp x29, x30, [x0, #80]
    str x12, [x0, #96]
    stp d8, d9, [x0, #112]
    stp d10, d11, [x0, #128]
    stp d12, d13, [x0, #144]
    stp d14, d15, [x0, #160]
    mov w0, #0
    ret
#elif defined(__arm__)
    mov r12, sp
    stmia r0!, {r4, r5, r6, r7, r8, r10, r11, r12, lr}
    vstmia r0, {d8, d9, d10, d11, d12, d13, d14, d15}
    mov r0, #0
    bx lr
#elif defined(__i386__)
    movl 4(%esp), %ecx
    movl (%esp), %edx
    movl %edx, 48(%ecx)
    movl %ebp, 40(%ecx)
    movl %esp, 36(%ecx)
    movl %ebx, (%ecx)
    movl %edi, 28(%ecx)
    movl %esi, 32(%ecx)
    fnstcw 4(%ecx)
    xorl %eax, %eax
    retl
#else
    movq %rbx, (%rdi)
    movq %rbp, %rax
    movq %rax, 8(%rdi)
    movq %r12, 24(%rdi)
    movq %r13, 32(%rdi)
    movq %r14, 40(%rdi)
    movq %r15, 48(%rdi)
    movq (%rsp), %rax
    movq %rax, 56(%rdi)
    leaq 8(%rsp), %rax
    movq %rax, 16(%rdi)
    fnstcw 76(%rdi)
    stmxcsr 72(%rdi)
    xorl %eax, %eax
    retq
#endif

.globl _long_jump
.p2align 2
_long_jump:
#ifdef __aarch64__
    ldp x19, x20, [x0]
    ldp x21, x22, [x0, #16]
    ldp x23, x24, [x0, #32]
    ldp x25, x26, [x0, #48]
    ldp x27, x28, [x0, #64]
    ldp x10, x11, [x0, #80]
    ldr x12, [x0, #96]
    ldp d8, d9, [x0, #112]
    ldp d10, d11, [x0, #128]
    ldp d12, d13, [x0, #144]
    ldp d14, d15, [x0, #160]
    mov x29, x10
    mov x30, x11
    ldrb w16, [sp]
    mov sp, x12
    cmp w1, #0
    csinc w0, w1, wzr, ne
    ret
#elif defined(__arm__)
    ldmia r0!, {r4, r5, r6, r7, r8, r10, r11, r12, lr}
    vldmia r0, {d8, d9, d10, d11, d12, d13, d14, d15}
    mov sp, r12
    movs r0, r1
#ifdef __thumb__
    it eq
#endif
    moveq r0, #1
    bx lr
#elif defined(__i386__)
    movl 4(%esp), %ecx
    movl 8(%esp), %eax
    testl %eax, %eax
    jne 1f
    incl %eax
1:  fninit
    fldcw 4(%ecx)
    movl (%ecx), %ebx
    movl 28(%ecx), %edi
    movl 32(%ecx), %esi
    movl 40(%ecx), %ebp
    movl 36(%ecx), %esp
    movl 48(%ecx), %edx
    cld
    addl $4, %esp
    jmpl *%edx
#else
    fninit
    testl %esi, %esi
    movl $1, %eax
    cmovnel %esi, %eax
    movq (%rdi), %rbx
    movq 8(%rdi), %rsi
    movq %rsi, %rbp
    movq 16(%rdi), %rsi
    movsbq (%rsi), %r12
    movq %rsi, %rsp
    movq 24(%rdi), %r12
    movq 32(%rdi), %r13
    movq 40(%rdi), %r14
    movq 48(%rdi), %r15
    movq 56(%rdi), %rsi
    fldcw 76(%rdi)
    ldmxcsr 72(%rdi)
    cld
    jmpq *%rsi
#endif
.subsections_via_symbols
