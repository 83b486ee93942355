/* One thing each that the agent does: scenarios SPOOL NAME [ARGUMENT]. Prints names and values. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "machtrace.h"

int observed(int value);
int observed_twice(int value);
double observed_arguments(int a, double b, const char *c, long d, float e, int f, int g, int h,
                          double i, long j);
int observed_variadic(const char *format, ...);

struct large {
    long values[6];
};
struct large observed_result(long first);

static const char *spool;
static volatile int sink;

static int start_with(const char *path, const char *const *names, size_t count)
{
    machtrace_function_t functions[32];
    for (size_t index = 0; index < count; index++)
        functions[index] = (machtrace_function_t){names[index], 0};
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = path,
                                   .functions = functions,
                                   .function_count = count};
    return machtrace_start(&options);
}

static void start(const char *const *names, size_t count)
{
    int error = start_with(spool, names, count);
    if (error != 0) {
        fprintf(stderr, "%s\n", strerror(error));
        exit(1);
    }
}

static const char *const one_name[] = {"observed"};

static __attribute__((noinline)) void observe(int times)
{
    for (int time = 0; time < times; time++)
        sink = observed(time);
}

static unsigned long long seen(const char *name)
{
    uint64_t calls = 0;
    machtrace_function_state(name, &calls);
    return calls;
}

/* --- every byte is restored --- */

#define SLOTS_MAX 65536

static struct {
    uint64_t *slot;
    uint64_t value;
} slots[SLOTS_MAX];
static size_t slot_count;
static unsigned long long different;

static int look(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    (void)data;
    const ElfW(Dyn) *dynamic = NULL;
    uint64_t tables[2] = {0, 0}, sizes[2] = {0, 0};
    for (int index = 0; index < info->dlpi_phnum; index++)
        if (info->dlpi_phdr[index].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(uintptr_t)(info->dlpi_addr +
                                                     info->dlpi_phdr[index].p_vaddr);
    if (dynamic == NULL || strstr(info->dlpi_name, "vdso") != NULL)
        return 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_JMPREL)
            tables[0] = dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_PLTRELSZ)
            sizes[0] = dynamic->d_un.d_val;
        else if (dynamic->d_tag == DT_RELA)
            tables[1] = dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_RELASZ)
            sizes[1] = dynamic->d_un.d_val;
    }
    for (int table = 0; table < 2; table++) {
        const ElfW(Rela) *relocations = (const ElfW(Rela) *)(uintptr_t)tables[table];
        for (size_t index = 0; index < sizes[table] / sizeof *relocations; index++) {
            uint64_t type = ELF64_R_TYPE(relocations[index].r_info);
            if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT &&
                type != R_AARCH64_JUMP_SLOT && type != R_AARCH64_GLOB_DAT)
                continue;
            uint64_t *slot = (uint64_t *)(uintptr_t)(info->dlpi_addr + relocations[index].r_offset);
            if (slot_count < SLOTS_MAX) {
                slots[slot_count].slot = slot;
                slots[slot_count++].value = *slot;
            }
        }
    }
    return 0;
}

static void *image_of(uint64_t address)
{
    Dl_info info;
    return dladdr((void *)(uintptr_t)address, &info) != 0 ? info.dli_fbase : NULL;
}

/* Whether the loader has resolved a slot since: it led to its own image, and leads to another that
 * is not the agent's. The agent's thread calls some functions first when the machine is busy. */
static int is_resolved(size_t index)
{
    uint64_t value = *slots[index].slot;
    void *own = image_of((uint64_t)(uintptr_t)slots[index].slot);
    void *agent = image_of((uint64_t)(uintptr_t)machtrace_start);
    return image_of(slots[index].value) == own && image_of(value) != own &&
           image_of(value) != agent;
}

static void compare(void)
{
    different = 0;
    for (size_t index = 0; index < slot_count; index++)
        different += *slots[index].slot != slots[index].value && !is_resolved(index);
}

/* Mappings of files: their addresses and rights, without what grows. */
static unsigned long long rights(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[1024];
    unsigned long long sum = 5381;
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strchr(line, '/') != NULL && strstr(line, ".spool") == NULL)
            for (const char *at = line; *at != '\0'; at++)
                sum = sum * 33 + (unsigned char)*at;
    if (file != NULL)
        fclose(file);
    return sum;
}

