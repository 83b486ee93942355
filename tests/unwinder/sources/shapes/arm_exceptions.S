@ Functions with all that exception tables of 32-bit arm can say.
    .syntax unified
    .arch armv7-a
    .fpu neon
    .text

    .macro function name
    .globl \name
    .type \name, %function
\name:
    .fnstart
    .endm

function plain
    push {r4, lr}
    .save {r4, lr}
    pop {r4, pc}
    .fnend

function framed
    push {r4, r5, r11, lr}
    .save {r4, r5, r11, lr}
    add r11, sp, #8
    .setfp r11, sp, #8
    vpush {d8, d9, d10}
    .vsave {d8, d9, d10}
    sub sp, sp, #1024
    .pad #1024
    sub sp, r11, #32
    vpop {d8, d9, d10}
    pop {r4, r5, r11, pc}
    .fnend

function arguments
    push {r0, r1, r2, r3}
    .pad #16
    push {r4, r5, r6, r7, r8, r9, r10, r11, lr}
    .save {r4, r5, r6, r7, r8, r9, r10, r11, lr}
    sub sp, sp, #65536
    .pad #65536
    bx lr
    .fnend

function high_doubles
    vpush {d16, d17}
    .vsave {d16, d17}
    vpush {d12}
    .vsave {d12}
    bx lr
    .fnend

function low_registers
    push {r0, r3, lr}
    .save {r0, r3, lr}
    bx lr
    .fnend

function root
    bl plain
    .cantunwind
    .fnend

function apart
    push {r4, lr}
    .save {r4, lr}
    bl plain
    pop {r4, pc}
    .personalityindex 1
    .handlerdata
    .long 0
    .fnend

function many_words
    push {r4, r8, r10, lr}
    .save {r4, r8, r10, lr}
    vpush {d8}
    .vsave {d8}
    vpush {d10}
    .vsave {d10}
    sub sp, sp, #2048
    .pad #2048
    bx lr
    .personalityindex 2
    .handlerdata
    .long 0
    .fnend

function foreign
    push {r4, r7, lr}
    .save {r4, r7, lr}
    sub sp, sp, #12
    .pad #12
    bl plain
    .personality personality
    .handlerdata
    .long 0
    .fnend

    .globl personality
personality:
    .fnstart
    bx lr
    .fnend
