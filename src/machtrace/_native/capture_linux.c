/* capture.h for Linux: each thread is sent a signal, and copies itself in the handler.
 *
 * The handler runs on the alternate stack where the thread has one; what it copies is where the
 * kernel says that the thread was. It reads the stack by process_vm_readv(2), to which memory that
 * is not there is an error and no fault.
 */
#define _GNU_SOURCE
#include "capture.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "linux_registers.h"
#include "own_registers.h"

#define RED_ZONE 128            /* System V psABI for x86-64, 3.2.2; others have none */
#define SIGNAL_FRAME_REACH 65536 /* bytes of a stack that are searched for a signal's frame */
#define LOOK_AFTER 5000000      /* ns without an answer until the kernel is asked why */
#define FIRST_SIGNAL 6          /* from SIGRTMIN: the lowest are what people write by hand */
#define OVERDUE_MAX 64          /* threads that are known to owe an answer */

/* --- what the handler shares with the thread that captures --- */

enum phase { IDLE, ASKED, COPYING, DONE };

/* Never freed: a signal can arrive when nobody waits for it any more. The number of the request
 * is in the signal and in the state, so such a one finds that it is not meant. */
struct slot {
    _Atomic uint64_t state; /* request << 2 | phase */
    struct machtrace_own_thread *thread;
};

static struct slot slots[MACHTRACE_OWN_THREADS_MAX];
static const struct machtrace_own_capture *current; /* while any slot is ASKED or COPYING */
static _Atomic uint32_t answers;                    /* a futex: how many there were, ever */
static _Atomic uint32_t released;                   /* a futex: the last capture that let go */
static uint32_t capture_number;

/* Threads that were given up while the signal was on its way. */
static struct overdue {
    _Atomic uint64_t token; /* of the signal; 0 where the place is free */
    pid_t thread;
} overdue[OVERDUE_MAX];

static uint64_t last_request;
static int own_signal; /* 0 before the first capture */

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "the handler must not take a lock");

static uint64_t state_of(uint64_t request, enum phase phase)
{
    return request << 2 | (uint64_t)phase;
}

/* What goes along with the signal: which slot, and for which request. */
static uint64_t token_of(uint64_t request, size_t slot)
{
    return request << 8 | slot;
}

