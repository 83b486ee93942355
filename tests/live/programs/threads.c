/* A thread for every kind of blocking. Prints one line, "ready", once each is about to enter the
 * function that it is named after. Built without frame pointers. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DEPTH = 60, KINDS = 8 };

static atomic_int arrived;
static int never[2];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
volatile unsigned long counter;
volatile unsigned long sink;

static void wait_forever(void)
{
    char byte;
    atomic_fetch_add(&arrived, 1);
    sink += (unsigned long)read(never[0], &byte, 1);
}

static void *wait_on_condition(void *unused)
{
    pthread_mutex_lock(&mutex);
    atomic_fetch_add(&arrived, 1);
    pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    return unused;
}

static void *block_in_read(void *unused)
{
    wait_forever();
    return unused;
}

static void *spin_in_a_leaf(void *unused)
{
    atomic_fetch_add(&arrived, 1);
    for (;;)
        counter++;
    return unused;
}

__attribute__((noinline)) static unsigned long descend(unsigned long depth)
{
    volatile unsigned long room[40];
    room[depth % 40] = depth;
    if (depth == 0)
        wait_forever();
    else
        sink += descend(depth - 1);
    return room[depth % 40];
}

static void *recurse(void *unused)
{
    sink += descend(DEPTH);
    return unused;
}

static void handle(int signal)
{
    sink += (unsigned long)signal;
    wait_forever();
}

static void *raise_a_signal(void *unused)
{
    raise(SIGUSR1);
    return unused;
}

__attribute__((noinline)) static void raise_below(int depth)
{
    volatile char room[100];
    room[depth] = 1;
    if (depth == 0)
        raise(SIGUSR2);
    else
        raise_below(depth - 1);
    sink += (unsigned long)room[depth];
}

static void *handle_on_another_stack(void *unused)
{
    stack_t other = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&other, NULL);
    raise_below(5);
    return unused;
}

static int compare(const void *left, const void *right)
{
    wait_forever();
    return *(const int *)left - *(const int *)right;
}

static void *sort(void *unused)
{
    int numbers[] = {3, 1, 2};
    qsort(numbers, 3, sizeof *numbers, compare);
    return unused;
}

static void start(const char *name, void *(*run)(void *))
{
    pthread_t thread;
    pthread_create(&thread, NULL, run, NULL);
    pthread_setname_np(thread, name);
}

int main(void)
{
    if (pipe(never) != 0)
        return 1;
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR2, &action, NULL);
    start("condition", wait_on_condition);
    start("read", block_in_read);
    start("spin", spin_in_a_leaf);
    start("recursion", recurse);
    start("handler", raise_a_signal);
    start("other stack", handle_on_another_stack);
    start("sort", sort);
    while (atomic_load(&arrived) < KINDS - 1)
        ;
    puts("ready");
    fflush(stdout);
    wait_forever();
}
