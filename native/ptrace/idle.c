#define _GNU_SOURCE
#include "ptrace/idle.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define SECOND_NS 1000000000ULL
#define CLOCK_STEP 4 /* polls from one reading of the process's clock to the next */

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec time;
    if (clock_gettime(clock, &time) != 0)
        return 0;
    return (uint64_t)time.tv_sec * SECOND_NS + (uint64_t)time.tv_nsec;
}

static bool is_idle(const struct machtrace_idle_thread *thread)
{
    char text[256];
    ssize_t size = pread(thread->call, text, sizeof text, 0);
    return size > 0 && (size_t)size >= thread->head_size + thread->tail_size &&
           memcmp(text, thread->head, thread->head_size) == 0 &&
           memcmp(text + size - thread->tail_size, thread->tail, thread->tail_size) == 0;
}

static bool are_idle(struct machtrace_idle_wait *wait, int turn)
{
    for (size_t index = 0; index < wait->thread_count; index++) {
        struct machtrace_idle_thread *thread = &wait->threads[index];
        ssize_t size = 0;
        if (thread->schedule >= 0) {
            size = pread(thread->schedule, thread->schedules[turn], MACHTRACE_SCHEDULE_SIZE, 0);
            if (size <= 0)
                return false;
        }
        /* It counts how often the thread was given a processor: never since the last poll. */
        bool is_same = size != 0 && thread->sizes[!turn] == (size_t)size &&
                       memcmp(thread->schedules[0], thread->schedules[1], (size_t)size) == 0;
        if (!is_same && !is_idle(thread))
            return false;
        thread->sizes[turn] = (size_t)size;
    }
    return true;
}

void machtrace_wait_idle(struct machtrace_idle_wait *wait)
{
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    int arrived = wait->is_traced ? signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK) : -1;
    struct pollfd files[2] = {{wait->wake, POLLIN, 0}, {arrived, POLLIN, 0}};
    while (wait->due_ns < wait->until_ns) {
        uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
        if (now_ns < wait->due_ns) {
            uint64_t rest_ns = wait->due_ns - now_ns;
            struct timespec rest = {(time_t)(rest_ns / SECOND_NS), (long)(rest_ns % SECOND_NS)};
            /* A signal ends this, too: its handler may have to run. */
            if (ppoll(files, 2, &rest, NULL) != 0)
                break;
            now_ns = clock_ns(CLOCK_MONOTONIC);
        }
        if (!are_idle(wait, !wait->last))
            break;
        uint64_t late_ns = now_ns > wait->due_ns ? now_ns - wait->due_ns : 0;
        wait->polls++;
        wait->late_polls += late_ns >= wait->interval_ns;
        wait->latest_ns = late_ns > wait->latest_ns ? late_ns : wait->latest_ns;
        wait->last = !wait->last;
        wait->at_ns = now_ns;
        wait->due_ns += wait->interval_ns * (1 + late_ns / wait->interval_ns);
        if (wait->polls % CLOCK_STEP != 0)
            continue;
        /* The clock adds up the times of all threads. */
        uint64_t used_ns = clock_ns(wait->clock) - wait->cpu_ns;
        if (used_ns > wait->most_cpu_ns || (used_ns != 0 && now_ns >= wait->check_ns))
            break;
    }
    if (arrived >= 0) {
        struct signalfd_siginfo taken;
        while (read(arrived, &taken, sizeof taken) > 0)
            ; /* a pending one would end the next call */
        close(arrived);
    }
}
