/* Calls 8 to 105 deep through functions whose frames differ: to be stopped and walked anywhere. */

typedef unsigned long uint64_t;
#define FUNCTION __attribute__((noinline))

static inline uint64_t opaque(uint64_t value) {
    __asm__ volatile("" : "+r"(value));
    return value;
}

FUNCTION uint64_t next(uint64_t depth, uint64_t state);

FUNCTION uint64_t mixed(uint64_t state) {
    for (int i = 0; i < 6; i++) {
        state = opaque(state * 6364136223846793005u + 1442695040888963407u);
        state ^= state >> 29;
    }
    return state;
}

FUNCTION uint64_t plain(uint64_t depth, uint64_t state) { return next(depth, state + 1) ^ state; }

FUNCTION uint64_t keeps_many(uint64_t depth, uint64_t a) {
    uint64_t b = opaque(a + 1), c = opaque(a + 2), d = opaque(a + 3), e = opaque(a + 4);
    uint64_t f = opaque(a + 5), g = opaque(a + 6), h = opaque(a + 7), i = opaque(a + 8);
    uint64_t found = next(depth, a ^ b);
    return found + a * b + c * d + e * f + g * h + i;
}

FUNCTION uint64_t has_a_table(uint64_t depth, uint64_t state) {
    volatile uint64_t table[40];
    for (int i = 0; i < 40; i += 8) {
        table[i] = state + (uint64_t)i;
    }
    return next(depth, table[8]) + table[16];
}

FUNCTION uint64_t has_a_large_table(uint64_t depth, uint64_t state) {
    volatile uint64_t table[600];
    table[state % 600] = state;
    return next(depth, table[state % 600]) + table[7 * state % 600];
}

FUNCTION uint64_t sized_as_it_runs(uint64_t depth, uint64_t state) {
    volatile uint64_t words[opaque(state % 13 + 1)];
    words[0] = state;
    return next(depth, words[0]) + words[0];
}

FUNCTION uint64_t twice(uint64_t depth, uint64_t state) {
    uint64_t first = mixed(state);
    uint64_t second = next(depth, first);
    return mixed(second) + first;
}

FUNCTION uint64_t through_a_pointer(uint64_t depth, uint64_t state) {
    uint64_t (*volatile function)(uint64_t, uint64_t) = state & 64 ? plain : twice;
    return function(depth, state) + 1;
}

FUNCTION uint64_t next(uint64_t depth, uint64_t state) {
    uint64_t found = mixed(state);
    if (depth == 0) {
        return found;
    }
    depth--;
    switch (found >> 7 & 7) {
    case 0: return found + plain(depth, found);
    case 1: return found + keeps_many(depth, found);
    case 2: return found + has_a_table(depth, found);
    case 3: return found + (found & 512 ? has_a_large_table : keeps_many)(depth, found);
    case 4: return found + sized_as_it_runs(depth, found);
    case 5: return found + twice(depth, found);
    case 6: return found + through_a_pointer(depth, found);
    default: return found + next(depth, found);
    }
}

int main(void) {
    uint64_t sum = 0;
    for (uint64_t round = 0; round < 3000; round++) {
        sum += next(4 + mixed(sum + round) % 46, sum + round);
    }
    return (int)sum;
}
