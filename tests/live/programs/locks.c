/* Threads that wait for one another: locks KIND [COUNT [FILE FILE]]
 *
 * mutex, recursive, errorcheck, robust, inherit, rwlock, join: COUNT threads (2 if not given), each
 * of which holds its own lock and waits for that of the next; "self" waits for its own mutex.
 * mixed: a mutex, a write lock, and a join in one ring.
 * flock, record: two processes that wait for each other's file, the latter with a lock of fcntl(2)
 * and one of flock(2); wait: a parent that waits for its
 * child, which waits for a file that the parent has locked.
 * timed: as mutex, with a time limit of an hour. readers: a writer waits for a reader.
 * semaphore, condition: a thread waits; nobody owns what it waits for.
 * stream: two threads lock two streams.
 * ordered: COUNT threads take two mutexes in one order, 1,000 times each, then print "done".
 *
 * Prints "ready" when each thread is about to wait. A test then waits until they do. With
 * LOCKS_GATE in the environment the last one waits for a line first, and states the time
 * (CLOCK_BOOTTIME, in nanoseconds). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 };

static pthread_mutex_t locks[MOST];
static pthread_rwlock_t rwlocks[MOST];
static pthread_t threads[MOST];
static pthread_barrier_t all_hold;
static FILE *streams[MOST];
static sem_t semaphore;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static const char *kind;
static int count = 2;

static int is(const char *name)
{
    return strcmp(kind, name) == 0;
}

static void take(int index)
{
    if (is("rwlock") || (is("mixed") && index % 3 == 1))
        pthread_rwlock_wrlock(&rwlocks[index]);
    else if (is("stream"))
        flockfile(streams[index]);
    else if (!(is("join") || (is("mixed") && index % 3 == 2)))
        pthread_mutex_lock(&locks[index]);
}

static void ready(void)
{
    struct timespec now;
    puts("ready");
    fflush(stdout);
    if (getenv("LOCKS_GATE")) {
        getchar();
        clock_gettime(CLOCK_BOOTTIME, &now);
        printf("%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
        fflush(stdout);
    }
}

static void *run(void *argument)
{
    int index = (int)(long)argument, next = (index + 1) % count;
    take(index);
    pthread_barrier_wait(&all_hold);
    if (index == 0)
        ready();
    if (is("timed")) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 3600;
        pthread_mutex_timedlock(&locks[next], &until);
    } else if (is("join") || (is("mixed") && next % 3 == 2)) {
        pthread_join(threads[next], NULL);
    } else {
        take(next);
    }
    return NULL;
}

static void *order(void *argument)
{
    for (int round = 0; round < 1000; round++) {
        pthread_mutex_lock(&locks[0]);
        if (round % 50 == 0)
            usleep(200);
        pthread_mutex_lock(&locks[1]);
        pthread_mutex_unlock(&locks[1]);
        pthread_mutex_unlock(&locks[0]);
        pthread_mutex_lock(&locks[1]);
        pthread_rwlock_wrlock(&rwlocks[0]);
        pthread_rwlock_unlock(&rwlocks[0]);
        pthread_mutex_unlock(&locks[1]);
    }
    return argument;
}

static void *wait_alone(void *argument)
{
    if (is("semaphore")) {
        sem_wait(&semaphore);
    } else if (is("condition")) {
        pthread_mutex_lock(&locks[0]);
        pthread_cond_wait(&condition, &locks[0]);
    } else {
        pthread_rwlock_wrlock(&rwlocks[0]);
    }
    return argument;
}

static void lock_file(int file, int index)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (is("record") && index == 0) /* with two of them the kernel would refuse the last one */
        fcntl(file, F_SETLKW, &whole);
    else
        flock(file, LOCK_EX);
}

static int processes(char **paths)
{
    int ends[2][2];
    char byte = 0;
    if (pipe(ends[0]) || pipe(ends[1]))
        return 1;
    if (is("wait"))
        lock_file(open(paths[0], O_RDWR | O_CREAT, 0600), 0);
    pid_t child = fork();
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    int me = child == 0;
    int own = open(paths[me], O_RDWR | O_CREAT, 0600), other;
    if (is("wait") && child == 0) {
        lock_file(open(paths[0], O_RDWR), 0);
        return 0;
    }
    if (!is("wait")) {
        lock_file(own, me);
        if (write(ends[me][1], &byte, 1) != 1 || read(ends[!me][0], &byte, 1) != 1)
            return 1;
    }
    if (child)
        ready();
    if (is("wait")) {
        waitpid(child, NULL, 0);
    } else {
        other = open(paths[!me], O_RDWR);
        lock_file(other, !me);
    }
    return 0;
}

int main(int argc, char **argv)
{
    pthread_mutexattr_t attributes;
    kind = argc > 1 ? argv[1] : "mutex";
    count = argc > 2 ? atoi(argv[2]) : 2;
    if (is("flock") || is("record") || is("wait"))
        return processes(argv + 3);
    pthread_mutexattr_init(&attributes);
    if (is("recursive"))
        pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    if (is("errorcheck"))
        pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
    if (is("robust"))
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    if (is("inherit"))
        pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    for (int index = 0; index < MOST; index++) {
        /* The kernel refuses to close a ring of mutexes that inherit priorities alone. */
        pthread_mutex_init(&locks[index], is("inherit") && index % 2 ? NULL : &attributes);
        pthread_rwlock_init(&rwlocks[index], NULL);
        streams[index] = is("stream") ? fopen("/dev/null", "w") : NULL;
    }
    sem_init(&semaphore, 0, 0);
    pthread_barrier_init(&all_hold, NULL, (unsigned)count);
    if (is("self")) {
        pthread_mutex_lock(&locks[0]);
        ready();
        pthread_mutex_lock(&locks[0]);
        return 0;
    }
    if (is("ordered")) {
        puts("ready");
        fflush(stdout);
        getchar();
        for (int index = 0; index < count; index++)
            pthread_create(&threads[index], NULL, order, NULL);
        for (int index = 0; index < count; index++)
            pthread_join(threads[index], NULL);
        puts("done");
        fflush(stdout);
        getchar();
        return 0;
    }
    if (is("semaphore") || is("condition") || is("readers")) {
        pthread_rwlock_rdlock(&rwlocks[0]);
        pthread_create(&threads[0], NULL, wait_alone, NULL);
        puts("ready");
        fflush(stdout);
        getchar();
        return 0;
    }
    for (int index = 0; index < count; index++)
        pthread_create(&threads[index], NULL, run, (void *)(long)index);
    for (;;)
        pause();
}
