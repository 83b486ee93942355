/* The parts of the agent's watchdog on Linux: watchdog.c, watchdog_stacks.c and
 * watchdog_conditions.c. */
#ifndef MACHTRACE_AGENT_LINUX_INCIDENTS_H
#define MACHTRACE_AGENT_LINUX_INCIDENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/thread.h"
#include "watchdog.h"

/* The node of a copied thread's stack; flags of enum machtrace_incident_stack_flags are set. */
uint32_t machtrace_stack_of_copy(const struct machtrace_thread *thread, uint32_t *flags);

/* Processor and memory conditions: at every round of the watchdog. */
void machtrace_conditions_begin(const machtrace_options_t *options);
void machtrace_conditions_poll(int64_t now);

/* For conditions: a new incident, a stack of its thread, and a record in the spool, with the stacks
 * since the last one. */
bool machtrace_incident_is_allowed(void);
void machtrace_incident_begin(struct machtrace_incident_record *record);
void machtrace_incident_add_stack(struct machtrace_incident_record *record);
bool machtrace_incident_write(struct machtrace_incident_record *record);

#endif
