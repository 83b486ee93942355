/* As much of Objective-C as the program needs: a root class, and messages by stubs.S. */
#ifndef DEMO_OBJECTS_H
#define DEMO_OBJECTS_H

__attribute__((objc_root_class))
@interface NSObject {
    Class isa;
}
+ (instancetype)new;
- (instancetype)init;
@end

#endif