static void restore(void)
{
    static const char *const names[] = {"malloc", "free",   "open",     "read",   "write",
                                        "fopen",  "fclose", "observed", "strlen", "fgets",
                                        "mmap",   "dlopen", "dlclose",  "getenv", "observed_twice"};
    /* The loader resolves what the C library calls first now. */
    for (int round = 0; round < 2; round++) {
        start(names, sizeof names / sizeof *names);
        rights();
        machtrace_stop();
    }
    unsigned long long before = rights();
    printf("ready 1 ");
    fflush(stdout);
    compare();
    dl_iterate_phdr(look, NULL);
    for (int round = 0; round < 3; round++) {
        start(names, sizeof names / sizeof *names);
        compare();
        unsigned long long during = different;
        unsigned long long rights_during = rights();
        int error = machtrace_stop();
        compare();
        printf("during%d %llu after%d %llu stop%d %d rights%d %d rights-during%d %d ", round, during,
               round, different, round, error, round, rights() == before, round,
               rights_during == before);
    }
    observe(3);
    printf("state %d\n", machtrace_function_state("observed", NULL));
}

/* --- arguments and results --- */

static void arguments(void)
{
    static const char *const names[] = {"observed_arguments", "observed_variadic",
                                        "observed_result"};
    double plain = observed_arguments(1, 2.5, "three", 4, 5.5f, 6, 7, 8, 9.5, 10);
    int variadic = observed_variadic("diLs", 1, 2.5, 3L, "four");
    struct large result = observed_result(7);
    start(names, 3);
    int wrong = 0;
    for (int round = 0; round < 1000; round++) {
        wrong += observed_arguments(1, 2.5, "three", 4, 5.5f, 6, 7, 8, 9.5, 10) != plain;
        wrong += observed_variadic("diLs", 1, 2.5, 3L, "four") != variadic;
        struct large again = observed_result(7);
        wrong += memcmp(&again, &result, sizeof again) != 0;
        errno = 77;
        observed_result(8);
        wrong += errno != 77;
    }
    printf("wrong %d seen %llu\n", wrong, seen("observed_result"));
    machtrace_stop();
}

/* --- depth --- */

static __attribute__((noinline)) int descend(int left)
{
    int result = left == 0 ? observed(left) : descend(left - 1) + 1;
    __asm__ volatile("" ::: "memory");
    return result;
}

static void *run_deep(void *depth)
{
    sink = descend((int)(intptr_t)depth - 1);
    return NULL;
}

static size_t depth_here;
static uint32_t identities[2];

static __attribute__((noinline)) int descend_to_backtrace(int left, int origin)
{
    int result = 0;
    if (left == 0) {
        depth_here = machtrace_backtrace(MACHTRACE_THREAD_SELF, NULL, 0);
        identities[origin] = machtrace_stack_identity();
    } else {
        result = descend_to_backtrace(left - 1, origin) + 1;
    }
    __asm__ volatile("" ::: "memory");
    return result;
}

static __attribute__((noinline)) void first_origin(int depth)
{
    sink = descend(depth - 1);
    sink = descend_to_backtrace(depth - 1, 0);
    __asm__ volatile("" ::: "memory");
}

static __attribute__((noinline)) void second_origin(int depth)
{
    sink = descend(depth - 1);
    sink = descend_to_backtrace(depth - 1, 1);
    __asm__ volatile("" ::: "memory");
}

static void *run_origins(void *depth)
{
    for (int round = 0; round < 3; round++) {
        first_origin((int)(intptr_t)depth);
        second_origin((int)(intptr_t)depth);
    }
    return NULL;
}

static ucontext_t deep_context, shallow_context;
static int deep_depth;

static void enter_deep(void)
{
    run_origins((void *)(intptr_t)deep_depth);
}

/* On a stack that the thread did not begin with. */
static void *run_origins_elsewhere(void *depth)
{
    size_t size = (size_t)128 << 20;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    deep_depth = (int)(intptr_t)depth;
    getcontext(&deep_context);
    deep_context.uc_stack.ss_sp = memory;
    deep_context.uc_stack.ss_size = size;
    deep_context.uc_link = &shallow_context;
    makecontext(&deep_context, enter_deep, 0);
    swapcontext(&shallow_context, &deep_context);
    munmap(memory, size);
    return NULL;
}

static void deep(int depth, void *(*run)(void *))
{
    start(one_name, 1);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, (size_t)128 << 20);
    pthread_create(&thread, &attributes, run, (void *)(intptr_t)depth);
    pthread_join(thread, NULL);
    machtrace_stop();
    printf("depth %d here %zu differ %d\n", depth, depth_here, identities[0] != identities[1]);
}

