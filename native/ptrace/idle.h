/* Polling threads of another process while they stay in the waits of their loops. */
#ifndef MACHTRACE_PTRACE_IDLE_H
#define MACHTRACE_PTRACE_IDLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define MACHTRACE_SCHEDULE_SIZE 96

struct machtrace_idle_thread {
    int call;     /* of /proc/PID/task/TID/syscall */
    int schedule; /* of schedstat; -1 if it is hidden */
    const char *head, *tail; /* how the first file begins and ends while the thread is idle */
    size_t head_size, tail_size;
    char schedules[2][MACHTRACE_SCHEDULE_SIZE];
    size_t sizes[2];
};

struct machtrace_idle_wait {
    struct machtrace_idle_thread *threads;
    size_t thread_count;
    clockid_t clock;      /* the process's processor time */
    uint64_t cpu_ns;      /* its value at the last poll of the process */
    uint64_t most_cpu_ns; /* processor time since then after which to return */
    uint64_t interval_ns;
    uint64_t check_ns; /* when to return if the process used any since then */
    uint64_t until_ns;
    int wake;     /* returns once this is readable; -1 for none */
    bool is_traced; /* returns once a SIGCHLD, which is blocked, has arrived */

    uint64_t due_ns; /* of the next poll, in CLOCK_MONOTONIC; updated */
    uint64_t polls, late_polls, latest_ns;
    uint64_t at_ns; /* of the last poll at which all threads were idle; 0 for none */
    int last;       /* the index of its texts in schedules */
};

/* Poll until a thread is elsewhere, the process uses processor time, or the time is over. */
void machtrace_wait_idle(struct machtrace_idle_wait *wait);

#endif
