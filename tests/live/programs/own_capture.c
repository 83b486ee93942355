/* Samples all threads of its own process by the capture core alone, without Python.
 *
 * As a library: sampler_start(hz), sampler_stop(counts). As a program (-DPROGRAM): 32 threads mix
 * malloc, dlopen, fork and exec, deep recursion and thread churn for the given seconds while two
 * threads sample; it prints its counts, and fails where a stack is not well formed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "inprocess/core/capture.h"

#define MOST 256
#define ROOM (1 << 18)

static _Atomic bool done;
static _Atomic uint64_t samples, copied, gone, blocked, late, failed, malformed;
static pthread_t sampler;
static long rate;

static uint64_t stack_pointer(const struct machtrace_thread *thread)
{
    uint64_t sp;
#if defined(__x86_64__)
    memcpy(&sp, thread->registers + 152, sizeof sp);
#else
    memcpy(&sp, thread->registers + 248, sizeof sp);
#endif
    return sp;
}

static void check(const struct machtrace_thread *thread)
{
    switch (thread->outcome) {
    case MACHTRACE_COPIED: break;
    case MACHTRACE_GONE: gone++; return;
    case MACHTRACE_BLOCKED: blocked++; return;
    case MACHTRACE_NOT_STOPPED: late++; return;
    default:
        failed++;
        return;
    }
    copied++;
    uint64_t sp = stack_pointer(thread);
    const struct machtrace_stack *stack = &thread->stacks[0];
    bool is_well = thread->stack_count > 0 && stack->size > 0 && sp >= stack->start &&
                   sp < stack->start + stack->size && sp % 2 == 0 &&
                   thread->stopped_at <= thread->resumed_at &&
                   thread->requested_at <= thread->stopped_at;
    malformed += !is_well;
}

static void *sample(void *argument)
{
    (void)argument;
    static const struct machtrace_range everywhere = {0, UINT64_C(1) << 63};
    size_t size = (size_t)MOST * ROOM;
    unsigned char *buffers = mmap(NULL, size, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct machtrace_thread *threads = calloc(MOST, sizeof *threads);
    uint64_t ids[MOST];
    while (!done) {
        int64_t count = machtrace_inprocess_list(ids, MOST);
        size_t others = 0;
        for (int64_t index = 0; index < count && index < MOST; index++) {
            if (ids[index] == machtrace_inprocess_id())
                continue;
            threads[others] = (struct machtrace_thread){
                .id = ids[index], .buffer = buffers + others * ROOM, .room = ROOM};
            others++;
        }
        struct machtrace_inprocess_capture capture = {
            .ranges = &everywhere,
            .range_count = 1,
            .stack_limit = ROOM / 2,
            .answer_limit = 1000000000,
            .sleep_limit = 5000000,
            .together = samples % 8 == 7,
            .threads = threads,
            .thread_count = others,
        };
        if (machtrace_inprocess_begin(0) != 0) {
            failed++;
            break;
        }
        machtrace_inprocess_copy(&capture);
        machtrace_inprocess_end();
        for (size_t index = 0; index < others; index++)
            check(&threads[index]);
        samples++;
        struct timespec pause = {0, 1000000000 / rate};
        nanosleep(&pause, NULL);
    }
    free(threads);
    munmap(buffers, size);
    return NULL;
}

void sampler_start(long hz);
void sampler_stop(uint64_t counts[7]);

void sampler_start(long hz)
{
    rate = hz;
    done = false;
    pthread_create(&sampler, NULL, sample, NULL);
}

void sampler_stop(uint64_t counts[7])
{
    done = true;
    pthread_join(sampler, NULL);
    const uint64_t all[7] = {samples, copied, gone, blocked, late, failed, malformed};
    memcpy(counts, all, sizeof all);
}

#ifdef PROGRAM

static uint64_t descend(unsigned depth)
{
    volatile unsigned char space[200];
    space[depth % sizeof space] = (unsigned char)depth;
    return depth == 0 ? space[0] : descend(depth - 1) + space[depth % sizeof space];
}

static void *nothing(void *argument)
{
    return argument;
}

static void step(size_t kind)
{
    switch (kind) {
    case 0:
        for (size_t size = 1; size < 100000; size += 997)
            free(malloc(size));
        return;
    case 1: {
        void *handle = dlopen("libm.so.6", RTLD_NOW);
        if (handle != NULL)
            dlclose(handle);
        return;
    }
    case 2: {
        pid_t child = fork();
        if (child == 0) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        int status;
        while (waitpid(child, &status, 0) < 0)
            continue;
        usleep(5000);
        return;
    }
    case 3:
        descend(500);
        return;
    case 4: {
        pthread_t thread;
        if (pthread_create(&thread, NULL, nothing, NULL) == 0)
            pthread_join(thread, NULL);
        return;
    }
    default: {
        int ends[2];
        char byte = 'x';
        if (pipe(ends) != 0)
            return;
        if (write(ends[1], &byte, 1) != 1 || read(ends[0], &byte, 1) != 1)
            failed++;
        close(ends[0]);
        close(ends[1]);
        usleep(100);
        return;
    }
    }
}

static _Atomic uint64_t steps[6];

static void *work(void *argument)
{
    size_t kind = (size_t)(uintptr_t)argument % 6;
    while (!done) {
        step(kind);
        steps[kind]++;
    }
    return NULL;
}

int main(int count, char **arguments)
{
    unsigned seconds = count > 1 ? (unsigned)strtoul(arguments[1], NULL, 10) : 5;
    pthread_t workers[32], second;
    for (size_t index = 0; index < 32; index++)
        pthread_create(&workers[index], NULL, work, (void *)(uintptr_t)index);
    sampler_start(200);
    pthread_create(&second, NULL, sample, NULL);
    /* Signals end a sleep early. */
    for (time_t end = time(NULL) + seconds; time(NULL) < end;)
        sleep(1);
    uint64_t counts[7];
    sampler_stop(counts);
    pthread_join(second, NULL);
    for (size_t index = 0; index < 32; index++)
        pthread_join(workers[index], NULL);
    printf("samples %llu copied %llu gone %llu blocked %llu late %llu failed %llu malformed %llu\n",
           (unsigned long long)samples, (unsigned long long)copied, (unsigned long long)gone,
           (unsigned long long)blocked, (unsigned long long)late, (unsigned long long)failed,
           (unsigned long long)malformed);
    bool moved = true;
    for (size_t kind = 0; kind < 6; kind++)
        moved = moved && steps[kind] != 0;
    return counts[5] == 0 && malformed == 0 && failed == 0 && copied != 0 && moved ? 0 : 1;
}

#endif
