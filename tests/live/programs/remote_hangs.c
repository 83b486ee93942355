/* Executes the command of each byte on stdin: `b` computes, `s` sleeps until SIGUSR1, `c` crashes. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t over;

static void end(int number) { over = number; }

__attribute__((noinline)) void run_in_task(void)
{
    while (!over)
        continue;
}

__attribute__((noinline)) void block_in_task(void)
{
    while (!over) {
        struct timespec left = {3, 0};
        nanosleep(&left, NULL);
    }
}

__attribute__((noinline)) void crash_in_task(void) { *(volatile int *)16 = 1; }

int main(void)
{
    signal(SIGUSR1, end);
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct pollfd input = {0, POLLIN, 0};
        char byte;
        if (poll(&input, 1, -1) != 1)
            continue;
        if (read(0, &byte, 1) != 1)
            return 0;
        over = 0;
        if (byte == 'b')
            run_in_task();
        if (byte == 's')
            block_in_task();
        if (byte == 'c')
            crash_in_task();
    }
}
