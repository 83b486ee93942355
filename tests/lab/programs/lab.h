/* What the programs of the lab share. Nothing here comes from a system: they run without one. */
#ifndef LAB_H
#define LAB_H

typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;

/* In a stack of its own, whatever the optimiser thinks of it. */
#define FUNCTION __attribute__((noinline))

/* A value that the compiler knows nothing of. */
static inline uint64_t opaque(uint64_t value) {
    __asm__ volatile("" : "+r"(value));
    return value;
}

/* Ends the program: the emulator stops where this leads. */
_Noreturn void leave(void);

#endif
