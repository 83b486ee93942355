/* What the kernel shows of a thread that is not stopped: files of /proc/self/task/TID (proc(5)).
 *
 * Plain C without Python; allocates nothing and takes no lock. To open a file takes longer than to
 * read it, so those of watched threads stay open.
 */
#ifndef MACHTRACE_INPROCESS_CORE_LINUX_THREAD_FILES_H
#define MACHTRACE_INPROCESS_CORE_LINUX_THREAD_FILES_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)
#define MACHTRACE_FUTEX_CALL 202
#else
#define MACHTRACE_FUTEX_CALL 98
#endif

struct machtrace_thread_files {
    int call, schedule, status; /* descriptors, or -1 */
};

struct machtrace_thread_call {
    bool is_known;   /* else the kernel hides it */
    bool is_running; /* or ready to run; the rest is then 0 */
    int64_t number;  /* -1: the thread waits outside of all calls, such as in a page fault */
    uint64_t arguments[6], sp, pc;
};

struct machtrace_thread_schedule {
    bool is_known;
    int64_t ran, delayed; /* ns */
    uint64_t turns;       /* how often it was given a processor: equal ones exclude a run between */
};

struct machtrace_thread_state {
    char state; /* 0 if unknown */
    uint32_t tracer;
    uint64_t voluntary, involuntary;
};

/* 0, or ESRCH. */
int machtrace_thread_files_open(uint32_t thread, struct machtrace_thread_files *files);
void machtrace_thread_files_close(struct machtrace_thread_files *files);

/* False if the thread has exited. */
bool machtrace_thread_read_call(const struct machtrace_thread_files *files,
                                struct machtrace_thread_call *call);
void machtrace_thread_read_schedule(const struct machtrace_thread_files *files,
                                    struct machtrace_thread_schedule *schedule);
void machtrace_thread_read_state(const struct machtrace_thread_files *files,
                                 struct machtrace_thread_state *state);

#endif
