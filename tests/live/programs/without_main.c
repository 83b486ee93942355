/* The main thread exits; another continues. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_t first;

static void *go_on(void *unused)
{
    pthread_join(first, NULL);
    puts("ready");
    fflush(stdout);
    pause();
    return unused;
}

int main(void)
{
    pthread_t thread;
    first = pthread_self();
    pthread_create(&thread, NULL, go_on, NULL);
    pthread_exit(NULL);
}
