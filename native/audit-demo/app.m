/* An app that requests consent, with two SDKs. Its calls of what is watched follow a script. */
#include "sdks.h"

enum { CONSENT = 1000, MAP = 2000, ADVERTISEMENT = 3000, BACKGROUND = 6000 }; /* milliseconds */

@interface Agreement : NSObject
- (void)accept;
@end

@implementation Agreement

- (void)accept {
    NOT_A_TAIL_CALL;
}

@end

@interface MapController : NSObject
- (void)viewDidAppear;
@end

@implementation MapController

- (void)viewDidAppear {
    [[CLLocationManager new] requestLocation];
    [ANLTracker track];
    NOT_A_TAIL_CALL;
}

@end

static void accept_agreement(void) {
    [[Agreement new] accept];
    NOT_A_TAIL_CALL;
}

static void show_map(void) {
    [[MapController new] viewDidAppear];
    NOT_A_TAIL_CALL;
}

static void show_advertisement(void) {
    [ADSBanner load:3];
    NOT_A_TAIL_CALL;
}

@interface AppDelegate : NSObject <UIApplicationDelegate>
- (void)readPasteboard;
@end

@implementation AppDelegate

- (char)application:(id)application didFinishLaunchingWithOptions:(id)options {
    [ANLTracker start];
    [self readPasteboard];
    [ADSBanner load:1];
    CFRunLoopPerformAfter(CONSENT, accept_agreement);
    CFRunLoopPerformAfter(MAP, show_map);
    CFRunLoopPerformAfter(ADVERTISEMENT, show_advertisement);
    return 1;
}

- (void)readPasteboard {
    [[UIPasteboard generalPasteboard] string];
    NOT_A_TAIL_CALL;
}

- (void)applicationDidEnterBackground:(id)application {
    [ANLTracker track];
    [ADSBanner locate];
    NOT_A_TAIL_CALL;
}

@end

int main(void) {
    return UIApplicationMain([AppDelegate new], BACKGROUND);
}
