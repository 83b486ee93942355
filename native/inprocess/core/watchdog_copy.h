/* How the watchdog copies threads: see watchdog.h.
 *
 * A thread that waits in the kernel is copied without a signal: its system call and its count of
 * turns are read before and after, and equal ones exclude that it ran meanwhile. Others copy
 * themselves in the handler of capture.h, and their Python frames too.
 */
#ifndef MACHTRACE_INPROCESS_CORE_WATCHDOG_COPY_H
#define MACHTRACE_INPROCESS_CORE_WATCHDOG_COPY_H

#include "inprocess/core/batches.h"
#include "inprocess/core/python_chain.h"
#include "inprocess/core/watchdog.h"

#define MACHTRACE_COPYING_BATCH 16
#define MACHTRACE_COPYING_CODES 1024 /* a power of two */

struct machtrace_copying {
    const struct machtrace_watchdog_options *options;
    struct machtrace_inprocess_buffers buffers;
    struct machtrace_thread threads[MACHTRACE_COPYING_BATCH];
    struct machtrace_python_chain *chains; /* of these; NULL without a layout */
    struct machtrace_python_states states;
    uint64_t ids[MACHTRACE_SERIES_THREADS_MAX];
    char *text; /* of the mappings */
    bool knows_mappings;
    uint64_t image_changes, changes_before;
    struct machtrace_series_capture row; /* of the capture that is being made */
    uint64_t codes[MACHTRACE_COPYING_CODES]; /* a hash table of code that is in the record */
    size_t code_count;
    unsigned char *scratch; /* blocks of one code object */
    _Atomic uint64_t captures, stops, lost;
    _Atomic int64_t longest_stop;
};

/* 0 or an errno. */
int machtrace_copying_have(struct machtrace_copying *copying,
                           const struct machtrace_watchdog_options *options);
void machtrace_copying_free(struct machtrace_copying *copying);

/* The next capture records the mappings and all code again. */
void machtrace_copying_forget(struct machtrace_copying *copying);

/* The ids of all threads but the calling one. */
size_t machtrace_copying_list(struct machtrace_copying *copying, const uint64_t **threads);

/* Copy threads, and write their records. */
void machtrace_copying_capture(struct machtrace_copying *copying, struct machtrace_ring *ring,
                               const uint64_t *threads, size_t count);

/* Write the record that ends the capture; true if the caller may publish it. */
bool machtrace_copying_finish(struct machtrace_copying *copying, struct machtrace_ring *ring,
                              uint64_t incident, uint64_t bits);

#endif
