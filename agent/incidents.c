/* See incidents.h. */
#include "incidents.h"

#include "drain.h"

#define INCIDENTS_MAX 500 /* of a run: the log keeps them */

static uint32_t recorded;

void machtrace_incidents_clear(void)
{
    recorded = 0;
}

bool machtrace_incident_is_allowed(void)
{
    return recorded < INCIDENTS_MAX;
}

void machtrace_incident_begin(struct machtrace_incident_record *record)
{
    record->number = ++recorded;
}

bool machtrace_incident_write(struct machtrace_incident_record *record)
{
    size_t size = sizeof *record - sizeof record->stacks +
                  record->stack_count * sizeof *record->stacks;
    uint32_t nodes[MACHTRACE_INCIDENT_STACKS_MAX];
    for (uint32_t index = 0; index < record->stack_count; index++)
        nodes[index] = record->stacks[index].node;
    bool is_stored = machtrace_drain_incident(record, (uint32_t)size, nodes, record->stack_count);
    record->stack_count = 0;
    return is_stored;
}
