#include "lab.h"
typedef struct { uint64_t words[6]; } Big;
typedef struct { double a, b, c; } Doubles;
FUNCTION uint64_t mix(uint64_t a, uint64_t b) { return (a << 3) ^ (b * 31); }
/* The caller's hidden argument leaves the stack with the return. */
FUNCTION Big big(uint64_t a) { Big b; for (uint64_t i = 0; i < 6; i++) b.words[i] = mix(a, i); return b; }
FUNCTION Big other(uint64_t a) { Big b; for (uint64_t i = 0; i < 6; i++) b.words[i] = a + i; return b; }
FUNCTION Big hands_on(uint64_t a) { return big(a * 3); }
FUNCTION Doubles doubles(double x) { Doubles d = {x, x * 2, x * 3}; mix(1, 2); return d; }
typedef Big (*Maker)(uint64_t);
FUNCTION uint64_t through_pointer(Maker make, uint64_t a) {
    uint64_t sum = mix(a, a);
    Big b = make(sum);
    Big c = make(b.words[2]);
    sum += mix(b.words[1], c.words[3]);
    for (uint64_t i = 0; i < 3; i++) { Big d = make(i); sum += d.words[i] + mix(sum, i); }
    return sum;
}
FUNCTION uint64_t sums(uint64_t a) {
    Big b = big(a), c = other(b.words[1]), d = hands_on(c.words[2]);
    Doubles e = doubles((double)a);
    return b.words[3] + c.words[4] + d.words[5] + mix(a, (uint64_t)e.c);
}
#define STD __attribute__((stdcall, noinline))
STD uint64_t std_two(uint64_t a, uint64_t b) { return mix(a, b) + mix(b, a); }
STD uint64_t std_five(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e) { return mix(a, b) + std_two(c, d) * e; }
typedef uint64_t (__attribute__((stdcall)) *Std)(uint64_t, uint64_t);
FUNCTION uint64_t std_pointer(Std call, uint64_t a) {
    uint64_t sum = call(a, 3);
    if (sum % 3) sum += call(sum, mix(a, 1));
    for (uint64_t i = 0; i < a % 5; i++) sum ^= call(i, sum);
    return sum + mix(sum, 2);
}
#define FAST __attribute__((fastcall, noinline))
FAST uint64_t fast_four(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { return mix(a, b) ^ mix(c, d); }
FUNCTION uint64_t kinds(uint64_t a) {
    uint64_t x = std_five(a, 2, 3, 4, 5);
    x += fast_four(x, a, 1, 2);
    return x + std_pointer(std_two, x % 7 + 4);
}
/* Two ways, one of which pops. */
FUNCTION uint64_t either(uint64_t a, Maker make) {
    if (a & 1) { Big b = make(a); return b.words[2] + mix(a, b.words[1]); }
    return mix(a, 9) + mix(9, a);
}
FUNCTION uint64_t nested(uint64_t a, Maker m) {
    return mix(m(mix(a, m(a).words[1])).words[2], m(std_two(a, m(3).words[0])).words[4]);
}
FUNCTION uint64_t wide(unsigned long long a, long double b) { return (uint64_t)(a * 3) + (uint64_t)b + mix(1, 2); }
int main(void) {
    uint64_t n = opaque(3);
    uint64_t sum = sums(n) + through_pointer(big, n) + through_pointer(hands_on, n) + kinds(n);
    sum += either(n, other) + either(n + 1, other) + nested(n, big) + wide(n, 1.5L);
    return (int)sum;
}
