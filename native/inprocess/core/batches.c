/* Buffers, and capturing in batches: see batches.h. Plain C without Python. */
#define _GNU_SOURCE
#include "inprocess/core/batches.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define PRESENT 131072 /* bytes of each buffer that are there before anything is stopped */
#define RED_ZONE 128

int machtrace_inprocess_buffers_have(struct machtrace_inprocess_buffers *buffers, size_t count,
                                     size_t stack_limit)
{
    size_t room = (2 * (stack_limit + RED_ZONE) + 4095) & ~(size_t)4095;
    if (room < PRESENT)
        room = PRESENT;
    if (buffers->count >= count && buffers->room >= room)
        return 0;
    machtrace_inprocess_buffers_free(buffers);
    int flags = MAP_PRIVATE | MAP_ANON;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    void *bytes = mmap(NULL, count * room, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (bytes == MAP_FAILED)
        return errno;
    *buffers = (struct machtrace_inprocess_buffers){bytes, count, room};
    for (size_t index = 0; index < count; index++)
        memset(buffers->bytes + index * room, 0, PRESENT);
    return 0;
}

void machtrace_inprocess_buffers_free(struct machtrace_inprocess_buffers *buffers)
{
    if (buffers->bytes != NULL)
        munmap(buffers->bytes, buffers->count * buffers->room);
    *buffers = (struct machtrace_inprocess_buffers){NULL, 0, 0};
}

static void give_back(const struct machtrace_thread *thread)
{
    size_t used = 0;
    for (size_t index = 0; index < thread->stack_count; index++)
        used += thread->stacks[index].size;
    if (used > PRESENT)
        madvise(thread->buffer + PRESENT, thread->room - PRESENT, MADV_DONTNEED);
}

void machtrace_inprocess_copy_all(struct machtrace_inprocess_buffers *buffers,
                                  const struct machtrace_inprocess_capture *all,
                                  void (*keep)(struct machtrace_thread *thread, void *to),
                                  void *to)
{
    for (size_t first = 0; first < all->thread_count; first += buffers->count) {
        size_t left = all->thread_count - first;
        struct machtrace_inprocess_capture some = *all;
        some.threads = all->threads + first;
        some.thread_count = left < buffers->count ? left : buffers->count;
        for (size_t index = 0; index < some.thread_count; index++) {
            some.threads[index].buffer = buffers->bytes + index * buffers->room;
            some.threads[index].room = buffers->room;
        }
        machtrace_inprocess_copy(&some);
        for (size_t index = 0; index < some.thread_count; index++) {
            struct machtrace_thread *thread = &some.threads[index];
            struct machtrace_thread copied = *thread;
            keep(thread, to);
            give_back(&copied);
            thread->buffer = NULL;
        }
    }
}
