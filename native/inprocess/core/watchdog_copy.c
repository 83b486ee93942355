/* Copying threads for the watchdog: see watchdog_copy.h. */
#define _GNU_SOURCE
#include "inprocess/core/watchdog_copy.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "inprocess/core/linux/shared.h"
#include "inprocess/core/linux/thread_files.h"

#define PAGE 4096
#define RED_ZONE 128
#define SCRATCH (1 << 17)
#define TRIES 20 /* for a turn to capture, a millisecond apart */
/* Bytes of the ring that captures leave to events: more than all that may last at once need. */
#define SPARE (1 << 17)

static void *reserve(size_t size)
{
    void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    return bytes == MAP_FAILED ? NULL : bytes;
}

int machtrace_copying_have(struct machtrace_copying *copying,
                           const struct machtrace_watchdog_options *options)
{
    copying->options = options;
    copying->text = reserve(options->text_most);
    copying->scratch = reserve(SCRATCH);
    if (options->has_layout)
        copying->chains = reserve(MACHTRACE_COPYING_BATCH * sizeof *copying->chains);
    if (copying->text == NULL || copying->scratch == NULL ||
        (options->has_layout && copying->chains == NULL))
        return ENOMEM;
    return machtrace_inprocess_buffers_have(&copying->buffers, MACHTRACE_COPYING_BATCH,
                                            options->stack_limit);
}

void machtrace_copying_free(struct machtrace_copying *copying)
{
    if (copying->text != NULL)
        munmap(copying->text, copying->options->text_most);
    if (copying->scratch != NULL)
        munmap(copying->scratch, SCRATCH);
    if (copying->chains != NULL)
        munmap(copying->chains, MACHTRACE_COPYING_BATCH * sizeof *copying->chains);
    machtrace_inprocess_buffers_free(&copying->buffers);
}

void machtrace_copying_forget(struct machtrace_copying *copying)
{
    copying->knows_mappings = false;
    copying->code_count = 0;
    memset(copying->codes, 0, sizeof copying->codes);
}

size_t machtrace_copying_list(struct machtrace_copying *copying, const uint64_t **threads)
{
    int64_t listed = machtrace_inprocess_list(copying->ids, MACHTRACE_SERIES_THREADS_MAX);
    uint64_t own = machtrace_inprocess_id();
    size_t count = 0;
    for (int64_t index = 0; index < listed && index < MACHTRACE_SERIES_THREADS_MAX; index++)
        if (copying->ids[index] != own)
            copying->ids[count++] = copying->ids[index];
    *threads = copying->ids;
    return count;
}

/* --- threads that wait --- */

static void copy_stack(const struct machtrace_copying *copying, uint64_t sp,
                       struct machtrace_thread *thread)
{
    uint64_t starts[] = {sp < RED_ZONE ? 0 : sp - RED_ZONE, sp & ~(uint64_t)(PAGE - 1), sp};
    size_t room = copying->options->stack_limit + RED_ZONE;
    if (room > thread->room)
        room = thread->room;
    struct machtrace_stack *stack = &thread->stacks[0];
    *stack = (struct machtrace_stack){sp, 0, NULL};
    /* The red zone may lie in the guard page below the stack. */
    for (size_t index = 0; index < 3 && stack->size == 0; index++)
        *stack = (struct machtrace_stack){
            starts[index], machtrace_inprocess_read(starts[index], thread->buffer, room),
            thread->buffer};
    thread->stack_count = 1;
}

static bool equal_calls(const struct machtrace_thread_call *one,
                        const struct machtrace_thread_call *other)
{
    return other->is_known && !other->is_running && one->number == other->number &&
           one->sp == other->sp && one->pc == other->pc &&
           memcmp(one->arguments, other->arguments, sizeof one->arguments) == 0;
}

static bool copy_waiting(struct machtrace_copying *copying, size_t index)
{
    struct machtrace_thread *thread = &copying->threads[index];
    struct machtrace_thread_files files;
    struct machtrace_thread_call before, after;
    struct machtrace_thread_schedule turns_before, turns_after;
    bool is_copied = false;
    if (machtrace_thread_files_open((uint32_t)thread->id, &files) != 0)
        return false;
    int64_t at = machtrace_now();
    machtrace_thread_read_schedule(&files, &turns_before);
    if (machtrace_thread_read_call(&files, &before) && before.is_known && !before.is_running &&
        turns_before.is_known) {
        copy_stack(copying, before.sp, thread);
        if (copying->chains != NULL)
            machtrace_python_copy_chain(&copying->options->layout,
                                        machtrace_python_state_of(&copying->states, thread->id),
                                        thread->id, &copying->chains[index]);
        machtrace_thread_read_schedule(&files, &turns_after);
        is_copied = machtrace_thread_read_call(&files, &after) && equal_calls(&before, &after) &&
                    turns_after.turns == turns_before.turns && thread->stacks[0].size != 0;
    }
    machtrace_thread_files_close(&files);
    if (is_copied) {
        /* No more is known than these two: sp and pc. */
        memcpy(thread->registers, &before.sp, sizeof before.sp);
        memcpy(thread->registers + sizeof before.sp, &before.pc, sizeof before.pc);
        thread->registers_size = 2 * sizeof before.sp;
        thread->outcome = MACHTRACE_COPIED;
        thread->requested_at = thread->stopped_at = thread->resumed_at = at;
    } else {
        thread->stack_count = 0;
    }
    return is_copied;
}

