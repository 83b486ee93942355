/* A library whose functions are watched. */
#include "lab.h"

FUNCTION int sdk_read(int value)
{
    return value + 1;
}

FUNCTION int sdk_write(int value)
{
    return value * 3;
}

FUNCTION int sdk_never(int value)
{
    return value;
}

FUNCTION struct large sdk_arguments(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                                    uint64_t f, uint64_t g, uint64_t h, double p, double q,
                                    double r, double s, double t, double u, double v, double w,
                                    uint64_t on_stack)
{
    return (struct large){{a + 10 * b + 100 * c, d + 10 * e + 100 * f, g + 10 * h, on_stack,
                           (uint64_t)(p + 10 * q), (uint64_t)(r + 10 * s), (uint64_t)(t + 10 * u),
                           (uint64_t)(v + 10 * w)}};
}
