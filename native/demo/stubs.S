// Where threads begin, what they ask the kernel with, and how messages find their methods.
//
// Every function here is frameless: it leaves the stack alone and its return address in lr, so
// that it never stands between a caller and whom it called.

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

        SYSTEM_CALL _mach_msg_trap, -31
        SYSTEM_CALL _task_self_trap, -28
        SYSTEM_CALL _mach_reply_port, -26
        SYSTEM_CALL __kernelrpc_mach_vm_allocate_trap, -10
        SYSTEM_CALL __exit, 1
        SYSTEM_CALL ___proc_info, 336
        SYSTEM_CALL ___bsdthread_create, 360
        SYSTEM_CALL ___bsdthread_terminate, 361
        SYSTEM_CALL ___bsdthread_register, 366

// The outermost functions have no unwind information and no caller: a frame pointer of 0 says so.

// The main thread. What dyld does before main() is done when this runs: the emulator rebased us.
        .globl  _start
        .p2align 2
_start:
        mov     x29, xzr
        bl      _runtime_initialize
        bl      _main
        b       __exit

// Every other thread, as runtime_initialize told the kernel; x0–x5 are _pthread_start's arguments.
// That does not return, so its call is the last instruction, and the return address is the next
// function's first.
        .globl  _thread_start
        .p2align 2
_thread_start:
        mov     x29, xzr
        bl      __pthread_start

// objc_msgSend(receiver in x0, selector in x1, …) looks the method up in the class of the
// receiver and in its superclasses, and branches to it: not a call, so that it never shows in a
// stack. Offsets: objc_class {isa 0, superclass 8, …, data 32}; class_ro_t {…, baseMethods 32};
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
        cmp     x11, x1
        b.ne    Lmethod
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

// objc_msgSendSuper2(objc_super {receiver 0, class of the calling method 8} in x0, selector in x1)
        FUNCTION _objc_msgSendSuper2
        ldp     x0, x16, [x0]
        ldr     x16, [x16, #8]
        b       Lclass
        .cfi_endproc

// The linker wants it in every program; lazily bound calls would come here, but nothing is imported.
        .globl  dyld_stub_binder
        .p2align 2
dyld_stub_binder:
        brk     #1

// Every class's cache starts as this; none is ever filled.
        .section __DATA,__const
        .globl  __objc_empty_cache
        .p2align 3
__objc_empty_cache:
        .quad   0, 0

        .subsections_via_symbols
