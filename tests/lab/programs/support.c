/* What compilers call without being asked. */
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
