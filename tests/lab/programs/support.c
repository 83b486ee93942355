/* Functions that compilers call implicitly. */
#include "lab.h"

void *memcpy(void *destination, const void *source, size_t size) {
    volatile uint8_t *to = destination;
    const volatile uint8_t *from = source;
    while (size--) {
        *to++ = *from++;
    }
    return destination;
}

void *memset(void *destination, int value, size_t size) {
    volatile uint8_t *to = destination;
    while (size--) {
        *to++ = (uint8_t)value;
    }
    return destination;
}

void bzero(void *destination, size_t size) { memset(destination, 0, size); }

#ifdef __arm__
/* Of CPUs that cannot divide. */
static uint32_t divide(uint32_t a, uint32_t b, uint32_t *rest) {
    uint32_t quotient = 0, left = 0;
    for (int bit = 31; bit >= 0; bit--) {
        left = left << 1 | (a >> bit & 1);
        if (left >= b) {
            left -= b;
            quotient |= 1u << bit;
        }
    }
    *rest = left;
    return quotient;
}

uint32_t __udivsi3(uint32_t a, uint32_t b) {
    uint32_t rest;
    return divide(a, b, &rest);
}

uint32_t __umodsi3(uint32_t a, uint32_t b) {
    uint32_t rest;
    divide(a, b, &rest);
    return rest;
}

int __divsi3(int a, int b) {
    uint32_t found = __udivsi3(a < 0 ? 0u - (uint32_t)a : (uint32_t)a,
                               b < 0 ? 0u - (uint32_t)b : (uint32_t)b);
    return (int)((a < 0) != (b < 0) ? 0u - found : found);
}

int __modsi3(int a, int b) { return (int)((uint32_t)a - (uint32_t)__divsi3(a, b) * (uint32_t)b); }
#endif
