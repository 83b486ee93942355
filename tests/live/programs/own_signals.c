/* Which signals captures of its own process leave to threads that do not take them:
 *
 *     own_signals blocked     three times 40 threads that block all signals, five captures of each
 *     own_signals files       the same once, while no file can be opened
 *     own_signals ended       the main thread, which has ended
 *
 * Each prints a line for each time: captures of threads that block the signal, signals in all, and
 * the most that one thread had.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "inprocess/core/capture.h"
#include "inprocess/core/linux/shared.h"

#define THREADS 40
#define CAPTURES 5
#define ROOM (1 << 16)

static const struct machtrace_range everywhere = {0, UINT64_C(1) << 63};
static pthread_barrier_t begun, captured;
static pid_t ids[THREADS];
static int counts[THREADS];
static unsigned char bytes[ROOM];

static void check(bool is_well, const char *what)
{
    if (is_well)
        return;
    fprintf(stderr, "%s\n", what);
    _exit(1);
}

/* One that blocks all signals, and takes those that are pending after the captures. */
static void *block(void *argument)
{
    const struct timespec none = {0, 0};
    size_t index = (size_t)(uintptr_t)argument;
    sigset_t all, own;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    ids[index] = (pid_t)machtrace_inprocess_id();
    pthread_barrier_wait(&begun);
    pthread_barrier_wait(&captured);
    sigemptyset(&own);
    sigaddset(&own, machtrace_inprocess_signal());
    for (counts[index] = 0; sigtimedwait(&own, NULL, &none) > 0;)
        counts[index]++;
    return NULL;
}

static struct machtrace_thread capture_one(pid_t id)
{
    struct machtrace_thread thread = {.id = (uint64_t)id, .buffer = bytes, .room = ROOM};
    struct machtrace_inprocess_capture capture = {.ranges = &everywhere,
                                                  .range_count = 1,
                                                  .stack_limit = ROOM / 2,
                                                  .answer_limit = 20000000,
                                                  .sleep_limit = 5000000,
                                                  .threads = &thread,
                                                  .thread_count = 1};
    check(machtrace_inprocess_begin(0) == 0, "no signal");
    machtrace_inprocess_copy(&capture);
    machtrace_inprocess_end();
    return thread;
}

static void capture_all(void)
{
    pthread_t threads[THREADS];
    int blocked = 0, sum = 0, most = 0;
    for (size_t index = 0; index < THREADS; index++)
        check(pthread_create(&threads[index], NULL, block, (void *)(uintptr_t)index) == 0,
              "no thread");
    pthread_barrier_wait(&begun);
    for (int turn = 0; turn < CAPTURES; turn++)
        for (size_t index = 0; index < THREADS; index++)
            blocked += capture_one(ids[index]).outcome == MACHTRACE_BLOCKED;
    pthread_barrier_wait(&captured);
    for (size_t index = 0; index < THREADS; index++) {
        pthread_join(threads[index], NULL);
        while (syscall(SYS_tgkill, getpid(), ids[index], 0) == 0)
            usleep(1000); /* it is joined a little before it is gone */
        sum += counts[index];
        most = counts[index] > most ? counts[index] : most;
    }
    printf("%d %d %d\n", blocked, sum, most);
}

/* A thread that has ended cannot count; of what was not sent, no time of a request is stated. */
static void *capture_main(void *unused)
{
    int sum = 0;
    (void)unused;
    while (machtrace_status_of(getpid()).state != 'Z')
        usleep(1000);
    for (int turn = 0; turn < CAPTURES; turn++) {
        struct machtrace_thread thread = capture_one(getpid());
        check(thread.outcome == MACHTRACE_GONE, "it is not gone");
        sum += thread.requested_at != 0;
    }
    printf("0 %d %d\n", sum, sum);
    fflush(stdout);
    _exit(0);
}

int main(int count, char **arguments)
{
    const char *how = count == 2 ? arguments[1] : "";
    pthread_barrier_init(&begun, NULL, THREADS + 1);
    pthread_barrier_init(&captured, NULL, THREADS + 1);
    if (strcmp(how, "blocked") == 0) {
        for (int turn = 0; turn < 3; turn++)
            capture_all();
    } else if (strcmp(how, "files") == 0) {
        const struct rlimit none = {0, 0};
        check(setrlimit(RLIMIT_NOFILE, &none) == 0, "no limit");
        capture_all();
    } else if (strcmp(how, "ended") == 0) {
        pthread_t thread;
        check(pthread_create(&thread, NULL, capture_main, NULL) == 0, "no thread");
        syscall(SYS_exit, 0);
    }
    return 0;
}
