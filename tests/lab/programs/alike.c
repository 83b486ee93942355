/* Functions so similar that a compiler that saves bytes outlines their common code. */
#include "lab.h"

FUNCTION uint32_t product(uint32_t a, uint32_t b) { return a * b + 3; }

#define SIMILAR(name, extra)                                                                      \
    FUNCTION uint32_t name(uint32_t a, uint32_t b, uint32_t c) {                                  \
        uint32_t r = product(a + 1, b) + product(b, c + 1) + product(a, c);                       \
        return r * product(r, extra);                                                             \
    }
SIMILAR(first, 1)
SIMILAR(second, 2)
SIMILAR(third, 3)
SIMILAR(fourth, 4)

FUNCTION uint32_t calls_two(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r = product(a + 1, b) + product(b, c + 1) + product(a, c);
    return r * first(a, b, c) + second(b, c, a);
}

#define LEAF(name, result)                                                                        \
    FUNCTION uint32_t name(uint32_t *p, uint32_t q) {                                             \
        p[0] = p[1] * 3 + p[2] * 5;                                                               \
        p[3] = p[4] * 7 + p[5];                                                                   \
        p[1] = p[6] * 9 + p[7] * 17;                                                              \
        return result;                                                                            \
    }
LEAF(leaf_one, p[6] + p[0] * p[3])
LEAF(leaf_two, p[6] + p[0] * p[3] + q)
LEAF(leaf_three, p[6] ^ q)
FUNCTION uint32_t leaf_maybe(uint32_t *p, uint32_t q) {
    return q > 4 ? leaf_two(p, q) : q;
}

#define GLOBALS(name, op)                                                                         \
    FUNCTION void name(volatile uint32_t *p) {                                                    \
        p[0] op 1;                                                                                \
        p[1] op 2;                                                                                \
        p[2] op 3;                                                                                \
        p[3] = product(p[0], p[1]);                                                               \
        p[4] = product(p[2], p[3]);                                                               \
        p[5] = p[4] + 77;                                                                         \
    }
GLOBALS(adds_up, +=)
GLOBALS(takes_away, -=)
GLOBALS(turns_over, ^=)

FUNCTION uint64_t sums(const uint64_t *p, uint64_t n) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        sum += p[i] * product((uint32_t)p[i], (uint32_t)i);
    }
    return sum;
}

int main(void) {
    uint32_t words[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint64_t wide[3] = {4, 5, 6};
    uint32_t n = (uint32_t)opaque(5);
    uint32_t sum = first(n, 2, 3) + second(n, 2, 3) + third(1, n, 3) + fourth(n, 3, 4);
    sum += calls_two(n, 6, 7) + leaf_one(words, n) + leaf_two(words, n) + leaf_three(words, n);
    sum += leaf_maybe(words, n) + leaf_maybe(words, 2);
    adds_up(words);
    takes_away(words);
    turns_over(words);
    return (int)(sum + words[4] + sums(wide, 3));
}
