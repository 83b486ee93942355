#define _GNU_SOURCE
#include "linux_ptrace.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "linux_registers.h"

/* Bytes below the stack pointer that a leaf function may use (System V psABI for
 * x86-64, 3.2.2); other architectures have none, and lose nothing by it. */
#define RED_ZONE 128

/* The first bytes of the buffers for stacks, which are present before a thread is
 * stopped. Few stacks are deeper, and to have more ready takes longer than all else. */
#define PRESENT_SIZE (512 * 1024)

/* How far up a stack a signal frame is looked for. */
#define SIGNAL_FRAME_REACH (64 * 1024)

/* A thread on another CPU stops within tens of microseconds, less than a sleep
 * takes to end: yield that long, then sleep for longer and longer. */
#define SPIN_NS 200000
#define FIRST_SLEEP_NS 20000
#define LONGEST_SLEEP_NS 1000000

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

/* What is needed between stop and resume, allocated and touched beforehand. */
struct scratch {
    unsigned char *stacks[MACHTRACE_STACKS_MAX];
    size_t size; /* of each */
};

enum stop_kind { STOP_TIMED_OUT, STOP_EXITED, STOP_TRAPPED };

struct stop {
    enum stop_kind kind;
    int signal;        /* to hand back on release; 0 for none */
    bool by_interrupt; /* our own PTRACE_INTERRUPT, and nothing else, stopped it */
};

static int64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

/* Whether the kernel shows the thread in state D. Allocates nothing. */
static bool is_uninterruptible(pid_t thread)
{
    char path[32];
    char text[128];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)thread);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0)
        return false;
    text[size] = '\0';
    /* "tid (name) state ...": a name may itself hold a parenthesis. */
    const char *after_name = strrchr(text, ')');
    return after_name != NULL && after_name[1] == ' ' && after_name[2] == 'D';
}

/* `code` is a signal with, above it, a ptrace event. */
static struct stop trapped(int code)
{
    struct stop stop = {STOP_TRAPPED, 0, false};
    if (code >> 8 == 0)
        stop.signal = code & 0xff; /* a signal on its way to the thread */
    else
        stop.by_interrupt = (code & 0xff) == SIGTRAP; /* otherwise job control's stop */
    return stop;
}

/* Nothing is reaped: if the target is our own child, its exit status is for
 * whoever started it, and zombies that we trace are the kernel's to hand on when
 * this OS thread ends. */
static struct stop wait_for_stop(pid_t thread, int64_t asked, const struct machtrace_capture *limits)
{
    long sleep_ns = FIRST_SLEEP_NS;
    int64_t awake = asked; /* when it was last seen in no uninterruptible sleep */
    for (;;) {
        siginfo_t event;
        memset(&event, 0, sizeof event);
        int options = WSTOPPED | WEXITED | WNOWAIT | WNOHANG | __WALL;
        if (waitid(P_PID, (id_t)thread, &event, options) == -1) {
            if (errno == ECHILD)
                return (struct stop){STOP_EXITED, 0, false};
        } else if (event.si_pid != 0) {
            if (event.si_code == CLD_TRAPPED || event.si_code == CLD_STOPPED)
                return trapped(event.si_status);
            return (struct stop){STOP_EXITED, 0, false};
        }
        int64_t waited = now() - asked;
        if (waited < SPIN_NS && waited < limits->stop_limit) {
            sched_yield();
            continue;
        }
        /* Another thread of this process can take our event in a waitpid(-1); the
         * stop itself still shows. */
        siginfo_t signal;
        if (ptrace(PTRACE_GETSIGINFO, thread, NULL, &signal) == 0) {
            bool is_event = signal.si_code >> 8 == PTRACE_EVENT_STOP;
            return trapped(is_event ? signal.si_code : signal.si_signo);
        }
        if (!is_uninterruptible(thread))
            awake = now();
        if (waited >= limits->stop_limit || now() - awake >= limits->sleep_limit)
            return (struct stop){STOP_TIMED_OUT, 0, false};
        nanosleep(&(struct timespec){0, sleep_ns}, NULL);
        if (sleep_ns < LONGEST_SLEEP_NS)
            sleep_ns *= 2;
    }
}

