/* Coroutines: each on a stack of its own, that code switches to by hand. */
#include "lab.h"

#define STACK_SIZE 8192
/* The emulator takes sections whose names begin so for stacks, each with calls of its own. */
#define STACK(number) __attribute__((section("__DATA,__stack" number), aligned(16)))

typedef struct {
    void *sp;
} Fiber;

/* Resumes `to`, and stores in `from` where to resume the caller. */
void switch_stack(Fiber *from, const Fiber *to);
/* Where a fiber begins: calls the function that make_fiber put into its registers. */
void fiber_start(void);

STACK("1") static uint8_t first_stack[STACK_SIZE] = {1};
STACK("2") static uint8_t second_stack[STACK_SIZE] = {1};
static Fiber main_fiber, first, second;
static uint64_t total;

FUNCTION uint64_t work(uint64_t a) { return a * 13 + 7; }

FUNCTION void yields(Fiber *self, Fiber *other, uint64_t depth) {
    if (depth) {
        yields(self, other, depth - 1);
        total += work(depth);
        return;
    }
    total = work(total);
    switch_stack(self, other);
}

FUNCTION void runs_first(uint64_t rounds) {
    for (uint64_t i = 0; i < rounds; i++) {
        total += work(i);
        yields(&first, &second, i);
    }
    switch_stack(&first, &main_fiber);
    leave();
}

FUNCTION void runs_second(uint64_t rounds) {
    while (rounds) {
        yields(&second, &first, 2);
        total += work(rounds);
    }
    leave();
}

#ifdef __arm64e__
#define ADDRESS(function) (uint64_t) __builtin_ptrauth_strip((void *)(function), 0)
#else
#define ADDRESS(function) (uint64_t)(function)
#endif

FUNCTION void make_fiber(Fiber *fiber, uint8_t *stack, void (*function)(uint64_t), uint64_t argument) {
#ifdef __aarch64__
    /* As switch_stack leaves them: d8 to d15, x19 to x28, x29, x30. */
    uint64_t *frame = (uint64_t *)(stack + STACK_SIZE) - 20;
    frame[8] = (uint64_t)function;
    frame[9] = argument;
    frame[18] = 0;
    frame[19] = ADDRESS(fiber_start);
#elif defined(__arm__)
    /* As switch_stack leaves them: d8 to d15, r4 to r8, r10, r11, where to return to. */
    uint64_t *frame = (uint64_t *)(stack + STACK_SIZE) - 24;
    frame[16] = (uint64_t)function;
    frame[17] = argument;
    frame[19] = 0;
    frame[23] = ADDRESS(fiber_start);
#elif defined(__i386__)
    /* esi, edi, ebx, ebp, and where to return to; sp is 12 bytes above a multiple of 16 then. */
    uint64_t *frame = (uint64_t *)(stack + STACK_SIZE) - 6;
    frame[0] = argument;
    frame[2] = (uint64_t)function;
    frame[3] = 0;
    frame[4] = ADDRESS(fiber_start);
#else
    /* r15, r14, r13, r12, rbx, rbp, and where to return to. */
    uint64_t *frame = (uint64_t *)(stack + STACK_SIZE) - 8;
    frame[3] = argument;
    frame[4] = (uint64_t)function;
    frame[5] = 0;
    frame[6] = ADDRESS(fiber_start);
#endif
    fiber->sp = frame;
}

int main(void) {
    make_fiber(&first, first_stack, runs_first, opaque(4));
    make_fiber(&second, second_stack, runs_second, 1);
    total = opaque(3);
    switch_stack(&main_fiber, &first);
    return (int)work(total);
}
