/* Call watched functions a known number of times, from threads.
 *
 *     calls SPOOL THREADS CALLS DEPTH [FLAGS]
 *
 * Each thread calls `observed` (of libobserved.so) CALLS times, through 1 to DEPTH frames, and
 * counts its calls by site. Prints "site N calls N" for each of the two sites.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "machtrace.h"

int observed(int value);

static uint64_t calls;
static unsigned depth_most;
static _Atomic uint64_t sites[2];

static __attribute__((noinline)) int descend(unsigned depth, uint64_t number)
{
    int result;
    if (depth > 1)
        result = descend(depth - 1, number);
    else if (number % 3 == 0)
        result = observed((int)number);
    else
        result = observed((int)number + 1) + 1;
    __asm__ volatile("" ::: "memory"); /* no tail call */
    return result;
}

static void *run(void *argument)
{
    (void)argument;
    uint64_t first = 0, second = 0;
    for (uint64_t number = 0; number < calls; number++) {
        descend(1 + (unsigned)(number % depth_most), number);
        *(number % 3 == 0 ? &first : &second) += 1;
    }
    sites[0] += first;
    sites[1] += second;
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 5 && count != 6)
        return 2;
    uint32_t flags = count == 6 ? (uint32_t)strtoul(arguments[5], NULL, 10) : 0;
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    unsigned threads = (unsigned)strtoul(arguments[2], NULL, 10);
    calls = strtoull(arguments[3], NULL, 10);
    depth_most = (unsigned)strtoul(arguments[4], NULL, 10);
    const machtrace_function_t functions[] = {{"observed", flags}, {"not_there", 0}};
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = arguments[1],
                                   .functions = functions,
                                   .function_count = 2};
    int error = machtrace_start(&options);
    if (error != 0) {
        fprintf(stderr, "%s\n", strerror(error));
        return 1;
    }
    pthread_t running[64];
    for (unsigned thread = 0; thread < threads; thread++)
        pthread_create(&running[thread], NULL, run, NULL);
    for (unsigned thread = 0; thread < threads; thread++)
        pthread_join(running[thread], NULL);
    uint64_t seen = 0;
    int state = machtrace_function_state("observed", &seen);
    int absent = machtrace_function_state("not_there", NULL);
    machtrace_losses_t losses;
    machtrace_get_losses(&losses);
    error = machtrace_stop();
    clock_gettime(CLOCK_MONOTONIC, &ended);
    printf("first %llu second %llu seen %llu state %d absent %d counted %llu stop %d seconds %ld\n",
           (unsigned long long)sites[0], (unsigned long long)sites[1], (unsigned long long)seen,
           state, absent, (unsigned long long)losses.events_counted, error,
           (long)(ended.tv_sec - began.tv_sec) + 1);
    return 0;
}
