/* What the kernel states of one thread. */
#ifndef MACHTRACE_AGENT_DARWIN_THREAD_STATES_H
#define MACHTRACE_AGENT_DARWIN_THREAD_STATES_H

#include <stdbool.h>
#include <stdint.h>

struct machtrace_thread_state {
    uint64_t id;
    int64_t ran;   /* ns */
    int run_state; /* TH_STATE_RUNNING and others of mach/thread_info.h */
};

/* A thread of this process; false if it has ended. */
bool machtrace_thread_state_of(uint64_t id, struct machtrace_thread_state *state);

#endif
