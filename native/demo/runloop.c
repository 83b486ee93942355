/* Perform what was signalled, then sleep in mach_msg until something is. */
#include "runloop.h"

typedef struct {
    mach_msg_header_t header;
    uint64_t body[8];
} Message;

OUTLINED static kern_return_t mach_msg(mach_msg_header_t *message, uint32_t option,
                                       uint32_t receive_size, mach_port_t port) {
    kern_return_t result;
    do {
        result = mach_msg_trap(message, option, 0, receive_size, port, 0, 0);
    } while (result == MACH_RCV_INTERRUPTED);
    return result;
}

OUTLINED static int __CFRunLoopServiceMachPort(mach_port_t port, Message *message) {
    message->header.msgh_local_port = port;
    message->header.msgh_size = sizeof *message;
    return mach_msg(&message->header, MACH_RCV_MSG | MACH_RCV_LARGE, sizeof *message, port) == 0;
}

/* The name is what people look for in a stack: here the run loop ends and their code begins. */
OUTLINED static void __CFRUNLOOP_IS_CALLING_OUT_TO_A_SOURCE0_PERFORM_FUNCTION__(
    void (*perform)(void *), void *information) {
    perform(information);
    NOT_A_TAIL_CALL;
}

OUTLINED static void __CFRunLoopDoSources0(CFRunLoop *loop) {
    const CFRunLoopSource0 *source = loop->signalled;
    loop->signalled = 0;
    __CFRUNLOOP_IS_CALLING_OUT_TO_A_SOURCE0_PERFORM_FUNCTION__(source->perform,
                                                              source->information);
    NOT_A_TAIL_CALL;
}

OUTLINED static int __CFRunLoopRun(CFRunLoop *loop) {
    Message message;
    for (;;) {
        if (loop->signalled) __CFRunLoopDoSources0(loop);
        if (!__CFRunLoopServiceMachPort(loop->wakeup, &message)) return 1;
    }
}

int CFRunLoopRunSpecific(CFRunLoop *loop, const char *mode) {
    loop->mode = mode;
    int result = __CFRunLoopRun(loop);
    loop->mode = 0;
    return result;
}
