/* An SDK that the app loads later. */
#include "device.h"

FUNCTION int advertising_show(int value) {
    return [Identifier advertising:value] + [Location update:value];
}
