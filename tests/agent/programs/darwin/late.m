/* A class of an image that is loaded later. */
#include "sensor.h"

@interface Late : Base
- (int)read:(int)value;
@end

@implementation Late

- (int)read:(int)value {
    return value * 11;
}

@end
