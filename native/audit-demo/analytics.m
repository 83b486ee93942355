/* An SDK that identifies the device when it starts, and later on a queue of its own. */
#include "sdks.h"

@implementation ANLTracker

+ (void)start {
    char machine[32];
    size_t size = sizeof machine;
    [[UIDevice currentDevice] identifierForVendor];
    sysctlbyname("hw.machine", machine, &size, 0, 0);
    NOT_A_TAIL_CALL;
}

static void upload(void *context) {
    void *addresses;
    getifaddrs(&addresses);
    NOT_A_TAIL_CALL;
}

+ (void)track {
    [[UIDevice currentDevice] identifierForVendor];
    dispatch_async_f(0, 0, upload);
    NOT_A_TAIL_CALL;
}

@end
