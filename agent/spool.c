/* See spool.h.
 *
 * Whole after SIGKILL: stores of one thread reach a shared mapping in their order, up to some
 * instruction. So each change ends with one store of a word: the size of a record, the number of a
 * segment, the mark of a change. What precedes it may be partly written, and is ignored then.
 */
#define _GNU_SOURCE
#include "spool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <elf.h>
#include <sys/random.h>
#else
#include <mach/vm_inherit.h>
#include <stdlib.h>
#endif

#include "checksum.h"

#define PAGE UINT64_C(4096)
#define SEGMENTS 8
#define EVENTS_AT_ONCE 512

/* The payload of MACHTRACE_SPOOL_EVENTS, before the events. */
struct events_head {
    uint64_t first; /* number of the first event */
    uint32_t count;
    uint32_t reserved;
};

_Static_assert(sizeof(struct machtrace_spool_record) == 16, "as in docs/agent-spool.md");
_Static_assert(offsetof(struct machtrace_spool_head, state) == 144, "as in docs/agent-spool.md");
_Static_assert(offsetof(struct machtrace_spool_head, losses) == 200, "as in docs/agent-spool.md");

/* --- creation --- */

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* PATH becomes PATH.1, which becomes PATH.2, and so on. Returns 0 or an errno. */
static int move_older(const char *path, uint32_t older)
{
    char from[PATH_MAX], to[PATH_MAX];
    if (older == 0)
        return unlink(path) == 0 ? 0 : errno;
    for (uint32_t number = older; number > 0; number--) {
        int length = snprintf(to, sizeof to, "%s.%u", path, number);
        if (length < 0 || (size_t)length >= sizeof to)
            return ENAMETOOLONG;
        if (number == 1)
            snprintf(from, sizeof from, "%s", path);
        else
            snprintf(from, sizeof from, "%s.%u", path, number - 1);
        if (rename(from, to) != 0 && (errno != ENOENT || number == 1))
            return errno;
    }
    return 0;
}

static int open_locked(const char *path, int flags, int *file)
{
    *file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (*file < 0)
        return errno;
    if (flock(*file, LOCK_EX | LOCK_NB) == 0)
        return 0;
    int error = errno == EWOULDBLOCK ? EBUSY : errno;
    close(*file);
    return error;
}

/* Open an empty file, which nobody else writes. */
static int open_empty(const char *path, uint32_t older, int *file, bool *has_earlier)
{
    struct stat status;
    int error = open_locked(path, 0, file);
    if (error != 0)
        return error;
    if (fstat(*file, &status) != 0)
        error = errno;
    else if (!S_ISREG(status.st_mode))
        error = EINVAL;
    else if (status.st_size == 0)
        return 0;
    else
        error = move_older(path, older);
    *has_earlier = error == 0;
    close(*file);
    return error != 0 ? error : open_locked(path, O_EXCL, file);
}

static int take_room(int file, uint64_t size)
{
#ifdef __linux__
    return posix_fallocate(file, 0, (off_t)size);
#else
    static const char zeros[PAGE * 16];
    for (uint64_t at = 0; at < size;) {
        size_t most = size - at < sizeof zeros ? (size_t)(size - at) : sizeof zeros;
        ssize_t wrote = pwrite(file, zeros, most, (off_t)at);
        if (wrote < 0)
            return errno;
        at += (uint64_t)wrote;
    }
    return 0;
#endif
}

static void draw_run(unsigned char *run, size_t size)
{
#ifdef __linux__
    if (getrandom(run, size, GRND_NONBLOCK) == (ssize_t)size)
        return;
    uint64_t values[2] = {clock_ns(CLOCK_REALTIME), clock_ns(CLOCK_MONOTONIC) ^ (uint64_t)getpid()};
    memcpy(run, values, size);
#else
    arc4random_buf(run, size);
#endif
}

