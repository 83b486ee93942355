/* inprocess/core/capture.h for Darwin: which threads there are, and their ports.
 *
 * The kernel hands out a right to the port of every thread, and an array of them in memory of
 * their own; all are given back.
 */
#include "inprocess/core/darwin/shared.h"

#include <mach/thread_info.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/darwin/threads.h"

_Static_assert(sizeof(thread_identifier_info_data_t) == 24, "thread_identifier_info");
_Static_assert(offsetof(thread_identifier_info_data_t, thread_handle) == 8, "thread_handle");
_Static_assert(THREAD_IDENTIFIER_INFO_COUNT == 6, "THREAD_IDENTIFIER_INFO_COUNT");
_Static_assert(THREAD_IDENTIFIER_INFO == 4, "THREAD_IDENTIFIER_INFO");

struct known_thread {
    uint64_t id;
    uint64_t handle;
    thread_act_t port;
};

static struct {
    struct machtrace_thread_ports list;
    mach_msg_type_number_t identified; /* ports at the list's start whose ids were queried */
    struct known_thread *known;   /* of these, by id */
    size_t count, room;
    kern_return_t failure; /* why the id of some is not known, though they may be there */
} threads;

static kern_return_t identify(thread_act_t port, struct known_thread *thread)
{
    thread_identifier_info_data_t info;
    mach_msg_type_number_t count = THREAD_IDENTIFIER_INFO_COUNT;
    kern_return_t result = thread_info(port, THREAD_IDENTIFIER_INFO, (thread_info_t)&info, &count);
    if (result == KERN_SUCCESS)
        *thread = (struct known_thread){info.thread_id, info.thread_handle, port};
    return result;
}

uint64_t machtrace_inprocess_id(void)
{
    uint64_t id = 0;
    return pthread_threadid_np(NULL, &id) == 0 ? id : 0;
}

int64_t machtrace_inprocess_list(uint64_t *ids, size_t room)
{
    struct machtrace_thread_ports list;
    if (machtrace_take_thread_ports(mach_task_self(), &list) != KERN_SUCCESS)
        return -1;
    int64_t count = 0;
    for (mach_msg_type_number_t index = 0; index < list.count; index++) {
        struct known_thread thread;
        if (identify(list.ports[index], &thread) != KERN_SUCCESS)
            continue; /* it has ended */
        if ((size_t)count < room)
            ids[count] = thread.id;
        count++;
    }
    machtrace_release_thread_ports(&list);
    return count;
}

/* Where a thread of this id is among the known, or would be. */
static size_t position_of(uint64_t id)
{
    size_t low = 0;
    size_t high = threads.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (threads.known[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void note(struct known_thread thread)
{
    size_t position = position_of(thread.id);
    /* Mostly at the end: the kernel lists threads as they began. */
    memmove(threads.known + position + 1, threads.known + position,
            (threads.count - position) * sizeof *threads.known);
    threads.known[position] = thread;
    threads.count++;
}

/* Ids of ports are queried only up to the requested one. */
static const struct known_thread *find(uint64_t id)
{
    for (;;) {
        size_t position = position_of(id);
        if (position < threads.count && threads.known[position].id == id)
            return &threads.known[position];
        if (threads.identified == threads.list.count)
            return NULL;
        struct known_thread thread;
        kern_return_t result = identify(threads.list.ports[threads.identified++], &thread);
        if (result == KERN_SUCCESS)
            note(thread);
        else if (!machtrace_mach_is_gone(result))
            threads.failure = result;
    }
}

static kern_return_t take(void)
{
    kern_return_t result = machtrace_take_thread_ports(mach_task_self(), &threads.list);
    if (result != KERN_SUCCESS || threads.list.count <= threads.room)
        return result;
    size_t room = (size_t)threads.list.count + 64;
    struct known_thread *known = malloc(room * sizeof *known);
    if (known == NULL) {
        machtrace_release_thread_ports(&threads.list);
        return KERN_RESOURCE_SHORTAGE;
    }
    free(threads.known);
    threads.known = known;
    threads.room = room;
    return KERN_SUCCESS;
}

void machtrace_threads_release(void)
{
    machtrace_release_thread_ports(&threads.list);
    threads.identified = 0;
    threads.count = 0;
    threads.failure = KERN_SUCCESS;
}

void machtrace_threads_forget(void)
{
    threads.list = (struct machtrace_thread_ports){NULL, 0};
    threads.identified = 0;
    threads.count = 0;
    threads.failure = KERN_SUCCESS;
}

/* Whether all were found. */
static bool find_all(const struct machtrace_inprocess_capture *capture,
                     struct machtrace_thread_port *ports)
{
    bool is_whole = true;
    uint64_t own = machtrace_inprocess_id();
    thread_act_t own_port = pthread_mach_thread_np(pthread_self()); /* its name, without a right */
    struct known_thread here = {0, 0, MACH_PORT_NULL};
    /* A handle is where the thread's own data is within its pthread: the same offset in each. */
    bool has_handle = identify(own_port, &here) == KERN_SUCCESS && here.handle != 0;
    uint64_t offset = here.handle - (uint64_t)(uintptr_t)pthread_self();
    for (size_t index = 0; index < capture->thread_count; index++) {
        uint64_t id = capture->threads[index].id;
        const struct known_thread *thread = id == 0 ? NULL : find(id);
        ports[index] = (struct machtrace_thread_port){MACH_PORT_NULL, KERN_SUCCESS, 0};
        if (thread == NULL) {
            is_whole = false;
            ports[index].error = threads.failure;
        } else if (id == own || thread->port == own_port) {
            ports[index].error = KERN_INVALID_ARGUMENT; /* suspended, it would stay so */
        } else {
            ports[index].port = thread->port;
            if (has_handle && thread->handle != 0)
                ports[index].pthread = thread->handle - offset;
        }
    }
    return is_whole;
}

kern_return_t machtrace_threads_find(const struct machtrace_inprocess_capture *capture,
                                     struct machtrace_thread_port *ports)
{
    bool is_new = threads.list.ports == NULL;
    kern_return_t result = is_new ? take() : KERN_SUCCESS;
    if (result != KERN_SUCCESS || find_all(capture, ports) || is_new)
        return result;
    /* Some may have begun since. */
    machtrace_threads_release();
    result = take();
    if (result == KERN_SUCCESS)
        find_all(capture, ports);
    return result;
}