/* The end of the mapping that holds `address`, or of the next one above: a stack
 * may have grown down, or been mapped, since the mappings were read. */
static uint64_t mapping_end(const struct machtrace_capture *capture, uint64_t address)
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
    return low < capture->mapping_count ? capture->mappings[low].end : UINT64_MAX;
}

/* As many bytes as can be read; whole pages at the far end. */
static ssize_t read_memory(pid_t thread, uint64_t address, unsigned char *to, size_t size)
{
    struct iovec here = {to, size};
    struct iovec there = {(void *)(uintptr_t)address, size};
    return process_vm_readv(thread, &here, 1, &there, 1, 0);
}

static struct machtrace_stack read_stack(const struct machtrace_capture *capture, pid_t thread,
                                         uint64_t sp, unsigned char *to)
{
    uint64_t start = sp < RED_ZONE ? 0 : sp - RED_ZONE;
    uint64_t end = mapping_end(capture, sp);
    if (end - sp > capture->stack_limit)
        end = sp + capture->stack_limit;
    ssize_t size = read_memory(thread, start, to, (size_t)(end - start));
    if (size <= 0) {
        /* The red zone may lie in the guard page below the stack. */
        uint64_t page = sp & ~((uint64_t)sysconf(_SC_PAGESIZE) - 1);
        if (page <= start)
            return (struct machtrace_stack){sp, 0, NULL};
        start = page;
        size = read_memory(thread, start, to, (size_t)(end - start));
        if (size <= 0)
            return (struct machtrace_stack){sp, 0, NULL};
    }
    return (struct machtrace_stack){start, (size_t)size, to};
}

static void keep(struct machtrace_thread *thread)
{
    for (size_t index = 0; index < thread->stack_count; index++) {
        struct machtrace_stack *stack = &thread->stacks[index];
        if (stack->size == 0)
            continue;
        unsigned char *copy = malloc(stack->size);
        if (copy != NULL)
            memcpy(copy, stack->bytes, stack->size);
        else {
            stack->size = 0;
            thread->outcome = MACHTRACE_FAILED;
            thread->error = ENOMEM;
        }
        stack->bytes = copy;
    }
}

static void copy_stopped(const struct machtrace_capture *capture, const struct scratch *scratch,
                         struct machtrace_thread *thread)
{
    struct iovec registers = {thread->registers, sizeof thread->registers};
    if (ptrace(PTRACE_GETREGSET, thread->id, (void *)NT_PRSTATUS, &registers) == -1) {
        thread->error = errno;
        thread->outcome = errno == ESRCH ? MACHTRACE_GONE : MACHTRACE_FAILED;
        return;
    }
    thread->registers_size = registers.iov_len;
    thread->outcome = MACHTRACE_COPIED;
    uint64_t sp;
    if (!machtrace_stack_pointer(thread->registers, thread->registers_size, &sp))
        return;
    struct machtrace_stack stack = read_stack(capture, thread->id, sp, scratch->stacks[0]);
    thread->stacks[thread->stack_count++] = stack;
    size_t reach = stack.size < SIGNAL_FRAME_REACH ? stack.size : SIGNAL_FRAME_REACH;
    uint64_t interrupted;
    if (!machtrace_interrupted_sp(stack.bytes, reach, sp, thread->registers_size, &interrupted))
        return;
    stack = read_stack(capture, thread->id, interrupted, scratch->stacks[1]);
    if (stack.size != 0)
        thread->stacks[thread->stack_count++] = stack;
}

/* A few system calls fail with EINTR when their thread is stopped, though no
 * signal came (signal(7), "Interruption of system calls ... by stop signals").
 * Where waiting again is exactly what the program asked for, have the kernel do
 * so: ERESTARTNOHAND still is EINTR if a handler runs. */
