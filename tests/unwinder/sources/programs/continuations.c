/* Async functions with callers that are not on the stack: contexts lead from one to the next. */
#define FUNCTION __attribute__((noinline))
#define ASYNC __attribute__((swiftasynccall, noinline))
#define CONTEXT __attribute__((swift_async_context))

typedef struct Context {
    struct Context *parent;
    void (*resume)(void);
    long value;
} Context;

volatile long sink;

FUNCTION long work(long a) { return sink = a * 11 + 4; }
FUNCTION void resume_first(void) { sink += 1; }
FUNCTION void resume_second(void) { sink += 2; }
FUNCTION void resume_third(void) { sink += 3; }

Context root = {0, resume_third, 0};
Context second = {&root, resume_second, 0};
Context first = {&second, resume_first, 0};

ASYNC long async_leaf(CONTEXT Context *context, long a) { return context->value + a; }

ASYNC long async_working(CONTEXT Context *context, long a) {
    long found = work(a);
    context->value = found + work(found);
    return context->value;
}

ASYNC long async_saving(CONTEXT Context *context, long a, long b, long c, long d) {
    long w = work(a), x = work(b), y = work(c), z = work(d);
    context->value = w + work(x) + y * work(z) + async_leaf(context->parent, x);
    return w + x * y - z;
}

/* What runs when a callee has resumed it: it is given the callee's context. */
ASYNC long async_resumed(CONTEXT Context *callee, long a) { return work(a) + callee->value; }

int main(void) {
    Context callee = {&first, (void (*)(void))async_resumed, 5};
    long sum = async_working(&first, 3) + async_saving(&second, 1, 2, 3, 4);
    sum += async_leaf(&first, 7) + async_resumed(&callee, 8);
    return (int)sum;
}
