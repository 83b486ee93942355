/* What a thread has of its own: see agent/thread.h.
 *
 * Words of pthread's array of thread-specific data, which is part of every thread's structure:
 * _Thread_local variables are allocated at the first access (dyld's tlv_get_addr). The array's
 * address is in a register of the thread, and keys are indices: os/tsd.h of libplatform, which
 * pthread_getspecific(3) is made of.
 */
#ifndef MACHTRACE_AGENT_DARWIN_SELF_H
#define MACHTRACE_AGENT_DARWIN_SELF_H

/* Keys; 0 before there are any. The second word: how many times ignore_enter was called without
 * leave, and above that the signals that were blocked before (sigset_t has 32 bits). */
extern unsigned long machtrace_recorder_key, machtrace_ignore_key;

#if defined(__aarch64__)
static inline uint64_t *machtrace_self_word(unsigned long key)
{
    uint64_t base;
    __asm__("mrs %0, tpidrro_el0" : "=r"(base));
    return (uint64_t *)(uintptr_t)(base & ~UINT64_C(7)) + key; /* the processor's number is below */
}

static inline uint64_t machtrace_self_read(unsigned long key)
{
    return *machtrace_self_word(key);
}

static inline void machtrace_self_write(unsigned long key, uint64_t value)
{
    *(volatile uint64_t *)machtrace_self_word(key) = value;
}
#else
static inline uint64_t machtrace_self_read(unsigned long key)
{
    uint64_t value;
    __asm__ volatile("movq %%gs:(, %1, 8), %0" : "=r"(value) : "r"(key));
    return value;
}

static inline void machtrace_self_write(unsigned long key, uint64_t value)
{
    __asm__ volatile("movq %0, %%gs:(, %1, 8)" : : "r"(value), "r"(key) : "memory");
}
#endif

static inline struct machtrace_recorder *machtrace_self_recorder(void)
{
    return (struct machtrace_recorder *)(uintptr_t)machtrace_self_read(machtrace_recorder_key);
}

static inline uint32_t machtrace_self_ignoring(void)
{
    return machtrace_ignore_key == 0 ? 0 : (uint32_t)machtrace_self_read(machtrace_ignore_key);
}

#endif