_Static_assert(MACHTRACE_OWN_THREADS_MAX <= 256, "the number of a slot takes eight bits");

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t for_ns)
{
    struct timespec limit = {for_ns / 1000000000, for_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static uint64_t thread_pointer(void)
{
    uint64_t value;
#if defined(__x86_64__)
    __asm__("movq %%fs:0, %0" : "=r"(value));
#else
    __asm__("mrs %0, tpidr_el0" : "=r"(value));
#endif
    return value;
}

/* --- copying; all of it is run in the handler --- */

/* As many bytes as can be read; whole pages at the far end. */
static ssize_t read_memory(uint64_t address, unsigned char *to, size_t size)
{
    struct iovec here = {to, size};
    struct iovec there = {(void *)(uintptr_t)address, size};
    return syscall(SYS_process_vm_readv, (pid_t)syscall(SYS_getpid), &here, 1UL, &there, 1UL, 0UL);
}

/* Where the stack that holds `sp` ends at the latest. */
static uint64_t stack_end(const struct machtrace_own_capture *capture, uint64_t sp,
                          uint64_t pthread)
{
    size_t low = 0;
    size_t high = capture->range_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (capture->ranges[middle].end > sp)
            high = middle;
        else
            low = middle + 1;
    }
    /* A range that begins above it: the main stack has grown, or another is new. */
    uint64_t end = low < capture->range_count ? capture->ranges[low].end : sp;
    /* A thread's own block is at the end of the stack that was made for it, and the kernel shows
     * what else is mapped behind that as one with it. */
    if (pthread > sp && pthread < end)
        end = pthread;
    return end - sp > capture->stack_limit ? sp + capture->stack_limit : end;
}

static void add_stack(const struct machtrace_own_capture *capture,
                      struct machtrace_own_thread *thread, uint64_t sp, size_t used)
{
    const uint64_t page = 4096; /* of this size or a multiple */
    struct machtrace_own_stack *stack = &thread->stacks[thread->stack_count];
    uint64_t end = stack_end(capture, sp, thread->pthread);
    uint64_t start = sp < RED_ZONE ? 0 : sp - RED_ZONE;
    size_t room = thread->room - used;
    ssize_t size = -1;
    for (int attempt = 0; attempt < 2 && size <= 0 && start < end; attempt++) {
        /* The red zone may lie in the guard page below the stack. */
        if (attempt == 1)
            start = sp & ~(page - 1);
        size_t wanted = end - start < room ? (size_t)(end - start) : room;
        size = wanted == 0 ? 0 : read_memory(start, thread->buffer + used, wanted);
    }
    if (size <= 0) {
        *stack = (struct machtrace_own_stack){sp, 0, NULL};
        if (thread->stack_count == 0 && size < 0)
            thread->error = errno;
    } else {
        *stack = (struct machtrace_own_stack){start, (size_t)size, thread->buffer + used};
    }
    thread->stack_count++;
}

static void add_stacks(const struct machtrace_own_capture *capture,
                       struct machtrace_own_thread *thread)
{
    uint64_t sp;
    if (!machtrace_stack_pointer(thread->registers, thread->registers_size, &sp))
        return;
    add_stack(capture, thread, sp, 0);
    struct machtrace_own_stack first = thread->stacks[0];
    size_t reach = first.size < SIGNAL_FRAME_REACH ? first.size : SIGNAL_FRAME_REACH;
    uint64_t interrupted;
    if (first.size == 0 || first.size >= thread->room ||
        !machtrace_interrupted_sp(first.bytes, reach, sp, thread->registers_size, &interrupted))
        return;
    add_stack(capture, thread, interrupted, first.size);
    if (thread->stacks[1].size == 0)
        thread->stack_count = 1;
}

static void take_registers(struct machtrace_own_thread *thread, const uint64_t *words, size_t count)
{
    unsigned char *to = thread->registers;
    const unsigned char *from = (const unsigned char *)words;
    thread->registers_size = count * sizeof *words;
    for (size_t index = 0; index < thread->registers_size; index++)
        to[index] = from[index];
}

static void take_context(struct machtrace_own_thread *thread, const ucontext_t *context)
{
#if defined(__x86_64__)
    /* struct user_regs_struct (sys/user.h), from mcontext_t's gregs (sys/ucontext.h). */
    static const signed char order[27] = {
        REG_R15, REG_R14, REG_R13, REG_R12, REG_RBP, REG_RBX, REG_R11, REG_R10, REG_R9,
        REG_R8,  REG_RAX, REG_RCX, REG_RDX, REG_RSI, REG_RDI, -1,      REG_RIP, -1,
        REG_EFL, REG_RSP, -1,      -1,      -1,      -1,      -1,      -1,      -1,
    };
    uint64_t words[27];
    for (size_t index = 0; index < 27; index++)
        words[index] = order[index] < 0 ? 0 : (uint64_t)context->uc_mcontext.gregs[order[index]];
    words[15] = UINT64_MAX; /* orig_rax: no system call */
    words[17] = (uint64_t)context->uc_mcontext.gregs[REG_CSGSFS] & 0xffff;
    words[21] = thread->pthread; /* fs_base */
    take_registers(thread, words, 27);
#else
    /* struct user_pt_regs (asm/ptrace.h), from struct sigcontext (asm/sigcontext.h). */
    uint64_t words[34];
    for (size_t index = 0; index < 31; index++)
        words[index] = context->uc_mcontext.regs[index];
    words[31] = context->uc_mcontext.sp;
    words[32] = context->uc_mcontext.pc;
    words[33] = context->uc_mcontext.pstate;
    take_registers(thread, words, 34);
#endif
}

static void forget_overdue(uint64_t token)
{
    for (size_t index = 0; index < OVERDUE_MAX; index++) {
        uint64_t expected = token;
        if (atomic_compare_exchange_strong(&overdue[index].token, &expected, 0))
            return;
    }
}

static void wait_for_release(uint32_t number, int64_t limit)
{
    int64_t until = now() + limit;
    for (;;) {
        uint32_t seen = atomic_load(&released);
        int64_t left = until - now();
        if ((int32_t)(seen - number) >= 0 || left <= 0)
            return;
        futex_wait(&released, seen, left);
    }
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number;
    int error = errno;
    uint64_t token = (uint64_t)(uintptr_t)info->si_value.sival_ptr;
    size_t index = token & 0xff;
    uint64_t request = token >> 8;
    uint64_t expected = state_of(request, ASKED);
    if (info->si_code != SI_QUEUE || index >= MACHTRACE_OWN_THREADS_MAX || request == 0) {
        errno = error;
        return; /* from somebody else */
    }
    struct slot *slot = &slots[index];
    if (!atomic_compare_exchange_strong(&slot->state, &expected, state_of(request, COPYING))) {
        forget_overdue(token); /* too late */
        errno = error;
        return;
    }
    struct machtrace_own_thread *thread = slot->thread;
    const struct machtrace_own_capture *capture = current;
    bool together = capture->together;
    int64_t limit = capture->answer_limit;
    uint32_t own_number = capture_number;
    thread->stopped_at = now();
    thread->pthread = thread_pointer();
    take_context(thread, context);
    add_stacks(capture, thread);
    thread->outcome = thread->stack_count != 0 && thread->stacks[0].size == 0 && thread->error != 0
                          ? MACHTRACE_OWN_FAILED
                          : MACHTRACE_OWN_COPIED;
    thread->resumed_at = now();
    /* From here on the thread's record is the capturer's again. */
    atomic_store(&slot->state, state_of(request, DONE));
    atomic_fetch_add(&answers, 1);
    futex_wake(&answers);
    if (together)
        wait_for_release(own_number, limit);
    errno = error;
}

/* --- the thread that captures --- */

struct status {
    char state; /* as ps shows it; 0 where the thread is gone */
    uint64_t pending, blocked;
};

static bool hex_after(const char *text, const char *name, uint64_t *value)
{
    const char *at = strstr(text, name);
    if (at == NULL)
        return false;
    *value = 0;
    for (at += strlen(name); *at == '\t' || *at == ' '; at++)
        continue;
    for (; (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f'); at++)
        *value = *value << 4 | (uint64_t)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
    return true;
}

/* /proc/self/task/TID/status, without allocating. */
static struct status status_of(pid_t thread)
{
    struct status status = {0, 0, 0};
    char name[64] = "/proc/self/task/";
    size_t length = strlen(name);
    char digits[12];
    size_t count = 0;
    for (unsigned left = (unsigned)thread; left != 0 || count == 0; left /= 10)
        digits[count++] = (char)('0' + left % 10);
    while (count > 0)
        name[length++] = digits[--count];
    memcpy(name + length, "/status", sizeof "/status");
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return status;
    char text[4096];
    size_t size = 0;
    ssize_t got;
    while (size < sizeof text - 1 && (got = read(file, text + size, sizeof text - 1 - size)) > 0)
        size += (size_t)got;
    close(file);
    text[size] = '\0';
    const char *state = strstr(text, "\nState:\t");
    if (state == NULL || !hex_after(text, "\nSigPnd:", &status.pending) ||
        !hex_after(text, "\nSigBlk:", &status.blocked))
        return status;
    status.state = state[sizeof "\nState:\t" - 1];
    return status;
}

static bool has_ended(const struct status *status)
{
    return status->state == 0 || status->state == 'Z' || status->state == 'X';
}

/* Whether an earlier signal still waits for this thread to take it. */
static bool is_overdue(pid_t thread)
{
    for (size_t index = 0; index < OVERDUE_MAX; index++) {
        uint64_t token = atomic_load(&overdue[index].token);
        if (token == 0 || overdue[index].thread != thread)
            continue;
        struct status status = status_of(thread);
        if (status.pending >> (own_signal - 1) & 1)
            return true;
        atomic_compare_exchange_strong(&overdue[index].token, &token, 0); /* of another thread */
    }
    return false;
}

static void note_overdue(pid_t thread, uint64_t token)
{
    for (size_t index = 0; index < OVERDUE_MAX; index++) {
        if (atomic_load(&overdue[index].token) == 0) {
            overdue[index].thread = thread;
            atomic_store(&overdue[index].token, token);
            return;
        }
    }
}

/* Send the signal; false where that thread is not to be waited for. */
static bool ask(struct machtrace_own_thread *thread, size_t index, uint64_t request)
{
    struct slot *slot = &slots[index];
    pid_t id = (pid_t)thread->id;
    if (is_overdue(id)) {
        thread->outcome = MACHTRACE_OWN_BLOCKED;
        return false;
    }
    slot->thread = thread;
    thread->asked_at = now();
    atomic_store(&slot->state, state_of(request, ASKED));
    siginfo_t info;
    memset(&info, 0, sizeof info);
    info.si_signo = own_signal;
    info.si_code = SI_QUEUE;
    info.si_pid = getpid();
    info.si_uid = getuid();
    info.si_value.sival_ptr = (void *)(uintptr_t)token_of(request, index);
    if (syscall(SYS_rt_tgsigqueueinfo, info.si_pid, id, own_signal, &info) == 0)
        return true;
    atomic_store(&slot->state, state_of(request, IDLE));
    thread->error = errno;
    thread->outcome = errno == ESRCH ? MACHTRACE_OWN_GONE : MACHTRACE_OWN_REFUSED;
    return false;
}

/* Take the request back; false where the thread has begun to answer it. */
static bool take_back(struct machtrace_own_thread *thread, size_t index, uint64_t request,
                      enum machtrace_own_outcome outcome)
{
    uint64_t expected = state_of(request, ASKED);
    uint64_t token = token_of(request, index);
    if (outcome != MACHTRACE_OWN_GONE)
        note_overdue((pid_t)thread->id, token); /* before it can come too late */
    if (!atomic_compare_exchange_strong(&slots[index].state, &expected, state_of(request, IDLE))) {
        forget_overdue(token);
        return false;
    }
    thread->outcome = outcome;
    return true;
}

/* Why one does not answer, and whether to wait on. */
static void look_into(const struct machtrace_own_capture *capture,
                      struct machtrace_own_thread *thread, size_t index, uint64_t request)
{
    struct status status = status_of((pid_t)thread->id);
    int64_t waited = now() - thread->asked_at;
    if (has_ended(&status)) {
        take_back(thread, index, request, MACHTRACE_OWN_GONE);
    } else if (status.blocked >> (own_signal - 1) & status.pending >> (own_signal - 1) & 1) {
        /* The handler blocks it too, but then it is not pending. */
        take_back(thread, index, request, MACHTRACE_OWN_BLOCKED);
    } else if (waited >= capture->answer_limit ||
               (status.state == 'D' && waited >= capture->sleep_limit)) {
        if (take_back(thread, index, request, MACHTRACE_OWN_NOT_STOPPED))
            thread->uninterruptible = status.state == 'D';
    }
}

static bool is_waited_for(size_t index, uint64_t request)
{
    uint64_t state = atomic_load(&slots[index].state);
    return state == state_of(request, ASKED) || state == state_of(request, COPYING);
}

void machtrace_own_copy(struct machtrace_own_capture *capture)
{
    if (capture->thread_count > MACHTRACE_OWN_THREADS_MAX)
        capture->thread_count = MACHTRACE_OWN_THREADS_MAX;
    uint64_t requests[MACHTRACE_OWN_THREADS_MAX];
    capture_number++;
    current = capture;
    size_t waiting = 0;
    for (size_t index = 0; index < capture->thread_count; index++) {
        struct machtrace_own_thread *thread = &capture->threads[index];
        thread->error = 0;
        thread->uninterruptible = 0;
        thread->pthread = 0;
        thread->registers_size = 0;
        thread->stack_count = 0;
        thread->stopped_at = thread->resumed_at = 0;
        requests[index] = ++last_request;
        if (!ask(thread, index, requests[index]))
            requests[index] = 0;
        else
            waiting++;
    }
    int64_t look_at = now() + LOOK_AFTER;
    while (waiting != 0) {
        uint32_t seen = atomic_load(&answers);
        bool is_late = now() >= look_at;
        waiting = 0;
        for (size_t index = 0; index < capture->thread_count; index++) {
            if (requests[index] == 0)
                continue;
            if (is_late && is_waited_for(index, requests[index]))
                look_into(capture, &capture->threads[index], index, requests[index]);
            if (is_waited_for(index, requests[index]))
                waiting++;
            else
                requests[index] = 0;
        }
        if (is_late)
            look_at = now() + LOOK_AFTER;
        if (waiting != 0)
            futex_wait(&answers, seen, LOOK_AFTER);
    }
    atomic_store(&released, capture_number);
    if (capture->together) {
        futex_wake(&released);
        for (size_t index = 0; index < capture->thread_count; index++)
            if (capture->threads[index].outcome == MACHTRACE_OWN_COPIED)
                capture->threads[index].resumed_at = now();
    }
    current = NULL;
}

/* --- one capture at a time --- */

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* In the child of a fork there is one thread, no signal on its way and no capture. */
static void after_fork(void)
{
    pthread_mutex_init(&turn, NULL);
    for (size_t index = 0; index < MACHTRACE_OWN_THREADS_MAX; index++)
        atomic_store(&slots[index].state, 0);
    for (size_t index = 0; index < OVERDUE_MAX; index++)
        atomic_store(&overdue[index].token, 0);
    current = NULL;
}

static void prepare(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

static bool handles(int signal, bool *is_free)
{
    struct sigaction action;
    if (sigaction(signal, NULL, &action) != 0) {
        *is_free = false;
        return false;
    }
    bool is_ours = (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_signal;
    *is_free = (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
    return is_ours;
}

/* A handler once installed stays: by default the signal would end the process. */
static int install(int signal)
{
    bool is_free;
    if (handles(signal, &is_free))
        return 0;
    if (!is_free)
        return EBUSY;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigfillset(&action.sa_mask);
    return sigaction(signal, &action, NULL) == 0 ? 0 : errno;
}

static int choose(int signal)
{
    if (signal != 0) {
        if (signal < SIGRTMIN || signal > SIGRTMAX)
            return EINVAL;
        int error = install(signal);
        if (error == 0)
            own_signal = signal;
        return error;
    }
    if (own_signal != 0 && install(own_signal) == 0)
        return 0;
    int count = SIGRTMAX - SIGRTMIN + 1;
    for (int index = 0; index < count; index++) {
        int candidate = SIGRTMIN + (FIRST_SIGNAL + index) % count;
        if (install(candidate) == 0) {
            own_signal = candidate;
            return 0;
        }
    }
    return EBUSY;
}

int machtrace_own_begin(int signal)
{
    pthread_once(&once, prepare);
    pthread_mutex_lock(&turn);
    int error = choose(signal);
    if (error != 0)
        pthread_mutex_unlock(&turn);
    return error;
}

void machtrace_own_end(void)
{
    pthread_mutex_unlock(&turn);
}

int machtrace_own_signal(void)
{
    return own_signal;
}

/* --- what is known of this process and of the calling thread --- */

uint64_t machtrace_own_id(void)
{
    return (uint64_t)syscall(SYS_gettid);
}

int64_t machtrace_own_list(uint64_t *ids, size_t room)
{
    DIR *directory = opendir("/proc/self/task");
    if (directory == NULL)
        return -1;
    int64_t count = 0;
    const struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        char *end;
        unsigned long long id = strtoull(entry->d_name, &end, 10);
        if (end == entry->d_name || *end != '\0')
            continue;
        if ((size_t)count < room)
            ids[count] = id;
        count++;
    }
    closedir(directory);
    return count;
}

void machtrace_own_copy_here(const struct machtrace_own_capture *capture,
                             struct machtrace_own_thread *thread)
{
    struct machtrace_here here;
    memset(&here, 0, sizeof here);
    MACHTRACE_TAKE_HERE(&here);
#if defined(__x86_64__)
    static const signed char order[27] = {15, 14, 13, 12, 6,  3,  -1, -1, -1, -1, -1, -1, -1, -1,
                                          -1, -1, 16, -1, -1, 7,  -1, -1, -1, -1, -1, -1, -1};
    enum { COUNT = 27, PC = 16 };
    uint64_t words[COUNT];
    for (size_t index = 0; index < COUNT; index++)
        words[index] = order[index] < 0 || index == PC ? 0 : here.values[order[index]];
#else
    enum { COUNT = 34, PC = 32 };
    uint64_t words[COUNT] = {0};
    for (size_t index = 0; index < 32; index++)
        words[index] = here.values[index];
#endif
    words[PC] = here.pc;
    thread->error = 0;
    thread->uninterruptible = 0;
    thread->stack_count = 0;
    thread->pthread = thread_pointer();
    take_registers(thread, words, COUNT);
    thread->asked_at = thread->stopped_at = now();
    add_stacks(capture, thread);
    thread->resumed_at = thread->stopped_at;
    thread->outcome = thread->stack_count != 0 && thread->stacks[0].size == 0 && thread->error != 0
                          ? MACHTRACE_OWN_FAILED
                          : MACHTRACE_OWN_COPIED;
}

static int first_object(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    uint64_t *changes = data;
    /* Apart, so that one of each does not look like none: there are fewer than 2^32 of either. */
    *changes = (uint64_t)info->dlpi_adds << 32 | (uint32_t)info->dlpi_subs;
    return 1;
}

/* glibc's dl_iterate_phdr takes the lock under which its list changes, which is never held while
 * code of an image is run. */
uint64_t machtrace_own_image_changes(void)
{
    uint64_t changes = 0;
    dl_iterate_phdr(first_object, &changes);
    return changes;
}

static int this_object(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct machtrace_own_range *range = data;
    uint64_t here = (uint64_t)(uintptr_t)&slots;
    uint64_t start = UINT64_MAX;
    uint64_t end = 0;
    bool holds = false;
    for (size_t index = 0; index < info->dlpi_phnum; index++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[index];
        if (header->p_type != PT_LOAD)
            continue;
        uint64_t first = info->dlpi_addr + header->p_vaddr;
        uint64_t last = first + header->p_memsz;
        holds = holds || (here >= first && here < last);
        start = first < start ? first : start;
        end = last > end ? last : end;
    }
    if (holds)
        *range = (struct machtrace_own_range){start, end};
    return holds;
}

struct machtrace_own_range machtrace_own_image(void)
{
    struct machtrace_own_range range = {0, 0};
    dl_iterate_phdr(this_object, &range);
    return range;
}

uint64_t machtrace_own_stack_end(void)
{
    static _Thread_local uint64_t known;
    if (known == 0) {
        pthread_attr_t attributes;
        void *start;
        size_t size;
        if (pthread_getattr_np(pthread_self(), &attributes) != 0)
            return 0;
        if (pthread_attr_getstack(&attributes, &start, &size) == 0)
            known = (uint64_t)(uintptr_t)start + size;
        pthread_attr_destroy(&attributes);
    }
    return known;
}
