// Shapes of frames that C compilers seldom write, each with call-frame information that holds at
// every instruction: what instruction analysis must find out without it.
.text

// A frame whose size is put together in a register; x9 survives the stack probe.
.p2align 2
_sized_by_register:
    .cfi_startproc
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset w30, -8
    .cfi_offset w29, -16
    movz w9, #0x2340
    movk w9, #0x1, lsl #16
    bl _probe
    sub sp, sp, x9
    .cfi_def_cfa_offset 16 + 0x12340
    str xzr, [sp, #8]
    add sp, sp, x9
    .cfi_def_cfa_offset 16
    ldp x29, x30, [sp], #16
    .cfi_def_cfa_offset 0
    .cfi_restore w29
    .cfi_restore w30
    ret
    .cfi_endproc

_probe:
    .cfi_startproc
    ret
    .cfi_endproc

// The same, in units of 16.
.p2align 2
_sized_in_units:
    .cfi_startproc
    mov x16, #0x1200
    sub sp, sp, x16, lsl #4
    .cfi_def_cfa_offset 0x12000
    str xzr, [sp]
    add sp, sp, #0x12, lsl #12
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc

// The way that does not return comes first; what is behind its call has another frame.
.p2align 2
_noreturn_in_the_middle:
    .cfi_startproc
    cbz x0, 1f
    stp x20, x19, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset w19, -24
    .cfi_offset w20, -32
    stp x29, x30, [sp, #16]
    .cfi_offset w30, -8
    .cfi_offset w29, -16
    add x29, sp, #16
    .cfi_def_cfa w29, 16
    mov x19, x0
    bl _probe
1:
    .cfi_def_cfa wsp, 0
    .cfi_restore w19
    .cfi_restore w20
    .cfi_restore w29
    .cfi_restore w30
    add x0, x1, x2
    ret
    .cfi_endproc

// Cases that only a table leads to; one ends in a call that does not return.
.p2align 2
_table:
    .cfi_startproc
    cmp x0, #3
    b.hi 9f
    stp x22, x21, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset w21, -40
    .cfi_offset w22, -48
    stp x20, x19, [sp, #16]
    .cfi_offset w19, -24
    .cfi_offset w20, -32
    stp x29, x30, [sp, #32]
    .cfi_offset w30, -8
    .cfi_offset w29, -16
    add x29, sp, #32
    .cfi_def_cfa w29, 16
    adr x8, 1f
    add x8, x8, x0, lsl #3
    br x8
1:
    mov x19, x1
    bl _probe
2:
    mov x20, x1
    b 8f
    mov x21, x1
    b 8f
8:
    .cfi_def_cfa wsp, 48
    ldp x29, x30, [sp, #32]
    .cfi_restore w29
    .cfi_restore w30
    ldp x20, x19, [sp, #16]
    .cfi_restore w19
    .cfi_restore w20
    ldp x22, x21, [sp], #48
    .cfi_def_cfa_offset 0
    .cfi_restore w21
    .cfi_restore w22
9:
    ret
    .cfi_endproc

// Signed return address, d8 to d11, and a base pointer below an aligned and a variable part.
.p2align 2
_signed_and_aligned:
    .cfi_startproc
    pacibsp
    stp d11, d10, [sp, #-64]!
    .cfi_def_cfa_offset 64
    .cfi_offset b10, -56
    .cfi_offset b11, -64
    stp d9, d8, [sp, #16]
    .cfi_offset b8, -40
    .cfi_offset b9, -48
    str x19, [sp, #32]
    .cfi_offset w19, -32
    stp x29, x30, [sp, #48]
    .cfi_offset w30, -8
    .cfi_offset w29, -16
    add x29, sp, #48
    .cfi_def_cfa w29, 16
    sub x9, sp, #256
    and sp, x9, #0xffffffffffffff80
    mov x19, sp
    mov x9, sp
    sub x9, x9, x0
    mov sp, x9
    bl _probe
    sub sp, x29, #48
    .cfi_def_cfa wsp, 64
    ldp x29, x30, [sp, #48]
    .cfi_restore w29
    .cfi_restore w30
    ldr x19, [sp, #32]
    .cfi_restore w19
    ldp d9, d8, [sp, #16]
    .cfi_restore b8
    .cfi_restore b9
    ldp d11, d10, [sp], #64
    .cfi_def_cfa_offset 0
    .cfi_restore b10
    .cfi_restore b11
    retab
    .cfi_endproc

// Saves through another register than sp, and restores through another one still.
.p2align 2
_saves_through_registers:
    .cfi_startproc
    sub x16, sp, #96
    stp x19, x20, [x16, #64]
    .cfi_offset w19, -32
    .cfi_offset w20, -24
    stp x29, x30, [x16, #80]!
    .cfi_offset w29, -16
    .cfi_offset w30, -8
    sub sp, sp, #96
    .cfi_def_cfa_offset 96
    mov x29, x16
    .cfi_def_cfa w29, 16
    mov x19, #1
    mov x20, #2
    bl _probe
    sub x17, x29, #16
    .cfi_def_cfa w29, 16
    mov sp, x29
    .cfi_def_cfa wsp, 16
    ldp x19, x20, [x17], #16
    .cfi_restore w19
    .cfi_restore w20
    ldp x29, x30, [x17]
    .cfi_restore w29
    .cfi_restore w30
    add sp, sp, #16
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc

// Two epilogues, the first in the middle; the second one jumps to another function.
.p2align 2
_leaves_by_a_jump:
    .cfi_startproc
    str x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset w30, -16
    bl _probe
    cbz x0, 1f
    .cfi_remember_state
    ldr x30, [sp], #16
    .cfi_def_cfa_offset 0
    .cfi_restore w30
    ret
1:
    .cfi_restore_state
    bl _probe
    ldr x30, [sp], #16
    .cfi_def_cfa_offset 0
    .cfi_restore w30
    b _probe
    .cfi_endproc

// A loop that probes each page on the way down.
.p2align 2
_probes_in_a_loop:
    .cfi_startproc
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset w30, -8
    .cfi_offset w29, -16
    mov x29, sp
    .cfi_def_cfa w29, 16
    sub x9, sp, #5, lsl #12
1:
    sub sp, sp, #1, lsl #12
    str xzr, [sp]
    cmp sp, x9
    b.ne 1b
    bl _probe
    mov sp, x29
    .cfi_def_cfa wsp, 16
    ldp x29, x30, [sp], #16
    .cfi_def_cfa_offset 0
    .cfi_restore w29
    .cfi_restore w30
    ret
    .cfi_endproc

// Swift's async frames: a tag in the saved frame pointer, the context below the record.
.p2align 2
_async:
    .cfi_startproc
    orr x29, x29, #0x1000000000000000
    sub sp, sp, #48
    .cfi_def_cfa_offset 48
    stp x29, x30, [sp, #32]
    .cfi_offset w30, -8
    .cfi_offset w29, -16
    str x22, [sp, #24]
    add x29, sp, #32
    .cfi_def_cfa w29, 16
    str x20, [sp, #16]
    .cfi_offset w20, -32
    mov x20, x0
    bl _probe
    .cfi_def_cfa wsp, 48
    ldr x20, [sp, #16]
    .cfi_restore w20
    ldp x29, x30, [sp, #32]
    .cfi_restore w29
    .cfi_restore w30
    and x29, x29, #0xefffffffffffffff
    add sp, sp, #48
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc

.globl _main
.p2align 2
_main:
    .cfi_startproc
    ret
    .cfi_endproc
