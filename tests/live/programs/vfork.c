/* A thread in uninterruptible sleep: it waits for its vfork child, which reads. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *wait_for_child(void *unused)
{
    char byte;
    if (vfork() == 0) {
        read(0, &byte, 1);
        _exit(0);
    }
    return unused;
}

int main(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, wait_for_child, NULL);
    puts("ready");
    fflush(stdout);
    pause();
}
