/* inprocess/core/capture.h for Linux: each thread gets a signal, and copies itself in the handler.
 *
 * The handler runs on the alternate stack where the thread has one; it copies the stack that
 * the kernel interrupted (copy.c).
 */
#define _GNU_SOURCE
#include "inprocess/core/linux/shared.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK_FIRST 1000000      /* ns without an answer until the kernel is queried; */
#define LOOK_LAST 5000000       /* twice as long each time, up to this */
#define FIRST_SIGNAL 6          /* from SIGRTMIN: programs use the lowest */
#ifndef OVERDUE_MAX
#define OVERDUE_MAX 4096 /* threads whose answer is overdue */
#endif

/* --- shared by the handler and the capturing thread --- */

enum phase { IDLE, ASKED, COPYING, DONE };

/* Never freed: a signal can arrive when nobody waits for it any more. The number of the request
 * is in the signal and in the state, so a late handler recognises that it is not addressed. */
struct slot {
    _Atomic uint64_t state; /* request << 2 | phase */
    struct machtrace_thread *thread;
};

static struct slot slots[MACHTRACE_INPROCESS_THREADS_MAX];
static const struct machtrace_inprocess_capture *current; /* while any slot is in use */
static _Atomic uint32_t answers;                          /* a futex: how often all had answered */
static _Atomic uint64_t outstanding;                /* capture_number << 32 | threads waited for */
static _Atomic uint32_t released;                   /* a futex: the last capture that resumed */
static uint32_t capture_number;

/* Threads whose signal was still pending when the capture stopped waiting. They are sent no other:
 * real-time signals queue, and all processes of a user share one limit. */
static struct overdue {
    _Atomic uint64_t token; /* of the signal; 0 if the entry is free */
    pid_t thread;
} overdue[OVERDUE_MAX];
static _Atomic size_t overdue_end; /* entries from here on are free */
static bool are_some_unnoted;      /* there was no entry for one */

static uint64_t last_request;
static int own_signal; /* 0 before the first capture */

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "the handler must not take a lock");

static uint64_t state_of(uint64_t request, enum phase phase)
{
    return request << 2 | (uint64_t)phase;
}

/* The signal's value: the slot, and the request. */
static uint64_t token_of(uint64_t request, size_t slot)
{
    return request << 8 | slot;
}