/* --- nested calls --- */

static void nested(void)
{
    static const char *const names[] = {"observed", "observed_twice"};
    start(names, 2);
    sink = observed_twice(1);
    sink = observed(1);
    machtrace_stop();
    printf("done 1\n");
}

/* --- other stacks --- */

static ucontext_t main_context, other_context;

static void on_other_stack(void)
{
    sink = descend(3);
}

static void on_signal(int number)
{
    (void)number;
    sink = descend(4);
}

static void other_stacks(void)
{
    start(one_name, 1);
    size_t size = 1 << 16;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&other_context);
    other_context.uc_stack.ss_sp = memory;
    other_context.uc_stack.ss_size = size;
    other_context.uc_link = &main_context;
    makecontext(&other_context, on_other_stack, 0);
    swapcontext(&main_context, &other_context);
    munmap(memory, size);
    stack_t alternate = {.ss_sp = malloc(size), .ss_size = size, .ss_flags = 0};
    sigaltstack(&alternate, NULL);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    sink = descend(5);
    void *memory_of_signals = alternate.ss_sp;
    alternate.ss_flags = SS_DISABLE;
    sigaltstack(&alternate, NULL);
    free(memory_of_signals);
    printf("seen %llu\n", seen("observed"));
    machtrace_stop();
}

/* --- handlers that leave hooks by a jump --- */

static sigjmp_buf out;
static volatile sig_atomic_t jumps;

static void jump(int number)
{
    (void)number;
    jumps++;
    siglongjmp(out, 1);
}

static void jumping(void)
{
    start(one_name, 1);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = jump;
    sigaction(SIGALRM, &action, NULL);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    struct itimerspec often = {{0, 50000}, {0, 50000}}, never = {{0, 0}, {0, 0}};
    sigsetjmp(out, 1);
    if (jumps < 2000) {
        timer_settime(timer, 0, &often, NULL);
        for (;;)
            observe(1000);
    }
    timer_settime(timer, 0, &never, NULL);
    action.sa_handler = SIG_IGN;
    sigaction(SIGALRM, &action, NULL);
    unsigned long long before = seen("observed");
    machtrace_losses_t losses;
    machtrace_flush();
    machtrace_get_losses(&losses);
    unsigned long long counted = losses.events_counted;
    observe(1000);
    unsigned long long after = seen("observed");
    machtrace_get_losses(&losses);
    machtrace_stop();
    printf("jumps %d quiet %llu counted %llu\n", (int)jumps, after - before,
           (unsigned long long)losses.events_counted - counted);
}

/* --- children --- */

static void children(void)
{
    start(one_name, 1);
    observe(10);
    pid_t child = fork();
    if (child == 0) {
        observe(1000);
        char path[4096];
        snprintf(path, sizeof path, "%s.child", spool);
        int same = start_with(spool, one_name, 1);
        int other = start_with(path, one_name, 1);
        observe(7);
        int stop = machtrace_stop();
        _exit(same == EBUSY && other == 0 && stop == 0 ? 7 : 1);
    }
    int status = 0, quiet = 0, code = 0;
    waitpid(child, &status, 0);
    code = WEXITSTATUS(status);
    /* Without the handlers of pthread_atfork(3). */
    child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        observe(1000);
        syscall(SYS_exit_group, 7);
    }
    waitpid(child, &status, 0);
    quiet = WEXITSTATUS(status);
    observe(5);
    unsigned long long calls = seen("observed");
    int error = machtrace_stop();
    printf("child %d clone %d seen %llu stop %d\n", code, quiet, calls, error);
}

/* --- two agents --- */

typedef int start_function(const machtrace_options_t *options);
typedef int stop_function(void);

static void two_agents(const char *copy)
{
    char path[4096];
    void *handle = dlopen(copy, RTLD_NOW | RTLD_LOCAL);
    start_function *start_other = (start_function *)dlsym(handle, "machtrace_start");
    stop_function *stop_other = (stop_function *)dlsym(handle, "machtrace_stop");
    const machtrace_function_t functions[] = {{"observed", 0}};
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = spool,
                                   .functions = functions,
                                   .function_count = 1};
    start(one_name, 1);
    int same = start_other(&options);
    snprintf(path, sizeof path, "%s.other", spool);
    options.spool_path = path;
    int other = start_other(&options);
    int again = start_with(spool, one_name, 1);
    observe(10);
    int first = machtrace_stop(); /* below the other's hook */
    observe(100);
    int second = stop_other();
    observe(1000);
    printf("distinct %d same %d other %d again %d first %d second %d\n",
           start_other != machtrace_start, same, other, again, first, second);
}

