// objc_msgSend(receiver, selector, …): branches to the method, so that it is in no stack. Offsets:
// objc.c. Arguments are preserved.
        .text
        .globl _objc_msgSend
        .p2align 4
_objc_msgSend:
#if defined(__aarch64__)
        cbz x0, Lnil
        ldr x16, [x0]
Lclass:
#ifdef __arm64e__
        xpacd x16
#endif
        cbz x16, Lunrecognized
        ldr x17, [x16, #32]
#ifdef __arm64e__
        xpacd x17
#endif
        ldr x9, [x17, #32]
#ifdef __arm64e__
        xpacd x9
#endif
        cbz x9, Lsuperclass
        ldr w10, [x9, #4]
        add x9, x9, #8
Lmethod:
        cbz w10, Lsuperclass
        ldr x11, [x9], #24
        sub w10, w10, #1
        cmp x11, x1
        b.ne Lmethod
        sub x9, x9, #8
        ldr x17, [x9]
#ifdef __arm64e__
        braa x17, x9
#else
        br x17
#endif
Lsuperclass:
        ldr x16, [x16, #8]
        b Lclass
Lnil:
        mov x0, #0
        ret
Lunrecognized:
        brk #1
#else
        testq %rdi, %rdi
        je Lnil
        movq (%rdi), %r10
Lclass:
        testq %r10, %r10
        je Lunrecognized
        movq 32(%r10), %r11
        movq 32(%r11), %r11
        testq %r11, %r11
        je Lsuperclass
        pushq %rbx
        movl 4(%r11), %ebx
        addq $8, %r11
Lmethod:
        subl $1, %ebx
        js Lrestore
        addq $24, %r11
        cmpq %rsi, -24(%r11)
        jne Lmethod
        popq %rbx
        jmpq *-8(%r11)
Lrestore:
        popq %rbx
Lsuperclass:
        movq 8(%r10), %r10
        jmp Lclass
Lnil:
        xorl %eax, %eax
        retq
Lunrecognized:
        ud2
#endif
        .subsections_via_symbols