_Static_assert(MACHTRACE_INPROCESS_THREADS_MAX <= 256, "the number of a slot takes eight bits");

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t for_ns)
{
    struct timespec limit = {for_ns / 1000000000, for_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* One less to wait for in that capture; whether it was the last one. Only the last one wakes who
 * captures: to be woken by each of many threads, and to wait for a CPU each time, takes longer than
 * all else where CPUs are scarce. */
static bool is_last(uint32_t number)
{
    uint64_t seen = atomic_load(&outstanding);
    do
        if (seen >> 32 != number)
            return false; /* that capture is over: it saw the answer before this */
    while (!atomic_compare_exchange_weak(&outstanding, &seen, seen - 1));
    return (uint32_t)seen == 1;
}

static void forget_overdue(uint64_t token)
{
    size_t end = atomic_load(&overdue_end);
    for (size_t index = 0; index < end; index++) {
        uint64_t expected = token;
        if (atomic_compare_exchange_strong(&overdue[index].token, &expected, 0))
            return;
    }
}

static void wait_for_release(uint32_t number, int64_t limit)
{
    int64_t until = machtrace_now() + limit;
    for (;;) {
        uint32_t seen = atomic_load(&released);
        int64_t left = until - machtrace_now();
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
    if (info->si_code != SI_TIMER || index >= MACHTRACE_INPROCESS_THREADS_MAX || request == 0)
        return; /* from somebody else */
    struct slot *slot = &slots[index];
    if (!atomic_compare_exchange_strong(&slot->state, &expected, state_of(request, COPYING))) {
        forget_overdue(token); /* too late */
        errno = error;
        return;
    }
    struct machtrace_thread *thread = slot->thread;
    const struct machtrace_inprocess_capture *capture = current;
    bool together = capture->together;
    int64_t limit = capture->answer_limit;
    uint32_t own_number = capture_number;
    thread->stopped_at = machtrace_now();
    machtrace_copy_interrupted(capture, thread, context);
    if (capture->also != NULL)
        capture->also(capture, thread);
    thread->resumed_at = machtrace_now();
    /* From here on the thread's record is the capturer's again. */
    atomic_store(&slot->state, state_of(request, DONE));
    if (is_last(own_number)) {
        atomic_fetch_add(&answers, 1);
        futex_wake(&answers);
    }
    if (together)
        wait_for_release(own_number, limit);
    errno = error;
}

/* --- the thread that captures --- */

static bool has_ended(const struct machtrace_thread_status *status)
{
    return status->state == 0 || status->state == 'Z' || status->state == 'X';
}

static bool is_in(uint64_t signals)
{
    return signals >> (own_signal - 1) & 1;
}

/* Whether an earlier signal is still pending for this thread, as far as can be known; and the
 * thread's status. */
static bool is_overdue(pid_t thread, struct machtrace_thread_status *status)
{
    size_t end = atomic_load(&overdue_end);
    for (size_t index = 0; index < end; index++) {
        uint64_t token = atomic_load(&overdue[index].token);
        if (token == 0 || overdue[index].thread != thread)
            continue;
        *status = machtrace_status_of(thread);
        if (status->state == MACHTRACE_STATE_UNKNOWN || is_in(status->pending))
            return true;
        atomic_compare_exchange_strong(&overdue[index].token, &token, 0); /* of another thread */
    }
    if (!are_some_unnoted)
        return false;
    /* One that blocks the signal would not take it, and there may be no entry to note that. */
    *status = machtrace_status_of(thread);
    return status->state == MACHTRACE_STATE_UNKNOWN || is_in(status->pending | status->blocked);
}

static void note_overdue(pid_t thread, uint64_t token)
{
    for (size_t index = 0; index < OVERDUE_MAX; index++) {
        if (atomic_load(&overdue[index].token) != 0)
            continue;
        if (index >= atomic_load(&overdue_end))
            atomic_store(&overdue_end, index + 1);
        overdue[index].thread = thread;
        atomic_store(&overdue[index].token, token);
        return;
    }
    are_some_unnoted = true;
}

/* Free entries of threads that have exited, if this number of others may find none. */
static void reclaim_entries(size_t count)
{
    size_t end = atomic_load(&overdue_end);
    bool is_scarce = end + count > OVERDUE_MAX;
    for (size_t index = 0; is_scarce && index < end; index++)
        if (atomic_load(&overdue[index].token) != 0 &&
            syscall(SYS_tgkill, getpid(), overdue[index].thread, 0) != 0 && errno == ESRCH)
            atomic_store(&overdue[index].token, 0);
    while (end > 0 && atomic_load(&overdue[end - 1].token) == 0)
        end--;
    atomic_store(&overdue_end, end);
}

/* Send the signal; false if that thread is not to be waited for. */
static bool ask(struct machtrace_thread *thread, size_t index, uint64_t request)
{
    struct slot *slot = &slots[index];
    pid_t id = (pid_t)thread->id;
    struct machtrace_thread_status status;
    if (is_overdue(id, &status)) {
        /* It blocks the signal, or has not had its turn since; or is a main thread that ended. */
        if (!has_ended(&status))
            thread->outcome = is_in(status.blocked) ? MACHTRACE_BLOCKED : MACHTRACE_NOT_STOPPED;
        thread->uninterruptible = !is_in(status.blocked) && status.state == 'D';
        return false;
    }
    slot->thread = thread;
    thread->requested_at = machtrace_now();
    atomic_fetch_add(&outstanding, 1);
    atomic_store(&slot->state, state_of(request, ASKED));
    siginfo_t info;
    memset(&info, 0, sizeof info);
    info.si_signo = own_signal;
    /* If the thread executes another program, the signals of timers are discarded, and all others
     * stay pending: they would end that program. */
    info.si_code = SI_TIMER;
    info.si_value.sival_ptr = (void *)(uintptr_t)token_of(request, index);
    if (syscall(SYS_rt_tgsigqueueinfo, getpid(), id, own_signal, &info) == 0)
        return true;
    int error = errno;
    atomic_store(&slot->state, state_of(request, IDLE));
    is_last(capture_number);
    thread->error = error;
    thread->outcome = error == ESRCH ? MACHTRACE_GONE : MACHTRACE_REFUSED;
    return false;
}

/* Take the request back; false if the thread has begun to answer it. */
static bool take_back(struct machtrace_thread *thread, size_t index, uint64_t request,
                      const struct machtrace_thread_status *status, enum machtrace_outcome outcome)
{
    uint64_t expected = state_of(request, ASKED);
    uint64_t token = token_of(request, index);
    if (status->state != 0)
        note_overdue((pid_t)thread->id, token); /* before it can come too late */
    if (!atomic_compare_exchange_strong(&slots[index].state, &expected, state_of(request, IDLE))) {
        forget_overdue(token);
        return false;
    }
    is_last(capture_number);
    thread->outcome = outcome;
    return true;
}

/* Why one does not answer, and whether to wait on. */
static void look_into(const struct machtrace_inprocess_capture *capture,
                      struct machtrace_thread *thread, size_t index, uint64_t request)
{
    struct machtrace_thread_status status = machtrace_status_of((pid_t)thread->id);
    int64_t waited = machtrace_now() - thread->requested_at;
    if (has_ended(&status)) {
        take_back(thread, index, request, &status, MACHTRACE_GONE);
    } else if (is_in(status.blocked & status.pending)) {
        /* The handler blocks it too, but then it is not pending. */
        take_back(thread, index, request, &status, MACHTRACE_BLOCKED);
    } else if (waited >= capture->answer_limit ||
               (status.state == 'D' && waited >= capture->sleep_limit)) {
        if (take_back(thread, index, request, &status, MACHTRACE_NOT_STOPPED))
            thread->uninterruptible = status.state == 'D';
    }
}

static bool is_waited_for(size_t index, uint64_t request)
{
    uint64_t state = atomic_load(&slots[index].state);
    return state == state_of(request, ASKED) || state == state_of(request, COPYING);
}

void machtrace_inprocess_copy(struct machtrace_inprocess_capture *capture)
{
    if (capture->thread_count > MACHTRACE_INPROCESS_THREADS_MAX)
        capture->thread_count = MACHTRACE_INPROCESS_THREADS_MAX;
    uint64_t requests[MACHTRACE_INPROCESS_THREADS_MAX];
    reclaim_entries(capture->thread_count);
    capture_number++;
    current = capture;
    /* One more, this thread, until all are requested. */
    atomic_store(&outstanding, (uint64_t)capture_number << 32 | 1);
    size_t waiting = 0;
    for (size_t index = 0; index < capture->thread_count; index++) {
        struct machtrace_thread *thread = &capture->threads[index];
        machtrace_thread_begin(thread, MACHTRACE_GONE, 0, 0);
        requests[index] = ++last_request;
        if (!ask(thread, index, requests[index]))
            requests[index] = 0;
        else
            waiting++;
    }
    is_last(capture_number);
    int64_t pause = LOOK_FIRST;
    int64_t look_at = machtrace_now() + pause;
    while (waiting != 0) {
        uint32_t seen = atomic_load(&answers);
        bool is_late = machtrace_now() >= look_at;
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
        if (is_late) {
            pause = 2 * pause < LOOK_LAST ? 2 * pause : LOOK_LAST;
            look_at = machtrace_now() + pause;
        }
        if (waiting != 0)
            futex_wait(&answers, seen, pause);
    }
    if (capture->together && capture->meanwhile != NULL)
        capture->meanwhile(capture);
    atomic_store(&released, capture_number);
    if (capture->together) {
        futex_wake(&released);
        for (size_t index = 0; index < capture->thread_count; index++)
            if (capture->threads[index].outcome == MACHTRACE_COPIED)
                capture->threads[index].resumed_at = machtrace_now();
    }
    current = NULL;
}

/* --- one capture at a time --- */

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* In the child of a fork there is one thread, no pending signal and no capture. */
static void after_fork(void)
{
    pthread_mutex_init(&turn, NULL);
    for (size_t index = 0; index < MACHTRACE_INPROCESS_THREADS_MAX; index++)
        atomic_store(&slots[index].state, 0);
    for (size_t index = 0; index < OVERDUE_MAX; index++)
        atomic_store(&overdue[index].token, 0);
    atomic_store(&overdue_end, 0);
    are_some_unnoted = false;
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

static int choose_or_leave(int signal)
{
    int error = choose(signal);
    if (error != 0)
        pthread_mutex_unlock(&turn);
    return error;
}

int machtrace_inprocess_begin(int signal)
{
    pthread_once(&once, prepare);
    pthread_mutex_lock(&turn);
    return choose_or_leave(signal);
}

int machtrace_inprocess_try_begin(int signal)
{
    pthread_once(&once, prepare);
    return pthread_mutex_trylock(&turn) != 0 ? EAGAIN : choose_or_leave(signal);
}

void machtrace_inprocess_end(void)
{
    pthread_mutex_unlock(&turn);
}

int machtrace_inprocess_signal(void)
{
    return own_signal;
}
