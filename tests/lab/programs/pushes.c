/* Assembly inside of functions that pushes, moves sp or makes a second frame record, and calls. */
#include "lab.h"

__attribute__((noinline, used)) uint64_t leaf(uint64_t a) { return a * 3 + (a ^ 5); }

__attribute__((noinline, used)) uint64_t called(uint64_t a) { return leaf(a) + opaque(a) * 7; }

#ifdef __aarch64__
#define CALL(before, after)                                                                       \
    register uint64_t value __asm__("x0") = a;                                                    \
    __asm__ volatile(before "\n bl _called\n" after                                               \
                     : "+r"(value)                                                                \
                     :                                                                            \
                     : "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", \
                       "x13", "x14", "x15", "x16", "x17", "x30", "cc", "memory");                 \
    return value
#define OWN_RECORD CALL("stp x29, x30, [sp, #-16]!\n mov x29, sp", "ldp x29, x30, [sp], #16")
#define PUSH CALL("str x30, [sp, #-16]!", "ldr x30, [sp], #16")
#define MAKE_ROOM CALL("sub sp, sp, #48", "add sp, sp, #48")
#else
#define CALL(before, after)                                                                       \
    uint64_t value;                                                                               \
    __asm__ volatile(before "\n callq _called\n" after                                            \
                     : "=a"(value), "+D"(a)                                                       \
                     :                                                                            \
                     : "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "cc", "memory");            \
    return value
#define OWN_RECORD CALL("pushq %%rbp\n movq %%rsp, %%rbp", "popq %%rbp")
#define PUSH CALL("pushq $1\n pushq $2", "addq $16, %%rsp")
#define MAKE_ROOM CALL("subq $48, %%rsp", "addq $48, %%rsp")
#endif

/* Each calls something else first, so that nothing is stored below sp. */
FUNCTION uint64_t own_record(uint64_t a) {
    a = opaque(leaf(a));
    OWN_RECORD;
}

FUNCTION uint64_t pushed(uint64_t a) {
    a = opaque(leaf(a));
    PUSH;
}

FUNCTION uint64_t made_room(uint64_t a) {
    a = opaque(leaf(a));
    MAKE_ROOM;
}

/* Code that may be skipped. */
FUNCTION uint64_t sometimes(uint64_t a) {
    uint64_t sum = leaf(a);
    if (sum % 2) {
        sum += pushed(sum);
    }
    return sum + made_room(own_record(sum));
}

int main(void) {
    uint64_t sum = opaque(1);
    for (uint64_t i = 0; i < 3; i++) {
        sum += sometimes(sum + i) + own_record(i) + pushed(i) + made_room(i);
    }
    opaque(sum);
    return 0;
}
