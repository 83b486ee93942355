/* A library of classes. */
#include "sensor.h"

@implementation Base

+ (int)shared:(int)value {
    return value + 1;
}

- (int)inherited:(int)value {
    return value + 2;
}

@end

@implementation Sensor

- (int)read:(int)value {
    return value * 2;
}

- (double)read:(int)value scaled:(double)factor by:(float)other {
    return value * factor + (double)other;
}

- (int)same:(int)value {
    return value * 3;
}

- (int)other:(int)value {
    return value * 5;
}

@end

@implementation Camera

- (int)read:(int)value {
    return value * 7;
}

@end
