/* Print the time of a call of a watched function, in ns: medians of many batches.
 *
 *     watched_calls SPOOL DEPTH
 *
 * "plain" is the call without hook; "repeated" one from a stack of DEPTH frames that was the last
 * one too; "other" one from a stack whose innermost five frames are others than the last time;
 * "new" one whose innermost five frames were mostly never seen; "counted" one that is counted, and
 * calls `observed` itself; "one" is "repeated" where each call is measured alone, with the clock.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "machtrace.h"

int observed(int value);
int observed_twice(int value);

#define BATCHES 2001
#define CALLS 200

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int compare(const void *one, const void *other)
{
    int64_t first = *(const int64_t *)one, second = *(const int64_t *)other;
    return first < second ? -1 : first > second;
}

static int64_t durations[BATCHES];
static int sink;

static __attribute__((noinline)) int call(int (*function)(int), int value, int left)
{
    int result = left == 0 ? function(value) : call(function, value, left - 1) + 1;
    __asm__ volatile("" ::: "memory");
    return result;
}

static int same(int value)
{
    int result = observed(value) + 1;
    __asm__ volatile("" ::: "memory");
    return result;
}

/* Two callers at each of five levels: 32 stacks, and many more at greater depth. */
static __attribute__((noinline)) int branch(unsigned path, int left)
{
    int result;
    if (left == 0)
        result = observed((int)path) + 1;
    else if ((path & 1) != 0)
        result = branch(path >> 1, left - 1) + 1;
    else
        result = branch(path >> 1, left - 1) + 2;
    __asm__ volatile("" ::: "memory");
    return result;
}

static unsigned path;

static int other(int value)
{
    (void)value;
    path ^= 31;
    return branch(path, 5) + 1;
}

/* Of a counter's bits in reverse, the last five change mostly: the innermost frames. */
static int fresh(int value)
{
    unsigned reversed = 0;
    (void)value;
    path++;
    for (int bit = 0; bit < 17; bit++)
        reversed |= (path >> bit & 1) << (16 - bit);
    return branch(reversed, 17) + 1;
}

static int counted(int value)
{
    int result = observed_twice(value) + 1;
    __asm__ volatile("" ::: "memory");
    return result;
}

static int nothing(int value)
{
    __asm__ volatile("" ::: "memory");
    return value;
}

/* A function at the end of a chain of this many frames, a batch of calls at a time. */
static int (*measured)(int);
static int per_batch;

static int batch(int value)
{
    for (int number = 0; number < per_batch; number++)
        sink += measured(value);
    return sink;
}

static void measure(const char *name, int (*function)(int), int frames, int calls)
{
    measured = function;
    per_batch = calls;
    for (int index = 0; index < BATCHES; index++) {
        int64_t began = now();
        sink += call(batch, index, frames);
        durations[index] = now() - began;
        if (index % 16 == 0)
            machtrace_flush();
    }
    qsort(durations, BATCHES, sizeof durations[0], compare);
    printf("%s %.1f %s-99th %.1f ", name, (double)durations[BATCHES / 2] / calls, name,
           (double)durations[BATCHES - BATCHES / 100] / calls);
    fflush(stdout);
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    /* main, call and batch, the measured function, and what called main. */
    int frames = atoi(arguments[2]) - 5;
    const machtrace_function_t functions[] = {{"observed", 0},
                                              {"observed_twice", MACHTRACE_COUNT_ONLY}};
    machtrace_options_t options = {.size = sizeof options,
                                   .tree_bits = 23,
                                   .spool_path = arguments[1],
                                   .spool_size = UINT64_C(256) << 20,
                                   .functions = functions,
                                   .function_count = 2};
    measure("empty", nothing, frames, CALLS);
    measure("plain", same, frames, CALLS);
    int error = machtrace_start(&options);
    if (error != 0) {
        fprintf(stderr, "%s\n", strerror(error));
        return 1;
    }
    measure("repeated", same, frames, CALLS);
    measure("one", same, frames, 1);
    measure("other", other, frames - 6, CALLS);
    measure("new", fresh, frames - 18, 50);
    measure("counted", counted, frames, CALLS);
    machtrace_losses_t losses;
    machtrace_get_losses(&losses);
    machtrace_stop();
    printf("lost %llu\n", (unsigned long long)losses.events_counted);
    return 0;
}
