/* Compiled with signed return addresses, as the system's own code is in every process. */
#include "kernel.h"
#include "threads.h"

static volatile uint64_t kept;

OUTLINED static uint64_t measure(uint64_t value) {
    for (int bit = 0; bit < 8; bit++) value ^= value << bit | 1;
    return value;
}

OUTLINED static uint64_t authenticate(uint64_t value) {
    return measure(value) + measure(value + 1);
}

OUTLINED static uint64_t unlock(uint64_t value) {
    return authenticate(value) ^ authenticate(~value);
}

void *serve_signed(void *argument) {
    pthread_setname_np("com.machtrace.signed");
    kept = unlock(0x5eed);
    return argument;
}
