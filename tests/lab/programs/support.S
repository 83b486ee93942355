// Functions that only assembly can be.
.text
.p2align 2

// The emulator stops at the address in its memory that nobody comes back from.
.globl _leave
_leave:
#ifdef __aarch64__
    brk #1
#else
    ud2
#endif

// A message send in miniature: finds the function in a table and jumps to it, as if the caller
// had called it itself. It is not in the stack of what it called.
.globl _dispatch
.p2align 2
_dispatch:
#ifdef __aarch64__
    and x9, x1, #3
    ldr x10, [x0, x9, lsl #3]
    mov x0, x2
    br x10
#else
    movq %rsi, %rax
    andq $3, %rax
    movq (%rdi,%rax,8), %rax
    movq %rdx, %rdi
    jmpq *%rax
#endif

// Stack probe: called before sp moves, it keeps all registers but x16, x17 and lr.
.globl ___chkstk_darwin
.p2align 2
___chkstk_darwin:
    ret
.subsections_via_symbols
