/* agent/thread.h for macOS and iOS.
 *
 * Functions of libSystem that are called in hooks are called by pointers that were taken before
 * anything was watched: the program's import slots of them may lead to stubs, also ours where the
 * agent is part of the program.
 */
#include "thread.h"

#include <errno.h>
#include <mach/mach.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "common/darwin/memory.h"
#include "darwin/system.h"
#include "recorder.h"

#define UL_COMPARE_AND_WAIT 1 /* bsd/sys/ulock.h of xnu */
#define ULF_NO_ERRNO 0x01000000

unsigned long machtrace_recorder_key, machtrace_ignore_key;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct {
    int (*set_specific)(pthread_key_t key, const void *value);
    int (*is_main)(void);
    pthread_t (*self)(void);
    void *(*stack_end)(pthread_t thread);
    size_t (*stack_size)(pthread_t thread);
} call;

/* --- what a thread has of its own --- */

/* The thread ends. If a destructor of another key calls a watched function after this one, that
 * takes a recorder, and pthread calls this again. */
static void release(void *value)
{
    struct machtrace_recorder *recorder = value;
    while (recorder != NULL) {
        struct machtrace_recorder *inner = recorder->inner;
        atomic_store(&recorder->busy, 0);
        atomic_store(&recorder->id, 0);
        recorder = inner;
    }
}

static void make_keys(void)
{
    pthread_key_t recorder, ignore;
    call.set_specific = pthread_setspecific;
    call.is_main = pthread_main_np;
    call.self = pthread_self;
    call.stack_end = pthread_get_stackaddr_np;
    call.stack_size = pthread_get_stacksize_np;
    if (pthread_key_create(&recorder, release) != 0 || pthread_key_create(&ignore, NULL) != 0)
        return;
    machtrace_recorder_key = recorder;
    machtrace_ignore_key = ignore;
}

bool machtrace_self_begin(void)
{
    pthread_once(&once, make_keys);
    return machtrace_ignore_key != 0;
}

uint32_t machtrace_thread_id(void)
{
    uint32_t id = (uint32_t)machtrace_system(MACHTRACE_SYS_THREAD_SELFID, 0, 0, 0, 0);
    return id != 0 ? id : 1;
}

bool machtrace_thread_is_main(void)
{
    return call.is_main() != 0;
}

bool machtrace_thread_has_ended(uint32_t id)
{
    (void)id;
    return false; /* its recorder was released by `release` */
}

bool machtrace_thread_is_of_upload(void)
{
    return false; /* the agent uploads nothing here */
}

void machtrace_thread_set_recorder(struct machtrace_recorder *recorder)
{
    call.set_specific((pthread_key_t)machtrace_recorder_key, recorder);
}

/* --- the agent's own calls --- */

void machtrace_ignore_enter(void)
{
    uint32_t all = ~(uint32_t)0, before = 0;
    if (!machtrace_self_begin())
        return;
    machtrace_system(MACHTRACE_SYS_PTHREAD_SIGMASK, SIG_BLOCK, machtrace_address_of(&all),
                     machtrace_address_of(&before), 0);
    uint64_t word = machtrace_self_read(machtrace_ignore_key);
    if ((uint32_t)word == 0)
        word = (uint64_t)before << 32;
    machtrace_self_write(machtrace_ignore_key, word + 1);
    atomic_signal_fence(memory_order_seq_cst);
}

void machtrace_ignore_leave(void)
{
    if (machtrace_ignore_key == 0)
        return;
    atomic_signal_fence(memory_order_seq_cst);
    uint64_t word = machtrace_self_read(machtrace_ignore_key) - 1;
    uint32_t before = (uint32_t)(word >> 32);
    bool is_last = (uint32_t)word == 0;
    machtrace_self_write(machtrace_ignore_key, is_last ? 0 : word);
    if (is_last)
        machtrace_system(MACHTRACE_SYS_PTHREAD_SIGMASK, SIG_SETMASK, machtrace_address_of(&before),
                         0, 0);
}

/* --- waiting --- */

uint64_t machtrace_clock(void)
{
    return clock_gettime_nsec_np(CLOCK_MONOTONIC);
}

void machtrace_wait(_Atomic uint32_t *word, uint32_t seen, uint32_t milliseconds)
{
    machtrace_system(MACHTRACE_SYS_ULOCK_WAIT, UL_COMPARE_AND_WAIT | ULF_NO_ERRNO,
                     machtrace_address_of((void *)word), seen, (uint64_t)milliseconds * 1000);
}

void machtrace_wake(_Atomic uint32_t *word)
{
    atomic_fetch_add(word, 1);
    machtrace_system(MACHTRACE_SYS_ULOCK_WAKE, UL_COMPARE_AND_WAIT | ULF_NO_ERRNO,
                     machtrace_address_of((void *)word), 0, 0);
}

/* --- memory --- */

uint64_t machtrace_code_bits(void)
{
#if defined(__aarch64__)
    /* xpaclri clears the bits of a signature below bit 55, however many this process has. It is a
     * hint: a processor without signatures does nothing, and no address has such bits there. */
    register uint64_t lr __asm__("x30") = (UINT64_C(1) << 55) - 1;
    __asm__ volatile("hint #7" : "+r"(lr));
    return lr;
#else
    return UINT64_MAX;
#endif
}

bool machtrace_find_mapping(struct machtrace_recorder *recorder, uint64_t address,
                            struct machtrace_mapping *mapping)
{
    struct machtrace_mach_region region;
    (void)recorder;
    if (machtrace_mach_find_region(mach_task_self(), address, &region) != KERN_SUCCESS ||
        address < region.start)
        return false;
    mapping->start = region.start;
    mapping->end = region.end;
    mapping->is_executable = (region.protection & VM_PROT_EXECUTE) != 0;
    return true;
}

size_t machtrace_read_memory(uint64_t address, void *to, size_t size)
{
    size_t got;
    machtrace_mach_read(mach_task_self(), address, to, size, &got);
    return got;
}

/* --- the stack --- */

bool machtrace_thread_stack(struct machtrace_recorder *recorder, uint64_t sp, uint64_t *low,
                            uint64_t *high)
{
    (void)recorder;
    pthread_t self = call.self();
    uint64_t end = machtrace_address_of(call.stack_end(self));
    uint64_t size = call.stack_size(self);
    if (sp >= end || end - sp > size)
        return false;
    *low = end - size;
    *high = end;
    return true;
}

bool machtrace_thread_is_on_signal_stack(void)
{
    stack_t stack = {0};
    machtrace_system(MACHTRACE_SYS_SIGALTSTACK, 0, machtrace_address_of(&stack), 0, 0);
    return (stack.ss_flags & SS_ONSTACK) != 0;
}