/* --- images that are loaded later --- */

static void plugins(const char *path)
{
    typedef int function(int);
    start(one_name, 1);
    int found = 0;
    for (int round = 0; round < 3; round++) {
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (handle == NULL)
            continue;
        function *call = (function *)dlsym(handle, "plugged_call");
        for (int time = 0; time < 10 && call != NULL; time++)
            found += call(time) == time + 2;
        dlclose(handle);
    }
    unsigned long long calls = seen("observed");
    int error = machtrace_stop();
    printf("found %d seen %llu stop %d\n", found, calls, error);
}

/* --- starts and stops while images come and go --- */

static _Atomic int is_over;
static _Atomic unsigned long long own_calls, load_errors;
static const char *cycled;

static void *load_always(void *argument)
{
    typedef int function(int);
    (void)argument;
    while (is_over == 0) {
        void *handle = dlopen(cycled, RTLD_NOW | RTLD_LOCAL);
        function *call = handle == NULL ? NULL : (function *)dlsym(handle, "plugged_call");
        if (call == NULL || call(1) != 3)
            load_errors++;
        else
            own_calls++;
        observe(20);
        if (handle != NULL)
            dlclose(handle);
    }
    return NULL;
}

static void cycles(const char *path)
{
    pthread_t threads[4];
    int wrong = 0;
    cycled = path;
    start(one_name, 1);
    machtrace_stop();
    dl_iterate_phdr(look, NULL);
    for (int thread = 0; thread < 4; thread++)
        pthread_create(&threads[thread], NULL, load_always, NULL);
    for (int round = 0; round < 60; round++) {
        start(one_name, 1);
        usleep(3000);
        wrong += machtrace_stop() != 0;
    }
    is_over = 1;
    for (int thread = 0; thread < 4; thread++)
        pthread_join(threads[thread], NULL);
    /* No stub is left: the file is of the last run alone, and the program's slots are as before. */
    unsigned long long left = 0;
    for (size_t index = 0; index < slot_count; index++)
        left += slots[index].value == (uint64_t)(uintptr_t)observed &&
                *slots[index].slot != slots[index].value;
    printf("wrong %d errors %llu called %d left %llu\n", wrong, load_errors, own_calls > 0, left);
}

/* --- input that is invalid --- */

static void invalid(void)
{
    char name[300];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    const char *const too_long[] = {name}, *const empty[] = {""};
    machtrace_options_t options = {.size = 3, .spool_path = spool};
    machtrace_function_t function = {NULL, 0};
    printf("null %d size %d path %d long %d empty %d stop %d watch %d ", machtrace_start(NULL),
           machtrace_start(&options), start_with(NULL, NULL, 0), start_with(spool, too_long, 1),
           start_with(spool, empty, 1), machtrace_stop(), machtrace_watch(&function, 1));
    start(one_name, 1);
    printf("again %d watch-null %d state %d thread %zu\n", start_with(spool, one_name, 1),
           machtrace_watch(&function, 1), machtrace_function_state("nothing", NULL),
           machtrace_backtrace(0x7fffffff, NULL, 0));
    machtrace_stop();
}

/* --- stacks without a spool --- */

static pthread_barrier_t barrier;
static _Atomic uint64_t other_id;
static _Atomic int stops;

static __attribute__((noinline)) void spin(int left)
{
    if (left > 0)
        spin(left - 1);
    else
        while (stops == 0)
            __asm__ volatile("" ::: "memory");
    __asm__ volatile("" ::: "memory");
}

static void *run_spin(void *argument)
{
    (void)argument;
    other_id = (uint64_t)syscall(SYS_gettid);
    pthread_barrier_wait(&barrier);
    spin(20);
    return NULL;
}

static __attribute__((noinline)) size_t stack_at(int left, uint64_t *frames, size_t capacity,
                                                 uint32_t *identity)
{
    size_t depth;
    if (left > 0) {
        depth = stack_at(left - 1, frames, capacity, identity);
    } else {
        depth = machtrace_backtrace(MACHTRACE_THREAD_SELF, frames, capacity);
        *identity = machtrace_stack_identity();
    }
    __asm__ volatile("" ::: "memory");
    return depth;
}

