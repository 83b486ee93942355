/* Whether images changed, without waiting for the loader; see inprocess/core/capture.h.
 *
 * glibc counts loaded and unloaded images, and passes both numbers to the callback of
 * dl_iterate_phdr(3), under a lock that it holds until the callback returns. A callback may block,
 * and one in Python waits for the interpreter's lock, which the caller here may hold. So the lock
 * is only ever tried. It has no name outside of the loader, but can be recognised while a thread
 * holds it: it is the one recursive mutex of the loader's data whose owner is the thread that
 * dl_iterate_phdr calls back, and only until it returns. If none or several match (another C
 * library, such as musl, which calls back without a lock) dl_iterate_phdr is called without trying,
 * and with the interpreter's lock released.
 */
#define _GNU_SOURCE
#include "inprocess/core/capture.h"

#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/auxv.h>

#define TRIES 32 /* until a lock that is held counts as held for long */

static _Atomic uint64_t unknown = UINT64_C(1) << 63;
static struct machtrace_range own_image;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_bool never_waits;

static int counters(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    uint64_t *changes = data;
    /* In separate halves, so that one of each differs from none: there are fewer than 2^31 of
     * either. */
    *changes = (uint64_t)info->dlpi_adds << 32 | (uint32_t)info->dlpi_subs;
    return 1;
}

static bool holds(const struct dl_phdr_info *info, uint64_t address,
                  struct machtrace_range *range)
{
    *range = (struct machtrace_range){UINT64_MAX, 0};
    bool is_within = false;
    for (size_t index = 0; index < info->dlpi_phnum; index++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[index];
        if (header->p_type != PT_LOAD)
            continue;
        uint64_t first = info->dlpi_addr + header->p_vaddr;
        uint64_t last = first + header->p_memsz;
        is_within = is_within || (address >= first && address < last);
        range->start = first < range->start ? first : range->start;
        range->end = last > range->end ? last : range->end;
    }
    return is_within;
}

static int this_object(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    (void)data;
    struct machtrace_range range;
    bool is_this = holds(info, (uint64_t)(uintptr_t)&own_image, &range);
    if (is_this)
        own_image = range;
    return is_this;
}

#ifdef __GLIBC__

static pthread_mutex_t *loader_lock;

#define CANDIDATES 8

struct candidates {
    struct {
        pthread_mutex_t *lock;
        int depth; /* times that this thread has locked it */
    } known[CANDIDATES];
    size_t count;
};

/* struct __pthread_mutex_s (bits/struct_mutex.h) of both architectures begins with lock, count,
 * owner, users and kind, four bytes each. */
static int own_depth(uint64_t at)
{
    const _Atomic int *fields = (const _Atomic int *)(uintptr_t)at;
    bool is_own = atomic_load(&fields[0]) > 0 && fields[3] == 1 &&
                  fields[4] == PTHREAD_MUTEX_RECURSIVE_NP &&
                  (uint64_t)fields[2] == machtrace_inprocess_id();
    return is_own ? fields[1] : 0;
}

static void look_for_locks(const struct dl_phdr_info *info, const ElfW(Phdr) *header,
                           struct candidates *candidates)
{
    uint64_t start = (info->dlpi_addr + header->p_vaddr + 7) & ~UINT64_C(7);
    uint64_t end = info->dlpi_addr + header->p_vaddr + header->p_memsz;
    for (uint64_t at = start; at + sizeof(pthread_mutex_t) <= end; at += 8) {
        int depth = own_depth(at);
        if (depth < 1)
            continue;
        if (candidates->count < CANDIDATES) {
            candidates->known[candidates->count].lock = (pthread_mutex_t *)(uintptr_t)at;
            candidates->known[candidates->count].depth = depth;
        }
        candidates->count++;
    }
}

static int loader_object(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    if (info->dlpi_addr == 0 || info->dlpi_addr != getauxval(AT_BASE))
        return 0;
    for (size_t index = 0; index < info->dlpi_phnum; index++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[index];
        if (header->p_type == PT_LOAD && (header->p_flags & PF_W) != 0)
            look_for_locks(info, header, data);
    }
    return 1;
}

static void find_lock(void)
{
    struct candidates candidates = {.count = 0};
    dl_iterate_phdr(loader_object, &candidates);
    size_t released = 0;
    for (size_t index = 0; index < candidates.count && index < CANDIDATES; index++) {
        pthread_mutex_t *lock = candidates.known[index].lock;
        if (own_depth((uint64_t)(uintptr_t)lock) == candidates.known[index].depth)
            continue; /* this thread has it for dlopen, whose constructor this is called by */
        loader_lock = lock;
        released++;
    }
    if (released != 1 || candidates.count > CANDIDATES)
        loader_lock = NULL;
    atomic_store(&never_waits, loader_lock != NULL);
}

/* Whether this thread can read the loader's list now. */
static bool enter_loader(void)
{
    for (int attempt = 0; loader_lock != NULL && pthread_mutex_trylock(loader_lock) != 0;
         attempt++) {
        if (attempt == TRIES)
            return false;
        sched_yield();
    }
    return true;
}

static void leave_loader(void)
{
    if (loader_lock != NULL)
        pthread_mutex_unlock(loader_lock);
}

#else

static void find_lock(void)
{
    atomic_store(&never_waits, true);
}

static bool enter_loader(void)
{
    return true;
}

static void leave_loader(void) {}

#endif

static void look_at_loader(void)
{
    dl_iterate_phdr(this_object, NULL);
    find_lock();
}

uint64_t machtrace_inprocess_image_changes(void)
{
    uint64_t changes = 0;
    pthread_once(&once, look_at_loader);
    if (!enter_loader())
        return atomic_fetch_add(&unknown, 1);
    dl_iterate_phdr(counters, &changes);
    leave_loader();
    return changes;
}

bool machtrace_inprocess_image_changes_may_wait(void)
{
    return !atomic_load(&never_waits);
}

struct machtrace_range machtrace_inprocess_image(void)
{
    pthread_once(&once, look_at_loader);
    return own_image;
}
