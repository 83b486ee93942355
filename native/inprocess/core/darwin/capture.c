/* inprocess/core/capture.h for macOS and iOS: the kernel suspends threads, the caller copies them.
 *
 * While anything is suspended only the kernel is called: thread_suspend, thread_get_state,
 * vm_region_recurse_64, vm_read_overwrite, thread_resume, thread_info, and the clock. Ports and
 * memory are acquired before, since a suspended thread may hold the locks of malloc, of pthread's
 * list or of dyld. See docs/decisions/0026-the-darwin-core-in-an-emulator.md for
 * what was run where.
 */
#include "inprocess/core/darwin/shared.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "common/darwin/registers.h"
#include "common/darwin/clock.h"
#include "common/darwin/memory.h"
#include "common/darwin/threads.h"

/* --- one thread --- */

static void resume(struct machtrace_thread *thread, thread_act_t port)
{
    kern_return_t result = machtrace_mach_resume(port);
    if (result != KERN_SUCCESS) {
        thread->error = result;
        thread->outcome = MACHTRACE_LEFT_STOPPED;
    }
    thread->resumed_at = machtrace_mach_now();
}

/* --- all of a capture --- */

static struct machtrace_thread_port *ports; /* used by whose turn it is */
static size_t ports_room;

static kern_return_t find(const struct machtrace_inprocess_capture *capture)
{
    if (capture->thread_count > ports_room) {
        struct machtrace_thread_port *more = malloc(capture->thread_count * sizeof *more);
        if (more == NULL)
            return KERN_RESOURCE_SHORTAGE;
        free(ports);
        ports = more;
        ports_room = capture->thread_count;
    }
    return machtrace_threads_find(capture, ports);
}

static void copy_each(const struct machtrace_inprocess_capture *capture)
{
    for (size_t index = 0; index < capture->thread_count; index++) {
        struct machtrace_thread *thread = &capture->threads[index];
        thread_act_t port = ports[index].port;
        if (port == MACH_PORT_NULL || !machtrace_mach_suspend(thread, port))
            continue;
        machtrace_copy_suspended(capture, thread, port);
        resume(thread, port);
    }
}

/* Each is copied after the last was suspended, and resumed after the last was copied. */
static void copy_together(const struct machtrace_inprocess_capture *capture)
{
    for (size_t index = 0; index < capture->thread_count; index++)
        if (ports[index].port != MACH_PORT_NULL &&
            !machtrace_mach_suspend(&capture->threads[index], ports[index].port))
            ports[index].port = MACH_PORT_NULL;
    for (size_t index = 0; index < capture->thread_count; index++)
        if (ports[index].port != MACH_PORT_NULL)
            machtrace_copy_suspended(capture, &capture->threads[index], ports[index].port);
    for (size_t index = 0; index < capture->thread_count; index++)
        if (ports[index].port != MACH_PORT_NULL)
            resume(&capture->threads[index], ports[index].port);
}

/* All but those of faults: a handler may never return, and runs code of others. */
static void signals_to_block(sigset_t *signals)
{
    static const int faults[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigfillset(signals);
    for (size_t index = 0; index < sizeof faults / sizeof *faults; index++)
        sigdelset(signals, faults[index]);
}

void machtrace_inprocess_copy(struct machtrace_inprocess_capture *capture)
{
    kern_return_t result = find(capture);
    int64_t now = machtrace_mach_now();
    for (size_t index = 0; index < capture->thread_count; index++) {
        struct machtrace_thread *thread = &capture->threads[index];
        kern_return_t error = result != KERN_SUCCESS ? result : ports[index].error;
        machtrace_thread_begin(thread, error == KERN_SUCCESS ? MACHTRACE_GONE : MACHTRACE_REFUSED,
                               error, now);
        if (result == KERN_SUCCESS)
            thread->pthread_or_queue = ports[index].pthread;
    }
    if (result != KERN_SUCCESS)
        return;
    sigset_t blocked, before;
    signals_to_block(&blocked);
    bool are_blocked = pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0;
    if (capture->together)
        copy_together(capture);
    else
        copy_each(capture);
    if (are_blocked)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* --- one capture at a time --- */

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static bool is_prepared;

/* In the child of a fork there is one thread, and no capture. */
static void after_fork(void)
{
    turn = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    machtrace_threads_forget();
}

/* Where calls are bound when they are first made, the loader does so under a lock: not while
 * anything is suspended. No thread has the port that these are made with. */
static void bind_calls(void)
{
    unsigned char registers[MACHTRACE_REGISTERS_MAX];
    mach_msg_type_number_t count = MACHTRACE_DARWIN_FLAVOR_COUNT;
    struct machtrace_mach_region region;
    uint64_t here;
    size_t got;
    thread_suspend(MACH_PORT_NULL);
    thread_get_state(MACH_PORT_NULL, MACHTRACE_DARWIN_FLAVOR, (thread_state_t)(void *)registers,
                     &count);
    thread_resume(MACH_PORT_NULL);
    machtrace_mach_is_suspended(MACH_PORT_NULL);
    machtrace_mach_find_region(mach_task_self(), (uint64_t)(uintptr_t)&here, &region);
    machtrace_mach_read(mach_task_self(), (uint64_t)(uintptr_t)&region, (unsigned char *)&here,
                        sizeof here, &got);
    machtrace_mach_now();
}

int machtrace_inprocess_begin(int signal)
{
    if (signal != 0)
        return EINVAL;
    pthread_mutex_lock(&turn);
    if (!is_prepared) {
        if (pthread_atfork(NULL, NULL, after_fork) != 0) {
            pthread_mutex_unlock(&turn);
            return EAGAIN;
        }
        bind_calls();
        is_prepared = true;
    }
    return 0;
}

void machtrace_inprocess_end(void)
{
    machtrace_threads_release();
    pthread_mutex_unlock(&turn);
}

int machtrace_inprocess_signal(void)
{
    return 0;
}
