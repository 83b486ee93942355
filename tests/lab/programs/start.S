// What called main, for debuggers: they want the outermost frame to be in an image.
#ifdef __arm__
.syntax unified
#ifdef __thumb__
.thumb
.thumb_func _main
#endif
#endif
.text
.p2align 2
.globl _main
_main:
    .cfi_startproc
#ifdef __aarch64__
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    mov x29, sp
    .cfi_def_cfa x29, 16
    .cfi_offset x30, -8
    .cfi_offset x29, -16
    bl _main
    .globl _called_main
    .alt_entry _called_main
_called_main:
    brk #1
#elif defined(__arm__)
    push {r7, lr}
    .cfi_def_cfa_offset 8
    .cfi_offset lr, -4
    .cfi_offset r7, -8
    mov r7, sp
    .cfi_def_cfa r7, 8
    bl _main
    .globl _called_main
    .alt_entry _called_main
_called_main:
    udf #1
#elif defined(__i386__)
    pushl %ebp
    .cfi_def_cfa_offset 8
    .cfi_offset %ebp, -8
    movl %esp, %ebp
    .cfi_def_cfa_register %ebp
    calll _main
    .globl _called_main
    .alt_entry _called_main
_called_main:
    ud2
#else
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    callq _main
    .globl _called_main
    .alt_entry _called_main
_called_main:
    ud2
#endif
    .cfi_endproc
