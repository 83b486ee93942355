// The ends of signal handling that C cannot be: the system call, and on x86-64 the trampoline.
.text
.p2align 2
.globl __sigreturn
__sigreturn:
#ifdef __aarch64__
    mov x16, #184
    svc #0x80
    ret
#else
    movl $0x20000b8, %eax
    movq %rcx, %r10
    syscall
    retq

// As libplatform's: a frame for who looks for one, the context kept in rbx, no unwind table.
.globl __sigtramp
.p2align 4, 0x90
__sigtramp:
    pushq %rbp
    movq %rsp, %rbp
    movq %rdi, %rax
    incl _in_sigtramp(%rip)
    movq %r8, %rbx
    movq %r9, %r12
    movl %edx, %edi
    movq %rcx, %rsi
    movq %r8, %rdx
    callq *%rax
    decl _in_sigtramp(%rip)
    movq %rbx, %rdi
    movl $30, %esi
    movq %r12, %rdx
    callq __sigreturn
    ud2
    retq
#endif
.subsections_via_symbols
