/* The state of the app that each call is recorded with: see machtrace.h. */
#ifndef MACHTRACE_AGENT_APP_STATE_H
#define MACHTRACE_AGENT_APP_STATE_H

#include <stdint.h>

#define MACHTRACE_MARK_TEXT_MAX 256

/* Store a mark. `time` is CLOCK_MONOTONIC's, in ns; `state` that of an event, shifted down. */
void machtrace_log_mark(uint64_t time, uint32_t state, const char *text);

#endif
