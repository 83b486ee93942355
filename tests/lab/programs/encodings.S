// Frames as only assembly and other compilers make them on 32-bit arm: each way to save the return
// address, to lower and to align the stack, to return on a condition, to jump by a table.
.syntax unified
#ifdef __thumb__
.thumb
#define FUNCTION(name) .p2align 2; .thumb_func name; name
#define IT(what) it what
#else
#define FUNCTION(name) .p2align 2; name
#define IT(what)
#endif
.text

// Leaf that calls nobody, called by all others.
FUNCTION(_quiet):
    add r0, r0, #1
    bx lr

// The return address alone, pushed and popped by single transfers.
FUNCTION(_single_word):
    str lr, [sp, #-4]!
    bl _quiet
    ldr pc, [sp], #4

// The same with a frame of four words, and by a register that holds the size.
FUNCTION(_large):
    push {r4, r7, lr}
    add r7, sp, #4
    movw r12, #0x1234
    movt r12, #0x1
    bic r12, r12, #3
    movw r4, #0x2340
    sub sp, sp, r4
    str r0, [sp]
    bl _quiet
    movw r4, #0x2340
    add sp, sp, r4
    pop {r4, r7, pc}

// Aligned, with vector registers saved below: what spills of d registers look like.
FUNCTION(_aligned):
    push {r4, r7, lr}
    add r7, sp, #4
    sub r4, sp, #64
    bfc r4, #0, #4
    mov sp, r4
    vst1.64 {d8, d9, d10, d11}, [r4:128]!
    vst1.64 {d12, d13, d14, d15}, [r4:128]
    vmov.i32 q4, #1
    vmov.i32 q5, #2
    vmov.i32 q6, #3
    vmov.i32 q7, #4
    sub sp, sp, #32
    bl _quiet
    add r4, sp, #32
    vld1.64 {d8, d9, d10, d11}, [r4:128]!
    vld1.64 {d12, d13, d14, d15}, [r4:128]
    sub r4, r7, #4
    mov sp, r4
    pop {r4, r7, pc}

// Alignment in one go, and a frame pointer that all is undone by.
FUNCTION(_realigned):
    push {r4, r5, r6, r7, lr}
    add r7, sp, #12
    push {r8, r10, r11}
    mov r4, sp
    bfc r4, #0, #3
    mov sp, r4
    sub sp, sp, #24
    mov r8, r0
    bl _quiet
#ifdef __thumb__
    sub r4, r7, #24
    mov sp, r4
#else
    sub sp, r7, #24
#endif
    pop {r8, r10, r11}
    pop {r4, r5, r6, r7, pc}

// Vector registers, pushed and popped twice.
FUNCTION(_vectors):
    push {r7, lr}
    mov r7, sp
    vpush {d14}
    vpush {d8, d9, d10}
    vmov.f64 d8, d0
    vmov.f64 d10, d8
    vmov.f64 d14, d8
    bl _quiet
    vpop {d8, d9, d10}
    vpop {d14}
    pop {r7, pc}

// A return on a condition, before there is a frame and with one.
FUNCTION(_maybe):
    cmp r0, #2
    IT(lo)
    bxlo lr
    push {r4, r7, lr}
    add r7, sp, #4
    mov r4, r0
    bl _quiet
    cmp r4, #3
    IT(eq)
    popeq {r4, r7, pc}
    bl _quiet
    cmp r4, #4
#ifdef __thumb__
    itt eq
#endif
    moveq r0, r4
    ldmiaeq sp!, {r4, r7, pc}
    pop {r4, r7, lr}
    b _quiet

// Arguments of unknown number: they are stored below what the caller has.
FUNCTION(_variadic):
    sub sp, sp, #12
    push {r7, lr}
    mov r7, sp
    sub sp, sp, #4
    add r12, r7, #8
    stm r12, {r1, r2, r3}
    bl _quiet
    add sp, sp, #4
    pop {r7, lr}
    add sp, sp, #12
    bx lr

// The frame of the first compilers for arm: four words, restored all at once.
FUNCTION(_old_frame):
    mov r12, sp
    push {r4, r5}
    push {r7, r12, lr}
    mov r7, sp
    sub sp, sp, #8
    bl _quiet
#ifdef __thumb__
    mov sp, r7
    pop {r7, r12, lr}
    pop {r4, r5}
    mov sp, r12
    bx lr
#else
    sub sp, r7, #0
    ldm sp, {r7, r12, lr}
    add sp, sp, #12
    ldmia sp!, {r4, r5}
    mov sp, r12
    mov pc, lr
#endif

// The return address in another register: nobody stores it.
FUNCTION(_in_register):
    mov r3, lr
    mov r2, r0
    add r0, r2, #1
    bx r3

// Constants among the code, with branches around them.
FUNCTION(_literals):
    push {r7, lr}
    mov r7, sp
    ldr r1, 1f
    add r0, r0, r1
    bl _quiet
    vldr d16, 2f
    b 3f
    .p2align 2
1:  .long 0xbd10bd10
2:  .quad 0xe8bd8000e8bd8000
3:  ldr r1, 4f
    add r0, r0, r1
    pop {r7, pc}
    .p2align 2
4:  .long 0xb5f0b5f0

// Jumps by tables: of bytes, of halfwords; or of words.
FUNCTION(_by_table):
    push {r4, r7, lr}
    add r7, sp, #4
    and r4, r0, #3
#ifdef __thumb__
    tbb [pc, r4]
1:  .byte (2f - 1b) / 2, (3f - 1b) / 2, (4f - 1b) / 2, (2f - 1b) / 2
#else
    add r1, pc, #4
    ldr r2, [r1, r4, lsl #2]
    add pc, r1, r2
1:  .long 2f - 1b, 3f - 1b, 4f - 1b, 2f - 1b
#endif
2:  add r0, r0, #3
    pop {r4, r7, pc}
3:  sub sp, sp, #8
    bl _quiet
    add sp, sp, #8
    pop {r4, r7, pc}
4:  pop {r4, r7, lr}
    b _quiet

FUNCTION(_by_wide_table):
    and r1, r0, #3
#ifdef __thumb__
    tbh [pc, r1, lsl #1]
1:  .short (2f - 1b) / 2, (3f - 1b) / 2, (4f - 1b) / 2
#else
    cmp r1, #2
    add r3, pc, #4
    ldr r2, [r3, r1, lsl #2]
    add pc, r3, r2
1:  .long 2f - 1b, 3f - 1b, 4f - 1b
#endif
2:  push {r4, lr}
    bl _quiet
    pop {r4, pc}
3:  bx lr
4:  push {r4, r5, r6, lr}
    mov r4, r0
    bl _quiet
    add r0, r0, r4
    pop {r4, r5, r6, pc}

// Calls on a condition.
FUNCTION(_calls_maybe):
    push {r4, r7, lr}
    add r7, sp, #4
    mov r4, r0
    cmp r4, #2
    IT(hi)
    blhi _quiet
    cmp r4, #1
    IT(ls)
    blls _quiet
    pop {r4, r7, pc}

// Saved only where it is needed, behind a branch.
FUNCTION(_late):
    cmp r0, #0
    beq 1f
    push {r4, r5, r7, lr}
    add r7, sp, #8
    mov r5, r0
    bl _quiet
    add r0, r0, r5
    pop {r4, r5, r7, pc}
1:  mov r0, #7
    bx lr

// All of them, with the numbers 0 to 4.
.globl _main
FUNCTION(_main):
    push {r4, r5, r7, lr}
    add r7, sp, #8
    vpush {d8, d9}
    mov r4, #0
1:  mov r0, r4
    bl _single_word
    mov r0, r4
    bl _large
    mov r0, r4
    bl _aligned
    mov r0, r4
    bl _realigned
    mov r0, r4
    bl _vectors
    mov r0, r4
    bl _maybe
    mov r0, r4
    bl _variadic
    mov r0, r4
    bl _old_frame
    mov r0, r4
    bl _in_register
    mov r0, r4
    bl _literals
    mov r0, r4
    bl _by_table
    and r0, r4, #1
    bl _by_wide_table
    mov r0, #2
    bl _by_wide_table
    mov r0, r4
    bl _calls_maybe
    mov r0, r4
    bl _late
    add r4, r4, #1
    cmp r4, #5
    bne 1b
    vpop {d8, d9}
    pop {r4, r5, r7, pc}
.subsections_via_symbols
