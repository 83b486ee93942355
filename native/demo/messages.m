/* A thread that sends messages most of the time, and so is found inside objc_msgSend. */
#include "kernel.h"
#include "objects.h"
#include "threads.h"

@interface Mailbox : NSObject {
    uint64_t _next;
}
- (uint64_t)drain:(uint64_t)count;
- (uint64_t)read;
@end

@implementation Mailbox

- (uint64_t)drain:(uint64_t)count {
    uint64_t total = 0;
    for (uint64_t at = 0; at < count; at++) total += [self read];
    return total;
}

- (uint64_t)read {
    return _next++;
}

@end

void *deliver_messages(void *argument) {
    static volatile uint64_t kept;
    pthread_setname_np("com.machtrace.messages");
    kept += [[Mailbox new] drain:8];
    return argument;
}
