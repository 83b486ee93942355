// A switch from one stack to another, as coroutine libraries write it.
#ifdef __arm__
.syntax unified
#ifdef __thumb__
.thumb
.thumb_func _switch_stack
.thumb_func _fiber_start
#endif
#endif
.text
.p2align 2
.globl _switch_stack
_switch_stack:
#ifdef __aarch64__
    sub sp, sp, #160
    stp d8, d9, [sp]
    stp d10, d11, [sp, #16]
    stp d12, d13, [sp, #32]
    stp d14, d15, [sp, #48]
    stp x19, x20, [sp, #64]
    stp x21, x22, [sp, #80]
    stp x23, x24, [sp, #96]
    stp x25, x26, [sp, #112]
    stp x27, x28, [sp, #128]
    stp x29, x30, [sp, #144]
    mov x2, sp
    str x2, [x0]
    ldr x2, [x1]
    mov sp, x2
    ldp d8, d9, [sp]
    ldp d10, d11, [sp, #16]
    ldp d12, d13, [sp, #32]
    ldp d14, d15, [sp, #48]
    ldp x19, x20, [sp, #64]
    ldp x21, x22, [sp, #80]
    ldp x23, x24, [sp, #96]
    ldp x25, x26, [sp, #112]
    ldp x27, x28, [sp, #128]
    ldp x29, x30, [sp, #144]
    add sp, sp, #160
    ret
#elif defined(__arm__)
    push {r4, r5, r6, r7, r8, r10, r11, lr}
    vpush {d8, d9, d10, d11, d12, d13, d14, d15}
    mov r2, sp
    str r2, [r0]
    ldr r2, [r1]
    mov sp, r2
    vpop {d8, d9, d10, d11, d12, d13, d14, d15}
    pop {r4, r5, r6, r7, r8, r10, r11, pc}
#elif defined(__i386__)
    movl 4(%esp), %eax
    movl 8(%esp), %ecx
    pushl %ebp
    pushl %ebx
    pushl %edi
    pushl %esi
    movl %esp, (%eax)
    movl (%ecx), %esp
    popl %esi
    popl %edi
    popl %ebx
    popl %ebp
    retl
#else
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    retq
#endif

// The outermost function of a fiber: nobody called it, and its table says so.
.globl _fiber_start
.p2align 2
_fiber_start:
    .cfi_startproc
#ifdef __aarch64__
    .cfi_undefined x30
    mov x0, x20
#ifdef __arm64e__
    blraaz x19
#else
    blr x19
#endif
    brk #1
#elif defined(__arm__)
    .cfi_undefined lr
    mov r0, r5
    blx r4
    udf #1
#elif defined(__i386__)
    .cfi_undefined %eip
    pushl %esi
    calll *%ebx
    ud2
#else
    .cfi_undefined %rip
    movq %r12, %rdi
    callq *%rbx
    ud2
#endif
    .cfi_endproc
.subsections_via_symbols
