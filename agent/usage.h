/* What this process and its threads have used so far, as the system counts it. */
#ifndef MACHTRACE_AGENT_USAGE_H
#define MACHTRACE_AGENT_USAGE_H

#include <stddef.h>
#include <stdint.h>

#define MACHTRACE_USAGE_THREADS 512

struct machtrace_usage {
    size_t count;
    struct {
        uint32_t thread;
        uint64_t ran;    /* ns, to the accuracy of the system's counts */
        uint64_t faults; /* first touches of pages; Darwin does not count them by thread: ran */
    } threads[MACHTRACE_USAGE_THREADS];
};

/* All threads but the calling one. */
void machtrace_usage_read(struct machtrace_usage *usage);

/* The process' processor time, in ns. */
int64_t machtrace_usage_processor(void);

/* Its memory in bytes: what is resident, on Darwin its footprint. Negative if unknown. */
int64_t machtrace_usage_memory(void);

#endif
