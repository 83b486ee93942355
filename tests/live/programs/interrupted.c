/* Which system calls of a thread end early when the thread is captured: one line each, the call and
 * its result: "goes on", the name of its error, or "fewer bytes" of a write. See docs/live-capture.md.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "inprocess/core/linux/shared.h"

static const struct timespec long_time = {60, 0};
static int empty[2], full[2], pair[2], limited[2], listening, locked, set, queue;
static pid_t child;
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;

static long do_read(void) { char byte; return read(empty[0], &byte, 1); }
static long do_write(void) { static char bytes[1 << 22]; return write(full[1], bytes, sizeof bytes); }
static long do_accept(void) { return accept(listening, NULL, NULL); }
static long do_recv(void) { char byte; return recv(pair[0], &byte, 1, 0); }
static long do_limited(void) { char byte; return recv(limited[0], &byte, 1, 0); }
static long do_wait(void) { return waitpid(child, NULL, 0); }
static long do_flock(void)
{
    int other = open("/proc/self/exe", O_RDONLY);
    return flock(other, LOCK_EX);
}
static int word;
static long do_futex(void)
{
    return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}
static long do_timed_futex(void)
{
    return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &long_time, NULL, 0);
}
static long do_sem_wait(void)
{
    static sem_t semaphore;
    return sem_wait(&semaphore);
}
static long do_sem_timedwait(void)
{
    static sem_t semaphore;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    return sem_timedwait(&semaphore, &until);
}
static long do_mutex(void) { return pthread_mutex_lock(&held); }
static long do_condition(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    pthread_mutex_lock(&lock);
    return pthread_cond_wait(&never, &lock);
}
static long do_nanosleep(void) { return nanosleep(&long_time, NULL); }
static long do_clock_nanosleep(void)
{
    errno = clock_nanosleep(CLOCK_MONOTONIC, 0, &long_time, NULL);
    return -1;
}
static long do_poll(void) { struct pollfd one = {empty[0], POLLIN, 0}; return poll(&one, 1, -1); }
static long do_select(void)
{
    fd_set wanted;
    FD_ZERO(&wanted);
    FD_SET(empty[0], &wanted);
    return select(empty[0] + 1, &wanted, NULL, NULL, NULL);
}
static long do_epoll(void)
{
    struct epoll_event event;
    return epoll_wait(set, &event, 1, -1);
}
static long do_semop(void)
{
    int group = semget(IPC_PRIVATE, 1, 0600);
    struct sembuf less = {0, -1, 0};
    long result = semop(group, &less, 1);
    int error = errno;
    semctl(group, 0, IPC_RMID);
    errno = error;
    return result;
}
static long do_msgrcv(void)
{
    struct { long type; char text[8]; } message;
    return msgrcv(queue, &message, sizeof message.text, 0, 0);
}
static long do_sigwaitinfo(void)
{
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    return sigwaitinfo(&wanted, NULL);
}
static long do_pause(void) { return pause(); }

static const struct call {
    const char *name;
    long (*run)(void);
} calls[] = {
    {"read", do_read},
    {"write", do_write},
    {"accept", do_accept},
    {"recv", do_recv},
    {"recv with SO_RCVTIMEO", do_limited},
    {"waitpid", do_wait},
    {"flock", do_flock},
    {"futex", do_futex},
    {"futex with a time limit", do_timed_futex},
    {"sem_wait", do_sem_wait},
    {"sem_timedwait", do_sem_timedwait},
    {"pthread_mutex_lock", do_mutex},
    {"pthread_cond_wait", do_condition},
    {"nanosleep", do_nanosleep},
    {"clock_nanosleep", do_clock_nanosleep},
    {"poll", do_poll},
    {"select", do_select},
    {"epoll_wait", do_epoll},
    {"semop", do_semop},
    {"msgrcv", do_msgrcv},
    {"sigwaitinfo", do_sigwaitinfo},
    {"pause", do_pause},
};
#define COUNT (sizeof calls / sizeof *calls)

static _Atomic int ids[COUNT], ended[COUNT], errors[COUNT];

static void *run(void *argument)
{
    size_t index = (size_t)(uintptr_t)argument;
    ids[index] = (int)machtrace_inprocess_id();
    long result = calls[index].run();
    errors[index] = result < 0 ? errno : 0;
    ended[index] = 1;
    return NULL;
}

static int state_of(int id)
{
    return machtrace_status_of(id).state;
}

static void prepare(void)
{
    struct timeval limit = {60, 0};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct epoll_event wanted = {.events = EPOLLIN};
    if (pipe(empty) != 0 || pipe(full) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, limited) != 0)
        exit(2);
    setsockopt(limited[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    listening = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listening, (struct sockaddr *)&address, sizeof(sa_family_t)) != 0 ||
        listen(listening, 1) != 0)
        exit(2);
    locked = open("/proc/self/exe", O_RDONLY);
    flock(locked, LOCK_EX);
    set = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, empty[0], &wanted);
    queue = msgget(IPC_PRIVATE, 0600);
    child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    pthread_mutex_lock(&held);
}

int main(void)
{
    static unsigned char buffers[COUNT][1 << 15];
    static struct machtrace_thread threads[COUNT];
    static const struct machtrace_range everywhere = {0, UINT64_C(1) << 63};
    prepare();
    for (size_t index = 0; index < COUNT; index++) {
        pthread_t thread;
        pthread_create(&thread, NULL, run, (void *)(uintptr_t)index);
        while (ids[index] == 0 || state_of(ids[index]) != 'S')
            usleep(1000);
        threads[index] = (struct machtrace_thread){
            .id = (uint64_t)ids[index], .buffer = buffers[index], .room = sizeof buffers[index]};
    }
    usleep(20000);
    struct machtrace_inprocess_capture capture = {.ranges = &everywhere,
                                                  .range_count = 1,
                                                  .stack_limit = 1 << 14,
                                                  .answer_limit = 20000000000,
                                                  .sleep_limit = 20000000000,
                                                  .threads = threads,
                                                  .thread_count = COUNT};
    if (machtrace_inprocess_begin(0) != 0)
        return 3;
    machtrace_inprocess_copy(&capture);
    machtrace_inprocess_end();
    for (size_t index = 0; index < COUNT; index++) {
        if (threads[index].outcome != MACHTRACE_COPIED)
            return 4;
        /* It has run since, to answer: it sleeps again if the call continues. */
        while (!ended[index] && state_of(ids[index]) != 'S')
            usleep(1000);
        printf("%s: %s\n", calls[index].name,
               !ended[index]        ? "goes on"
               : errors[index] == 0 ? "fewer bytes"
                                    : strerrorname_np(errors[index]));
    }
    msgctl(queue, IPC_RMID, NULL);
    kill(child, SIGKILL);
    fflush(stdout);
    _exit(0);
}
