/* The lab's program: the test calls one of its functions, which starts and stops the agent. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

#include "lab.h"
#include "machtrace.h"

const char lab_spool[1024] = "x"; /* written by the test, as the rest of this */
const char lab_plugin[1024] = "x", lab_other_plugin[1024] = "x";
volatile uint64_t lab_flags = 0x100; /* of each rule: the low byte */
const char lab_rules[16][64] = {"x"};
volatile uint64_t lab_scenario = 1, lab_count = 1;

#define FIRST_WATCHED 9 /* scenarios with the watchdog */

static volatile uint64_t kept; /* results that are not used otherwise */

static int start(void)
{
    static machtrace_function_t functions[16];
    size_t count = 0;
    for (; count < 16 && ((volatile const char *)lab_rules[count])[0] != 0; count++)
        functions[count] = (machtrace_function_t){lab_rules[count], lab_flags & 0xff};
    machtrace_options_t options = {.size = sizeof options,
                                   .tree_bits = 16,
                                   .spool_path = lab_spool,
                                   .spool_size = 1 << 20,
                                   .threads_max = 8,
                                   .functions = functions,
                                   .function_count = count};
    if (lab_scenario >= FIRST_WATCHED) {
        options.hang_ms = 100;
        options.memory_limit = UINT64_C(1) << 30;
        options.cpu_percent = 50;
        options.cpu_seconds = 1;
    }
    return machtrace_start(&options);
}

/* --- calls of every kind --- */

int (*lab_pointers[2])(int) = {sdk_read, sdk_write};
int (*const lab_constant_pointer)(int) = sdk_read;

FUNCTION static int inner(int value)
{
    return sdk_read(value) + lab_pointers[1](value);
}

FUNCTION static int outer(int value)
{
    int (*volatile const *pointer)(int) = &lab_constant_pointer;
    int (*volatile taken)(int) = sdk_read; /* by a slot that is read-only */
    int result = inner(value) + kit_both(value) + (*pointer)(value) + taken(value);
    if (sdk_missing_weak != NULL)
        result += sdk_missing_weak(value);
    return result + inner(result);
}

FUNCTION static int descend(int depth)
{
    if (depth == 0)
        return sdk_read(0);
    int result = descend(depth - 1);
    __asm__ volatile("" : "+r"(result)); /* so that it is no loop */
    return result + 1;
}

/* One call directly before its function returns: a jump. */
FUNCTION static int tail(int value)
{
    kept = (uint64_t)value;
    return sdk_write(value);
}

FUNCTION static void calls(void)
{
    for (int round = 0; round < 3; round++)
        kept = (uint64_t)outer(round);
    for (int depth = 0; depth < 4; depth++)
        kept = (uint64_t)descend(depth);
    kept = (uint64_t)tail(4);
}

FUNCTION static void arguments(void)
{
    struct large result =
        sdk_arguments(1, 2, 3, 4, 5, 6, 7, 8, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 99);
    static const uint64_t expected[8] = {321, 654, 87, 99, 21, 43, 65, 87};
    uint64_t wrong = 0;
    for (int index = 0; index < 8; index++)
        wrong += result.words[index] != expected[index];
    lab_note("wrong", wrong);
}

FUNCTION static void deep(void)
{
    kept = (uint64_t)descend((int)lab_count);
}

/* A repeated stack of some depth. */
FUNCTION static int repeat(int depth)
{
    int sum = 0;
    if (depth > 0) {
        sum = repeat(depth - 1);
        __asm__ volatile("" : "+r"(sum));
        return sum + 1;
    }
    for (uint64_t round = 0; round < lab_count; round++)
        sum += sdk_read((int)round);
    return sum;
}

static void repeated(void)
{
    kept = (uint64_t)repeat(31);
}

/* --- images that come and go --- */

FUNCTION static void use_plugin(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW);
    int (*function)(int) = NULL;
    if (handle != NULL)
        function = (int (*)(int))dlsym(handle, "plugin_use");
    lab_note("opened", function != NULL);
    if (function == NULL)
        return;
    kept = (uint64_t)function(1);
    kept = (uint64_t)function(2);
    dlclose(handle);
}

FUNCTION static void plugins(void)
{
    use_plugin(lab_plugin);
    use_plugin(lab_other_plugin);
    use_plugin(lab_plugin);
}

/* --- threads --- */

FUNCTION static void *work(void *argument)
{
    for (uint64_t round = 0; round < lab_count; round++)
        kept += (uint64_t)outer((int)(uintptr_t)argument);
    return NULL;
}

FUNCTION static void threads(void)
{
    pthread_t made[12];
    /* In total more than threads_max. */
    for (int round = 0; round < 3; round++) {
        for (int index = 0; index < 4; index++)
            pthread_create(&made[index], NULL, work, (void *)(uintptr_t)index);
        for (int index = 0; index < 4; index++)
            pthread_join(made[index], NULL);
    }
}

/* --- the stack of another thread --- */

void lab_taken(const uint64_t *taken); /* the test reads it */

static struct {
    uint64_t thread, depth, frames[64];
} taken;
static _Atomic int is_waiting, is_over;

FUNCTION static void wait_deep(int depth)
{
    if (depth > 0)
        wait_deep(depth - 1);
    else
        is_waiting = 1;
    while (depth == 0 && !is_over)
        usleep(1000);
    __asm__ volatile("");
}

FUNCTION static void *wait_for_end(void *unused)
{
    pthread_threadid_np(NULL, &taken.thread);
    wait_deep(5);
    return unused;
}

FUNCTION static void another(void)
{
    pthread_t made;
    pthread_create(&made, NULL, wait_for_end, NULL);
    while (!is_waiting)
        usleep(1000);
    taken.depth = machtrace_backtrace(taken.thread, taken.frames, 64);
    lab_taken(&taken.thread);
    is_over = 1;
    pthread_join(made, NULL);
    lab_note("gone", machtrace_backtrace(taken.thread, taken.frames, 64));
}

void lab_prepare_classes(void);
void lab_send_messages(void);
void lab_run_tasks(void);
void lab_run_loop(void);
void lab_state_idle(void);
int lab_main(void);

int lab_main(void)
{
    static void (*const scenarios[])(void) = {
        calls, arguments, deep, repeated, plugins, threads, lab_send_messages, lab_run_tasks,
        another, lab_run_loop, lab_state_idle,
    };
    lab_prepare_classes();
    lab_note("begin", 0);
    int error = start();
    lab_note("start", (uint64_t)error);
    lab_note("before", 0);
    if (error == 0)
        scenarios[lab_scenario]();
    lab_note("during", 0);
    lab_note("stop", (uint64_t)machtrace_stop());
    return 0;
}