/* --- threads that run --- */

/* In the handler of a thread that was just copied. */
static void copy_own_chain(const struct machtrace_inprocess_capture *capture,
                           struct machtrace_thread *thread)
{
    struct machtrace_copying *copying = capture->also_data;
    machtrace_python_copy_chain(&copying->options->layout,
                                machtrace_python_state_of(&copying->states, thread->id),
                                thread->id, &copying->chains[thread - copying->threads]);
}

static int begin(const struct machtrace_copying *copying)
{
    const struct timespec pause = {0, 1000000};
    int error = EAGAIN;
    for (int attempt = 0; attempt < TRIES && error == EAGAIN; attempt++) {
        if (attempt != 0)
            nanosleep(&pause, NULL);
        error = machtrace_inprocess_try_begin(copying->options->signal);
    }
    return error;
}

/* Copy threads[first] up to threads[last], all but those that were copied. */
static void copy_running(struct machtrace_copying *copying, size_t first, size_t last)
{
    static const struct machtrace_range everywhere = {0, UINT64_C(1) << 63};
    struct machtrace_inprocess_capture capture = {
        .ranges = &everywhere,
        .range_count = 1,
        .stack_limit = copying->options->stack_limit,
        .answer_limit = copying->options->answer_limit,
        .sleep_limit = copying->options->sleep_limit,
        .threads = copying->threads + first,
        .thread_count = last - first,
        .also = copying->chains == NULL ? NULL : copy_own_chain,
        .also_data = copying,
    };
    int error = begin(copying);
    if (error != 0) {
        for (size_t index = first; index < last; index++)
            machtrace_thread_begin(&copying->threads[index], MACHTRACE_FAILED, error,
                                   machtrace_now());
        atomic_fetch_add(&copying->lost, 1);
        return;
    }
    machtrace_inprocess_copy(&capture);
    machtrace_inprocess_end();
    for (size_t index = first; index < last; index++) {
        const struct machtrace_thread *thread = &copying->threads[index];
        if (thread->outcome != MACHTRACE_COPIED)
            continue;
        int64_t stopped = thread->resumed_at - thread->stopped_at;
        atomic_fetch_add(&copying->stops, 1);
        if (stopped > atomic_load(&copying->longest_stop))
            atomic_store(&copying->longest_stop, stopped);
    }
}

/* --- records --- */

static void add_python(const struct machtrace_copying *copying, struct machtrace_ring *ring,
                       size_t index)
{
    const struct machtrace_python_chain *chain = &copying->chains[index];
    size_t links = chain->link_count * sizeof *chain->links;
    size_t rows = chain->row_count * sizeof *chain->rows;
    struct machtrace_watchdog_python row = {
        .thread = copying->threads[index].id,
        .link_count = chain->link_count,
        .row_count = chain->row_count,
        .is_truncated = chain->is_truncated,
    };
    unsigned char *place =
        machtrace_ring_add(ring, sizeof row + links + rows, MACHTRACE_WATCHDOG_PYTHON, 1);
    if (place == NULL)
        return;
    memcpy(&row.record, place, sizeof row.record);
    memcpy(place, &row, sizeof row);
    memcpy(place + sizeof row, chain->links, links);
    memcpy(place + sizeof row + links, chain->rows, rows);
}

/* Whether the code is in the record already, or there is no room to know. */
static bool is_recorded(struct machtrace_copying *copying, uint64_t code)
{
    if (code == 0 || copying->code_count >= MACHTRACE_COPYING_CODES / 2)
        return true;
    size_t slot = (size_t)(code * UINT64_C(0x9e3779b97f4a7c15) >> 54);
    while (copying->codes[slot] != 0 && copying->codes[slot] != code)
        slot = (slot + 1) % MACHTRACE_COPYING_CODES;
    if (copying->codes[slot] == code)
        return true;
    copying->codes[slot] = code;
    copying->code_count++;
    return false;
}

