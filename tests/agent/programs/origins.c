/* Calls of `observed` through the functions that arguments name: origins SPOOL PATH...
 *
 * A path is of the letters a and b: "ab" is a call of b by a. Each function has one call, so the
 * return addresses of "ab" and "ba" are the same ones. Prints, for each path, the identity of the
 * stack and its return addresses, innermost first.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "machtrace.h"

int observed(int value);

#define FRAMES_MAX 1024

typedef int step(const char *path);
static volatile int sink;
static uint32_t identity;
static size_t depth;
static uint64_t frames[FRAMES_MAX];

static __attribute__((noinline)) int end(const char *path)
{
    sink = observed((int)strlen(path));
    identity = machtrace_stack_identity();
    depth = machtrace_backtrace(MACHTRACE_THREAD_SELF, frames, FRAMES_MAX);
    return sink;
}

static step a, b;

static step *next(const char *path)
{
    return *path == '\0' ? end : *path == 'a' ? a : b;
}

static __attribute__((noinline)) int a(const char *path)
{
    return next(path + 1)(path + 1) + 1;
}

static __attribute__((noinline)) int b(const char *path)
{
    return next(path + 1)(path + 1) + 2;
}

int main(int count, char **arguments)
{
    const machtrace_function_t functions[] = {{"observed", 0}};
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = arguments[1],
                                   .functions = functions,
                                   .function_count = 1};
    if (count < 2 || machtrace_start(&options) != 0)
        return 1;
    for (int index = 2; index < count; index++) {
        sink = next(arguments[index])(arguments[index]);
        printf("%" PRIu32, identity);
        for (size_t frame = 0; frame < depth; frame++)
            printf(" %" PRIx64, frames[frame]);
        printf("\n");
    }
    return machtrace_stop();
}