static void stacks(void)
{
    uint64_t frames[64];
    uint32_t identity[4];
    size_t depths[4];
    for (int round = 0; round < 4; round++)
        depths[round] = stack_at(10 + round / 2, frames, 64, &identity[round]);
    printf("shallow %zu again %zu deep %zu equal %d differ %d ", depths[0], depths[1], depths[2],
           identity[0] == identity[1] && identity[2] == identity[3], identity[0] != identity[2]);
    size_t little = stack_at(10, frames, 1, &identity[0]);
    size_t recursions = 0;
    stack_at(10, frames, 64, &identity[0]);
    for (size_t index = 1; index < 11; index++)
        recursions += frames[index] == frames[1];
    printf("little %zu recursions %zu ", little, recursions);
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, run_spin, NULL);
    pthread_barrier_wait(&barrier);
    size_t best = 0, repeats = 0;
    for (int attempt = 0; attempt < 50 && best < 22; attempt++) {
        usleep(2000);
        size_t depth = machtrace_backtrace(other_id, frames, 64);
        if (depth <= best)
            continue;
        best = depth;
        repeats = 0;
        for (size_t index = 2; index < depth && index < 64; index++)
            repeats += frames[index] == frames[2];
    }
    stops = 1;
    pthread_join(thread, NULL);
    printf("other %zu repeats %zu\n", best, repeats);
}

static size_t all_frames, app_frames, foreign;

static int compare_with_backtrace(const void *one, const void *other)
{
    uint64_t frames[64];
    (void)one;
    (void)other;
    if (all_frames == 0) {
        all_frames = machtrace_backtrace(MACHTRACE_THREAD_SELF, frames, 64);
        app_frames = machtrace_app_frames(frames, all_frames);
        for (size_t index = 0; index < app_frames; index++) {
            Dl_info information = {0};
            dladdr((void *)(uintptr_t)(frames[index] - 1), &information);
            foreign += information.dli_fname == NULL || strstr(information.dli_fname, "/lib");
        }
    }
    return 0;
}

/* The app calls the C library, which calls the app. */
static void app_only(void)
{
    int numbers[2] = {2, 1};
    start(one_name, 1);
    qsort(numbers, 2, sizeof *numbers, compare_with_backtrace);
    machtrace_stop();
    printf("all %zu app %zu foreign %zu none %zu\n", all_frames, app_frames, foreign,
           machtrace_app_frames(NULL, 0));
}

__attribute__((noinline)) void exported_caller(void);

__attribute__((noinline)) void exported_caller(void)
{
    char text[4096], truncated[10];
    size_t length[3];
    for (int round = 0; round < 3; round++)
        length[round] = machtrace_call_stack_symbols(text, sizeof text);
    machtrace_call_stack_symbols(truncated, sizeof truncated);
    printf("lengths %d truncated %zu\n%s", length[0] == length[1] && length[1] == length[2],
           strlen(truncated), text);
}

static void wait_to_be_killed(void)
{
    start(one_name, 1);
    observe(1234);
    machtrace_flush();
    printf("ready 1\n");
    fflush(stdout);
    for (;;)
        observe(1);
}

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    spool = words[1];
    const char *name = words[2], *argument = count > 3 ? words[3] : "";
    if (strcmp(name, "restore") == 0)
        restore();
    else if (strcmp(name, "arguments") == 0)
        arguments();
    else if (strcmp(name, "deep") == 0)
        deep(atoi(argument), run_deep);
    else if (strcmp(name, "app_only") == 0)
        app_only();
    else if (strcmp(name, "origins") == 0)
        deep(atoi(argument), run_origins);
    else if (strcmp(name, "nested") == 0)
        nested();
    else if (strcmp(name, "origins_elsewhere") == 0)
        deep(atoi(argument), run_origins_elsewhere);
    else if (strcmp(name, "other_stacks") == 0)
        other_stacks();
    else if (strcmp(name, "jumping") == 0)
        jumping();
    else if (strcmp(name, "children") == 0)
        children();
    else if (strcmp(name, "two_agents") == 0)
        two_agents(argument);
    else if (strcmp(name, "plugins") == 0)
        plugins(argument);
    else if (strcmp(name, "cycles") == 0)
        cycles(argument);
    else if (strcmp(name, "invalid") == 0)
        invalid();
    else if (strcmp(name, "stacks") == 0)
        stacks();
    else if (strcmp(name, "symbols") == 0)
        exported_caller();
    else if (strcmp(name, "killed") == 0)
        wait_to_be_killed();
    else
        return 2;
    return 0;
}
