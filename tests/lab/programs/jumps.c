/* Functions that are left by longjmp, from near and from deep below, once and again. */
#include "lab.h"

typedef struct {
    uint64_t words[32];
} JumpBuffer;

__attribute__((returns_twice)) int set_jump(JumpBuffer *buffer);
_Noreturn void long_jump(JumpBuffer *buffer, int value);

FUNCTION uint64_t work(uint64_t a, uint64_t b) { return a * 7 + b; }

FUNCTION uint64_t throws_from_below(JumpBuffer *buffer, uint64_t depth, uint64_t a) {
    if (depth == 0) {
        if (work(a, depth) % 5 != 4) {
            long_jump(buffer, (int)(a % 3) + 1);
        }
        return a;
    }
    volatile uint8_t padding[48 * (depth % 3 + 1)];
    padding[0] = (uint8_t)a;
    return throws_from_below(buffer, depth - 1, work(a, depth)) + padding[0];
}

/* Its frame is fixed: sp is the same where it catches and where it called. */
FUNCTION uint64_t catches(uint64_t depth, uint64_t a) {
    JumpBuffer buffer;
    volatile uint64_t tries = 0;
    int code = set_jump(&buffer);
    tries++;
    if (code == 0 || tries < 3) {
        return throws_from_below(&buffer, depth, work(a, tries)) + tries;
    }
    return work(a, (uint64_t)code);
}

/* It jumps itself, with nothing between. */
FUNCTION uint64_t jumps_to_itself(uint64_t a) {
    JumpBuffer buffer;
    volatile uint64_t round = 0;
    if (set_jump(&buffer) < 3) {
        round++;
        work(a, round);
        long_jump(&buffer, (int)round);
    }
    return work(round, a);
}

/* Behind the set_jump its stack grows. */
FUNCTION uint64_t grows(uint64_t n) {
    JumpBuffer buffer;
    volatile uint64_t times = 0;
    if (set_jump(&buffer) != 0 && times > 1) {
        return work(n, times);
    }
    times++;
    volatile uint8_t bytes[n * times];
    bytes[0] = (uint8_t)n;
    return throws_from_below(&buffer, bytes[0] % 3, 5) + n;
}

FUNCTION uint64_t catches_in_between(uint64_t a) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 3; i++) {
        sum += catches(i, a + i) + work(sum, i);
    }
    return sum;
}

int main(void) {
    uint64_t sum = catches(opaque(0), 3) + catches(opaque(4), 2);
    sum += jumps_to_itself(opaque(5)) + grows(opaque(40)) + catches_in_between(opaque(8));
    return (int)work(sum, sum);
}
