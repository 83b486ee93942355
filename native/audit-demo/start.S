// Where threads begin, system calls, and how messages find their methods. See ../demo/stubs.S, from
// which this differs in that selectors are compared as text, since each image has its own.

        .text

.macro  FUNCTION name
        .globl  \name
        .p2align 2
\name:
        .cfi_startproc
.endmacro

.macro  SYSTEM_CALL name, number
        FUNCTION \name
        mov     x16, #\number
        svc     #0x80
        ret
        .cfi_endproc
.endmacro

        SYSTEM_CALL _mach_wait_until, -90
        SYSTEM_CALL _task_self_trap, -28
        SYSTEM_CALL __kernelrpc_mach_vm_allocate_trap, -10
        SYSTEM_CALL _time_now, -3
        SYSTEM_CALL __exit, 1
        SYSTEM_CALL ___proc_info, 336
        SYSTEM_CALL ___bsdthread_create, 360
        SYSTEM_CALL ___bsdthread_terminate, 361
        SYSTEM_CALL ___bsdthread_register, 366

        .globl  _start
        .p2align 2
_start:
        mov     x29, xzr
        bl      _runtime_initialize
        bl      _main
        b       __exit

        .globl  _thread_start
        .p2align 2
_thread_start:
        mov     x29, xzr
        bl      __pthread_start

// Offsets: objc_class {isa 0, superclass 8, …, data 32}; class_ro_t {…, baseMethods 32};
// method_list_t {entsize 0, count 4, methods 8}; method_t {name 0, types 8, imp 16}.
        FUNCTION _objc_msgSend
        cbz     x0, Lnil
        ldr     x16, [x0]
Lclass:
        cbz     x16, Lunrecognized
        ldr     x17, [x16, #32]
        ldr     x9, [x17, #32]
        cbz     x9, Lsuperclass
        ldr     w10, [x9, #4]
        add     x9, x9, #8
Lmethod:
        cbz     w10, Lsuperclass
        ldr     x11, [x9], #24
        sub     w10, w10, #1
        mov     x12, x1
Lcharacter:
        ldrb    w13, [x11], #1
        ldrb    w14, [x12], #1
        cmp     w13, w14
        b.ne    Lmethod
        cbnz    w13, Lcharacter
        ldur    x17, [x9, #-8]
        br      x17
Lsuperclass:
        ldr     x16, [x16, #8]
        b       Lclass
Lnil:
        mov     x1, xzr
        ret
Lunrecognized:
        brk     #1
        .cfi_endproc

        .globl  dyld_stub_binder
        .p2align 2
dyld_stub_binder:
        brk     #1

        .section __DATA,__const
        .globl  __objc_empty_cache
        .p2align 3
__objc_empty_cache:
        .quad   0, 0

        .subsections_via_symbols
