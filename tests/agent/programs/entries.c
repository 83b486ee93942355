/* Hooks at first instructions: entries SPOOL NAME [ARGUMENT...]. Prints names and values.
 *
 *     calls                calls by pointers and inside an image, and results
 *     deep DEPTH           a recursion
 *     many NAME...         functions of libraries: how many are watched, how long that takes
 *     threads CYCLES       16 threads call while hooks are installed and removed
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "machtrace.h"

#define THREADS 16
#define NAMES 8

int observed(int value);
int observed_twice(int value);

static const char *spool;
static uint64_t code_hash, code_bytes;

static int add_code(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    (void)data;
    for (size_t index = 0; index < info->dlpi_phnum; index++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[index];
        if (header->p_type != PT_LOAD || (header->p_flags & PF_X) == 0)
            continue;
        const unsigned char *bytes = (const void *)(info->dlpi_addr + header->p_vaddr);
        for (size_t at = 0; at < header->p_memsz; at++)
            code_hash = (code_hash ^ bytes[at]) * UINT64_C(0x100000001b3);
        code_bytes += header->p_memsz;
    }
    return 0;
}

static uint64_t code_now(void)
{
    code_hash = UINT64_C(0xcbf29ce484222325);
    code_bytes = 0;
    dl_iterate_phdr(add_code, NULL);
    return code_hash;
}

/* How many mappings are writable and executable. */
static unsigned writable_code(void)
{
    char line[1024];
    unsigned count = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        count += strstr(line, " rwx") != NULL;
    if (file != NULL)
        fclose(file);
    return count;
}

static uint64_t clock_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static int start(char **names, size_t count, uint32_t flags)
{
    static machtrace_function_t functions[512];
    for (size_t index = 0; index < count; index++)
        functions[index] = (machtrace_function_t){names[index], flags};
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = spool,
                                   .functions = functions,
                                   .function_count = count};
    int error = machtrace_start(&options);
    if (error != 0) {
        fprintf(stderr, "%s\n", strerror(error));
        exit(1);
    }
    return error;
}

static int calls(void)
{
    char *names[] = {"observed", "observed_twice", "absent_function"};
    int (*pointer)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "observed");
    uint64_t before = code_now(), once = 0, twice = 0;
    int wrong = pointer(3) != observed(3), expected = observed_twice(5);
    start(names, 3, MACHTRACE_AT_ENTRY);
    uint64_t during = code_now();
    unsigned writable = writable_code();
    for (int time = 0; time < 10; time++)
        wrong += pointer(3) != observed(3);
    wrong += observed_twice(5) != expected;
    int state = machtrace_function_state("observed", &once);
    int other = machtrace_function_state("observed_twice", &twice);
    int absent = machtrace_function_state("absent_function", NULL);
    int stop = machtrace_stop();
    printf("wrong %d state %d other %d absent %d once %llu twice %llu changed %d restored %d "
           "writable %u stop %d\n",
           wrong, state, other, absent, (unsigned long long)once, (unsigned long long)twice,
           during != before, code_now() == before, writable, stop);
    return 0;
}

static __attribute__((noinline)) int descend(int depth)
{
    int result = depth == 0 ? observed(0) : descend(depth - 1) + 1;
    __asm__ volatile("" ::: "memory"); /* no tail call */
    return result;
}

static int deep(int depth)
{
    char *names[] = {"observed"};
    uint64_t seen = 0;
    start(names, 1, MACHTRACE_AT_ENTRY);
    int result = descend(depth);
    machtrace_function_state("observed", &seen);
    int stop = machtrace_stop();
    printf("seen %llu stop %d\n", (unsigned long long)seen, stop);
    return result != depth + 1;
}

static int by_value(const void *one, const void *other)
{
    return *(const int *)one - *(const int *)other;
}

