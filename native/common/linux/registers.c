#include "common/linux/registers.h"

#include <errno.h>
#include <string.h>

/* Offsets in bytes. */
struct layout {
    size_t registers_size;
    size_t word;
    size_t sp;            /* in the register set */
    size_t block;         /* in it, where the thread's own block is at; 0 for nowhere */
    size_t frame_sp;      /* from uc_stack to the saved stack pointer */
    size_t frame_ss_size; /* from uc_stack to ss_size */
};

static const struct layout layouts[] = {
    {272, 8, 248, 0, 416, 16}, /* aarch64: asm/ucontext.h, asm/sigcontext.h */
    {216, 8, 152, 168, 144, 16}, /* x86-64 (fs_base): asm-generic/ucontext.h, asm/sigcontext.h */
    {72, 4, 52, 0, 76, 8},     /* arm */
    {68, 4, 60, 0, 40, 8},     /* i386 */
};

static const struct layout *layout_of(size_t registers_size)
{
    for (size_t index = 0; index < sizeof layouts / sizeof *layouts; index++)
        if (layouts[index].registers_size == registers_size)
            return &layouts[index];
    return NULL;
}

/* Both machines that this is built for are little-endian. */
static uint64_t word_at(const unsigned char *bytes, size_t size)
{
    uint64_t value = 0;
    memcpy(&value, bytes, size);
    return value;
}

bool machtrace_stack_pointer(const unsigned char *registers, size_t size, uint64_t *sp)
{
    const struct layout *layout = layout_of(size);
    if (layout == NULL)
        return false;
    *sp = word_at(registers + layout->sp, layout->word);
    return true;
}

bool machtrace_thread_pointer(const unsigned char *registers, size_t size, uint64_t *pointer)
{
    const struct layout *layout = layout_of(size);
    if (layout == NULL || layout->block == 0)
        return false;
    *pointer = word_at(registers + layout->block, layout->word);
    return true;
}

bool machtrace_interrupted_sp(const unsigned char *stack, size_t stack_size, uint64_t sp,
                              size_t registers_size, uint64_t *interrupted)
{
    /* uc_flags has three bits in use, ss_flags those of SS_ONSTACK, SS_DISABLE and
     * SS_AUTODISARM; no alternate stack is near a gigabyte. */
    const uint64_t uc_flags_most = 7;
    const uint32_t ss_flags_known = UINT32_C(0x80000003);
    const uint64_t size_most = UINT64_C(1) << 30;
    const struct layout *layout = layout_of(registers_size);
    if (layout == NULL || stack_size < 3 * layout->word + layout->frame_sp)
        return false;
    size_t word = layout->word;
    size_t last = stack_size - layout->frame_sp - word;
    for (size_t at = 2 * word; at <= last; at += word) {
        const unsigned char *frame = stack + at;
        uint64_t start = word_at(frame, word);
        if (start > sp || sp - start >= size_most)
            continue;
        uint64_t size = word_at(frame + layout->frame_ss_size, word);
        if (size > size_most || sp - start >= size)
            continue;
        uint64_t uc_flags = word_at(frame - 2 * word, word);
        uint64_t uc_link = word_at(frame - word, word);
        uint32_t ss_flags = (uint32_t)word_at(frame + word, sizeof ss_flags);
        if (uc_flags > uc_flags_most || uc_link != 0 || (ss_flags & ~ss_flags_known) != 0)
            continue;
        uint64_t saved = word_at(frame + layout->frame_sp, word);
        if (saved - start < size)
            continue; /* a signal that came while another's handler ran */
        *interrupted = saved;
        return true;
    }
    return false;
}

/* --- system calls that fail with EINTR though no signal was handled --- */

enum {
    X86_64_SIZE = 216,
    X86_64_R10 = 56,
    X86_64_RAX = 80,
    X86_64_RDX = 96,
    X86_64_ORIG_RAX = 120,
    ERESTARTNOHAND = 514, /* linux/errno.h of the kernel: not in its interface's headers */
};

enum limit { NO_LIMIT, NEGATIVE_INT, NULL_POINTER };

static const struct {
    uint64_t number; /* arch/x86/entry/syscalls/syscall_64.tbl */
    enum limit unlimited;
    size_t argument; /* which register holds the time limit */
} interruptible[] = {
    {65, NO_LIMIT, 0},                /* semop */
    {128, NULL_POINTER, X86_64_RDX},  /* rt_sigtimedwait */
    {220, NULL_POINTER, X86_64_R10},  /* semtimedop */
    {232, NEGATIVE_INT, X86_64_R10},  /* epoll_wait */
    {281, NEGATIVE_INT, X86_64_R10},  /* epoll_pwait */
    {441, NULL_POINTER, X86_64_R10},  /* epoll_pwait2 */
};

bool machtrace_mark_restart(unsigned char *registers, size_t size)
{
    if (size != X86_64_SIZE || (int64_t)word_at(registers + X86_64_RAX, 8) != -EINTR)
        return false;
    uint64_t number = word_at(registers + X86_64_ORIG_RAX, 8);
    for (size_t index = 0; index < sizeof interruptible / sizeof *interruptible; index++) {
        if (interruptible[index].number != number)
            continue;
        uint64_t argument = word_at(registers + interruptible[index].argument, 8);
        enum limit unlimited = interruptible[index].unlimited;
        if (unlimited == NEGATIVE_INT && (int32_t)(uint32_t)argument >= 0)
            return false;
        if (unlimited == NULL_POINTER && argument != 0)
            return false;
        int64_t result = -ERESTARTNOHAND;
        memcpy(registers + X86_64_RAX, &result, sizeof result);
        return true;
    }
    return false;
}
