/* See run_loop.h. CoreFoundation is not linked: programs without it can carry the agent. Types and
 * values are those of CFRunLoop.h. */
#include "darwin/run_loop.h"

#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>

#include "machtrace.h"

#define BEFORE_WAITING (1ul << 5) /* kCFRunLoopBeforeWaiting */
#define AFTER_WAITING (1ul << 6)  /* kCFRunLoopAfterWaiting */

typedef void callback(void *observer, unsigned long activity, void *info);
typedef void *get_main(void);
typedef void *create(const void *allocator, unsigned long activities, unsigned char repeats,
                     long order, callback *call, void *context);
typedef void add(void *loop, void *observer, const void *mode);
typedef void release(void *observer);

static void *observers[2];
static release *invalidate, *let_go;

static void state_idle(void *observer, unsigned long activity, void *info)
{
    (void)observer;
    (void)activity;
    (void)info;
    machtrace_idle_begin();
}

static void state_busy(void *observer, unsigned long activity, void *info)
{
    (void)observer;
    (void)activity;
    (void)info;
    machtrace_idle_end();
}

void machtrace_run_loop_begin(void)
{
    get_main *main_loop = (get_main *)dlsym(RTLD_DEFAULT, "CFRunLoopGetMain");
    create *make = (create *)dlsym(RTLD_DEFAULT, "CFRunLoopObserverCreate");
    add *observe = (add *)dlsym(RTLD_DEFAULT, "CFRunLoopAddObserver");
    const void *const *modes = dlsym(RTLD_DEFAULT, "kCFRunLoopCommonModes");
    invalidate = (release *)dlsym(RTLD_DEFAULT, "CFRunLoopObserverInvalidate");
    let_go = (release *)dlsym(RTLD_DEFAULT, "CFRelease");
    if (main_loop == NULL || make == NULL || observe == NULL || modes == NULL ||
        invalidate == NULL || let_go == NULL || observers[0] != NULL)
        return;
    /* Idle is stated behind all other observers, and busy before them: their work is the loop's. */
    observers[0] = make(NULL, BEFORE_WAITING, 1, LONG_MAX, state_idle, NULL);
    observers[1] = make(NULL, AFTER_WAITING, 1, LONG_MIN, state_busy, NULL);
    for (size_t index = 0; index < 2; index++)
        if (observers[index] != NULL)
            observe(main_loop(), observers[index], *modes);
}

void machtrace_run_loop_end(void)
{
    for (size_t index = 0; index < 2; index++) {
        if (observers[index] == NULL)
            continue;
        invalidate(observers[index]);
        let_go(observers[index]);
        observers[index] = NULL;
    }
}
