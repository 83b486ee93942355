/* The kernel's facts about this process and its threads, read without allocating. */
#define _GNU_SOURCE
#include "inprocess/core/linux/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

uint64_t machtrace_inprocess_id(void)
{
    return (uint64_t)syscall(SYS_gettid);
}

/* struct linux_dirent64 (getdents64(2)): inode, offset, length of the entry, type, name. */
#define ENTRY_LENGTH 16
#define ENTRY_NAME 19

static uint64_t number_of(const char *name)
{
    uint64_t number = 0;
    for (; *name >= '0' && *name <= '9'; name++)
        number = number * 10 + (uint64_t)(*name - '0');
    return *name == '\0' ? number : 0;
}

/* By the system call: opendir(3) allocates, and malloc's lock may be held for long. */
int64_t machtrace_inprocess_list(uint64_t *ids, size_t room)
{
    int directory = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return -1;
    int64_t count = 0;
    char entries[4096];
    long size;
    while ((size = syscall(SYS_getdents64, directory, entries, sizeof entries)) > 0) {
        for (long at = 0; at < size;) {
            uint16_t length;
            memcpy(&length, entries + at + ENTRY_LENGTH, sizeof length);
            uint64_t id = number_of(entries + at + ENTRY_NAME); /* 0: it or its parent */
            at += length;
            if (id == 0)
                continue;
            if ((size_t)count < room)
                ids[count] = id;
            count++;
        }
    }
    int error = errno;
    close(directory);
    errno = error;
    return size < 0 ? -1 : count;
}

int64_t machtrace_inprocess_mappings(char *text, size_t room)
{
    int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    size_t size = 0;
    ssize_t got = 1;
    while (size < room && (got = read(file, text + size, room - size)) > 0)
        size += (size_t)got;
    int error = errno;
    close(file);
    errno = error;
    return got < 0 ? -1 : (int64_t)size;
}

uint64_t machtrace_inprocess_stack_end(void)
{
    static _Thread_local uint64_t known;
    if (known == 0) {
        pthread_attr_t attributes;
        void *start;
        size_t size;
        if (pthread_getattr_np(pthread_self(), &attributes) != 0)
            return 0;
        if (pthread_attr_getstack(&attributes, &start, &size) == 0)
            known = (uint64_t)(uintptr_t)start + size;
        pthread_attr_destroy(&attributes);
    }
    return known;
}

/* struct sched_attr (linux/sched/types.h), its first version. */
struct scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

#define MIN_SLICE 100000 /* ns */

void machtrace_inprocess_short_turns(void)
{
    struct scheduling wanted = {
        .size = sizeof wanted, .nice = getpriority(PRIO_PROCESS, 0), .runtime = MIN_SLICE};
    if (sched_getscheduler(0) == SCHED_OTHER)
        syscall(SYS_sched_setattr, 0, &wanted, 0);
}

static bool hex_after(const char *text, const char *name, uint64_t *value)
{
    const char *at = strstr(text, name);
    if (at == NULL)
        return false;
    *value = 0;
    for (at += strlen(name); *at == '\t' || *at == ' '; at++)
        continue;
    for (; (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f'); at++)
        *value = *value << 4 | (uint64_t)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
    return true;
}

struct machtrace_thread_status machtrace_status_of(pid_t thread)
{
    struct machtrace_thread_status status = {0, 0, 0};
    char name[64] = "/proc/self/task/";
    size_t length = strlen(name);
    char digits[12];
    size_t count = 0;
    for (unsigned left = (unsigned)thread; left != 0 || count == 0; left /= 10)
        digits[count++] = (char)('0' + left % 10);
    while (count > 0)
        name[length++] = digits[--count];
    memcpy(name + length, "/status", sizeof "/status");
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file >= 0 || syscall(SYS_tgkill, getpid(), thread, 0) == 0 || errno != ESRCH)
        status.state = MACHTRACE_STATE_UNKNOWN;
    if (file < 0)
        return status;
    char text[4096];
    size_t size = 0;
    ssize_t got = 0;
    while (size < sizeof text - 1 && (got = read(file, text + size, sizeof text - 1 - size)) > 0)
        size += (size_t)got;
    if (got < 0 && errno == ESRCH)
        status.state = 0;
    close(file);
    text[size] = '\0';
    const char *state = strstr(text, "\nState:\t");
    if (state == NULL || !hex_after(text, "\nSigPnd:", &status.pending) ||
        !hex_after(text, "\nSigBlk:", &status.blocked))
        return status;
    status.state = state[sizeof "\nState:\t" - 1];
    return status;
}
