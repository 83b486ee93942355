/* Stop all threads of another Linux process together, until it is resumed, so that its memory can
 * be read as of one moment.
 *
 * One OS thread seizes and stops them, copies those wanted, waits, and releases them. It is their
 * only tracer: if it ends in any way, with the whole of this process at the latest, the kernel
 * releases what is still stopped.
 */
#ifndef MACHTRACE_PTRACE_FREEZE_H
#define MACHTRACE_PTRACE_FREEZE_H

#include <pthread.h>
#include <stdbool.h>

#include "ptrace/ptrace.h"
#include "ptrace/python.h"
#include "ptrace/tracee.h"

struct machtrace_frozen_thread {
    struct machtrace_thread thread;
    struct machtrace_stop stop;
    bool is_stopped;
    bool is_wanted;
};

struct machtrace_freeze {
    /* Set by the caller. */
    struct machtrace_capture settings; /* without threads; without mappings no stack is copied */
    int task_folder;                   /* /proc/PID/task, open until machtrace_freeze_await is true */
    bool wants_all;                    /* copy every thread that exists once all are stopped */
    pid_t *wanted;                     /* else these; gets sorted */
    size_t wanted_count;
    struct machtrace_python_reader *python; /* copies what CPython stores; or NULL */
    bool is_traced; /* the calling OS thread, which makes all calls, has seized all threads, and
                       handles what else has stopped one */
    bool is_brief; /* resume as soon as all is copied, without machtrace_freeze_end */
    /* Results, valid once machtrace_freeze_await is true. */
    int error;     /* an errno, or 0: then the threads are in the order of the kernel's list */
    bool is_whole; /* nothing of the process runs: no thread was refused or too slow to stop */
    struct machtrace_frozen_thread *threads;
    size_t thread_count;
    /* Private. */
    size_t capacity;
    pthread_t tracer;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_frozen;
    bool must_resume;
    bool is_released;
};

/* Begin to stop the process; if it is traced, do so. Returns 0, or an errno: then there is nothing to end. */
int machtrace_freeze_start(struct machtrace_freeze *freeze);

/* Whether all threads are stopped and those wanted copied; waits for at most `limit` ns. */
bool machtrace_freeze_await(struct machtrace_freeze *freeze, int64_t limit);

/* Resume the process and wait until that is done; once only. */
void machtrace_freeze_end(struct machtrace_freeze *freeze);

/* Free what was copied. */
void machtrace_freeze_release(struct machtrace_freeze *freeze);

#endif
