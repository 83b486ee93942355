/* Searching the ranges of a capture; run while a thread is stopped. */
#ifndef MACHTRACE_CAPTURE_RANGES_H
#define MACHTRACE_CAPTURE_RANGES_H

#include "inprocess/core/capture.h"

/* The end of the range that holds `sp`, or of the next one above it; `sp` where there is none. */
static inline uint64_t machtrace_range_end(const struct machtrace_own_capture *capture, uint64_t sp)
{
    size_t low = 0;
    size_t high = capture->range_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (capture->ranges[middle].end > sp)
            high = middle;
        else
            low = middle + 1;
    }
    return low < capture->range_count ? capture->ranges[low].end : sp;
}

#endif
