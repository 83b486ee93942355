/* The SDKs that the app links. */
#include "system.h"

@interface ANLTracker : NSObject
+ (void)start;
+ (void)track;
@end

@interface ADSBanner : NSObject
+ (id)identifier;
+ (void)load:(int)count;
+ (void)locate;
@end
