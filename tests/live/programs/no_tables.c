/* Threads whose functions have neither unwind tables nor frame pointers, if compiled so. Prints
 * "ready" once each is about to enter the function that it is named after. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static atomic_int arrived;
static int never[2];
volatile unsigned long sink;

__attribute__((noinline)) long block(int file)
{
    char byte;
    atomic_fetch_add(&arrived, 1);
    long count = read(file, &byte, 1);
    return count + 1;
}

/* Has a frame pointer for its variable room, between functions that have none. */
__attribute__((noinline)) unsigned long with_room(unsigned long size)
{
    char room[64 + size];
    memset(room, (int)size, sizeof room);
    sink += (unsigned long)block(never[0]);
    return (unsigned long)room[size];
}

__attribute__((noinline)) unsigned long descend(unsigned long depth)
{
    if (depth == 0)
        return with_room(16); /* a tail call */
    unsigned long below = descend(depth - 1);
    sink += depth;
    return below ^ sink;
}

void *deep(void *unused)
{
    sink += descend(5);
    return unused;
}

void *shallow(void *unused)
{
    sink += (unsigned long)block(never[0]);
    return unused;
}

void *sleeper(void *unused)
{
    for (;;) {
        atomic_fetch_add(&arrived, 1);
        sleep(1000);
    }
    return unused;
}

int main(void)
{
    static void *(*const bodies[])(void *) = {deep, shallow, sleeper};
    static const char *const names[] = {"deep", "shallow", "sleeper"};
    pthread_t threads[3];
    if (pipe(never) != 0)
        return 1;
    for (int index = 0; index < 3; index++) {
        pthread_create(&threads[index], NULL, bodies[index], NULL);
        pthread_setname_np(threads[index], names[index]);
    }
    while (atomic_load(&arrived) < 3)
        usleep(1000);
    puts("ready");
    fflush(stdout);
    pthread_join(threads[1], NULL);
}
