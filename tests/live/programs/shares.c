/* Threads that spend known shares of their time: work() is in hot() three quarters of its turns.
 *
 * shares WAITING WORKING [TURNS]: the number of threads that wait, of threads that work beside the
 * main thread, and of the turns after which the program ends (never without it). Time is counted in
 * turns of the same average length, so that neither a busy machine nor an optimiser changes the
 * shares. Their lengths vary, or a steady sampling rate might hit the same part of each turn. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static volatile unsigned long sink;

__attribute__((noinline)) static void spin(void)
{
    static _Thread_local uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    for (volatile unsigned i = (unsigned)(state >> 51); i < 10000; i++)
        sink += (unsigned long)i;
}

__attribute__((noinline)) static void hot(void)
{
    spin();
    sink++;
}

__attribute__((noinline)) static void cold(void)
{
    spin();
    sink += 2; /* not the same code as hot(), or the compiler makes one of both */
}

__attribute__((noinline)) static void work(void)
{
    for (int turn = 0; turn < 3; turn++)
        hot();
    cold();
    sink++;
}

static void *wait_forever(void *unused)
{
    (void)unused;
    for (;;)
        pause();
}

static void *work_forever(void *unused)
{
    (void)unused;
    for (;;)
        work();
}

int main(int count, char **words)
{
    int waiting = count > 1 ? atoi(words[1]) : 0, working = count > 2 ? atoi(words[2]) : 0;
    long turns = count > 3 ? atol(words[3]) : -1;
    pthread_t thread;
    for (int i = 0; i < waiting; i++)
        pthread_create(&thread, NULL, wait_forever, NULL);
    for (int i = 0; i < working; i++)
        pthread_create(&thread, NULL, work_forever, NULL);
    puts("ready");
    fflush(stdout);
    while (turns < 0 || turns-- > 0)
        work();
    return 0;
}
