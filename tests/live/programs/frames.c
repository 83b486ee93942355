/* Frames of every kind that compilers make, one called by another; the innermost calls back. */
#include <alloca.h>
#include <string.h>

typedef void (*callback)(void);

#define APART __attribute__((noinline, noclone))

/* Something to do after a call, so that none is in tail position. */
static void touch(volatile char *bytes) { bytes[0] = 1; }

APART void frame_leaf(callback call) { call(); __asm__ volatile(""); }

APART void frame_with_array(callback call)
{
    volatile char bytes[3000];
    frame_leaf(call);
    touch(bytes);
}

/* The frame's size is known at run time only: its caller is found by the frame pointer. */
APART void frame_of_any_size(callback call, int size)
{
    volatile char *bytes = alloca((size_t)size);
    frame_with_array(call);
    touch(bytes);
}

/* The stack pointer is realigned, and the caller's saved in another register. */
APART void frame_realigned(callback call, int size)
{
    volatile char bytes[64] __attribute__((aligned(128)));
    volatile char *more = alloca((size_t)size);
    frame_of_any_size(call, size + 5);
    touch(more);
    touch(bytes);
}

/* As many values across a call as there are registers that calls preserve, and more. */
APART long frame_with_registers(callback call, long *of)
{
    long a = of[0], b = of[1] * a, c = of[2] * b, d = of[3] * c, e = of[4] * d, f = of[5] * e;
    frame_realigned(call, 100);
    return a + b * 3 + c * 5 + d * 7 + e * 11 + f * 13;
}

APART long frame_again(callback call, int times)
{
    long values[6] = {1, 2, 3, 4, 5, times};
    if (times == 0)
        return frame_with_registers(call, values);
    return frame_again(call, times - 1) + values[5];
}
