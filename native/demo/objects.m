/* The root class. */
#include "objects.h"
#include "kernel.h"

/* objc_class and class_ro_t as the compiler lays them out (objc4: runtime/objc-runtime-new.h). */
struct class_data {
    uint32_t flags, instance_start, instance_size;
};
struct class_layout {
    void *isa, *superclass, *cache[2];
    struct class_data *data;
};

@implementation NSObject

+ (instancetype)new {
    struct class_layout *layout = (__bridge struct class_layout *)self;
    struct class_layout **object = demo_allocate(layout->data->instance_size);
    *object = layout;
    return [(__bridge id)(void *)object init];
}

- (instancetype)init {
    return self;
}

@end
