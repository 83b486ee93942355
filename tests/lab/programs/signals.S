// The ends of signal handling that C cannot be: the system call, and on x86 the trampoline.
.text
.p2align 2
.globl __sigreturn
__sigreturn:
#ifdef __aarch64__
    mov x16, #184
    svc #0x80
    ret
#elif defined(__i386__)
    movl $184, %eax
    int $0x80
    retl

// As libplatform's: its arguments are on the stack, and the context is kept in ebx.
.globl __sigtramp
.p2align 4, 0x90
__sigtramp:
    pushl %ebp
    movl %esp, %ebp
    subl $24, %esp
    movl 8(%ebp), %ecx
    incl _in_sigtramp
    movl 16(%ebp), %edx
    movl %edx, (%esp)
    movl 20(%ebp), %edx
    movl %edx, 4(%esp)
    movl 24(%ebp), %ebx
    movl %ebx, 8(%esp)
    calll *%ecx
    decl _in_sigtramp
    movl %ebx, (%esp)
    movl $30, 4(%esp)
    movl 28(%ebp), %edx
    movl %edx, 8(%esp)
    calll __sigreturn
    ud2
    retl
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
