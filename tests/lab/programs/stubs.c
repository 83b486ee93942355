/* Calls to functions of other images, through stubs: dyld is played by dyld_stub_binder below. */
#include "lab.h"

/* Not defined here: the linker makes stubs for them. */
uint64_t outside_one(uint64_t a, uint64_t b);
uint64_t outside_two(uint64_t a);
uint64_t outside_three(uint64_t a, double b);

FUNCTION uint64_t work(uint64_t a) { return a * 3 + 1; }

/* What the stubs are bound to: they are behind stubs, as functions of another image are. */
uint64_t provides_one(uint64_t a, uint64_t b) { return work(a) + work(b); }
uint64_t provides_two(uint64_t a) { return a ^ 21; }
uint64_t provides_three(uint64_t a, double b) { return work(a) * (uint64_t)b; }

/* What dyld reads from the file: a stub's pointer, and what it is to lead to. The lab fills it. */
struct {
    void **pointer;
    void *target;
} bindings[8] = {{(void **)1, 0}};

void *bind(void *cache, uint64_t number) {
    (void)cache;
    work(number);
    *bindings[number].pointer = bindings[number].target;
    return bindings[number].target;
}

FUNCTION uint64_t calls_at_the_end(uint64_t a) { return outside_two(work(a)); }

FUNCTION uint64_t calls(uint64_t a) {
    uint64_t sum = outside_one(a, 4);
    sum += outside_three(sum, 2.5) + outside_one(sum, a);
    return sum + calls_at_the_end(a);
}

int main(void) {
    uint64_t sum = calls(opaque(3));
    sum += outside_two(sum) + calls(sum) + outside_three(sum, 7.0);
    return (int)sum;
}
