/* The application's other threads, each on its way to an instructive state. */
#ifndef DEMO_THREADS_H
#define DEMO_THREADS_H

/* Starts all of them; they run when the main thread waits. */
void start_threads(void);

void *serve_tasks(void *);      /* tasks.c */
void *deliver_messages(void *); /* messages.m */
void *serve_signed(void *);     /* signed.c */

#endif
