/* The code of watched functions, by which frames are recognised as theirs: see imports.h. */
#include "imports.h"

#include <stdlib.h>

#include "entries.h"
#include "recorder.h"

static int by_address(const void *one, const void *other)
{
    const uint64_t *first = one, *second = other;
    return *first < *second ? -1 : *first > *second;
}

static bool is_set(const struct machtrace_binding *binding)
{
    return atomic_load(&binding->target) != 0 || atomic_load(&binding->late) != NULL;
}

/* The function that a binding leads to, or will likely. */
static uint64_t function_of(const struct machtrace_binding *binding)
{
    const struct machtrace_late *late = atomic_load(&binding->late);
    uint64_t target = atomic_load(&binding->target);
    if (late != NULL && target <= MACHTRACE_NOT_BOUND)
        target = atomic_load(&late->likely);
    return machtrace_entry_function(target);
}

/* Earlier ones stay, since threads may use them; there are few, since stubs are not released. */
static void publish(bool is_late)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    const struct machtrace_bodies *last = atomic_load(&all->bodies);
    uint32_t stubs = 0;
    while (stubs < MACHTRACE_STUBS && is_set(&machtrace_bindings[stubs]))
        stubs++;
    if (last != NULL && last->stubs >= stubs && !is_late)
        return;
    struct machtrace_bodies *bodies =
        malloc(sizeof *bodies + stubs * sizeof bodies->ranges[0]);
    if (bodies == NULL)
        return;
    size_t count = 0;
    for (uint32_t stub = 0; stub < stubs; stub++) {
        const struct machtrace_binding *binding = &machtrace_bindings[stub];
        uint64_t target = function_of(binding);
        uint64_t size =
            binding->rule == MACHTRACE_NO_RULE ? 0 : machtrace_function_size(target);
        if (size == 0)
            continue;
        bodies->ranges[count].start = target;
        bodies->ranges[count].end = target + size;
        count++;
    }
    qsort(bodies->ranges, count, sizeof bodies->ranges[0], by_address);
    /* Several stubs may lead to one function. */
    bodies->count = 0;
    for (size_t index = 0; index < count; index++)
        if (bodies->count == 0 ||
            bodies->ranges[bodies->count - 1].start != bodies->ranges[index].start)
            bodies->ranges[bodies->count++] = bodies->ranges[index];
    bodies->stubs = stubs;
    bodies->earlier = last;
    if (atomic_compare_exchange_strong(&all->bodies, &last, bodies))
        atomic_fetch_add(&all->generation, 1);
    else
        free(bodies); /* another thread knows as much, or will at the next change */
}

void machtrace_publish_bodies(void)
{
    publish(false);
}

void machtrace_publish_late_body(uint64_t function)
{
    const struct machtrace_bodies *last = atomic_load(&machtrace_recorders.bodies);
    for (size_t index = 0; last != NULL && index < last->count; index++)
        if (last->ranges[index].start == function)
            return;
    publish(true);
}
