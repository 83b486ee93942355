/* Functions that keep an async context beside their frame record, as Swift's do. */
#include "lab.h"

#define ASYNC __attribute__((swiftasynccall, noinline))
#define CONTEXT __attribute__((swift_async_context))

typedef struct Context {
    struct Context *parent;
    void (*resume)(void);
    uint64_t value;
} Context;

FUNCTION uint64_t work(uint64_t a) { return a * 11 + 4; }

ASYNC uint64_t innermost(CONTEXT Context *context, uint64_t a) {
    uint64_t first = work(a);
    context->value = first + work(first);
    return context->value;
}

ASYNC uint64_t middle(CONTEXT Context *context, uint64_t a) {
    Context own = {context, 0, 0};
    uint64_t got = innermost(&own, work(a));
    return got + own.value + work(got);
}

ASYNC uint64_t hands_over(CONTEXT Context *context, uint64_t a) {
    uint64_t b = work(a);
    return innermost(context, b + work(b));
}

int main(void) {
    Context root = {0, 0, 0};
    return (int)(middle(&root, opaque(3)) + hands_over(&root, opaque(4)) + root.value);
}
