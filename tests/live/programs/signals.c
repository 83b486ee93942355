/* Counts received real-time signals, which queue. Prints "ready", reads the number of sent signals
 * from stdin, and prints the number of received ones. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static atomic_ulong count;

static void handle(int signal)
{
    (void)signal;
    atomic_fetch_add(&count, 1);
}

static void *spin(void *unused)
{
    for (volatile unsigned long turn = 0;; turn++)
        ;
    return unused;
}

int main(void)
{
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    sigaction(SIGRTMIN + 1, &action, NULL);
    for (int index = 0; index < 2; index++) {
        pthread_t thread;
        pthread_create(&thread, NULL, spin, NULL);
    }
    puts("ready");
    fflush(stdout);
    unsigned long sent;
    if (scanf("%lu", &sent) != 1)
        return 1;
    for (int turn = 0; turn < 10000 && atomic_load(&count) < sent; turn++)
        usleep(1000);
    printf("%lu\n", atomic_load(&count));
    return 0;
}
