/* An image that is loaded later. */
#include "lab.h"

#ifndef STEP
#define STEP 1
#endif

static volatile int kept;

FUNCTION int plugin_use(int value);

__attribute__((constructor)) static void begin(void)
{
    kept = sdk_read(STEP);
}

#if STEP == 2 /* so that addresses differ */
FUNCTION int plugin_other(int value);

FUNCTION int plugin_other(int value)
{
    return value * 77 + kept;
}
#endif

FUNCTION int plugin_use(int value)
{
    int result = sdk_write(value) + STEP;
    return result + sdk_read(result);
}
