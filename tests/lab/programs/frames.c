/* Frames of every size, and frames whose size only the program knows. */
#include "lab.h"

FUNCTION uint64_t touch(volatile uint8_t *bytes, uint64_t size) {
    bytes[0] = 1;
    bytes[size - 1] = 2;
    return bytes[0] + bytes[size / 2] + bytes[size - 1];
}

FUNCTION uint64_t small_frame(uint64_t a) {
    volatile uint8_t bytes[200];
    return touch(bytes, sizeof bytes) + a;
}

/* More than the 4095 bytes that one sub can hold. */
FUNCTION uint64_t big_frame(uint64_t a) {
    volatile uint8_t bytes[5000];
    return touch(bytes, sizeof bytes) + small_frame(a);
}

FUNCTION uint64_t huge_frame(uint64_t a, uint64_t b) {
    volatile uint8_t bytes[70000];
    uint64_t first = touch(bytes, sizeof bytes);
    return first + big_frame(a) * b;
}

/* A leaf with a big frame, whose size only sp shows. */
FUNCTION uint64_t big_leaf(uint64_t a) {
    volatile uint64_t slots[700];
    slots[0] = a;
    slots[699] = a + 1;
    slots[a % 700] = 3;
    return slots[0] + slots[699];
}

FUNCTION uint64_t variable_length(uint64_t n) {
    volatile uint8_t bytes[n];
    uint64_t sum = touch(bytes, n);
    return sum + small_frame(n);
}

FUNCTION uint64_t allocates_in_a_loop(uint64_t n) {
    volatile uint8_t *last = 0;
    uint64_t sum = 0;
    for (uint64_t i = 1; i <= n; i++) {
        last = __builtin_alloca(16 * i + 1);
        sum += touch(last, 16 * i);
    }
    return sum + last[0];
}

FUNCTION uint64_t variable_in_a_block(uint64_t n, uint64_t a, uint64_t b) {
    uint64_t sum = a;
    for (uint64_t i = 1; i < 3; i++) {
        volatile uint8_t bytes[n * i];
        sum += touch(bytes, n * i) * b;
    }
    return sum + touch((volatile uint8_t[32]){0}, 32);
}

/* sp is rounded down by an unknown amount. */
FUNCTION uint64_t aligned(uint64_t a) {
    _Alignas(128) volatile uint8_t bytes[256];
    return touch(bytes, sizeof bytes) + a + ((uint64_t)bytes & 127);
}

FUNCTION uint64_t aligned_and_variable(uint64_t n) {
    _Alignas(64) volatile uint8_t bytes[64];
    volatile uint8_t more[n];
    return touch(bytes, 64) + touch(more, n) + ((uint64_t)bytes & 63);
}

typedef struct {
    uint64_t words[12];
} Large;

FUNCTION Large returns_large(uint64_t a) {
    Large large;
    for (int i = 0; i < 12; i++) {
        large.words[i] = a * (uint64_t)i;
    }
    large.words[3] += touch((volatile uint8_t[16]){0}, 16);
    return large;
}

FUNCTION uint64_t takes_large(Large large, uint64_t index) {
    return large.words[index % 12] + small_frame(index);
}

FUNCTION uint64_t many_arguments(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                                 uint64_t f, uint64_t g, uint64_t h, uint64_t i, uint64_t j,
                                 uint64_t k) {
    return small_frame(a + b * c) + d + e * f + g + h * i + j * k;
}

FUNCTION uint64_t variadic(int count, ...) {
    __builtin_va_list list;
    __builtin_va_start(list, count);
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) {
        sum += small_frame(__builtin_va_arg(list, uint64_t));
    }
    __builtin_va_end(list);
    return sum;
}

#if defined(__aarch64__) || defined(__x86_64__)
uint64_t probed_frame(uint64_t a);
uint64_t probed_without_frame(void);
#else
#define probed_frame(a) 0
#define probed_without_frame() 0
#endif

int main(void) {
    uint64_t n = opaque(3);
    uint64_t sum = small_frame(n) + big_frame(n) + huge_frame(n, 4) + big_leaf(n);
    sum += variable_length(opaque(100)) + allocates_in_a_loop(n);
    sum += variable_in_a_block(opaque(40), sum, n) + aligned(n);
    sum += aligned_and_variable(opaque(48));
    sum += takes_large(returns_large(n), n) + returns_large(sum).words[5];
    sum += many_arguments(1, n, 3, n, 5, n, 7, n, 9, n, 11);
    sum += variadic(4, sum, n, n + 1, n + 2);
    sum += probed_frame(n) + probed_without_frame();
    return (int)sum;
}
