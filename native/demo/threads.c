/* The application's other threads. targets/emulator/demo.py lists where each is stopped. */
#include "threads.h"

#include "kernel.h"
#include "runloop.h"

/* Results are stored where the compiler cannot see that nobody reads them. */
static volatile uint64_t kept;

/* --- deep in recursion --- */

enum { RECURSION_DEPTH = 40 };

OUTLINED static uint64_t descend(uint64_t depth) {
    if (depth == 0) return kept;
    return descend(depth - 1) * 31 + depth;
}

static void *recurse(void *argument) {
    pthread_setname_np("com.machtrace.recursion");
    kept = descend(RECURSION_DEPTH);
    return argument;
}

/* --- in a leaf without a frame, whose caller only the link register has --- */

OUTLINED static uint64_t checksum(const uint64_t *words, size_t count) {
    volatile uint64_t lanes[4] = {1, 2, 3, 4}; /* on the stack: sp moves, fp and lr do not */
    for (size_t at = 0; at < count; at++) lanes[at & 3] += words[at];
    return lanes[0] ^ lanes[1] ^ lanes[2] ^ lanes[3];
}

OUTLINED static uint64_t verify(const uint64_t *words, size_t count) {
    uint64_t sum = checksum(words, count);
    return sum + checksum(words, count / 2);
}

static void *sum(void *argument) {
    static const uint64_t words[16] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53};
    pthread_setname_np("com.machtrace.leaf");
    kept = verify(words, 16);
    return argument;
}

/* --- in a prologue, and in an epilogue, of the same function --- */

OUTLINED static uint64_t parse_header(uint64_t value) {
    return value ^ value >> 7;
}

OUTLINED static uint64_t decode(uint64_t value) {
    uint64_t first = parse_header(value), second = parse_header(first + value);
    return first * second + value;
}

OUTLINED static uint64_t decode_all(uint64_t count) {
    uint64_t total = 0;
    for (uint64_t at = 0; at < count; at++) total += decode(at);
    return total;
}

static void *enter(void *argument) {
    pthread_setname_np("com.machtrace.prologue");
    kept = decode_all(3);
    return argument;
}

static void *leave(void *argument) {
    pthread_setname_np("com.machtrace.epilogue");
    kept = decode_all(3);
    return argument;
}

/* --- blocked in the kernel --- */

static void *receive(void *argument) {
    pthread_setname_np("com.machtrace.network");
    CFRunLoop loop = {.wakeup = mach_reply_port()};
    kept = (uint64_t)CFRunLoopRunSpecific(&loop, "kCFRunLoopDefaultMode");
    return argument;
}

/* --- with every register that calls preserve in use, and a frame of many pages --- */

OUTLINED static uint64_t blend(uint64_t value, double weight) {
    return value + (uint64_t)(weight * 4.0);
}

OUTLINED static uint64_t render(uint64_t seed, double weight) {
    volatile uint64_t canvas[2600]; /* 20,800 bytes */
    uint64_t a = seed + 1, b = a * 3, c = b * 5, d = c * 7, e = d * 11, f = e * 13, g = f * 17,
             h = g * 19, i = h * 23, j = i * 29;
    double p = weight, q = p * 1.5, r = q * 1.5, s = r * 1.5;
    for (int row = 0; row < 4; row++) {
        a += blend(a, p), b += blend(b, q), c += blend(c, r), d += blend(d, s);
        e ^= a, f ^= b, g ^= c, h ^= d, i ^= e, j ^= f;
        p += q, q += r, r += s, s += p;
        canvas[(a ^ j) % 2600] = g ^ h ^ i;
    }
    return a + b + c + d + e + f + g + h + i + j + canvas[seed] + (uint64_t)(p + q + r + s);
}

static void *draw(void *argument) {
    pthread_setname_np("com.machtrace.render");
    kept = render(7, 0.25);
    return argument;
}

void start_threads(void) {
    static void *(*const functions[])(void *) = {
        recurse, sum, enter, leave, receive, serve_tasks, draw, deliver_messages, serve_signed,
    };
    for (size_t at = 0; at < sizeof functions / sizeof *functions; at++)
        start_thread(functions[at], 0);
}
