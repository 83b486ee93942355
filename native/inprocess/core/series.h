/* Captures of all threads at a rate, by a thread of their own.
 *
 * Plain C without Python, over capture.h. The thread needs no lock but that of
 * machtrace_inprocess_begin, and allocates nothing once it runs: it captures while the process'
 * other threads hold any lock, the interpreter's, malloc's and the loader's among them. Captures
 * wait in a ring until they are taken; if it is full they are counted and omitted.
 */
#ifndef MACHTRACE_INPROCESS_CORE_SERIES_H
#define MACHTRACE_INPROCESS_CORE_SERIES_H

#include <pthread.h>

#include "inprocess/core/capture.h"
#include "inprocess/core/ring.h"

#define MACHTRACE_SERIES_THREADS_MAX 4096

struct machtrace_series_options {
    int64_t interval; /* ns from one capture to the next */
    size_t stack_limit;
    int64_t answer_limit; /* these as in struct machtrace_inprocess_capture */
    int64_t sleep_limit;
    bool together;
    int signal;       /* as for machtrace_inprocess_begin */
    size_t room;      /* bytes of the ring */
    size_t text_most; /* bytes of the list of mappings, at most */
    /* The text of the mappings: its size, `room` at most, or -1. Called before the first capture,
     * and before and after each during which images changed. Allocates nothing. NULL if the system
     * has no such text. */
    int64_t (*mappings)(char *text, size_t room);
    void (*prepare_thread)(void); /* called by the thread before all else, or NULL */
};

/* The output: consecutive records, each at a multiple of 16 bytes. The count of a THREAD is the
 * number of its stacks; of a CAPTURE, the number of its threads. */
enum machtrace_series_kind {
    MACHTRACE_SERIES_MAPPINGS = 1, /* before the threads of the next CAPTURE, or after them */
    MACHTRACE_SERIES_THREAD = 2,   /* of the next CAPTURE */
    MACHTRACE_SERIES_CAPTURE = 3   /* ends a capture */
};

struct machtrace_series_mappings {
    struct machtrace_series_record record;
    uint64_t text_size; /* its bytes follow */
};

struct machtrace_series_thread {
    struct machtrace_series_record record;
    uint64_t id;
    uint64_t pthread;
    int32_t outcome;
    int32_t error;
    uint32_t uninterruptible;
    uint32_t registers_size;
    int64_t requested_at;
    int64_t stopped_at;
    int64_t resumed_at;
    uint64_t stack_start[MACHTRACE_STACKS_MAX]; /* their bytes follow */
    uint64_t stack_size[MACHTRACE_STACKS_MAX];
    unsigned char registers[MACHTRACE_REGISTERS_MAX];
};

/* Write the record of a thread. */
void machtrace_series_add_thread(struct machtrace_ring *ring,
                                 const struct machtrace_thread *thread);

struct machtrace_series_capture {
    struct machtrace_series_record record;
    uint64_t tick;     /* from 0: how many intervals after the first it was due */
    uint64_t listed;   /* threads, that of the series not counted */
    int64_t began_at;  /* monotonic clock, in ns */
    int64_t ended_at;
    uint64_t images_changed; /* whether any came or went meanwhile */
};

struct machtrace_series_counts {
    uint64_t captures; /* that are in the ring or were taken */
    uint64_t late;     /* that were not made, since the one before was not done in time */
    uint64_t lost;     /* that were made, and for which there was no room */
    uint64_t refused;  /* for which machtrace_inprocess_begin or the list of threads failed */
    int32_t error;     /* the last errno of those */
};

/* Start a thread that takes none of the process' signals, but the one by which another captures it,
 * and those of its own faults. 0 or an errno. */
int machtrace_start_quiet_thread(pthread_t *thread, void *(*body)(void *), void *argument);

struct machtrace_series;

/* NULL with *error set if there is no signal, memory or thread for it. */
struct machtrace_series *machtrace_series_start(const struct machtrace_series_options *options,
                                                int *error);

/* Bytes that would be taken now. */
size_t machtrace_series_waiting(const struct machtrace_series *series, size_t most);

/* Take whole records, `most` bytes at most, by one thread at a time; returns their size. */
size_t machtrace_series_take(struct machtrace_series *series, unsigned char *to, size_t most);

struct machtrace_series_counts machtrace_series_count(const struct machtrace_series *series);

/* End the thread, and wait for it; records can still be taken. Any thread may call it, any number
 * of times: each call returns when the thread has ended. In the child of a fork there is none. */
void machtrace_series_stop(struct machtrace_series *series);

/* Stop, and free all memory. */
void machtrace_series_free(struct machtrace_series *series);

#endif
