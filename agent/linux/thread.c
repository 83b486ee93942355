/* agent/thread.h for Linux. */
#define _GNU_SOURCE
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "linux/system.h"
#include "recorder.h"

_Thread_local struct machtrace_self machtrace_self
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

static uint64_t main_stack; /* an address at the end of the main thread's stack */

bool machtrace_self_begin(void)
{
    main_stack = getauxval(AT_EXECFN);
    return true;
}

uint64_t machtrace_code_bits(void)
{
#if defined(__aarch64__)
    return (UINT64_C(1) << 48) - 1; /* signatures and tags are above */
#else
    return UINT64_MAX;
#endif
}

uint32_t machtrace_thread_id(void)
{
    return (uint32_t)machtrace_system(SYS_gettid, 0, 0, 0, 0, 0, 0);
}

bool machtrace_thread_is_main(void)
{
    return machtrace_thread_id() == (uint32_t)machtrace_system(SYS_getpid, 0, 0, 0, 0, 0, 0);
}

bool machtrace_thread_has_ended(uint32_t id)
{
    uint64_t process = (uint64_t)machtrace_system(SYS_getpid, 0, 0, 0, 0, 0, 0);
    return machtrace_system(SYS_tgkill, process, id, 0, 0, 0, 0) == -ESRCH;
}

bool machtrace_thread_is_of_upload(void)
{
    static const char expected[16] = MACHTRACE_UPLOAD_THREAD;
    volatile char name[16]; /* so that it is not compared by memcmp(3) */
    /* A thread has the name of the one that started it. */
    if (machtrace_system(SYS_prctl, PR_GET_NAME,
                         machtrace_address_of((const void *)(uintptr_t)name), 0, 0, 0, 0) != 0)
        return false;
    for (size_t index = 0; index < sizeof expected; index++)
        if (name[index] != expected[index])
            return false;
    machtrace_self.ignoring++;
    return true;
}

void machtrace_thread_set_recorder(struct machtrace_recorder *recorder)
{
    machtrace_self.recorder = recorder;
}

/* --- the agent's own calls --- */

#define ALL_SIGNALS (~(UINT64_C(3) << 31)) /* but 32 and 33, which are the C library's */

void machtrace_ignore_enter(void)
{
    uint64_t all = ALL_SIGNALS, before = 0;
    machtrace_system(SYS_rt_sigprocmask, SIG_BLOCK, machtrace_address_of(&all),
                     machtrace_address_of(&before), sizeof all, 0, 0);
    if (machtrace_self.ignoring++ == 0)
        machtrace_self.signals = before;
    atomic_signal_fence(memory_order_seq_cst);
}

void machtrace_ignore_leave(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    if (--machtrace_self.ignoring == 0)
        machtrace_system(SYS_rt_sigprocmask, SIG_SETMASK, machtrace_address_of(&machtrace_self.signals), 0,
                         sizeof machtrace_self.signals, 0, 0);
}

/* --- waiting --- */

void machtrace_wait(_Atomic uint32_t *word, uint32_t seen, uint32_t milliseconds)
{
    struct timespec limit = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
    machtrace_system(SYS_futex, machtrace_address_of((void *)word), FUTEX_WAIT_PRIVATE, seen,
                     machtrace_address_of(&limit), 0, 0);
}

void machtrace_wake(_Atomic uint32_t *word)
{
    atomic_fetch_add(word, 1);
    machtrace_system(SYS_futex, machtrace_address_of((void *)word), FUTEX_WAKE_PRIVATE, 1, 0, 0,
                     0);
}

