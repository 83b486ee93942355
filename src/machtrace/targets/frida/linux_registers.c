/* Register sets and signal frames; the first part of what Frida's CModule compiles on Linux.
 *
 * As native/common/linux/registers.c, which has the sources; there are no headers here.
 */
typedef unsigned char u8;
typedef unsigned long long u64;
typedef long long s64;
typedef unsigned long word;

enum { SIGNAL_FRAME_REACH = 65536 };

static void copy_bytes(void *to, const void *from, word size)
{
    u8 *t = to;
    const u8 *f = from;
    while (size-- != 0)
        *t++ = *f++;
}

static u64 word_at(const u8 *bytes, u64 size)
{
    u64 value = 0;
    copy_bytes(&value, bytes, (word)size);
    return value;
}

/* The stack pointer that a signal saved whose handler runs on an alternate stack; else 0. */
static u64 interrupted_sp(const u8 *stack, u64 size, u64 sp, u64 step, u64 frame_sp)
{
    if (size > SIGNAL_FRAME_REACH)
        size = SIGNAL_FRAME_REACH;
    for (u64 at = 2 * step; at + frame_sp + step <= size; at += step) {
        const u8 *frame = stack + at;
        u64 start = word_at(frame, step);
        if (start > sp || sp - start >= 1 << 30)
            continue;
        u64 length = word_at(frame + 2 * step, step);
        u64 saved = word_at(frame + frame_sp, step);
        if (length > 1 << 30 || sp - start >= length || saved - start < length)
            continue;
        if (word_at(frame - 2 * step, step) <= 7 && word_at(frame - step, step) == 0 &&
            (word_at(frame + step, 4) & ~(u64)0x80000003) == 0)
            return saved;
    }
    return 0;
}

/* Calls that fail with EINTR when their thread is stopped, though no signal was handled, are restarted if
 * they wait without a limit: x86-64 only. Whether anything was changed. */
static int mark_restart(u8 *registers, u64 size)
{
    static const u64 waiting[] = {65, 128, 220, 232, 281, 441};
    static const u8 limit_at[] = {0, 96, 56, 56, 56, 56};
    if (size != 216 || (s64)word_at(registers + 80, 8) != -4) /* EINTR */
        return 0;
    for (int index = 0; index < 6; index++) {
        if (waiting[index] != word_at(registers + 120, 8))
            continue;
        u64 limit = limit_at[index] == 0 ? 0 : word_at(registers + limit_at[index], 8);
        int is_number = waiting[index] == 232 || waiting[index] == 281;
        if (is_number ? (int)limit >= 0 : limit != 0)
            return 0;
        s64 result = -514; /* ERESTARTNOHAND */
        copy_bytes(registers + 80, &result, 8);
        return 1;
    }
    return 0;
}
