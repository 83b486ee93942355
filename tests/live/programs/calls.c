/* One thread for each blocking system call; a pipe or similar makes the call return, and the thread
 * reports its result, which captures must not change.
 *
 * Prints "ready"; then each byte on stdin makes all calls return, and a line "NAME RESULT ERRNO" is
 * printed for each. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int wake[2];
static atomic_int futex_word;
static int semaphore;

struct call {
    const char *name;
    long (*run)(void);
    pthread_t thread;
    long result;
    int error;
};

static long call_read(void)
{
    char byte;
    return read(wake[0], &byte, 1);
}

static long call_poll(void)
{
    struct pollfd one = {.fd = wake[0], .events = POLLIN};
    return poll(&one, 1, 60000);
}

static long call_nanosleep(void)
{
    struct timespec length = {0, 700000000};
    struct timespec begin;
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    long result = nanosleep(&length, NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    long slept = (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000;
    return result == 0 && slept < 690 ? slept : result;
}

static long call_futex(void)
{
    while (atomic_load(&futex_word) == 0)
        if (syscall(SYS_futex, &futex_word, FUTEX_WAIT, 0, NULL) == -1 && errno != EAGAIN)
            return -1;
    return 0;
}

static long wait_epoll(int timeout)
{
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, wake[0], &event);
    return epoll_wait(set, &event, 1, timeout);
}

static long call_epoll(void)
{
    return wait_epoll(-1);
}

static long call_semaphore(void)
{
    struct sembuf take = {.sem_op = -1};
    return semop(semaphore, &take, 1);
}

static long call_sigwait(void)
{
    sigset_t awaited;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGRTMIN);
    return sigtimedwait(&awaited, NULL, NULL) == SIGRTMIN ? 0 : -1;
}

static struct call calls[] = {
    {.name = "read", .run = call_read},           {.name = "poll", .run = call_poll},
    {.name = "nanosleep", .run = call_nanosleep}, {.name = "futex", .run = call_futex},
    {.name = "epoll", .run = call_epoll},         {.name = "semop", .run = call_semaphore},
    {.name = "sigwait", .run = call_sigwait},
};
enum { COUNT = sizeof calls / sizeof *calls };

static void *run(void *argument)
{
    struct call *call = argument;
    call->result = call->run();
    call->error = call->result == -1 ? errno : 0;
    return NULL;
}

int main(void)
{
    sigset_t awaited;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGRTMIN);
    sigaddset(&awaited, SIGRTMIN + 2); /* left pending, by one test */
    pthread_sigmask(SIG_BLOCK, &awaited, NULL);
    semaphore = semget(IPC_PRIVATE, 1, 0600);
    if (pipe(wake) != 0 || semaphore == -1)
        return 1;
    for (int index = 0; index < COUNT; index++) {
        pthread_create(&calls[index].thread, NULL, run, &calls[index]);
        pthread_setname_np(calls[index].thread, calls[index].name);
    }
    puts("ready");
    fflush(stdout);
    getchar();
    /* Two bytes: read takes one, poll and epoll see the other. */
    if (write(wake[1], "xx", 2) != 2)
        return 1;
    atomic_store(&futex_word, 1);
    syscall(SYS_futex, &futex_word, FUTEX_WAKE, 1, NULL);
    struct sembuf give = {.sem_op = 1};
    semop(semaphore, &give, 1);
    pthread_kill(calls[COUNT - 1].thread, SIGRTMIN);
    for (int index = 0; index < COUNT; index++) {
        pthread_join(calls[index].thread, NULL);
        printf("%s %ld %d\n", calls[index].name, calls[index].result, calls[index].error);
    }
    semctl(semaphore, 0, IPC_RMID);
    return 0;
}
