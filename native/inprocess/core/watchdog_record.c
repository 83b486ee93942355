/* The watchdog's record: its memory, what is written to it, and how readers take it. */
#define _GNU_SOURCE
#include "inprocess/core/watchdog_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096
#define SPARE_POLLS 128

/* --- records --- */

void machtrace_watchdog_notify(struct machtrace_watchdog *watchdog)
{
    atomic_fetch_add(&watchdog->news, 1);
    syscall(SYS_futex, &watchdog->news, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

bool machtrace_watchdog_publish(struct machtrace_watchdog *watchdog)
{
    bool is_published = machtrace_ring_publish(&watchdog->ring);
    atomic_store(&watchdog->head->published, atomic_load(&watchdog->ring.published));
    return is_published;
}

bool machtrace_watchdog_has_room(const struct machtrace_watchdog *watchdog, size_t suspects)
{
    const struct machtrace_ring *ring = &watchdog->ring;
    uint64_t used = atomic_load(&ring->published) - atomic_load(&ring->taken);
    /* One more is lost where the ring ends. */
    return ring->room - used >= (2 * suspects + 2) * sizeof(struct machtrace_watchdog_event);
}

void machtrace_watchdog_keep_from_here(struct machtrace_watchdog *watchdog,
                                       struct machtrace_suspect *suspect)
{
    suspect->first = atomic_load(&watchdog->ring.published);
    if (suspect->first < atomic_load(&watchdog->keep))
        atomic_store(&watchdog->keep, suspect->first); /* before a reader takes the record */
}

bool machtrace_watchdog_is_old(const struct machtrace_watchdog *watchdog,
                               const struct machtrace_suspect *suspect)
{
    return atomic_load(&watchdog->ring.published) - suspect->first > watchdog->ring.room / 2;
}

void machtrace_watchdog_record_event(struct machtrace_watchdog *watchdog,
                                     const struct machtrace_suspect *suspect,
                                     enum machtrace_watchdog_cause cause)
{
    machtrace_ring_begin(&watchdog->ring);
    struct machtrace_watchdog_event *place =
        machtrace_ring_add(&watchdog->ring, sizeof *place, MACHTRACE_WATCHDOG_EVENT,
                           (uint32_t)suspect->phase);
    if (place != NULL) {
        struct machtrace_watchdog_event event = {
            .record = place->record,
            .incident = suspect->incident,
            .cause = (uint32_t)cause,
            .thread = suspect->thread,
            .began = suspect->began,
            .at = watchdog->now,
            .boot_at = watchdog->boot_now,
            .last = suspect->last,
            .limit = suspect->limit,
            .key = suspect->key,
            .first_poll = suspect->first_poll,
            .poll = watchdog->next_poll - 1,
            .waiters = suspect->waiters,
            .waiter = suspect->waiter,
        };
        memcpy(event.label, suspect->label, sizeof event.label);
        memcpy(place, &event, sizeof event);
    }
    machtrace_watchdog_publish(watchdog);
}

static void each_suspect(const struct machtrace_watchdog *watchdog,
                         void (*visit)(const struct machtrace_suspect *, void *), void *data)
{
    for (size_t index = 0; index < MACHTRACE_WATCHDOG_THREADS_MAX; index++)
        if (watchdog->watched[index].task.phase != MACHTRACE_WATCHDOG_ENDED)
            visit(&watchdog->watched[index].task, data);
    uint32_t count = atomic_load(&machtrace_beacon_count);
    for (uint32_t index = 0; index < count; index++)
        if (watchdog->scopes[index].phase != MACHTRACE_WATCHDOG_ENDED)
            visit(&watchdog->scopes[index], data);
    if (watchdog->gil.phase != MACHTRACE_WATCHDOG_ENDED)
        visit(&watchdog->gil, data);
}

struct oldest {
    const struct machtrace_suspect *suspect;
    uint64_t first;
    int64_t next; /* when something is due */
};

static void take_oldest(const struct machtrace_suspect *suspect, void *data)
{
    struct oldest *oldest = data;
    if (oldest->suspect == NULL || suspect->began < oldest->suspect->began)
        oldest->suspect = suspect;
    if (suspect->first < oldest->first)
        oldest->first = suspect->first;
    int64_t due = suspect->captures < MACHTRACE_WATCHDOG_CAPTURES_MAX ? suspect->next_capture
                                                                      : INT64_MAX;
    if (suspect->phase == MACHTRACE_WATCHDOG_SUSPECTED && suspect->began + suspect->limit < due)
        due = suspect->began + suspect->limit;
    if (due < oldest->next)
        oldest->next = due;
}

int64_t machtrace_watchdog_record_line(struct machtrace_watchdog *watchdog)
{
    struct oldest oldest = {NULL, UINT64_MAX, INT64_MAX};
    each_suspect(watchdog, take_oldest, &oldest);
    atomic_store(&watchdog->keep, oldest.first);
    struct machtrace_watchdog_line *line = &watchdog->head->line;
    uint32_t number = atomic_load_explicit(&line->number, memory_order_relaxed);
    atomic_store(&line->number, number + 1);
    atomic_thread_fence(memory_order_release);
    const struct machtrace_suspect *suspect = oldest.suspect;
    line->thread = suspect == NULL ? 0 : suspect->thread;
    line->phase = suspect == NULL ? 0 : (uint32_t)suspect->phase;
    line->at = watchdog->now;
    line->boot_at = watchdog->boot_now;
    line->began_at = suspect == NULL ? 0 : suspect->began;
    line->incident = suspect == NULL ? 0 : suspect->incident;
    line->first = suspect == NULL ? 0 : suspect->first;
    line->polls = watchdog->next_poll - 1;
    atomic_store(&line->number, number + 2);
    return oldest.next;
}

void machtrace_watchdog_record_poll(struct machtrace_watchdog *watchdog,
                                    const struct machtrace_watchdog_poll *poll)
{
    uint64_t number = atomic_load(&watchdog->next_poll);
    struct machtrace_watchdog_poll *slot = &watchdog->polls[number % MACHTRACE_WATCHDOG_POLLS];
    atomic_store(&slot->number, 0);
    atomic_thread_fence(memory_order_release);
    memcpy((unsigned char *)slot + sizeof slot->number,
           (const unsigned char *)poll + sizeof slot->number, sizeof *slot - sizeof slot->number);
    atomic_store(&slot->number, number);
    atomic_store(&watchdog->next_poll, number + 1);
}

/* --- its memory --- */

int machtrace_watchdog_have_record(struct machtrace_watchdog *watchdog)
{
    const struct machtrace_watchdog_options *options = &watchdog->options;
    size_t polls_at = (sizeof *watchdog->head + MACHTRACE_WATCHDOG_INFO + PAGE - 1) &
                      ~(size_t)(PAGE - 1);
    size_t ring_at = polls_at + ((MACHTRACE_WATCHDOG_POLLS * sizeof *watchdog->polls + PAGE - 1) &
                                 ~(size_t)(PAGE - 1));
    size_t room = options->room & ~(size_t)(PAGE - 1);
    size_t size = ring_at + room;
    int flags = MAP_PRIVATE | MAP_ANON | MAP_NORESERVE;
    if (options->file >= 0) {
        /* Reserved now: a full disk would be a signal later. */
        int error = posix_fallocate(options->file, 0, (off_t)size);
        if (error != 0)
            return error;
        flags = MAP_SHARED;
    }
    void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, options->file, 0);
    if (bytes == MAP_FAILED)
        return errno;
    watchdog->head = bytes;
    watchdog->record_size = size;
    watchdog->polls = (void *)((unsigned char *)bytes + polls_at);
    watchdog->ring.bytes = (unsigned char *)bytes + ring_at;
    watchdog->ring.room = room;
    struct machtrace_watchdog_head *head = watchdog->head;
    memcpy((unsigned char *)(head + 1), options->info, options->info_size);
    head->poll_size = sizeof *watchdog->polls;
    head->poll_count = MACHTRACE_WATCHDOG_POLLS;
    head->polls_at = polls_at;
    head->ring_at = ring_at;
    head->ring_room = room;
    head->info_size = options->info_size;
    head->line.pid = (uint32_t)getpid();
    memcpy(head->magic, MACHTRACE_WATCHDOG_MAGIC, sizeof head->magic);
    return 0;
}

/* --- readers --- */

size_t machtrace_watchdog_waiting(const struct machtrace_watchdog *watchdog)
{
    uint64_t position = watchdog->position;
    return machtrace_ring_read(&watchdog->ring, &position, NULL, SIZE_MAX);
}

size_t machtrace_watchdog_take(struct machtrace_watchdog *watchdog, unsigned char *to,
                               size_t most)
{
    size_t size = machtrace_ring_read(&watchdog->ring, &watchdog->position, to, most);
    uint64_t keep = atomic_load(&watchdog->keep);
    uint64_t taken = keep < watchdog->position ? keep : watchdog->position;
    if (watchdog->process == getpid() && taken > atomic_load(&watchdog->ring.taken)) {
        atomic_store(&watchdog->head->taken, taken);
        atomic_store(&watchdog->ring.taken, taken);
    }
    return size;
}

size_t machtrace_watchdog_polls(const struct machtrace_watchdog *watchdog, uint64_t first,
                                struct machtrace_watchdog_poll *to, size_t most)
{
    size_t count = 0;
    uint64_t next = atomic_load(&watchdog->next_poll);
    /* The oldest are overwritten, some more of them meanwhile. */
    if (first + MACHTRACE_WATCHDOG_POLLS < next + SPARE_POLLS)
        first = next + SPARE_POLLS - MACHTRACE_WATCHDOG_POLLS;
    for (uint64_t number = first; number < next && count < most; number++) {
        const struct machtrace_watchdog_poll *slot =
            &watchdog->polls[number % MACHTRACE_WATCHDOG_POLLS];
        uint64_t seen = atomic_load(&slot->number);
        if (seen != number)
            break; /* not yet written, or another by now */
        memcpy(&to[count], slot, sizeof *slot);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load(&slot->number) == number)
            count++;
        else
            break;
    }
    return count;
}
