/* Functions that are cut where they wait, as Swift's: a chain of contexts has their callers. */
#include <stddef.h>

#include "lab.h"

#define ASYNC __attribute__((swiftasynccall, noinline, visibility("default")))
#define CONTEXT __attribute__((swift_async_context)) Context *
#define RESUME(context) __attribute__((musttail)) return (context)->resume((context)->parent)

typedef struct Context Context;
struct Context {
    Context *parent;
    ASYNC void (*resume)(CONTEXT); /* of the parent */
};

static volatile uint64_t kept;

FUNCTION int async_helper(int value);
ASYNC void async_outer(CONTEXT context);
ASYNC void async_middle(CONTEXT context);
ASYNC void async_inner(CONTEXT context);
void lab_run_tasks(void);

FUNCTION int async_helper(int value)
{
    return sdk_write(value) + 1;
}

ASYNC void async_outer(CONTEXT context)
{
    kept = (uint64_t)sdk_read(1);
    kept += context->parent == NULL;
}

ASYNC void async_middle(CONTEXT context)
{
    kept = (uint64_t)async_helper(2);
    RESUME(context);
}

ASYNC void async_inner(CONTEXT context)
{
    kept = (uint64_t)(sdk_read(3) + async_helper(4));
    RESUME(context);
}

/* A thread of the pool: of no interest to the tasks that it runs. */
void lab_run_tasks(void)
{
    static Context outer, middle, inner;
    middle = (Context){&outer, async_outer};
    inner = (Context){&middle, async_middle};
    for (int round = 0; round < 2; round++)
        async_inner(&inner);
}
