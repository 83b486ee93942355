/* Four threads that use processor time or memory as commands state, one a line:
 *
 *   burn THREAD PERMILLE MS    uses this share of a processor
 *   grow THREAD MIB STEP MS    touches new memory, STEP MiB at once, MS apart
 *
 * Each prints a JSON line when it begins and one when it has ended, with its thread's id and processor time. `crossed` is when
 * 100 MiB had been touched. Times are CLOCK_BOOTTIME nanoseconds. No memory is freed.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000ll
#define MIB (1ll << 20)
#define THREADS 4

static int64_t now_of(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static void sleep_until(int64_t at)
{
    struct timespec time = {at / 1000000000, at % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL))
        ;
}

struct order {
    char what[8];
    int thread;
    long first, second, third;
};
static int orders[THREADS][2];

__attribute__((noinline)) static void burn(int64_t permille, int64_t ms)
{
    const int64_t period = 20 * MS;
    int64_t next = now_of(CLOCK_MONOTONIC), end = next + ms * MS;
    while (now_of(CLOCK_MONOTONIC) < end) {
        int64_t until = now_of(CLOCK_THREAD_CPUTIME_ID) + period * permille / 1000;
        next += period;
        while (now_of(CLOCK_THREAD_CPUTIME_ID) < until && now_of(CLOCK_MONOTONIC) < end)
            for (volatile int spin = 0; spin < 20000; ++spin)
                ;
        sleep_until(next);
    }
}

__attribute__((noinline)) static int64_t grow(int64_t mib, int64_t step, int64_t ms)
{
    int64_t crossed = 0, next = now_of(CLOCK_MONOTONIC);
    for (int64_t total = 0; total < mib; total += step) {
        char *block = mmap(NULL, step * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int64_t at = 0; at < step * MIB; at += 4096) {
            block[at] = 1;
            if (!crossed && total * MIB + at >= 100 * MIB)
                crossed = now_of(CLOCK_BOOTTIME);
        }
        next += ms * MS;
        if (ms)
            sleep_until(next);
    }
    return crossed;
}

static void *run(void *argument)
{
    int number = (int)(intptr_t)argument;
    struct order order;
    while (read(orders[number][0], &order, sizeof order) == sizeof order) {
        int64_t crossed = 0, cpu = now_of(CLOCK_THREAD_CPUTIME_ID), began = now_of(CLOCK_BOOTTIME);
        printf("{\"thread\": %d, \"what\": \"%s\", \"began\": %lld}\n", gettid(), order.what, (long long)began);
        fflush(stdout);
        if (strcmp(order.what, "burn") == 0)
            burn(order.first, order.second);
        else
            crossed = grow(order.first, order.second, order.third);
        int64_t ended = now_of(CLOCK_BOOTTIME);
        printf("{\"thread\": %d, \"what\": \"%s\", \"began\": %lld, \"ended\": %lld, \"cpu\": %lld, \"crossed\": %lld}\n", gettid(),
               order.what, (long long)began, (long long)ended, (long long)(now_of(CLOCK_THREAD_CPUTIME_ID) - cpu), (long long)crossed);
        fflush(stdout);
    }
    return NULL;
}

int main(void)
{
    char line[128];
    for (int number = 0; number < THREADS; ++number) {
        pthread_t thread;
        if (pipe(orders[number]))
            return 2;
        pthread_create(&thread, NULL, run, (void *)(intptr_t)number);
    }
    while (fgets(line, sizeof line, stdin)) {
        struct order order = {.third = 0};
        if (sscanf(line, "%7s %d %ld %ld %ld", order.what, &order.thread, &order.first, &order.second, &order.third) >= 4 &&
            write(orders[order.thread % THREADS][1], &order, sizeof order) != sizeof order)
            return 2;
    }
    return 0;
}
