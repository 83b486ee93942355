/* An app with a run loop, a consent dialog, and machtrace's agent. */
#include <dlfcn.h>
#include <objc/runtime.h>
#include <stddef.h>

#include "device.h"
#include "machtrace.h"

#define JOBS_MAX 16

CLASS @interface Agreement
- (int)accept;
@end

@implementation Agreement
- (int)accept {
    return 1;
}
@end

/* Written before the start. */
const char app_spool[1024] = "x", app_advertising[1024] = "x";

static volatile int result;

/* --- the run loop: timers, in the order of their times --- */

static struct job {
    void (*function)(void);
    unsigned time;
} jobs[JOBS_MAX];
static size_t job_count;

FUNCTION static void run_after(unsigned time, void (*function)(void)) {
    size_t index = job_count++;
    for (; index > 0 && jobs[index - 1].time < time; index--) jobs[index] = jobs[index - 1];
    jobs[index] = (struct job){function, time};
}

FUNCTION static void run_loop(void) {
    while (job_count > 0) {
        void (*function)(void) = jobs[--job_count].function;
        function();
        __asm__ volatile("");
    }
}

/* --- what the app does --- */

FUNCTION static void launch(void) {
    result += [Pasteboard read:1] + analytics_collect(1);
}

FUNCTION static void ask(void) {
    struct {
        Class isa;
    } agreement = {objc_lookUpClass("Agreement")};
    result += [(__bridge Agreement *)(void *)&agreement accept];
}

FUNCTION static void show_map(void) {
    result += [Location update:2] + analytics_collect(2);
}

FUNCTION static void show_advertisement(void) {
    void *handle = dlopen(app_advertising, RTLD_NOW);
    int (*show)(int) = handle == NULL ? NULL : (int (*)(int))dlsym(handle, "advertising_show");
    if (show != NULL) result += show(3);
}

FUNCTION static void enter_background(void) {
    machtrace_set_background(true);
    result += [Location update:4];
}

/* Called by the emulated process's first function. */
int lab_main(void);

FUNCTION int lab_main(void) {
    static const machtrace_function_t functions[] = {
        {"+[Location update:]", 0},
        {"+[Pasteboard read:]", 0},
        {"+[Identifier advertising:]", 0},
        {"-[Agreement accept]", MACHTRACE_GIVES_CONSENT},
    };
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = app_spool,
                                   .tree_bits = 16,
                                   .spool_size = 1 << 20,
                                   .threads_max = 8,
                                   .functions = functions,
                                   .function_count = sizeof functions / sizeof *functions};
    int error = machtrace_start(&options);
    run_after(400, enter_background);
    run_after(100, ask);
    run_after(300, show_advertisement);
    run_after(0, launch);
    run_after(200, show_map);
    run_loop();
    machtrace_stop();
    return error;
}
