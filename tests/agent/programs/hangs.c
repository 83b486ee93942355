/* What a watchdog should see, and what it should not:
 *
 *     hangs SPOOL blocked|busy|tasks|loop|threads|processor|memory|killed|replaced
 *
 * `hangs new` is the program that replaces it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "machtrace.h"

#define LIMIT_MS 300
#define WORKERS 30
#define GENERATIONS 3 /* of workers: in all more than are watched at once */

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int ends[2];

__attribute__((noinline)) static void spin(int64_t ns)
{
    for (int64_t end = now() + ns; now() < end;)
        __asm__ volatile("");
}

__attribute__((noinline)) static void wait_for_answer(int milliseconds)
{
    struct pollfd one = {.fd = ends[0], .events = POLLIN};
    poll(&one, 1, milliseconds);
    __asm__ volatile("");
}

__attribute__((noinline)) static void handle_request(const char *how)
{
    if (strcmp(how, "busy") == 0)
        spin(4 * LIMIT_MS * (int64_t)1000000);
    else
        wait_for_answer(strcmp(how, "killed") == 0 ? -1 : 4 * LIMIT_MS);
    __asm__ volatile("");
}

/* The wait of a loop, which states nothing. */
__attribute__((noinline)) static void wait_in_loop(int milliseconds)
{
    struct pollfd both[2] = {{.fd = ends[0], .events = POLLIN}, {.fd = ends[0], .events = POLLIN}};
    poll(both, 2, milliseconds);
    __asm__ volatile("");
}

static void *burn(void *unused)
{
    (void)unused;
    spin(INT64_C(4000000000));
    return NULL;
}

__attribute__((noinline)) static void fill(unsigned char *bytes, size_t size)
{
    for (size_t at = 0; at < size; at += 4096) {
        bytes[at] = 1;
        if (at % (1 << 20) == 0)
            usleep(4000);
    }
}

static void *allocate(void *unused)
{
    size_t size = (size_t)256 << 20;
    unsigned char *bytes =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)unused;
    if (bytes != MAP_FAILED) {
        madvise(bytes, size, MADV_NOHUGEPAGE);
        fill(bytes, size);
        munmap(bytes, size);
    }
    usleep(300000);
    return NULL;
}

static pthread_barrier_t all_run;

static void register_thread(void)
{
    machtrace_idle_begin();
    /* Threads that have ended make room when the watchdog has noticed. */
    while (machtrace_watch_thread() == ENOSPC)
        usleep(1000);
}

static void *work(void *unused)
{
    pthread_barrier_wait(&all_run);
    register_thread();
    usleep(150000);
    return unused;
}

__attribute__((noinline)) static void *serve(void *unused)
{
    register_thread();
    machtrace_idle_end();
    handle_request("blocked");
    machtrace_idle_begin();
    return unused;
}

static void run_threads(void)
{
    pthread_t threads[WORKERS], server;
    machtrace_idle_begin();
    pthread_barrier_init(&all_run, NULL, WORKERS);
    for (int generation = 0; generation < GENERATIONS; generation++) {
        for (int index = 0; index < WORKERS; index++)
            pthread_create(&threads[index], NULL, work, NULL);
        for (int index = 0; index < WORKERS; index++)
            pthread_join(threads[index], NULL);
    }
    pthread_create(&server, NULL, serve, NULL);
    pthread_join(server, NULL);
}

/* Execute another program with a signal pending that was to copy this thread. */
static void replace(const char *program)
{
    sigset_t all, pending;
    bool is_pending = false;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    machtrace_idle_end();
    while (!is_pending) {
        spin(1000000);
        sigpending(&pending);
        for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
            is_pending = is_pending || sigismember(&pending, number) == 1;
    }
    execl("/nonexistent", "nonexistent", (char *)NULL);
    execl(program, "hangs", "new", (char *)NULL);
}

static int be_new(void)
{
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    puts("0");
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 2)
        return be_new();
    if (count != 3 || pipe(ends) != 0)
        return 2;
    const char *how = arguments[2];
    machtrace_options_t options = {.size = sizeof options, .spool_path = arguments[1]};
    int is_processor = strcmp(how, "processor") == 0, is_memory = strcmp(how, "memory") == 0;
    if (is_processor) {
        options.cpu_percent = 20;
        options.cpu_seconds = 1;
    } else if (is_memory) {
        options.memory_limit = UINT64_C(128) << 20;
    } else {
        options.hang_ms = LIMIT_MS;
    }
    if (machtrace_watch_thread() != ESRCH)
        return 3;
    int error = machtrace_start(&options);
    if (error != 0) {
        fprintf(stderr, "%s\n", strerror(error));
        return 1;
    }
    if (is_processor || is_memory) {
        pthread_t thread;
        if (machtrace_watch_thread() != ESRCH)
            return 3; /* nothing is watched for hangs */
        pthread_create(&thread, NULL, is_processor ? burn : allocate, NULL);
        pthread_join(thread, NULL);
    } else if (strcmp(how, "loop") == 0) {
        for (int turn = 0; turn < 3; turn++)
            wait_in_loop(2 * LIMIT_MS);
        handle_request("blocked");
        wait_in_loop(2 * LIMIT_MS);
    } else if (strcmp(how, "threads") == 0) {
        run_threads();
    } else if (strcmp(how, "replaced") == 0) {
        replace(arguments[0]);
    } else if (strcmp(how, "tasks") == 0) {
        for (int task = 0; task < 60; task++) {
            machtrace_idle_end();
            spin(20000000);
        }
        machtrace_idle_begin();
        wait_for_answer(4 * LIMIT_MS);
    } else {
        machtrace_idle_end();
        handle_request(how);
        machtrace_idle_begin();
        wait_for_answer(2 * LIMIT_MS);
    }
    printf("%d\n", machtrace_stop());
    return 0;
}
