/* What the drivers of real programs share. */
#ifndef LAB_CHECK_H
#define LAB_CHECK_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the run well. */
_Noreturn void leave(void);

/* Ends it as a fault, which fails the build's row. */
#define expect(condition) ((condition) ? (void)0 : fail("", __LINE__))
static inline void fail(const char *what, int line) {
    fprintf(stderr, "line %d: %s", line, what);
    abort();
}

/* Text like a log: words that repeat, numbers that do not. */
static inline size_t make_text(char *out, size_t size) {
    static const char *const words[] = {"open", "close", "read",  "write", "error", "thread",
                                        "main", "queue", "frame", "stack", "image", "offset"};
    uint32_t state = 12345;
    size_t length = 0;
    while (length + 64 < size) {
        state = state * 1664525 + 1013904223;
        length += (size_t)snprintf(out + length, size - length, "%s %s 0x%x;\n",
                                   words[state >> 8 & 7], words[(state >> 16) % 12], state >> 20);
    }
    return length;
}
#endif