static void lay_out(struct machtrace_spool_head *head, uint64_t size, uint32_t tree_bits)
{
    head->version = MACHTRACE_SPOOL_VERSION;
    head->file_size = size;
    head->calls_at = PAGE;
    head->stackless_at = head->calls_at + MACHTRACE_RULES_MAX * sizeof(uint64_t);
    head->cells_at = head->stackless_at + MACHTRACE_RULES_MAX * sizeof(uint64_t);
    uint64_t cells_size = size / 8 & ~(PAGE - 1);
    head->cell_count = cells_size / sizeof(struct machtrace_spool_cell);
    head->log_at = head->cells_at + cells_size;
    head->log_size = size * 3 / 8 & ~(PAGE - 1);
    head->segments_at = head->log_at + head->log_size;
    head->segment_size = (size - head->segments_at) / SEGMENTS & ~(PAGE - 1);
    head->segment_count = SEGMENTS;
    head->started_at = clock_ns(CLOCK_REALTIME);
    head->started_ticks = clock_ns(CLOCK_MONOTONIC);
    head->pid = (uint32_t)getpid();
#if defined(__x86_64__)
    head->machine = 62; /* EM_X86_64 */
#else
    head->machine = 183; /* EM_AARCH64 */
#endif
    head->tree_bits = tree_bits;
    head->rule_count = MACHTRACE_RULES_MAX;
    draw_run(head->run, sizeof head->run);
    const unsigned char *from = (const unsigned char *)&head->file_size;
    head->checksum = machtrace_checksum(
        0, from, offsetof(struct machtrace_spool_head, state) -
                     offsetof(struct machtrace_spool_head, file_size));
    atomic_store(&head->state, MACHTRACE_SPOOL_RUNNING);
}

int machtrace_spool_create(struct machtrace_spool *spool, const char *path, uint64_t size,
                           uint32_t tree_bits, uint32_t older)
{
    memset(spool, 0, sizeof *spool);
    spool->file = -1;
    if (size < MACHTRACE_SPOOL_SIZE_MIN || size > MACHTRACE_SPOOL_SIZE_MAX || size % PAGE != 0)
        return EINVAL;
    int error = open_empty(path, older, &spool->file, &spool->has_earlier);
    if (error != 0)
        return error;
    error = take_room(spool->file, size);
    void *memory = MAP_FAILED;
    if (error == 0) {
        memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, spool->file, 0);
        error = memory == MAP_FAILED ? errno : 0;
    }
    if (error != 0) {
        unlink(path);
        close(spool->file);
        spool->file = -1;
        return error;
    }
#ifdef MADV_DONTFORK
    madvise(memory, size, MADV_DONTFORK);
#else
    minherit(memory, size, VM_INHERIT_NONE);
#endif
    spool->bytes = memory;
    spool->head = memory;
    spool->size = size;
    lay_out(spool->head, size, tree_bits);
    atomic_thread_fence(memory_order_release);
    memcpy(spool->head->magic, MACHTRACE_SPOOL_MAGIC, sizeof spool->head->magic);
    return 0;
}

void machtrace_spool_end(struct machtrace_spool *spool, enum machtrace_spool_state state)
{
    atomic_store(&spool->head->state, (uint64_t)state);
    munmap(spool->bytes, spool->size);
    close(spool->file);
    spool->file = -1;
    spool->bytes = NULL;
    spool->head = NULL;
}

int machtrace_spool_rotate(struct machtrace_spool *spool, const char *path, uint32_t older)
{
    char beside[PATH_MAX];
    struct machtrace_spool next;
    int length = snprintf(beside, sizeof beside, "%s.next", path);
    if (length < 0 || (size_t)length >= sizeof beside)
        return ENAMETOOLONG;
    int error = machtrace_spool_create(&next, beside, spool->size, spool->head->tree_bits, 0);
    if (error != 0)
        return error;
    /* If somebody has removed or renamed the file, there is nothing to move. */
    int moved = move_older(path, older);
    error = moved == ENOENT ? 0 : moved;
    if (error == 0 && rename(beside, path) != 0)
        error = errno;
    if (error != 0) {
        unlink(beside);
        machtrace_spool_end(&next, MACHTRACE_SPOOL_STOPPED);
        return error;
    }
    machtrace_spool_end(spool, MACHTRACE_SPOOL_ROTATED);
    *spool = next;
    spool->has_earlier = moved == 0;
    return 0;
}

void machtrace_spool_after_fork(struct machtrace_spool *spool)
{
    if (spool->file >= 0)
        close(spool->file);
    spool->file = -1;
    spool->bytes = NULL;
    spool->head = NULL;
}

