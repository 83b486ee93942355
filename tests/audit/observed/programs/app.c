/* Call two SDKs a known number of times before and after consent, from threads.
 *
 *     app THREADS CALLS [wait]
 *
 * A constructor calls second() three times. Each thread calls first() and the watched function
 * itself CALLS times; main does once, then agrees, then starts the threads. With a third word main
 * prints "ready", and waits for a line of input first.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int observed(int value);
int agree(int value);
int first(int value);
int second(int value);

static int calls;

static void *run(void *argument)
{
    for (int number = 0; number < calls; number++) {
        first(number);
        observed(number);
        __asm__ volatile("" ::: "memory");
    }
    return argument;
}

static __attribute__((constructor)) void at_load(void)
{
    for (int number = 0; number < 3; number++)
        second(number);
    __asm__ volatile("" ::: "memory"); /* no tail call */
}

int main(int count, char **arguments)
{
    pthread_t threads[64];
    if (count < 3)
        return 2;
    if (count > 3) {
        puts("ready");
        fflush(stdout);
        getchar();
    }
    int many = atoi(arguments[1]);
    calls = 1;
    run(0);
    agree(1);
    calls = atoi(arguments[2]);
    for (int thread = 0; thread < many; thread++)
        pthread_create(&threads[thread], 0, run, 0);
    for (int thread = 0; thread < many; thread++)
        pthread_join(threads[thread], 0);
    return 0;
}
