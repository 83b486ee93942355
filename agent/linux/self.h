/* What a thread has of its own: see agent/thread.h. */
#ifndef MACHTRACE_AGENT_LINUX_SELF_H
#define MACHTRACE_AGENT_LINUX_SELF_H

/* In the block that every thread has from its start, so that no access allocates. */
extern _Thread_local struct machtrace_self {
    struct machtrace_recorder *recorder;
    uint32_t ignoring;
    uint64_t signals; /* that were blocked before */
} machtrace_self __attribute__((tls_model("initial-exec"), visibility("hidden")));

static inline struct machtrace_recorder *machtrace_self_recorder(void)
{
    return machtrace_self.recorder;
}

static inline uint32_t machtrace_self_ignoring(void)
{
    return machtrace_self.ignoring;
}

#endif