static void restart_system_call(struct machtrace_thread *thread)
{
    if (machtrace_mark_restart(thread->registers, thread->registers_size)) {
        struct iovec registers = {thread->registers, thread->registers_size};
        ptrace(PTRACE_SETREGSET, thread->id, (void *)NT_PRSTATUS, &registers);
    }
}

/* Whether the thread is traced no more. One that did not stop still is. */
static bool copy_thread(const struct machtrace_capture *capture, const struct scratch *scratch,
                        struct machtrace_thread *thread)
{
    if (ptrace(PTRACE_SEIZE, thread->id, NULL, NULL) == -1) {
        thread->error = errno;
        thread->outcome = errno == ESRCH ? MACHTRACE_GONE : MACHTRACE_REFUSED;
        return true;
    }
    thread->asked_at = now();
    if (ptrace(PTRACE_INTERRUPT, thread->id, NULL, NULL) == -1) {
        thread->error = errno;
        thread->outcome = MACHTRACE_GONE;
        return false;
    }
    struct stop stop = wait_for_stop(thread->id, thread->asked_at, capture);
    if (stop.kind == STOP_TIMED_OUT) {
        thread->outcome = MACHTRACE_NOT_STOPPED;
        thread->uninterruptible = is_uninterruptible(thread->id);
        return false;
    }
    if (stop.kind == STOP_EXITED) {
        thread->outcome = MACHTRACE_GONE;
        return false;
    }
    thread->stopped_at = now();
    copy_stopped(capture, scratch, thread);
    if (stop.by_interrupt)
        restart_system_call(thread);
    ptrace(PTRACE_DETACH, thread->id, NULL, (void *)(intptr_t)stop.signal);
    thread->resumed_at = now();
    keep(thread);
    return true;
}

struct job {
    struct machtrace_capture *capture;
    struct scratch scratch;
    size_t next; /* the thread to copy */
};

/* The OS thread that seized a thread is its only tracer, and cannot let go of one
 * that does not stop; but when it ends, the kernel releases all that it traced. So
 * it ends there, and another goes on: the one that wakes late is not to stand still
 * until all others are copied. */
static void *copy_on(void *argument)
{
    struct job *job = argument;
    bool released = true;
    while (released && job->next < job->capture->thread_count) {
        released = copy_thread(job->capture, &job->scratch, &job->capture->threads[job->next]);
        job->next++;
    }
    return NULL;
}

static int run_in_own_thread(struct job *job)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    int error = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (error != 0)
        return error;
    pthread_t tracer;
    error = pthread_create(&tracer, NULL, copy_on, job);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error != 0 ? error : pthread_join(tracer, NULL);
}

int machtrace_capture_run(struct machtrace_capture *capture)
{
    struct job job = {capture, {{NULL}, RED_ZONE + capture->stack_limit}, 0};
    size_t size = job.scratch.size * MACHTRACE_STACKS_MAX;
    unsigned char *memory =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return errno;
    /* Copying takes no page faults in the buffer that is always used: what most stacks
     * need of it is present before the first stop. */
    memset(memory, 0, job.scratch.size < PRESENT_SIZE ? job.scratch.size : PRESENT_SIZE);
    for (size_t index = 0; index < MACHTRACE_STACKS_MAX; index++)
        job.scratch.stacks[index] = memory + index * job.scratch.size;
    int error = 0;
    while (error == 0 && job.next < capture->thread_count)
        error = run_in_own_thread(&job);
    munmap(memory, size);
    return error;
}

void machtrace_capture_release(struct machtrace_capture *capture)
{
    for (size_t thread = 0; thread < capture->thread_count; thread++)
        for (size_t index = 0; index < capture->threads[thread].stack_count; index++)
            free(capture->threads[thread].stacks[index].bytes);
}
