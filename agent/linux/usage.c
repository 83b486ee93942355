/* agent/usage.h for Linux: proc(5). */
#define _GNU_SOURCE
#include "usage.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "inprocess/core/capture.h"

static uint64_t ids[MACHTRACE_USAGE_THREADS];

/* The text of a small file; false if it cannot be read. */
static bool read_text(const char *path, char *text, size_t room)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, room - 1);
    if (file >= 0)
        close(file);
    text[size > 0 ? size : 0] = '\0';
    return size > 0;
}

void machtrace_usage_read(struct machtrace_usage *usage)
{
    int64_t listed = machtrace_inprocess_list(ids, MACHTRACE_USAGE_THREADS);
    char path[64], text[1024];
    uint64_t tick = 1000000000 / (uint64_t)sysconf(_SC_CLK_TCK);
    usage->count = 0;
    for (int64_t index = 0; index < listed && index < MACHTRACE_USAGE_THREADS; index++) {
        unsigned long long faults, user, system;
        snprintf(path, sizeof path, "/proc/self/task/%u/stat", (uint32_t)ids[index]);
        if (ids[index] == machtrace_inprocess_id() || !read_text(path, text, sizeof text))
            continue;
        const char *rest = strrchr(text, ')'); /* the name may have anything */
        /* proc_pid_stat(5): from field 3 on; 10 is minflt, 14 utime, 15 stime. */
        if (rest == NULL ||
            sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %llu %*u %*u %*u %llu %llu", &faults,
                   &user, &system) != 3)
            continue;
        usage->threads[usage->count].thread = (uint32_t)ids[index];
        usage->threads[usage->count].ran = (user + system) * tick;
        usage->threads[usage->count++].faults = faults;
    }
}

int64_t machtrace_usage_processor(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int64_t machtrace_usage_memory(void)
{
    char text[128];
    unsigned long long resident;
    if (!read_text("/proc/self/statm", text, sizeof text) ||
        sscanf(text, "%*u %llu", &resident) != 1)
        return -1;
    return (int64_t)resident * sysconf(_SC_PAGESIZE);
}
