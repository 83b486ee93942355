/* An SDK whose call of a watched method is its last instruction, a jump: it leaves no frame. */
#include "sdks.h"

@implementation ADSBanner

+ (id)identifier {
    return [[ASIdentifierManager sharedManager] advertisingIdentifier];
}

+ (void)load:(int)count {
    for (int at = 0; at < count; at++) [self identifier];
    [[UIDevice currentDevice] performSelector:@selector(name)];
    NOT_A_TAIL_CALL;
}

+ (void)locate {
    [[CLLocationManager new] startUpdatingLocation];
    NOT_A_TAIL_CALL;
}

@end