uint64_t machtrace_clock(void)
{
    struct timespec time = {0, 0};
    machtrace_system(SYS_clock_gettime, CLOCK_MONOTONIC, machtrace_address_of(&time), 0, 0, 0, 0);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* --- memory --- */

/* PROCMAP_QUERY (linux/fs.h), of Linux 6.11 and later: the words of its structure that are used. */
#define QUERY_MAPPING UINT64_C(0xc0686611)
#define QUERY_WORDS 13
enum { QUERY_ADDRESS = 2, QUERY_START = 3, QUERY_END = 4, QUERY_RIGHTS = 5 };
#define QUERY_EXECUTABLE 4 /* PROCMAP_QUERY_VMA_EXECUTABLE */

static bool read_hex(const unsigned char **at, const unsigned char *end, uint64_t *value)
{
    const unsigned char *first = *at;
    for (*value = 0; *at < end; ++*at) {
        unsigned char digit = **at;
        if (digit >= '0' && digit <= '9')
            *value = *value << 4 | (uint64_t)(digit - '0');
        else if (digit >= 'a' && digit <= 'f')
            *value = *value << 4 | (uint64_t)(digit - 'a' + 10);
        else
            break;
    }
    return *at > first;
}

/* The mapping of an address in the text of /proc/self/maps. */
static bool search_text(long file, uint64_t address, unsigned char *text, size_t room,
                        struct machtrace_mapping *mapping)
{
    size_t size = 0;
    for (;;) {
        long got = machtrace_system(SYS_read, (uint64_t)file, machtrace_address_of(text + size),
                                    room - size, 0, 0, 0);
        if (got <= 0)
            return false;
        size += (size_t)got;
        const unsigned char *at = text, *limit = text + size, *line = text;
        for (;;) {
            while (at < limit && *at != '\n')
                at++;
            if (at == limit)
                break;
            const unsigned char *field = line;
            if (read_hex(&field, at, &mapping->start) && *field++ == '-' &&
                read_hex(&field, at, &mapping->end) && address >= mapping->start &&
                address < mapping->end) {
                mapping->is_executable = at - field > 3 && field[3] == 'x'; /* " r-xp" */
                return true;
            }
            line = ++at;
        }
        /* The last line may not be whole. */
        size = 0;
        for (; line < limit; line++)
            text[size++] = *line;
        if (size == room)
            return false;
    }
}

bool machtrace_find_mapping(struct machtrace_recorder *recorder, uint64_t address,
                            struct machtrace_mapping *mapping)
{
    static const char path[] = "/proc/self/maps";
    long file = machtrace_system(SYS_openat, (uint64_t)AT_FDCWD, machtrace_address_of(path),
                                 O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (file < 0)
        return false;
    volatile uint64_t query[QUERY_WORDS]; /* so that it is not cleared by memset(3) */
    for (int word = 0; word < QUERY_WORDS; word++)
        query[word] = 0;
    query[0] = sizeof query;
    query[QUERY_ADDRESS] = address;
    long result = machtrace_system(SYS_ioctl, (uint64_t)file, QUERY_MAPPING,
                                   machtrace_address_of((const void *)(uintptr_t)query), 0, 0, 0);
    bool is_found = result == 0;
    if (is_found) {
        mapping->start = query[QUERY_START];
        mapping->end = query[QUERY_END];
        mapping->is_executable = (query[QUERY_RIGHTS] & QUERY_EXECUTABLE) != 0;
    } else if (result != -ENOENT) {
        atomic_store_explicit(&machtrace_recorders.is_slow, true, memory_order_relaxed);
        is_found = search_text(file, address, recorder->window, sizeof recorder->window, mapping);
    }
    machtrace_system(SYS_close, (uint64_t)file, 0, 0, 0, 0, 0);
    return is_found;
}

size_t machtrace_read_memory(uint64_t address, void *to, size_t size)
{
    uint64_t process = (uint64_t)machtrace_system(SYS_getpid, 0, 0, 0, 0, 0, 0);
    uint64_t here[2] = {machtrace_address_of(to), size};
    uint64_t there[2] = {address, size};
    long got = machtrace_system(SYS_process_vm_readv, process, machtrace_address_of(here), 1,
                                machtrace_address_of(there), 1, 0);
    return got < 0 ? 0 : (size_t)got;
}

/* --- the stack --- */

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

/* The thread's own block is at the end of the stack that was made for it, and the name of the
 * program at that of the main thread's. */
bool machtrace_thread_stack(struct machtrace_recorder *recorder, uint64_t sp, uint64_t *low,
                            uint64_t *high)
{
    struct machtrace_mapping mapping;
    uint64_t block = recorder->is_main ? main_stack : thread_pointer();
    if (block <= sp || !machtrace_find_mapping(recorder, sp, &mapping) || block >= mapping.end)
        return false;
    *low = mapping.start;
    *high = block;
    return true;
}

bool machtrace_thread_is_on_signal_stack(void)
{
    uint64_t stack[3] = {0, 0, 0}; /* struct stack_t: address, flags, size */
    machtrace_system(SYS_sigaltstack, 0, machtrace_address_of(stack), 0, 0, 0, 0);
    return ((uint32_t)stack[1] & SS_ONSTACK) != 0;
}

