/* Messages, also to a class of an image that is loaded later. */
#include <dlfcn.h>
#include <objc/runtime.h>

#include "lab.h"
#include "sensor.h"

extern const char lab_plugin[1024];
void lab_prepare_classes(void);
void lab_send_messages(void);

@protocol Reading
- (int)read:(int)value;
@end

static volatile uint64_t kept;

/* Two methods with one implementation, as linkers make of equal functions. */
void lab_prepare_classes(void) {
    Method *methods;
    unsigned count, from = 0, to = 0;
    methods = class_copyMethodList(objc_lookUpClass("Sensor"), &count);
    for (unsigned index = 0; index < count; index++) {
        if (method_getName(methods[index]) == @selector(same:)) from = index;
        if (method_getName(methods[index]) == @selector(other:)) to = index;
    }
    method_setImplementation(methods[to], method_getImplementation(methods[from]));
}

FUNCTION static int send(id object, int value) {
    double scaled = [(Sensor *)object read:value scaled:2.5 by:0.5f];
    int result = [(Sensor *)object read:value] + [Sensor shared:value];
    lab_note("scaled", (uint64_t)(scaled * 10));
    result += [(Base *)object inherited:result] + [(Sensor *)object same:value];
    return result + [(Sensor *)object other:value] + [(Sensor *)nil read:1];
}

FUNCTION static int send_late(void) {
    int result = 0;
    void *handle = dlopen(lab_plugin, RTLD_NOW);
    Class late = objc_lookUpClass("Late");
    struct {
        Class isa;
    } object = {late};
    lab_note("opened", handle != 0 && late != Nil);
    for (int value = 0; value < 3; value++)
        result += [(__bridge id<Reading>)(void *)&object read:value];
    return result;
}

void lab_send_messages(void) {
    struct {
        Class isa;
    } sensor = {objc_lookUpClass("Sensor")}, camera = {objc_lookUpClass("Camera")};
    for (int value = 0; value < 3; value++) {
        kept = (uint64_t)send((__bridge id)(void *)&sensor, value);
        kept += (uint64_t)[(__bridge Camera *)(void *)&camera read:value];
        kept += (uint64_t)[(__bridge Camera *)(void *)&camera inherited:value];
    }
    kept += (uint64_t)send_late();
}