/* What a program does with libraries. */
static unsigned do_something(void)
{
    char text[256], *end;
    int values[64];
    unsigned wrong = 0;
    for (int index = 0; index < 64; index++)
        values[index] = (index * 37) % 64;
    qsort(values, 64, sizeof values[0], by_value);
    for (int index = 0; index < 64; index++)
        wrong += values[index] != index;
    snprintf(text, sizeof text, "%s %d %.3f %lx", "text", -5, 2.5, 255l);
    wrong += strcmp(text, "text -5 2.500 ff") != 0;
    wrong += strtod("1.25e3", &end) != 1250.0 || strtol("-12", NULL, 10) != -12;
    char *copy = strdup(text);
    wrong += strstr(copy, "2.5") == NULL || strchr(copy, 'f') == NULL || toupper('a') != 'A';
    copy = realloc(copy, 10000);
    memset(copy, 1, 10000);
    wrong += memchr(copy, 2, 10000) != NULL || memcmp(copy, copy + 1, 9000) != 0;
    free(copy);
    FILE *file = fopen("/proc/self/stat", "r");
    wrong += file == NULL || fgets(text, sizeof text, file) == NULL || atoi(text) != getpid();
    if (file != NULL)
        fclose(file);
    wrong += getenv("PATH") == NULL || time(NULL) == 0 || sysconf(_SC_PAGESIZE) < 4096;
    return wrong;
}

static int many(char **names, int count)
{
    uint64_t before = code_now(), calls_made = 0;
    unsigned wrong = do_something(), states[8] = {0};
    uint64_t began = clock_ns();
    start(names, (size_t)count, MACHTRACE_AT_ENTRY);
    uint64_t took = clock_ns() - began;
    for (int time = 0; time < 20; time++)
        wrong += do_something();
    for (int index = 0; index < count; index++) {
        uint64_t seen = 0;
        states[machtrace_function_state(names[index], &seen) & 7]++;
        calls_made += seen;
    }
    began = clock_ns();
    int stop = machtrace_stop();
    uint64_t stopping = clock_ns() - began;
    wrong += do_something();
    printf("wrong %u watched %u refused %u absent %u start_us %llu stop_us %llu stop %d "
           "restored %d writable %u seen %llu bytes %llu\n",
           wrong, states[1], states[6], states[2], (unsigned long long)took / 1000,
           (unsigned long long)stopping / 1000, stop, code_now() == before, writable_code(),
           (unsigned long long)calls_made, (unsigned long long)code_bytes);
    return 0;
}

/* --- threads --- */

static _Atomic int is_over;
static _Atomic unsigned long long made, wrong_results;

static void *call(void *argument)
{
    (void)argument;
    unsigned long long number = 0, wrong = 0;
    for (; !is_over; number++) {
        wrong += observed((int)number) != (int)number + 1;
        wrong += abs(-(int)(number & 255)) != (int)(number & 255);
        wrong += strtol("77", NULL, 10) != 77;
        free(malloc(number & 1023));
        wrong += toupper('b') != 'B';
        wrong += getenv("PATH") == NULL;
    }
    made += number;
    wrong_results += wrong;
    return NULL;
}

static int threads(int cycles)
{
    char *names[] = {"observed", "abs", "strtol", "malloc", "free", "toupper", "getenv", "calloc"};
    pthread_t running[THREADS];
    uint64_t before = code_now(), seen = 0, all = 0;
    unsigned watched = 0, refused = 0, errors = 0, restored = 0;
    for (int thread = 0; thread < THREADS; thread++)
        pthread_create(&running[thread], NULL, call, NULL);
    for (int cycle = 0; cycle < cycles; cycle++) {
        start(names, NAMES, MACHTRACE_AT_ENTRY | MACHTRACE_COUNT_ONLY);
        usleep(2000);
        for (int name = 0; name < NAMES; name++) {
            int state = machtrace_function_state(names[name], &seen);
            watched += state == MACHTRACE_STATE_WATCHED;
            refused += state == MACHTRACE_STATE_REFUSED;
            all += seen;
        }
        errors += machtrace_stop() != 0;
        restored += code_now() == before;
    }
    is_over = 1;
    for (int thread = 0; thread < THREADS; thread++)
        pthread_join(running[thread], NULL);
    printf("made %llu wrong %llu watched %u refused %u errors %u restored %u seen %llu\n", made,
           wrong_results, watched, refused, errors, restored, (unsigned long long)all);
    return 0;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    spool = arguments[1];
    if (strcmp(arguments[2], "calls") == 0)
        return calls();
    if (strcmp(arguments[2], "many") == 0)
        return many(arguments + 3, count - 3);
    if (strcmp(arguments[2], "deep") == 0 && count > 3)
        return deep(atoi(arguments[3]));
    return count > 3 ? threads(atoi(arguments[3])) : 2;
}
