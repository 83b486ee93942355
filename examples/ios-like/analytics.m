/* An SDK that the app links. */
#include "device.h"

FUNCTION int analytics_collect(int value) {
    return [Identifier advertising:value] + [Pasteboard read:value];
}
