/* The system's classes. */
#include "device.h"

@implementation Location
+ (int)update:(int)value {
    return value + 1;
}
@end

@implementation Pasteboard
+ (int)read:(int)value {
    return value + 2;
}
@end

@implementation Identifier
+ (int)advertising:(int)value {
    return value + 3;
}
@end