static void add_codes(struct machtrace_copying *copying, struct machtrace_ring *ring, size_t index)
{
    const struct machtrace_python_chain *chain = &copying->chains[index];
    for (size_t row = 0; row < chain->row_count; row++) {
        if (is_recorded(copying, chain->rows[row].code))
            continue;
        uint32_t count;
        size_t size = machtrace_python_copy_code(&copying->options->layout, chain->rows[row].code,
                                                 copying->scratch, SCRATCH, &count);
        if (size == 0)
            continue; /* a shim's, which is no code */
        unsigned char *place =
            machtrace_ring_add(ring, sizeof(struct machtrace_series_record) + size,
                               MACHTRACE_WATCHDOG_MEMORY, count);
        if (place != NULL)
            memcpy(place + sizeof(struct machtrace_series_record), copying->scratch, size);
    }
}

static void add_mappings(struct machtrace_copying *copying, struct machtrace_ring *ring)
{
    uint64_t changes = machtrace_inprocess_image_changes();
    if (copying->knows_mappings && changes == copying->image_changes)
        return;
    int64_t size = machtrace_inprocess_mappings(copying->text, copying->options->text_most);
    if (size < 0)
        return;
    struct machtrace_series_mappings row = {.text_size = (uint64_t)size};
    unsigned char *place = machtrace_ring_add(ring, sizeof row + (size_t)size,
                                              MACHTRACE_SERIES_MAPPINGS, 0);
    if (place == NULL)
        return;
    memcpy(&row.record, place, sizeof row.record);
    memcpy(place, &row, sizeof row);
    memcpy(place + sizeof row, copying->text, (size_t)size);
    copying->knows_mappings = true;
    copying->image_changes = changes;
}

/* --- a capture --- */

static void copy_batch(struct machtrace_copying *copying, struct machtrace_ring *ring,
                       const uint64_t *ids, size_t count)
{
    for (size_t index = 0; index < count; index++) {
        struct machtrace_thread *thread = &copying->threads[index];
        thread->id = ids[index];
        thread->buffer = copying->buffers.bytes + index * copying->buffers.room;
        thread->room = copying->buffers.room;
        machtrace_thread_begin(thread, MACHTRACE_GONE, 0, machtrace_now());
        if (copying->chains != NULL)
            copying->chains[index].state = 0;
    }
    for (size_t index = 0; index < count; index++) {
        if (copy_waiting(copying, index))
            continue;
        size_t last = index + 1; /* consecutive ones at a time */
        while (last < count && !copy_waiting(copying, last))
            last++;
        copy_running(copying, index, last);
        index = last;
    }
    for (size_t index = 0; index < count; index++) {
        const struct machtrace_thread *thread = &copying->threads[index];
        bool has_python = thread->outcome == MACHTRACE_COPIED && copying->chains != NULL &&
                          copying->chains[index].state != 0;
        machtrace_series_add_thread(ring, thread);
        if (!has_python)
            continue;
        add_python(copying, ring, index);
        add_codes(copying, ring, index);
    }
}

void machtrace_copying_capture(struct machtrace_copying *copying, struct machtrace_ring *ring,
                               const uint64_t *threads, size_t count)
{
    copying->row = (struct machtrace_series_capture){.record.count = (uint32_t)count,
                                                     .listed = count,
                                                     .began_at = machtrace_now()};
    machtrace_ring_begin(ring);
    add_mappings(copying, ring);
    copying->changes_before = copying->image_changes;
    if (copying->chains != NULL)
        machtrace_python_list(&copying->options->layout, &copying->states);
    for (size_t first = 0; first < count; first += MACHTRACE_COPYING_BATCH) {
        size_t left = count - first;
        copy_batch(copying, ring, threads + first,
                   left < MACHTRACE_COPYING_BATCH ? left : MACHTRACE_COPYING_BATCH);
    }
    add_mappings(copying, ring);
    copying->row.ended_at = machtrace_now();
}

bool machtrace_copying_finish(struct machtrace_copying *copying, struct machtrace_ring *ring,
                              uint64_t incident, uint64_t bits)
{
    struct machtrace_series_capture *row = &copying->row;
    row->tick = incident;
    row->images_changed = bits;
    if (copying->image_changes != copying->changes_before)
        row->images_changed |= MACHTRACE_WATCHDOG_IMAGES_CHANGED;
    unsigned char *place =
        machtrace_ring_add(ring, sizeof *row, MACHTRACE_SERIES_CAPTURE, row->record.count);
    if (place != NULL) {
        memcpy(&row->record, place, sizeof row->record);
        memcpy(place, row, sizeof *row);
    }
    if (!ring->is_full && ring->written - atomic_load(&ring->taken) + SPARE <= ring->room) {
        atomic_fetch_add(&copying->captures, 1);
        return true;
    }
    machtrace_copying_forget(copying);
    atomic_fetch_add(&copying->lost, 1);
    return false;
}
