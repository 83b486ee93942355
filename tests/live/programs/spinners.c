/* Threads that run all the time; the argument is their number. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static volatile unsigned long turns;

static void *spin(void *unused)
{
    (void)unused;
    for (;;)
        turns++;
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t thread;
    for (int left = count > 1 ? atoi(arguments[1]) : 1; left > 0; left--)
        if (pthread_create(&thread, NULL, spin, NULL) != 0)
            return 1;
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
