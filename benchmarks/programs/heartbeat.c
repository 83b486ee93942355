/* A thread that only reads the clock, and records each interruption. As a library for any program: heartbeat_start(path, processor). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define GAPS 65536
#define LEAST_NS 2000 /* what is shorter is the clock, or the kernel's own interrupts */

/* The file, which other processes map: the gaps from the beginning, the newest over the oldest. */
struct record {
    _Atomic uint64_t count;
    struct {
        int64_t from, to; /* CLOCK_MONOTONIC, ns */
        int64_t waited;   /* ns of these that it could have run, had there been a processor */
    } gaps[GAPS];
};

static int64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

/* How long the calling thread has waited for a processor in all, ns: the second number in schedstat
 * (Documentation/scheduler/sched-stats.rst of the kernel); 0 if it is unknown. */
static int64_t waited(int schedstat)
{
    char text[96], *end;
    ssize_t size = pread(schedstat, text, sizeof text - 1, 0);
    if (size <= 0)
        return 0;
    text[size] = '\0';
    strtoll(text, &end, 10);
    return strtoll(end, NULL, 10);
}

static void *beat(void *argument)
{
    struct record *record = argument;
    int schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    int64_t waited_before = waited(schedstat);
    int64_t last = now();
    for (;;) {
        int64_t at = now();
        if (at - last >= LEAST_NS) {
            uint64_t count = atomic_load_explicit(&record->count, memory_order_relaxed);
            record->gaps[count % GAPS].from = last;
            record->gaps[count % GAPS].to = at;
            int64_t waited_now = waited(schedstat);
            record->gaps[count % GAPS].waited = waited_now - waited_before;
            waited_before = waited_now;
            atomic_store_explicit(&record->count, count + 1, memory_order_release);
            at = now();
        }
        last = at;
    }
    return NULL;
}

/* On one processor only, or on any where that is negative. Returns 0, or -1 for failure. */
int heartbeat_start(const char *path, int processor)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct record)) != 0)
        return -1;
    void *record = mmap(NULL, sizeof(struct record), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    pthread_t thread;
    if (record == MAP_FAILED || pthread_create(&thread, NULL, beat, record) != 0)
        return -1;
    if (processor >= 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(processor, &one);
        pthread_setaffinity_np(thread, sizeof one, &one);
    }
    return 0;
}
