/* The statements of the main run loop: idle before it waits, and busy after. */
#ifndef MACHTRACE_AGENT_DARWIN_RUN_LOOP_H
#define MACHTRACE_AGENT_DARWIN_RUN_LOOP_H

/* Observe the main run loop, if this process has CoreFoundation. Its first statement comes when it
 * waits first. */
void machtrace_run_loop_begin(void);
void machtrace_run_loop_end(void);

#endif
