/* Threads of a program of macOS that stand in known places. One line, "ready", once they are about
 * to; then a line for every line that comes in, with a number that a running thread counts up. */
#include <dispatch/dispatch.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { DEPTH = 40, KINDS = 4 };

static atomic_int arrived;
static int never[2];
static volatile unsigned long counter;
static volatile unsigned long sink;

__attribute__((noinline)) static void wait_forever(void)
{
    char byte;
    atomic_fetch_add(&arrived, 1);
    sink += (unsigned long)read(never[0], &byte, 1);
}

__attribute__((noinline)) static unsigned long descend(unsigned long depth)
{
    if (depth == 0)
        wait_forever();
    else
        sink += descend(depth - 1);
    return sink + depth;
}

static void *deep(void *unused)
{
    pthread_setname_np("deep");
    sink += descend(DEPTH);
    return unused;
}

static void *spin(void *unused)
{
    pthread_setname_np("spin");
    atomic_fetch_add(&arrived, 1);
    for (;;)
        counter++;
    return unused;
}

static void *plain(void *unused)
{
    wait_forever();
    return unused;
}

static void serve(void *unused)
{
    (void)unused;
    wait_forever();
}

int main(void)
{
    pthread_t threads[3];
    char line[64];
    if (pipe(never) != 0)
        return 1;
    pthread_create(&threads[0], NULL, deep, NULL);
    pthread_create(&threads[1], NULL, spin, NULL);
    pthread_create(&threads[2], NULL, plain, NULL);
    dispatch_async_f(dispatch_queue_create("com.example.machtrace", NULL), NULL, serve);
    while (atomic_load(&arrived) < KINDS)
        usleep(1000);
    usleep(500000);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        printf("%lu\n", counter);
        fflush(stdout);
    }
    return 0;
}
