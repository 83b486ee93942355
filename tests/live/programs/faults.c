/* One thread waits, another ends the process in the requested manner. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *how;
static pthread_barrier_t both;

static void *wait_forever(void *unused) {
    pthread_barrier_wait(&both);
    for (;;)
        pause();
    return unused;
}

__attribute__((noinline)) static int overflow(int depth) {
    volatile char room[4096];
    room[0] = (char)depth;
    return overflow(depth + 1) + room[0];
}

__attribute__((noinline)) static void fault(void) {
    if (!strcmp(how, "unmapped"))
        *(volatile int *)(uintptr_t)0x12345678 = 1;
    if (!strcmp(how, "null"))
        *(volatile int *)(uintptr_t)0x10 = 1;
    if (!strcmp(how, "readonly"))
        *(volatile char *)(uintptr_t)wait_forever = 1;
    if (!strcmp(how, "noncanonical"))
        *(volatile int *)(uintptr_t)0x4141414141414141 = 1;
    if (!strcmp(how, "divide")) {
        volatile int zero = 0, one = 1;
        volatile int quotient = one / zero;
        (void)quotient;
    }
    if (!strcmp(how, "illegal"))
        __builtin_trap();
    if (!strcmp(how, "overflow"))
        overflow(0);
    if (!strcmp(how, "bus")) {
        char name[] = "/tmp/machtrace-fault-XXXXXX";
        int file = mkstemp(name);
        unlink(name);
        *(volatile char *)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) = 1;
    }
    abort();
}

static void *crash(void *unused) {
    fault();
    return unused;
}

int main(int count, char **words) {
    pthread_t threads[2];
    how = count > 1 ? words[1] : "unmapped";
    pthread_barrier_init(&both, 0, 2);
    pthread_create(&threads[0], 0, wait_forever, 0);
    pthread_barrier_wait(&both);
    if (count > 2)
        fault(); /* in the main thread */
    pthread_create(&threads[1], 0, crash, 0);
    pthread_join(threads[1], 0);
    return 0;
}
