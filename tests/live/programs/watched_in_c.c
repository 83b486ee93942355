/* A program without Python that watches itself: argv is the record, the text in it, and a mode.
 *
 * `run` hangs in three ways and prints the events that it took, a line each; `hang` computes until
 * it is killed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "inprocess/core/beacon.h"
#include "inprocess/core/capture.h"
#include "inprocess/core/watchdog.h"

#define MS 1000000
#define LIMIT (100 * MS)
#define HANG 300

static volatile uint64_t sum;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void wait_ms(int64_t ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * MS};
    while (nanosleep(&left, &left) != 0)
        continue;
}

static int64_t now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / MS;
}

__attribute__((noinline)) void compute_for(int64_t ms)
{
    int64_t until = now_ms() + ms;
    while (now_ms() < until)
        for (unsigned step = 0; step < 10000; step++)
            sum += step;
}

__attribute__((noinline)) void wait_for_the_lock(void)
{
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}

static void *keep_the_lock(void *is_kept)
{
    pthread_mutex_lock(&lock);
    *(volatile int *)is_kept = 1;
    wait_ms(HANG);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Return to the loop, and leave it for the next task. */
static void turn(void)
{
    machtrace_beacon_idle();
    wait_ms(20);
    machtrace_beacon_busy();
}

static void hang_in_three_ways(void)
{
    pthread_t thread;
    static volatile int is_kept;
    turn();
    compute_for(HANG);
    turn();
    if (pthread_create(&thread, NULL, keep_the_lock, (void *)&is_kept) != 0)
        abort();
    while (!is_kept)
        wait_ms(1);
    wait_for_the_lock();
    turn();
    pthread_join(thread, NULL);
    turn();
    struct machtrace_scope outer;
    machtrace_scope_enter(&outer, 50 * MS, "parse");
    wait_ms(80);
    machtrace_scope_leave(&outer);
    turn();
    machtrace_beacon_idle();
    wait_ms(30);
}

static void print_records(struct machtrace_watchdog *watchdog)
{
    static const char *const phases[] = {"ended", "suspected", "seen"};
    static const char *const causes[] = {"thread", "scope", "gil"};
    size_t size = machtrace_watchdog_waiting(watchdog);
    unsigned char *bytes = malloc(size + 1);
    if (bytes == NULL)
        abort();
    size = machtrace_watchdog_take(watchdog, bytes, size);
    for (size_t at = 0; at < size;) {
        struct machtrace_series_record record;
        struct machtrace_watchdog_event event;
        struct machtrace_series_capture capture;
        memcpy(&record, bytes + at, sizeof record);
        if (record.kind == MACHTRACE_WATCHDOG_EVENT) {
            memcpy(&event, bytes + at, sizeof event);
            printf("event %" PRIu64 " %s %s %.24s\n", event.incident, causes[event.cause],
                   phases[record.count], event.label);
        } else if (record.kind == MACHTRACE_SERIES_CAPTURE) {
            memcpy(&capture, bytes + at, sizeof capture);
            printf("capture %" PRIu64 " %" PRIu64 "\n", capture.tick, capture.listed);
        }
        at += record.size;
    }
    free(bytes);
}

int main(int count, char **values)
{
    if (count != 4)
        return 2;
    int error = 0;
    int file = open(values[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const struct machtrace_watchdog_options options = {
        .limit = LIMIT,
        .interval = 5 * MS,
        .stack_limit = 1 << 17,
        .answer_limit = 30 * MS,
        .sleep_limit = 2 * MS,
        .room = 4 << 20,
        .text_most = 1 << 20,
        .file = file,
        .info = values[2],
        .info_size = strlen(values[2]),
    };
    struct machtrace_watchdog *watchdog =
        file < 0 ? NULL : machtrace_watchdog_start(&options, &error);
    if (watchdog == NULL)
        return 3;
    close(file);
    if (machtrace_watchdog_watch(watchdog, (uint32_t)machtrace_inprocess_id()) != 0)
        return 4;
    if (strcmp(values[3], "hang") == 0) {
        turn();
        compute_for(60000);
    }
    hang_in_three_ways();
    machtrace_watchdog_stop(watchdog);
    print_records(watchdog);
    machtrace_watchdog_free(watchdog);
    return 0;
}