_Atomic uint64_t *machtrace_spool_calls(struct machtrace_spool *spool)
{
    return (_Atomic uint64_t *)(spool->bytes + spool->head->calls_at);
}

/* --- records --- */

static uint32_t checksum_of(struct machtrace_spool_record header, const void *first,
                            size_t first_size, const void *second, size_t second_size)
{
    uint32_t checksum =
        machtrace_checksum(0, &header, offsetof(struct machtrace_spool_record, checksum));
    checksum = machtrace_checksum(checksum, first, first_size);
    return machtrace_checksum(checksum, second, second_size);
}

/* Write a record whose payload has two parts; false if the region has no room for it. */
static bool append(unsigned char *region, uint64_t region_size, uint64_t *used, uint32_t *number,
                   enum machtrace_spool_kind kind, const void *first, size_t first_size,
                   const void *second, size_t second_size)
{
    struct machtrace_spool_record header;
    size_t payload = first_size + second_size;
    size_t size = (sizeof header + payload + 7) & ~(size_t)7;
    if (size > UINT32_MAX || size > region_size - *used)
        return false;
    struct machtrace_spool_record *record = (struct machtrace_spool_record *)(region + *used);
    atomic_init(&header.size, (uint32_t)size);
    header.kind = (uint16_t)kind;
    header.unused = (uint16_t)(size - sizeof header - payload);
    header.number = *number;
    unsigned char *to = (unsigned char *)(record + 1);
    memcpy(to, first, first_size);
    if (second_size != 0)
        memcpy(to + first_size, second, second_size);
    record->kind = header.kind;
    record->unused = header.unused;
    record->number = header.number;
    record->checksum = checksum_of(header, first, first_size, second, second_size);
    atomic_store_explicit(&record->size, (uint32_t)size, memory_order_release);
    *used += size;
    ++*number;
    return true;
}

bool machtrace_spool_log(struct machtrace_spool *spool, enum machtrace_spool_kind kind,
                         const void *payload, size_t size)
{
    struct machtrace_spool_head *head = spool->head;
    bool is_stored = append(spool->bytes + head->log_at, head->log_size, &spool->log_used,
                            &spool->log_records, kind, payload, size, NULL, 0);
    if (!is_stored)
        atomic_fetch_add(&head->losses.log_full, 1);
    return is_stored;
}

/* --- cells --- */

static struct machtrace_spool_cell *cells_of(struct machtrace_spool *spool)
{
    return (struct machtrace_spool_cell *)(spool->bytes + spool->head->cells_at);
}

static _Atomic uint64_t *stackless_of(struct machtrace_spool *spool)
{
    return (_Atomic uint64_t *)(spool->bytes + spool->head->stackless_at);
}

/* The cell of a pair, or a free one for it; that of the rule alone if seven eighths are taken
 * where the search begins. */
static uint64_t cell_index(struct machtrace_spool *spool, uint64_t key)
{
    const uint64_t searched = 256;
    struct machtrace_spool_cell *cells = cells_of(spool);
    uint64_t count = spool->head->cell_count;
    uint64_t index = (key * UINT64_C(0x9e3779b97f4a7c15) >> 20) % count;
    for (uint64_t step = 0; step < searched && step < count; step++) {
        uint64_t present = atomic_load_explicit(&cells[index].key, memory_order_relaxed);
        if (present == key || present == 0)
            return index;
        index = index + 1 == count ? 0 : index + 1;
    }
    return count + (key >> 32) % MACHTRACE_RULES_MAX;
}

