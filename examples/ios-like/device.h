/* Classes with private data, as an operating system has them, and the SDKs that use them. */
#include <stdint.h>

#define FUNCTION __attribute__((noinline, visibility("default")))
#define CLASS __attribute__((visibility("default"), objc_root_class))

CLASS @interface Location
+ (int)update:(int)value;
@end

CLASS @interface Pasteboard
+ (int)read:(int)value;
@end

CLASS @interface Identifier
+ (int)advertising:(int)value;
@end

int analytics_collect(int value);
