/* A run loop of the shape that CoreFoundation's has in a stack. */
#ifndef DEMO_RUNLOOP_H
#define DEMO_RUNLOOP_H

#include "kernel.h"

typedef struct {
    void (*perform)(void *);
    void *information;
} CFRunLoopSource0;

typedef struct {
    const char *mode;
    const CFRunLoopSource0 *signalled; /* taken once; null where nothing is to do */
    mach_port_t wakeup;
} CFRunLoop;

/* Serves the loop until a message ends it, which none does here. */
int CFRunLoopRunSpecific(CFRunLoop *loop, const char *mode);

#endif
