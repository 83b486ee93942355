/* Darwin's monotonic clock in nanoseconds. */
#ifndef MACHTRACE_COMMON_DARWIN_CLOCK_H
#define MACHTRACE_COMMON_DARWIN_CLOCK_H

#include <mach/mach_time.h>
#include <stdatomic.h>
#include <stdint.h>

/* Query the time base in advance, if only the kernel may be called later. */
static inline int64_t machtrace_mach_now(void)
{
    static _Atomic uint64_t base; /* numer in the upper half, denom in the lower; never changes */
    uint64_t known = atomic_load_explicit(&base, memory_order_relaxed);
    if (known == 0) {
        mach_timebase_info_data_t timebase = {0, 0};
        if (mach_timebase_info(&timebase) != 0 || timebase.numer == 0 || timebase.denom == 0)
            timebase = (mach_timebase_info_data_t){1, 1};
        known = (uint64_t)timebase.numer << 32 | timebase.denom;
        atomic_store_explicit(&base, known, memory_order_relaxed);
    }
    /* 125/3 on Apple's own processors: neither may the product overflow, nor a part be lost. */
    uint64_t numer = known >> 32, denom = known & UINT32_MAX;
    uint64_t ticks = mach_absolute_time();
    return (int64_t)(ticks / denom * numer + ticks % denom * numer / denom);
}

#endif
