/* Leaves, early returns, frames made late, tail calls, recursion, messages, a call as last word. */
#include "lab.h"

FUNCTION uint64_t leaf(uint64_t a, uint64_t b) { return a * 3 + (b ^ 5); }

FUNCTION uint64_t leaf_with_locals(uint64_t a) {
    volatile uint64_t slots[6];
    for (int i = 0; i < 6; i++) {
        slots[i] = a + (uint64_t)i;
    }
    return slots[a % 6] + slots[(a + 3) % 6];
}

/* The frame is only made on the way that calls. */
FUNCTION uint64_t made_late(uint64_t a, uint64_t b) {
    if (a < 3) {
        return b + 1;
    }
    if (b == 7) {
        return a ^ b;
    }
    uint64_t sum = leaf(a, b);
    for (uint64_t i = 0; i < a % 4; i++) {
        sum += leaf(sum, i);
    }
    return sum + leaf_with_locals(sum);
}

/* Several ways out, each with an epilogue of its own where size does not matter. */
FUNCTION uint64_t many_ways_out(uint64_t kind, uint64_t a) {
    uint64_t first = leaf(a, kind);
    if (first % 2) {
        return leaf(first, a) + 11;
    }
    uint64_t second = leaf_with_locals(first);
    if (second % 3 == 0) {
        return second * leaf(second, first);
    }
    if (kind == 5) {
        return made_late(second, first) - 1;
    }
    return first + second + leaf(a, a);
}

FUNCTION uint64_t tail_called(uint64_t a, uint64_t b, uint64_t c) {
    return leaf(a, b) + leaf(b, c) + a;
}

FUNCTION uint64_t calls_at_the_end(uint64_t a) {
    uint64_t b = leaf(a, 1);
    uint64_t c = leaf(b, 2);
    return tail_called(c, b, a);
}

FUNCTION uint64_t fibonacci(uint64_t n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

FUNCTION uint64_t deep(uint64_t n, uint64_t carried) {
    if (n == 0) {
        return leaf(carried, 9);
    }
    uint64_t below = deep(n - 1, carried * 7 + n);
    return below ^ leaf(n, carried);
}

typedef uint64_t (*Method)(uint64_t);
uint64_t dispatch(const Method *table, uint64_t selector, uint64_t argument);
FUNCTION uint64_t method_a(uint64_t a) { return leaf(a, 21) + leaf(a, 22); }
FUNCTION uint64_t method_b(uint64_t a) { return a + 5; }
static const Method methods[4] = {method_a, method_b, calls_at_the_end, method_b};

FUNCTION uint64_t sends(uint64_t a) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 4; i++) {
        sum += dispatch(methods, i, a + i);
    }
    return sum;
}

/* Its last instruction is a call: the return address is in the next function. */
FUNCTION _Noreturn void gives_up(uint64_t why) {
    if (leaf(why, why) == 3) {
        leave();
    }
    deep(2, why);
    leave();
}

FUNCTION uint64_t may_give_up(uint64_t a, uint64_t limit) {
    if (__builtin_expect(a > limit, 0)) {
        gives_up(a);
    }
    return limit - a;
}

int main(void) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 8; i++) {
        sum += made_late(opaque(i), i * 3 + 1) + many_ways_out(i, sum);
    }
    sum += made_late(opaque(5), 7);
    sum += calls_at_the_end(sum) + fibonacci(opaque(6)) + deep(opaque(9), sum) + sends(sum);
    sum += may_give_up(opaque(2), 40);
    may_give_up(opaque(41), 40);
    return (int)sum;
}
