/* Functions that keep values across calls: in ten registers, in d8 to d15, for callbacks. */
#include "lab.h"

FUNCTION uint64_t mix(uint64_t a, uint64_t b) { return (a << 3) ^ (b * 31); }

FUNCTION uint64_t ten_values(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                             uint64_t f) {
    uint64_t g = mix(a, b), h = mix(c, d), i = mix(e, f), j = mix(g, h), k = mix(i, j);
    uint64_t l = mix(k, a), m = mix(l, b), n = mix(m, c);
    for (uint64_t round = 0; round < 2; round++) {
        a += mix(g, round);
        b ^= mix(h, a);
        c += mix(i, b);
    }
    return a + b + c + d + e + f + g + h + i + j + k + l + m + n;
}

FUNCTION double scaled(double a, double b) { return a * 1.5 + b; }

FUNCTION double eight_doubles(double a, double b) {
    double c = scaled(a, b), d = scaled(b, c), e = scaled(c, d), f = scaled(d, e);
    double g = scaled(e, f), h = scaled(f, g), i = scaled(g, h);
    return a + b + c + d + e + f + g + h + i + scaled(h, i);
}

FUNCTION double mixed(uint64_t n, double start) {
    double sum = start;
    for (uint64_t i = 0; i < n; i++) {
        sum += scaled(sum, (double)mix(i, n));
    }
    return sum;
}

typedef uint64_t (*Callback)(uint64_t, void *);

FUNCTION uint64_t for_each(const uint64_t *values, uint64_t count, Callback call, void *context) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        sum += call(values[i], context);
    }
    return sum;
}

FUNCTION uint64_t adds(uint64_t value, void *context) {
    return mix(value, *(uint64_t *)context);
}

FUNCTION uint64_t goes_deeper(uint64_t value, void *context) {
    uint64_t inner[2] = {value, value + 1};
    return for_each(inner, 2, adds, context);
}

typedef struct {
    uint64_t a, b, c, d;
} Four;

FUNCTION Four four(uint64_t a) {
    Four result = {mix(a, 1), mix(a, 2), mix(a, 3), mix(a, 4)};
    return result;
}

FUNCTION uint64_t one_saved(uint64_t a) { return mix(a, 1) + a; }

FUNCTION uint64_t three_saved(uint64_t a, uint64_t b) {
    uint64_t c = mix(a, b);
    return mix(c, a) + a + b + c;
}

int main(void) {
    uint64_t values[3] = {1, 5, 9};
    uint64_t context = opaque(17);
    uint64_t sum = ten_values(1, opaque(2), 3, 4, 5, 6);
    sum += (uint64_t)(int64_t)(eight_doubles((double)opaque(3), 0.5) + mixed(opaque(3), 1.25));
    sum += for_each(values, 3, adds, &context) + for_each(values, 2, goes_deeper, &context);
    sum += four(sum).c + one_saved(sum) + three_saved(sum, context);
    return (int)sum;
}
