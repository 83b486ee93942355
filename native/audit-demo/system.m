/* The system's functions: what is watched does nothing here, since only its callers matter. */
#include "system.h"

int mach_wait_until(uint64_t deadline);
uint64_t time_now(void); /* nanoseconds */

enum { JOBS_MAX = 16, NANOSECONDS = 1000000 };

/* objc_class and class_ro_t as the compiler lays them out (objc4: runtime/objc-runtime-new.h). */
struct class_data {
    uint32_t flags, instance_start, instance_size;
};
struct class_layout {
    void *isa, *superclass, *cache[2];
    struct class_data *data;
};

id objc_msgSend(id receiver, SEL selector);

@implementation NSObject

+ (instancetype)new {
    struct class_layout *layout = (__bridge struct class_layout *)self;
    struct class_layout **object = demo_allocate(layout->data->instance_size);
    *object = layout;
    return [(__bridge id)(void *)object init];
}

- (instancetype)init {
    return self;
}

- (id)performSelector:(SEL)selector {
    id result = objc_msgSend(self, selector);
    NOT_A_TAIL_CALL;
    return result;
}

@end

@implementation UIDevice

+ (UIDevice *)currentDevice {
    static UIDevice *device;
    if (!device) device = [UIDevice new];
    return device;
}

- (id)identifierForVendor {
    return self;
}

- (id)name {
    return self;
}

@end

@implementation UIPasteboard

+ (UIPasteboard *)generalPasteboard {
    static UIPasteboard *pasteboard;
    if (!pasteboard) pasteboard = [UIPasteboard new];
    return pasteboard;
}

- (id)string {
    return self;
}

@end

@implementation ASIdentifierManager

+ (ASIdentifierManager *)sharedManager {
    static ASIdentifierManager *manager;
    if (!manager) manager = [ASIdentifierManager new];
    return manager;
}

- (id)advertisingIdentifier {
    return self;
}

@end

@implementation CLLocationManager

- (void)requestLocation {
}

- (void)startUpdatingLocation {
}

@end

OUTLINED int getifaddrs(void **addresses) {
    *addresses = 0;
    return 0;
}

OUTLINED int sysctlbyname(const char *name, void *old, size_t *old_size, void *new,
                          size_t new_size) {
    return name[0] == 0;
}

/* --- queues: each piece of work has a thread --- */

struct work {
    void *context;
    void (*function)(void *);
};

OUTLINED static void _dispatch_client_callout(void *context, void (*function)(void *)) {
    function(context);
    NOT_A_TAIL_CALL;
}

static void *_dispatch_worker_thread2(void *argument) {
    struct work *work = argument;
    pthread_setname_np("com.example.queue");
    _dispatch_client_callout(work->context, work->function);
    return 0;
}

void dispatch_async_f(void *queue, void *context, void (*function)(void *)) {
    struct work *work = demo_allocate(sizeof *work);
    *work = (struct work){context, function};
    start_thread(_dispatch_worker_thread2, work);
}

/* --- the run loop: timers, the latest first --- */

static struct job {
    void (*perform)(void);
    uint64_t deadline;
} jobs[JOBS_MAX];
static size_t job_count;

void CFRunLoopPerformAfter(unsigned milliseconds, void (*perform)(void)) {
    uint64_t deadline = time_now() + (uint64_t)milliseconds * NANOSECONDS;
    size_t at = job_count;
    if (job_count++ == JOBS_MAX) __builtin_trap();
    for (; at > 0 && jobs[at - 1].deadline <= deadline; at--) jobs[at] = jobs[at - 1];
    jobs[at] = (struct job){perform, deadline};
}

OUTLINED static void __CFRUNLOOP_IS_CALLING_OUT_TO_A_TIMER_CALLBACK_FUNCTION__(
    void (*perform)(void)) {
    perform();
    NOT_A_TAIL_CALL;
}

OUTLINED static void __CFRunLoopRun(void) {
    while (job_count > 0) {
        struct job job = jobs[--job_count];
        mach_wait_until(job.deadline);
        __CFRUNLOOP_IS_CALLING_OUT_TO_A_TIMER_CALLBACK_FUNCTION__(job.perform);
    }
}

static NSObject<UIApplicationDelegate> *application_delegate;

static void enter_background(void) {
    [application_delegate applicationDidEnterBackground:0];
    NOT_A_TAIL_CALL;
}

OUTLINED int UIApplicationMain(NSObject<UIApplicationDelegate> *delegate,
                               unsigned background_after) {
    pthread_setname_np("main");
    application_delegate = delegate;
    CFRunLoopPerformAfter(background_after, enter_background);
    [delegate application:0 didFinishLaunchingWithOptions:0];
    __CFRunLoopRun();
    return 0;
}
