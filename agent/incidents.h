/* The parts of the agent's watchdog: incidents.c has their records, incident_stacks.c stacks of
 * copied threads, conditions.c processor and memory. Hangs are the systems' own: watchdog.c. */
#ifndef MACHTRACE_AGENT_INCIDENTS_H
#define MACHTRACE_AGENT_INCIDENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/thread.h"
#include "watchdog.h"

/* The node of a copied thread's stack; flags of enum machtrace_incident_stack_flags are set. */
uint32_t machtrace_stack_of_copy(const struct machtrace_thread *thread, uint32_t *flags);

/* Processor and memory conditions: at every round of the watchdog. */
void machtrace_conditions_begin(const machtrace_options_t *options);
void machtrace_conditions_poll(int64_t now);

/* Forget the incidents of an earlier run. */
void machtrace_incidents_clear(void);

/* Whether the log may have one more incident. */
bool machtrace_incident_is_allowed(void);

/* Give a record the next number. */
void machtrace_incident_begin(struct machtrace_incident_record *record);

/* Write a record to the log, with the stacks since the last one; false if there is no room. */
bool machtrace_incident_write(struct machtrace_incident_record *record);

/* Take the stack of the record's thread. By the watchdog's thread; of each system. */
void machtrace_incident_add_stack(struct machtrace_incident_record *record);

#endif
