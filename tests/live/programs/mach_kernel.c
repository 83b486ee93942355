/* A fake of the parts of Darwin's kernel and libdispatch that a process uses, with two threads.
 *
 * Built from mach/mach.h, mach/thread_info.h and mach/vm_region.h: the calls that a script in a
 * process makes, with their arguments in their order. Prints "ready"; for each byte on stdin it
 * prints counters: threads left suspended, ports and arrays not released, and calls that must not be
 * made while a thread is suspended. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 3, PAGE = 4096, STACK = 8 * PAGE, FRAMES = 240, GONE = 2 };

uint32_t mach_task_self_ = 0x103;
const uint16_t dispatch_queue_offsets[8] = {4, 16, 8};

static struct {
    uint32_t port;
    uint64_t id;
    const char *name;
    int suspended;
    uint64_t queue_place, *queue;
    uint64_t state[21]; /* x86_thread_state64_t: rax rbx rcx rdx rdi rsi rbp rsp ... rip */
    unsigned char *stack;
} threads[THREADS] = {{0x203, 501, "main one", 0, 0, 0, {0}, 0},
                      {0x303, 502, "", 0, 0, 0, {0}, 0},
                      {0x403, 503, "leaving", 0, 0, 0, {0}, 0}};
static int held, arrays, wrong, fails;
static uint64_t contexts[2][4];

static int suspended(void)
{
    int count = 0;
    for (int index = 0; index < THREADS; index++)
        count += threads[index].suspended;
    return count;
}

static int find(uint32_t port)
{
    for (int index = 0; index < THREADS; index++)
        if (threads[index].port == port)
            return index;
    return -1;
}

static void not_now(void) { wrong += suspended() != 0; }

int task_threads(uint32_t task, uint32_t **ports, uint32_t *count)
{
    not_now();
    if (task != mach_task_self_)
        return 4;
    *ports = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int index = 0; index < THREADS; index++)
        (*ports)[index] = threads[index].port;
    *count = THREADS;
    held += THREADS;
    arrays++;
    return 0;
}

int mach_port_deallocate(uint32_t task, uint32_t port)
{
    not_now();
    held -= task == mach_task_self_ && find(port) >= 0;
    return 0;
}

int mach_vm_deallocate(uint32_t task, uint64_t address, uint64_t size)
{
    not_now();
    if (task != mach_task_self_ || size != 4 * THREADS)
        return 4;
    munmap((void *)address, PAGE);
    arrays--;
    return 0;
}

int thread_info(uint32_t port, uint32_t flavor, void *info, uint32_t *count)
{
    not_now();
    int at = find(port);
    if (at < 0)
        return 0x10000003;
    if (flavor == 4 && *count == 6) {
        uint64_t known[3] = {threads[at].id, 0x1000, (uint64_t)threads[at].queue};
        memcpy(info, known, sizeof known);
        return 0;
    }
    if (flavor == 5 && *count == 28) {
        memset(info, 0, 112);
        strcpy((char *)info + 48, threads[at].name);
        return 0;
    }
    if (flavor == 3 && *count == 10) { /* user time, system time; the third word on is the state */
        uint32_t known[10] = {1, 500, 2, 20 * at, 0, 0, at == 0 ? 1 : 3};
        memcpy(info, known, sizeof known);
        return 0;
    }
    return 4;
}

int task_info(uint32_t task, uint32_t flavor, void *info, uint32_t *count)
{
    if (task != mach_task_self_ || flavor != 22 || *count != 38)
        return 4;
    ((uint64_t *)info)[18] = 77 << 20;
    return 0;
}

/* CoreFoundation's run loop, as far as an observer needs it. */
static struct {
    unsigned long activities;
    void (*call)(void *, unsigned long, void *);
    void *info;
    int added, invalid, released;
} observer;
const void *kCFRunLoopCommonModes = "common modes";

void *CFRunLoopGetMain(void) { return threads; }

void *CFRunLoopObserverCreate(void *allocator, unsigned long activities, unsigned char repeats, long order,
                              void (*call)(void *, unsigned long, void *), void **context)
{
    wrong += allocator != NULL || !repeats || order <= 0;
    observer.activities = activities;
    observer.call = call;
    observer.info = context[1];
    return &observer;
}

void CFRunLoopAddObserver(void *loop, void *added, const void *mode)
{
    wrong += mode != kCFRunLoopCommonModes;
    observer.added += loop == threads && added == &observer;
}

