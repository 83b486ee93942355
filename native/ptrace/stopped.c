#define _GNU_SOURCE
#include "ptrace/stopped.h"

#include <elf.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "common/linux/registers.h"

/* Bytes below the stack pointer that a leaf function may use (System V psABI for
 * x86-64, 3.2.2); other architectures have none, and lose nothing by it. */
#define RED_ZONE 128

/* stack_guard_gap: 256 pages below a growing stack; other stacks have smaller guards. */
#define STACK_GAP (UINT64_C(1) << 20)

/* The first bytes of a buffer for stacks, which are present before a thread is
 * stopped. Few stacks are deeper, and preparing more would take longer than all else. */
#define PRESENT_SIZE (256 * 1024)

/* Bytes of a stack that are searched for a signal frame. */
#define SIGNAL_FRAME_REACH (64 * 1024)

#ifndef NT_ARM_TLS
#define NT_ARM_TLS 0x401
#endif

/* The last capture's buffers, for the next: to create them takes longer than to copy ten threads. */
struct spare {
    size_t size;
};
static _Atomic(struct spare *) spare; /* at the beginning of its own memory */

static size_t whole_size(size_t size)
{
    return size * MACHTRACE_STACKS_MAX;
}

int machtrace_scratch_take(struct machtrace_scratch *scratch, size_t stack_limit)
{
    size_t size = ((RED_ZONE + stack_limit) | 4095) + 1;
    struct spare *cached = atomic_exchange(&spare, NULL);
    if (cached != NULL && cached->size != size) {
        munmap(cached, whole_size(cached->size));
        cached = NULL;
    }
    unsigned char *memory = (unsigned char *)cached;
    if (cached == NULL) {
        void *mapped = mmap(NULL, whole_size(size), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED)
            return errno;
        memory = mapped;
        /* No page faults while copying: what most stacks need of the first buffer is present
         * before the first stop. */
        memset(memory, 0, size < PRESENT_SIZE ? size : PRESENT_SIZE);
    }
    scratch->size = size;
    for (size_t index = 0; index < MACHTRACE_STACKS_MAX; index++)
        scratch->stacks[index] = memory + index * size;
    return 0;
}

void machtrace_scratch_give_back(struct machtrace_scratch *scratch)
{
    unsigned char *memory = scratch->stacks[0];
    size_t size = scratch->size;
    /* Return the pages of deep stacks. */
    if (size > PRESENT_SIZE)
        madvise(memory + PRESENT_SIZE, whole_size(size) - PRESENT_SIZE, MADV_DONTNEED);
    struct spare *cached = (struct spare *)(void *)memory;
    cached->size = size;
    struct spare *other = atomic_exchange(&spare, cached);
    if (other != NULL)
        munmap(other, whole_size(other->size));
}

/* The mapping that holds `address`, or the next one above: a stack may have grown down, or been
 * mapped, since the mappings were read. */
