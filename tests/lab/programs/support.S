// Functions that only assembly can be.
#ifdef __arm__
.syntax unified
#ifdef __thumb__
.thumb
#endif
#endif
.text
.p2align 2

// The emulator stops at the address in its memory that nobody comes back from.
.globl _leave
#ifdef __thumb__
.thumb_func _leave
#endif
_leave:
#ifdef __aarch64__
    brk #1
#elif defined(__arm__)
    udf #1
#else
    ud2
#endif

// A message send in miniature: finds the function in a table and jumps to it, as if the caller
// had called it itself. It is not in the stack of what it called.
.globl _dispatch
.p2align 2
#ifdef __thumb__
.thumb_func _dispatch
#endif
_dispatch:
#ifdef __aarch64__
    and x9, x1, #3
    ldr x10, [x0, x9, lsl #3]
    mov x0, x2
#ifdef __arm64e__
    braaz x10
#else
    br x10
#endif
#elif defined(__arm__)
    and r1, r1, #3
    ldr r3, [r0, r1, lsl #2]
    mov r0, r2
    bx r3
#elif defined(__i386__)
    movl 8(%esp), %eax
    movl 4(%esp), %ecx
    andl $3, %eax
    movl (%ecx,%eax,4), %eax
    movl 12(%esp), %ecx
    movl %ecx, 4(%esp)
    jmpl *%eax
#else
    movq %rsi, %rax
    andq $3, %rax
    movq (%rdi,%rax,8), %rax
    movq %rdx, %rdi
    jmpq *%rax
#endif

#ifndef __arm__
// Stack probe: called before sp moves, it keeps all registers but x16, x17 and lr.
.globl ___chkstk_darwin
.p2align 2
___chkstk_darwin:
    ret
#endif
.subsections_via_symbols
