/* See deep_stacks.h. */
#include "deep_stacks.h"

#include "thread.h"

/* Walk a stack that may be unmapped anywhere: through copies made by the kernel. */
static void walk_other(struct machtrace_recorder *recorder,
                       struct machtrace_records_walk *walk)
{
    do {
        uint64_t from = walk->fp;
        size_t got = machtrace_read_memory(from, recorder->window, sizeof recorder->window);
        if (got < 16)
            return;
        struct machtrace_frame_stack stack = {from, from + got, recorder->window,
                                              machtrace_recorders.code_bits};
        machtrace_frame_records(&stack, walk, recorder->frames, MACHTRACE_FRAMES_MAX);
        if (walk->fp <= from)
            return;
    } while (walk->end == MACHTRACE_RECORDS_BROKEN && walk->fp % sizeof(uint64_t) == 0 &&
             !machtrace_is_on_own_stack(recorder, walk->fp));
}

void machtrace_walk_frames(struct machtrace_recorder *recorder, uint64_t sp,
                           struct machtrace_records_walk *walk)
{
    bool is_own = machtrace_is_on_own_stack(recorder, sp);
    if (!is_own && !machtrace_is_on_own_stack(recorder, walk->fp))
        walk_other(recorder, walk);
    if (walk->end != MACHTRACE_RECORDS_BROKEN || !machtrace_is_on_own_stack(recorder, walk->fp))
        return;
    uint64_t low = is_own ? sp : recorder->stack_low;
    struct machtrace_frame_stack stack = {low, recorder->stack_high,
                                          (const unsigned char *)(uintptr_t)low,
                                          machtrace_recorders.code_bits};
    machtrace_frame_records(&stack, walk, recorder->frames, MACHTRACE_FRAMES_MAX);
}

/* Take the inner frames again, behind the caller. */
static void take_inner(struct machtrace_recorder *recorder, uint64_t sp,
                       struct machtrace_records_walk *walk, uint64_t caller, uint64_t fp)
{
    *walk = (struct machtrace_records_walk){fp, 1, MACHTRACE_RECORDS_BROKEN};
    recorder->frames[0] = caller;
    machtrace_walk_frames(recorder, sp, walk);
}

void machtrace_take_windows(struct machtrace_recorder *recorder, uint64_t sp,
                            struct machtrace_records_walk *walk, uint64_t fp)
{
    uint64_t caller = recorder->frames[0];
    while (walk->end == MACHTRACE_RECORDS_FULL &&
           recorder->window_count < MACHTRACE_WINDOWS_MAX) {
        recorder->windows[recorder->window_count++] = walk->fp;
        walk->count = 0;
        walk->end = MACHTRACE_RECORDS_BROKEN;
        machtrace_walk_frames(recorder, sp, walk);
    }
    enum machtrace_records_end end = walk->end;
    take_inner(recorder, sp, walk, caller, fp);
    if (end == MACHTRACE_RECORDS_FULL)
        recorder->window_count = 0;
    else
        walk->end = MACHTRACE_RECORDS_ROOT;
}

/* Insert the frames that the recorder has, outermost first; the innermost one's node. */
static uint32_t insert_frames(struct machtrace_recorder *recorder, size_t count, uint32_t base,
                              uint32_t node, uint8_t *flags)
{
    while (count-- > 0) {
        uint64_t address = recorder->frames[count];
        if (!machtrace_is_code(recorder, address)) {
            *flags |= MACHTRACE_EVENT_NO_FRAME_POINTER;
            node = base;
            continue;
        }
        uint32_t next = machtrace_stack_tree_insert(&machtrace_recorders.tree, node, address);
        if (next == MACHTRACE_TREE_ROOT) {
            *flags |= MACHTRACE_EVENT_INCOMPLETE;
            break;
        }
        node = next;
    }
    return node;
}

uint32_t machtrace_insert_windows(struct machtrace_recorder *recorder, uint32_t base, uint64_t sp,
                                  uint64_t fp, size_t *count, uint8_t *flags)
{
    struct machtrace_records_walk walk;
    uint64_t caller = recorder->frames[0];
    uint32_t node = base;
    for (size_t index = recorder->window_count;
         index-- > 0 && (*flags & MACHTRACE_EVENT_INCOMPLETE) == 0;) {
        walk = (struct machtrace_records_walk){recorder->windows[index], 0,
                                               MACHTRACE_RECORDS_BROKEN};
        machtrace_walk_frames(recorder, sp, &walk);
        node = insert_frames(recorder, walk.count, base, node, flags);
    }
    take_inner(recorder, sp, &walk, caller, fp);
    if ((*flags & MACHTRACE_EVENT_INCOMPLETE) != 0) {
        atomic_fetch_add_explicit(&machtrace_recorders.incomplete, 1, memory_order_relaxed);
        *count = 0;
    }
    return node;
}
