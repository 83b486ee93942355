/* agent/watchdog.h for Darwin, whose watchdog the agent does not have: it refuses to start with
 * options that need it. */
#include "watchdog.h"

#include <errno.h>

int machtrace_incidents_begin(const machtrace_options_t *options)
{
    return options->hang_ms != 0 || options->cpu_percent != 0 || options->memory_limit != 0
               ? ENOTSUP
               : 0;
}

void machtrace_incidents_end(void)
{
}

void machtrace_incidents_after_fork(void)
{
}

int machtrace_incidents_watch(void)
{
    return ESRCH;
}

void machtrace_idle_begin(void)
{
}

void machtrace_idle_end(void)
{
}
