/* Jumps that no instruction names the target of. */
#include "lab.h"

FUNCTION uint64_t step(uint64_t a, uint64_t b) { return a * 5 + b; }

FUNCTION _Noreturn void impossible(uint64_t why) {
    step(why, why);
    leave();
}

FUNCTION uint64_t dense(uint64_t kind, uint64_t a) {
    uint64_t sum = step(a, kind);
    switch (kind) {
    case 0:
        sum += step(sum, 1);
        break;
    case 1:
        return step(sum, 2) * 3;
    case 2:
        sum = step(step(sum, 3), 4);
        /* fall through */
    case 3:
        sum ^= step(a, 5);
        break;
    case 4:
        for (uint64_t i = 0; i < a % 3; i++) {
            sum += step(sum, i);
        }
        break;
    case 5:
        return sum;
    case 6:
        if (a == 1234567) {
            impossible(a);
        }
        sum -= 9;
        break;
    case 7:
        return step(sum, step(a, a));
    default:
        impossible(kind);
    }
    return sum + step(kind, sum);
}

/* No frame around the switch: it is made in some cases only. */
FUNCTION uint64_t frameless_switch(uint64_t kind, uint64_t a) {
    switch (kind) {
    case 0:
        return a + 1;
    case 1:
        return a * 7;
    case 2:
        return step(a, 1) + step(a, 2);
    case 3:
        return a ^ 0x55;
    case 4:
        return step(a, 9);
    case 5:
        return (a << 5) - a;
    case 6: {
        uint64_t b = step(a, 3);
        return b * step(b, a);
    }
    default:
        return 0;
    }
}

/* An interpreter's loop: computed goto. */
FUNCTION uint64_t interpret(const uint8_t *program, uint64_t accumulator) {
    static void *const table[] = {&&add, &&call, &&twice, &&stop};
    goto *table[*program++];
add:
    accumulator += 3;
    goto *table[*program++];
call:
    accumulator = step(accumulator, *program);
    goto *table[*program++];
twice:
    accumulator = step(accumulator, 1) + step(accumulator, 2);
    goto *table[*program++];
stop:
    return accumulator;
}

int main(void) {
    static const uint8_t program[] = {0, 1, 2, 0, 2, 1, 3};
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 8; i++) {
        sum += dense(opaque(i), sum + i) + frameless_switch(opaque(i), sum);
    }
    sum += interpret(program, sum);
    dense(opaque(99), sum);
    return (int)sum;
}
