/* Classes of the lab. */
#ifndef SENSOR_H
#define SENSOR_H

__attribute__((objc_root_class))
@interface Base {
    Class isa;
}
+ (int)shared:(int)value;
- (int)inherited:(int)value;
@end

@interface Sensor : Base
- (int)read:(int)value;
- (double)read:(int)value scaled:(double)factor by:(float)other;
- (int)same:(int)value;
- (int)other:(int)value;
@end

@interface Camera : Base
- (int)read:(int)value;
@end

#endif