static struct machtrace_range mapping_at(const struct machtrace_capture *capture, uint64_t address)
{
    size_t low = 0;
    size_t high = capture->mapping_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (capture->mappings[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < capture->mapping_count)
        return capture->mappings[low];
    return (struct machtrace_range){UINT64_MAX, UINT64_MAX};
}

/* As many bytes as can be read; whole pages at the far end. */
static ssize_t read_memory(pid_t thread, uint64_t address, unsigned char *to, size_t size)
{
    struct iovec here = {to, size};
    struct iovec there = {(void *)(uintptr_t)address, size};
    return process_vm_readv(thread, &here, 1, &there, 1, 0);
}

/* The address of the thread's control block (pthread_self), or 0. */
static uint64_t thread_pointer(const struct machtrace_thread *thread)
{
    uint64_t pointer;
    if (machtrace_thread_pointer(thread->registers, thread->registers_size, &pointer))
        return pointer;
#if defined(__aarch64__)
    struct iovec tls = {&pointer, sizeof pointer};
    if (ptrace(PTRACE_GETREGSET, (pid_t)thread->id, (void *)NT_ARM_TLS, &tls) == 0 &&
        tls.iov_len >= sizeof pointer)
        return pointer;
#endif
    return 0;
}

/* Read to the end of the stack. A stack that was allocated for a thread ends at its control block:
 * the kernel lists it and whatever is mapped behind it as one range. */
static struct machtrace_stack read_stack(const struct machtrace_capture *capture, pid_t thread,
                                         uint64_t sp, uint64_t block, unsigned char *to)
{
    uint64_t start = sp < RED_ZONE ? 0 : sp - RED_ZONE;
    struct machtrace_range mapping = mapping_at(capture, sp);
    uint64_t end = mapping.end;
    if (block > sp && block < end)
        end = block;
    if (end - sp > capture->stack_limit)
        end = sp + capture->stack_limit;
    ssize_t size = read_memory(thread, start, to, (size_t)(end - start));
    if (size <= 0) {
        /* The red zone may lie in the guard page below the stack. */
        uint64_t page = sp & ~((uint64_t)sysconf(_SC_PAGESIZE) - 1);
        if (page > start) {
            start = page;
            size = read_memory(thread, start, to, (size_t)(end - start));
        }
        /* The stack has overflowed: sp is in the gap below it. */
        if (size <= 0 && mapping.start > sp && mapping.start < end &&
            mapping.start - sp <= STACK_GAP) {
            start = mapping.start;
            size = read_memory(thread, start, to, (size_t)(end - start));
        }
        if (size <= 0)
            return (struct machtrace_stack){sp, 0, NULL};
    }
    return (struct machtrace_stack){start, (size_t)size, to};
}

static void read_stacks(const struct machtrace_capture *capture,
                        const struct machtrace_scratch *scratch, struct machtrace_thread *thread)
{
    uint64_t sp;
    if (!machtrace_stack_pointer(thread->registers, thread->registers_size, &sp))
        return;
    uint64_t block = thread_pointer(thread);
    struct machtrace_stack stack =
        read_stack(capture, (pid_t)thread->id, sp, block, scratch->stacks[0]);
    thread->stacks[thread->stack_count++] = stack;
    size_t reach = stack.size < SIGNAL_FRAME_REACH ? stack.size : SIGNAL_FRAME_REACH;
    uint64_t interrupted;
    if (!machtrace_interrupted_sp(stack.bytes, reach, sp, thread->registers_size, &interrupted))
        return;
    stack = read_stack(capture, (pid_t)thread->id, interrupted, block, scratch->stacks[1]);
    if (stack.size != 0)
        thread->stacks[thread->stack_count++] = stack;
}

/* A few system calls fail with EINTR when their thread is stopped, though no
 * signal came (signal(7), "Interruption of system calls ... by stop signals").
 * Where waiting again is exactly what the program requested, have the kernel do
 * so: ERESTARTNOHAND still is EINTR if a handler runs. */
static void restart_system_call(struct machtrace_thread *thread)
{
    if (machtrace_mark_restart(thread->registers, thread->registers_size)) {
        struct iovec registers = {thread->registers, thread->registers_size};
        ptrace(PTRACE_SETREGSET, (pid_t)thread->id, (void *)NT_PRSTATUS, &registers);
    }
}

void machtrace_stopped_release(pid_t thread, struct machtrace_stop stop)
{
    ptrace(PTRACE_DETACH, thread, NULL, (void *)(intptr_t)stop.signal);
}

void machtrace_stopped_read(const struct machtrace_capture *capture,
                            const struct machtrace_scratch *scratch,
                            struct machtrace_thread *thread, struct machtrace_stop stop)
{
    struct iovec registers = {thread->registers, sizeof thread->registers};
    if (ptrace(PTRACE_GETREGSET, (pid_t)thread->id, (void *)NT_PRSTATUS, &registers) == -1) {
        thread->error = errno;
        thread->outcome = errno == ESRCH ? MACHTRACE_GONE : MACHTRACE_FAILED;
        return;
    }
    thread->registers_size = registers.iov_len;
    thread->outcome = MACHTRACE_COPIED;
    if (scratch != NULL)
        read_stacks(capture, scratch, thread);
    if (stop.by_interrupt)
        restart_system_call(thread);
}

void machtrace_stopped_copy(const struct machtrace_capture *capture,
                            const struct machtrace_scratch *scratch,
                            struct machtrace_thread *thread, struct machtrace_stop stop)
{
    thread->stopped_at = machtrace_now();
    machtrace_stopped_read(capture, scratch, thread, stop);
    machtrace_stopped_release((pid_t)thread->id, stop);
    thread->resumed_at = machtrace_now();
    machtrace_thread_keep(thread);
}

void machtrace_traced_continue(pid_t thread, struct machtrace_stop stop)
{
    if (stop.by_interrupt)
        ptrace(PTRACE_CONT, thread, NULL, NULL);
}

static enum machtrace_event await_traced(const struct machtrace_capture *capture,
                                         struct machtrace_thread *thread,
                                         struct machtrace_stop *stop)
{
    enum machtrace_event event;
    int64_t awake = 0;
    long sleep_ns = MACHTRACE_FIRST_SLEEP_NS;
    while ((event = machtrace_poll_event((pid_t)thread->id, stop)) == MACHTRACE_NO_EVENT) {
        if (machtrace_now() - thread->requested_at < MACHTRACE_PATIENCE_NS)
            continue;
        if (machtrace_is_overdue(capture, thread, &awake))
            break; /* its stop is reported later */
        nanosleep(&(struct timespec){0, sleep_ns}, NULL);
        if (sleep_ns < MACHTRACE_MAX_SLEEP_NS)
            sleep_ns *= 2;
    }
    return event;
}

int machtrace_traced_copy_all(struct machtrace_capture *capture)
{
    struct machtrace_scratch scratch;
    int error = machtrace_scratch_take(&scratch, capture->stack_limit);
    if (error != 0)
        return error;
    prctl(PR_SET_TIMERSLACK, 1000);
    for (size_t index = 0; index < capture->thread_count; index++) {
        struct machtrace_thread *thread = &capture->threads[index];
        struct machtrace_stop stop = {0, false};
        thread->outcome = MACHTRACE_GONE;
        if (!machtrace_interrupt(thread))
            continue;
        enum machtrace_event event = await_traced(capture, thread, &stop);
        if (event != MACHTRACE_STOPPED)
            continue;
        thread->stopped_at = machtrace_now();
        machtrace_stopped_read(capture, &scratch, thread, stop);
        machtrace_traced_continue((pid_t)thread->id, stop);
        thread->resumed_at = machtrace_now();
        machtrace_thread_keep(thread);
    }
    prctl(PR_SET_TIMERSLACK, 0);
    machtrace_scratch_give_back(&scratch);
    return 0;
}

int machtrace_stopped_unseize(pid_t id, int64_t stop_limit, int *signal)
{
    struct machtrace_thread thread = {.id = (uint64_t)id};
    struct machtrace_stop stop = {0, false};
    enum machtrace_event event = MACHTRACE_NO_EVENT;
    long sleep_ns = MACHTRACE_FIRST_SLEEP_NS;
    if (ptrace(PTRACE_INTERRUPT, id, NULL, NULL) == -1)
        return errno;
    int64_t began = machtrace_now();
    while ((event = machtrace_poll_event(id, &stop)) == MACHTRACE_NO_EVENT) {
        int64_t waited = machtrace_now() - began;
        if (waited > stop_limit)
            return ETIMEDOUT; /* its stop is reported later */
        if (waited < MACHTRACE_PATIENCE_NS)
            continue;
        nanosleep(&(struct timespec){0, sleep_ns}, NULL);
        if (sleep_ns < MACHTRACE_MAX_SLEEP_NS)
            sleep_ns *= 2;
    }
    if (event == MACHTRACE_EXITED)
        return ESRCH;
    if (stop.signal != 0) {
        *signal = stop.signal;
        return 0;
    }
    struct machtrace_capture nothing = {0};
    machtrace_stopped_read(&nothing, NULL, &thread, stop);
    return ptrace(PTRACE_DETACH, id, NULL, NULL) == -1 ? errno : 0;
}

int machtrace_stopped_copy_all(struct machtrace_capture *capture)
{
    struct machtrace_scratch scratch;
    int error = machtrace_scratch_take(&scratch, capture->stack_limit);
    if (error != 0)
        return error;
    for (size_t index = 0; index < capture->thread_count; index++) {
        struct machtrace_thread *thread = &capture->threads[index];
        machtrace_thread_begin(thread, MACHTRACE_COPIED, 0, machtrace_now());
        machtrace_stopped_read(capture, &scratch, thread, (struct machtrace_stop){0, false});
        machtrace_thread_keep(thread);
    }
    machtrace_scratch_give_back(&scratch);
    return 0;
}