/* Add to a cell. If the process is killed on the way, readers complete the change. */
static void add(struct machtrace_spool *spool, uint16_t rule, uint32_t stack, uint64_t calls,
                uint64_t folded)
{
    struct machtrace_spool_head *head = spool->head;
    struct machtrace_spool_change *change = &head->change;
    uint64_t key = UINT64_C(1) << 63 | (uint64_t)rule << 32 | stack;
    uint64_t index = stack == 0 ? head->cell_count + rule % MACHTRACE_RULES_MAX : cell_index(spool, key);
    bool has_stack = index < head->cell_count;
    _Atomic uint64_t *word = has_stack ? &cells_of(spool)[index].calls
                                       : &stackless_of(spool)[index - head->cell_count];
    uint64_t value = atomic_load_explicit(word, memory_order_relaxed) + calls;
    atomic_store_explicit(&change->mark, 0, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
    change->cell = index;
    change->key = key;
    change->calls = value;
    atomic_store_explicit(&change->mark, folded + 1, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
    if (has_stack)
        atomic_store_explicit(&cells_of(spool)[index].key, key, memory_order_release);
    atomic_store_explicit(word, value, memory_order_release);
    atomic_store_explicit(&head->folded, folded, memory_order_release);
    if (!has_stack)
        atomic_fetch_add(&head->losses.without_stack, calls);
}

void machtrace_spool_count(struct machtrace_spool *spool, uint16_t rule, uint32_t stack,
                           uint64_t calls)
{
    add(spool, rule, stack, calls,
        atomic_load_explicit(&spool->head->folded, memory_order_relaxed));
}

/* --- segments --- */

static struct machtrace_spool_segment *segment_at(struct machtrace_spool *spool, uint64_t index)
{
    return (struct machtrace_spool_segment *)(spool->bytes + spool->head->segments_at +
                                              index * spool->head->segment_size);
}

/* Add the calls of a segment's events to cells. */
static void fold(struct machtrace_spool *spool, struct machtrace_spool_segment *segment)
{
    unsigned char *at = (unsigned char *)(segment + 1);
    unsigned char *end = (unsigned char *)segment + spool->head->segment_size;
    while ((size_t)(end - at) > sizeof(struct machtrace_spool_record)) {
        const struct machtrace_spool_record *record = (struct machtrace_spool_record *)at;
        uint32_t size = atomic_load_explicit(&record->size, memory_order_relaxed);
        if (size == 0)
            break;
        struct events_head head;
        memcpy(&head, record + 1, sizeof head);
        const unsigned char *from = (const unsigned char *)(record + 1) + sizeof head;
        for (uint32_t index = 0; index < head.count; index++) {
            struct machtrace_event event;
            memcpy(&event, from + index * sizeof event, sizeof event);
            add(spool, event.rule, event.stack, event.calls, head.first + index + 1);
        }
        at += size;
    }
}

static void next_segment(struct machtrace_spool *spool)
{
    struct machtrace_spool_head *head = spool->head;
    if (spool->last_segment != 0)
        spool->segment = (spool->segment + 1) % head->segment_count;
    struct machtrace_spool_segment *segment = segment_at(spool, spool->segment);
    if (atomic_load(&segment->number) != 0) {
        fold(spool, segment);
        atomic_store_explicit(&segment->number, 0, memory_order_release);
        atomic_signal_fence(memory_order_seq_cst);
        memset(segment + 1, 0, head->segment_size - sizeof *segment);
    }
    segment->first_event = atomic_load(&head->events);
    atomic_store_explicit(&segment->number, ++spool->last_segment, memory_order_release);
    spool->segment_used = sizeof *segment;
    spool->segment_records = 0;
}

void machtrace_spool_events(struct machtrace_spool *spool, const struct machtrace_event *events,
                            size_t count)
{
    struct machtrace_spool_head *head = spool->head;
    size_t most = (head->segment_size - sizeof(struct machtrace_spool_segment) -
                   sizeof(struct machtrace_spool_record) - sizeof(struct events_head)) /
                  sizeof *events;
    most = most < EVENTS_AT_ONCE ? most : EVENTS_AT_ONCE;
    if (spool->last_segment == 0)
        next_segment(spool);
    while (count > 0) {
        size_t some = count < most ? count : most;
        struct events_head first = {atomic_load_explicit(&head->events, memory_order_relaxed),
                                    (uint32_t)some, 0};
        if (!append((unsigned char *)segment_at(spool, spool->segment), head->segment_size,
                    &spool->segment_used, &spool->segment_records, MACHTRACE_SPOOL_EVENTS, &first,
                    sizeof first, events, some * sizeof *events)) {
            next_segment(spool);
            continue;
        }
        atomic_store_explicit(&head->events, first.first + some, memory_order_release);
        events += some;
        count -= some;
    }
}
