/* Hangs and memory of the lab's program, with a run loop of its own that has CFRunLoop's functions as
 * far as the agent calls them. */
#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

#include "lab.h"
#include "machtrace.h"

typedef void callback(void *observer, unsigned long activity, void *info);

struct observer {
    unsigned long activities;
    callback *call;
};

static struct observer observers[4];
static size_t observer_count;
static long orders[4];

FUNCTION void *CFRunLoopGetMain(void);
FUNCTION void *CFRunLoopObserverCreate(const void *allocator, unsigned long activities,
                                       unsigned char repeats, long order, callback *call,
                                       void *context);
FUNCTION void CFRunLoopAddObserver(void *loop, void *observer, const void *mode);
FUNCTION void CFRunLoopObserverInvalidate(void *observer);
FUNCTION void CFRelease(const void *object);

static const char common_modes[] = "kCFRunLoopCommonModes";
__attribute__((visibility("default"))) const void *const kCFRunLoopCommonModes = common_modes;

void *CFRunLoopGetMain(void)
{
    return observers;
}

void *CFRunLoopObserverCreate(const void *allocator, unsigned long activities,
                              unsigned char repeats, long order, callback *call, void *context)
{
    if (allocator != NULL || context != NULL || repeats != 1 || observer_count == 4)
        return NULL;
    orders[observer_count] = order;
    observers[observer_count] = (struct observer){activities, call};
    return &observers[observer_count++];
}

static int added;

void CFRunLoopAddObserver(void *loop, void *observer, const void *mode)
{
    added += loop == observers && mode == common_modes && observer != NULL;
}

void CFRunLoopObserverInvalidate(void *observer)
{
    ((struct observer *)observer)->call = NULL;
}

static int released;

void CFRelease(const void *object)
{
    released += object == &observers[0] || object == &observers[1];
}

static void notify(unsigned long activity)
{
    for (size_t index = 0; index < observer_count; index++)
        if (observers[index].activities == activity && observers[index].call != NULL)
            observers[index].call(&observers[index], activity, NULL);
}

#define MS 1000

FUNCTION static void block(int depth, unsigned milliseconds)
{
    if (depth > 0)
        block(depth - 1, milliseconds);
    else
        usleep(milliseconds * MS);
    __asm__ volatile("");
}

FUNCTION static void short_task(void)
{
    block(2, 30);
    __asm__ volatile("");
}

FUNCTION static void long_task(void)
{
    block(5, 450);
    __asm__ volatile("");
}

FUNCTION static void large_task(void)
{
    lab_note("memory", 3u << 30);
    block(1, 40);
    lab_note("memory", 1u << 20);
    __asm__ volatile("");
}

void lab_run_loop(void);
void lab_state_idle(void);

FUNCTION void lab_run_loop(void)
{
    static void (*const tasks[])(void) = {short_task, long_task, short_task, large_task,
                                          short_task};
    lab_note("observers", (uint64_t)added);
    for (size_t index = 0; index < sizeof tasks / sizeof *tasks; index++) {
        notify(1ul << 5);
        usleep(500 * MS);
        notify(1ul << 6);
        tasks[index]();
    }
    notify(1ul << 5);
    usleep(500 * MS);
}

FUNCTION static void *work(void *unused)
{
    lab_note("watch", (uint64_t)machtrace_watch_thread());
    machtrace_idle_begin();
    usleep(400 * MS);
    machtrace_idle_end();
    short_task();
    machtrace_idle_end(); /* the next task, without a wait between them */
    long_task();
    machtrace_idle_begin();
    usleep(100 * MS);
    return unused;
}

/* The main thread states nothing; another one states its tasks. */
FUNCTION void lab_state_idle(void)
{
    pthread_t made;
    observers[0].call = observers[1].call = NULL;
    pthread_create(&made, NULL, work, NULL);
    block(3, 1000);
    pthread_join(made, NULL);
}
