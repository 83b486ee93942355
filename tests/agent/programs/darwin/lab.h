/* What the lab's images for Darwin share. */
#ifndef LAB_H
#define LAB_H

#include <stdint.h>

#define FUNCTION __attribute__((noinline, visibility("default")))

/* The test reads what is noted. */
void lab_note(const char *name, uint64_t value);

/* sdk.c */
int sdk_read(int value);
int sdk_write(int value);
int kit_both(int value); /* kit.c: calls the first two */
int sdk_never(int value);
int sdk_missing_weak(int value) __attribute__((weak_import));

struct large {
    uint64_t words[8];
};

struct large sdk_arguments(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                           uint64_t g, uint64_t h, double p, double q, double r, double s, double t,
                           double u, double v, double w, uint64_t on_stack);

#endif
