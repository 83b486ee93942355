/* Starts threads that end at once, a few hundred alive at a time, for ever. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *live_briefly(void *unused)
{
    usleep(20000);
    return unused;
}

static void *keep_starting(void *unused)
{
    pthread_t started[50];
    for (;;) {
        for (int index = 0; index < 50; index++)
            if (pthread_create(&started[index], NULL, live_briefly, NULL) != 0)
                return unused;
        for (int index = 0; index < 50; index++)
            pthread_join(started[index], NULL);
    }
}

int main(void)
{
    for (int index = 0; index < 4; index++) {
        pthread_t thread;
        pthread_create(&thread, NULL, keep_starting, NULL);
    }
    puts("ready");
    fflush(stdout);
    pause();
}
