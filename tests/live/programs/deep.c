/* A thread recurses to the depth in the argument, prints "ready" and waits there. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static volatile long calls;

__attribute__((noinline)) static void wait_here(void)
{
    puts("ready");
    fflush(stdout);
    pause();
    calls++;
}

__attribute__((noinline)) static void recurse(long times)
{
    if (times > 1)
        recurse(times - 1);
    else
        wait_here();
    calls++;
}

static void *start(void *argument)
{
    recurse(atol(argument));
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_attr_t attributes;
    pthread_t thread;
    if (argc < 2)
        return 2;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16 << 20);
    pthread_create(&thread, &attributes, start, argv[1]);
    return pthread_join(thread, NULL);
}
