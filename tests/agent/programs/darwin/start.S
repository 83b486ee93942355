// Where threads begin: the outermost frames. A frame pointer of 0 says that nothing called them.
        .text
        .p2align 2
        .globl _lab_start
        .globl _lab_thread_start
#if defined(__aarch64__)
_lab_start:
        mov x29, #0
        mov x19, x30
        bl _lab_main
        ret x19
_lab_thread_start:
        mov x29, #0
        mov x19, x30
        mov x2, x0
        mov x0, x1
#ifdef __arm64e__
        blraaz x2
#else
        blr x2
#endif
        ret x19
#else
_lab_start:
        xorl %ebp, %ebp
        subq $8, %rsp
        callq _lab_main
        addq $8, %rsp
        retq
_lab_thread_start:
        xorl %ebp, %ebp
        movq %rdi, %rax
        movq %rsi, %rdi
        subq $8, %rsp
        callq *%rax
        addq $8, %rsp
        retq
#endif
        .subsections_via_symbols
