/* Code that signals interrupt: the emulator delivers one at each instruction. */
#include "lab.h"

#define UC_FLAVOR 30

typedef void (*Handler)(int signal, void *information, void *context);

void _sigreturn(void *context, int style, uint64_t token);

/* A stack for handlers, that every other signal is handled on. */
uint8_t alternate_stack[16384] __attribute__((aligned(16))) = {1};
static volatile uint64_t handled;
int in_sigtramp;

FUNCTION uint64_t work(uint64_t a) { return a * 9 + 4; }

FUNCTION void counts(volatile uint64_t *counter) { *counter = work(*counter); }

/* With a frame, and with calls at several depths. */
void handle(int signal, void *information, void *context) {
    if (signal % 3 == 0) {
        volatile uint8_t bytes[96];
        bytes[signal % 96] = 1;
        counts(&handled);
    }
    handled += *(uint32_t *)information;
}

#ifdef __aarch64__
/* As libplatform's, which is no more than C. */
void _sigtramp(Handler handler, int style, int signal, void *information, void *context,
               uint64_t token) {
    (void)style;
    in_sigtramp = signal;
    handler(signal, information, context);
    in_sigtramp = 0;
    _sigreturn(context, UC_FLAVOR, token);
    __builtin_trap();
}
#endif

FUNCTION uint64_t leaf(uint64_t a, uint64_t b) { return a * 3 + (b ^ 5); }

/* What it keeps below sp must survive a signal. */
FUNCTION uint64_t leaf_in_the_red_zone(uint64_t a) {
    volatile uint64_t slots[4];
    slots[a % 4] = a;
    slots[(a + 1) % 4] = 2;
    return slots[a % 4] + slots[(a + 1) % 4];
}

FUNCTION uint64_t made_late(uint64_t a, uint64_t b) {
    if (a < 3) {
        return b + 1;
    }
    uint64_t sum = leaf(a, b);
    for (uint64_t i = 0; i < a % 4; i++) {
        sum += leaf(sum, i);
    }
    return sum + leaf_in_the_red_zone(sum);
}

FUNCTION uint64_t keeps_six(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t d = leaf(a, b), e = leaf(b, c), f = leaf(c, a);
    volatile uint8_t bytes[5000];
    bytes[a % 5000] = (uint8_t)b;
    return a + b + c + d + e + f + leaf(d, bytes[a % 5000]);
}

FUNCTION uint64_t calls_at_the_end(uint64_t a) { return made_late(leaf(a, 1), a); }

FUNCTION double keeps_doubles(double a, double b) {
    double c = (double)leaf((uint64_t)a, 2);
    return a + b + c * (double)leaf((uint64_t)b, 3);
}

int main(void) {
    uint64_t sum = made_late(opaque(2), 4) + made_late(opaque(6), 7) + keeps_six(1, opaque(2), 3);
    sum += calls_at_the_end(sum) + (uint64_t)keeps_doubles((double)opaque(3), 4.5);
    return (int)sum;
}
