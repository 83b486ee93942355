/* Copy threads of the very process that this runs in: stop, copy, resume.
 *
 * Plain C without Python; inprocess/core/linux/ and inprocess/core/darwin/ are its sources, of each
 * system. See docs/decisions/0021-threads-of-this-process.md.
 *
 *     machtrace_inprocess_begin   waits for other capturing threads, and prepares; may allocate
 *     machtrace_inprocess_copy    stops, copies and resumes; any number of times
 *     machtrace_inprocess_end     lets the next thread capture
 *
 * From the first stop to the last resume of machtrace_inprocess_copy nothing is allocated, no lock
 * is taken, no function of the loader is called and nothing of Python is. All memory that is
 * written is the caller's, and is written no more once the function has returned, also by a
 * thread that answers too late.
 */
#ifndef MACHTRACE_INPROCESS_CORE_CAPTURE_H
#define MACHTRACE_INPROCESS_CORE_CAPTURE_H

#include <stdbool.h>

#include "common/thread.h"

/* Threads of one call of machtrace_inprocess_copy, on Linux; pass more in several. */
#define MACHTRACE_INPROCESS_THREADS_MAX 256

struct machtrace_inprocess_capture {
    /* Linux: readable memory, by address, known before anything is stopped. A stack is copied to
     * the end of its range at most; memory that is unmapped by then is not copied, without an
     * error. Darwin queries a stack's end from the kernel, and needs none. */
    const struct machtrace_range *ranges;
    size_t range_count;
    size_t stack_limit;   /* bytes of each stack, its red zone not counted */
    int64_t answer_limit; /* Linux: ns that a thread may take to stop */
    int64_t sleep_limit;  /* Linux: ns that one may stay in uninterruptible sleep */
    bool together;        /* resume none before all are copied, or have not answered in time */
    struct machtrace_thread *threads; /* none of them the caller's */
    size_t thread_count;
    /* Linux: called in the handler of each thread that was copied, before it resumes; or NULL. It
     * may do what the handler of a signal may. */
    void (*also)(const struct machtrace_inprocess_capture *capture,
                 struct machtrace_thread *thread);
    void *also_data;
    /* Linux: called where `together`, when all threads have stopped or have not answered, and none
     * has resumed; or NULL. Then no thread may hold what it waits for. */
    void (*meanwhile)(const struct machtrace_inprocess_capture *capture);
    void *meanwhile_data;
};

/* Wait for other captures, and prepare to stop threads. Linux: by this signal, from SIGRTMIN to
 * SIGRTMAX; 0 takes one that nobody handles, and keeps it. Darwin: leave it 0. Returns 0, or an
 * errno, and then there is nothing to end: EINVAL no such signal, EBUSY something else in this
 * process handles it (or all of them), EAGAIN the system lacks a resource. */
int machtrace_inprocess_begin(int signal);

/* Linux: the same without waiting: EAGAIN while another thread captures. */
int machtrace_inprocess_try_begin(int signal);

/* Copy threads, each stopped only for its own copy unless `together`. Sets the outcome of each. */
void machtrace_inprocess_copy(struct machtrace_inprocess_capture *capture);

void machtrace_inprocess_end(void);

/* The ids of this process' threads in the kernel's order, as many as there is room for; how many
 * there are, or -1. Nothing may be stopped. Linux: allocates nothing, and takes no lock. */
int64_t machtrace_inprocess_list(uint64_t *ids, size_t room);

/* The calling thread's id. */
uint64_t machtrace_inprocess_id(void);

/* Copy the calling thread, as it is in this function. Needs no begin. */
void machtrace_inprocess_copy_here(const struct machtrace_inprocess_capture *capture,
                                   struct machtrace_thread *thread);

/* Copy memory of this process, from the start as far as it can be read; how many bytes. Memory
 * that is not mapped is no fault. */
size_t machtrace_inprocess_read(uint64_t address, void *to, size_t size);

/* The signal in use; 0 if none is yet. */
int machtrace_inprocess_signal(void);

/* A number that changes whenever the images of this process change. Linux: if that is unknown now,
 * since a thread holds the lock of the loader's list, a number that is returned only once. Never
 * waits for long, except in the first call. */
uint64_t machtrace_inprocess_image_changes(void);

/* Whether machtrace_inprocess_image_changes may wait for another thread now: in its first call, and
 * always where the lock of the loader's list was not recognised. */
bool machtrace_inprocess_image_changes_may_wait(void);

/* Where the code is that this function is part of: its image. */
struct machtrace_range machtrace_inprocess_image(void);

/* The end of the calling thread's stack (its highest address, and one); 0 if unknown. Queried from
 * the system once for each thread. */
uint64_t machtrace_inprocess_stack_end(void);

#endif
