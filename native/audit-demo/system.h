/* As much of iOS as the app and its SDKs use. Names and signatures are those of Apple's headers. */
#ifndef AUDIT_DEMO_SYSTEM_H
#define AUDIT_DEMO_SYSTEM_H

#include "../demo/kernel.h"

#define ROOT_CLASS __attribute__((objc_root_class))

ROOT_CLASS
@interface NSObject {
    Class isa;
}
+ (instancetype)new;
- (instancetype)init;
- (id)performSelector:(SEL)selector;
@end

@interface UIDevice : NSObject
+ (UIDevice *)currentDevice;
- (id)identifierForVendor;
- (id)name;
@end

@interface UIPasteboard : NSObject
+ (UIPasteboard *)generalPasteboard;
- (id)string;
@end

@interface ASIdentifierManager : NSObject
+ (ASIdentifierManager *)sharedManager;
- (id)advertisingIdentifier;
@end

@interface CLLocationManager : NSObject
- (void)requestLocation;
- (void)startUpdatingLocation;
@end

@protocol UIApplicationDelegate
- (char)application:(id)application didFinishLaunchingWithOptions:(id)options;
- (void)applicationDidEnterBackground:(id)application;
@end

int getifaddrs(void **addresses);
int sysctlbyname(const char *name, void *old, size_t *old_size, void *new, size_t new_size);

/* Calls a function after some milliseconds, from the run loop; at most 16. */
void CFRunLoopPerformAfter(unsigned milliseconds, void (*perform)(void));
/* Calls a function on another thread. */
void dispatch_async_f(void *queue, void *context, void (*work)(void *));
/* Runs the app until nothing is left to do; it is in the background at the end. */
int UIApplicationMain(NSObject<UIApplicationDelegate> *delegate, unsigned background_after);

#endif