void CFRunLoopObserverInvalidate(void *added) { observer.invalid += added == &observer; }

void CFRelease(void *object) { observer.released += object == &observer; }

static void turn(unsigned long activity)
{
    if (observer.added && !observer.invalid && observer.activities & activity)
        observer.call(&observer, activity, observer.info);
}

int thread_suspend(uint32_t port)
{
    int at = find(port);
    if (at < 0 || at == GONE)
        return 37;
    threads[at].suspended++;
    return 0;
}

int thread_resume(uint32_t port)
{
    threads[find(port)].suspended--;
    return 0;
}

int thread_get_state(uint32_t port, int flavor, void *state, uint32_t *count)
{
    int at = find(port);
    wrong += !threads[at].suspended;
    if (flavor != 4 || *count != 42 || (fails && at == 1))
        return 4;
    memcpy(state, threads[at].state, sizeof threads[at].state);
    return 0;
}

int mach_vm_read_overwrite(uint32_t task, uint64_t address, uint64_t size, uint64_t to, uint64_t *got)
{
    struct iovec here = {(void *)to, size}, there = {(void *)address, size};
    if (task != mach_task_self_)
        return 4;
    if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != (ssize_t)size)
        return 1; /* all or nothing */
    *got = size;
    return 0;
}

int mach_vm_region(uint32_t task, uint64_t *address, uint64_t *size, int flavor, void *info,
                   uint32_t *count, uint32_t *object)
{
    if (task != mach_task_self_ || flavor != 13 || *count != 9)
        return 4;
    *object = 0;
    for (int index = 0; index < THREADS; index++) {
        uint64_t start = (uint64_t)threads[index].stack;
        for (int half = 0; half < 2; half++, start += STACK / 2) { /* in two regions that adjoin */
            if (*address < start || *address >= start + STACK / 2)
                continue;
            uint32_t known[9] = {3, 30};
            memcpy(info, known, sizeof known);
            *address = start;
            *size = STACK / 2;
            return 0;
        }
    }
    return 1;
}

uint64_t mach_absolute_time(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return ((uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec) / 125 * 3;
}

int mach_timebase_info(void *info)
{
    uint32_t base[2] = {125, 3};
    memcpy(info, base, sizeof base);
    return 0;
}

static uint64_t queue_of_label[4];

int main(void)
{
    char byte;
    for (int index = 0; index < THREADS; index++) {
        unsigned char *memory = mmap(NULL, STACK + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(memory, PAGE, PROT_NONE);
        mprotect(memory + PAGE + STACK, PAGE, PROT_NONE);
        threads[index].stack = memory + PAGE;
        /* Frame records from the very start of the stack: below is the guard page. */
        uint64_t *words = (uint64_t *)threads[index].stack;
        for (int frame = 0; frame < FRAMES; frame++) {
            words[4 * frame] = frame + 1 < FRAMES ? (uint64_t)(words + 4 * (frame + 1)) : 0;
            words[4 * frame + 1] = 0x100000000 + 16 * (uint64_t)(index * 1000 + frame);
        }
        threads[index].state[6] = (uint64_t)words;
        threads[index].state[7] = (uint64_t)words;
        threads[index].state[16] = 0x200000000 + (uint64_t)index;
    }
    contexts[0][0] = (uint64_t)contexts[1];
    contexts[0][1] = 0x300000010;
    contexts[1][1] = 0x300000020;
    uint64_t *tagged = (uint64_t *)threads[1].stack + 4 * 7;
    tagged[0] |= UINT64_C(1) << 60;
    tagged[-1] = (uint64_t)contexts[0];
    queue_of_label[2] = (uint64_t)"com.example.work";
    threads[1].queue_place = (uint64_t)queue_of_label;
    threads[1].queue = &threads[1].queue_place;
    printf("ready\n%llx\n", (unsigned long long)contexts[0]);
    fflush(stdout);
    while (read(0, &byte, 1) == 1) {
        if (byte == 'f')
            fails = 1;
        if (byte == 'b') { /* the loop wakes, and calls two sources */
            turn(64);
            turn(2);
            turn(4);
        }
        if (byte == 'i')
            turn(32);
        if (byte == 'o') {
            printf("added %d invalid %d released %d\n", observer.added, observer.invalid, observer.released);
            fflush(stdout);
            continue;
        }
        printf("suspended %d ports %d arrays %d wrong %d\n", suspended(), held, arrays, wrong);
        fflush(stdout);
    }
    return 0;
}
