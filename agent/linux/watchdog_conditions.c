/* Conditions of the process: processor time and resident memory, and the thread that has a part in
 * them most. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "inprocess/core/capture.h"
#include "linux/incidents.h"

#define SLICES 16 /* of a window */
#define THREADS_MAX 512
#define DEFAULT_SECONDS 60
#define STACKS 20 /* of one incident */

/* What each thread used up to some time; faults are the first touches of pages. */
struct usage {
    size_t count;
    struct {
        uint32_t thread;
        uint64_t ran, faults; /* ran: in ticks of the kernel's clock */
    } threads[THREADS_MAX];
};

static struct usage before, now_used; /* two slices ago at most, and now */
static uint64_t ids[THREADS_MAX];
static int64_t slice;             /* ns */
static int64_t cpu_limit;         /* percent of one processor; 0 for none */
static int64_t memory_limit;      /* bytes; 0 for none */
static int64_t spent[SLICES + 1]; /* the process' processor time at the ends of slices */
static int64_t ends[SLICES + 1];  /* and when these were */
static uint64_t slices;
static struct machtrace_incident_record cpu, memory; /* number 0 while nothing is wrong */
static uint32_t cpu_stacks, memory_stacks;

void machtrace_conditions_begin(const machtrace_options_t *options)
{
    int64_t seconds = options->cpu_seconds != 0 ? options->cpu_seconds : DEFAULT_SECONDS;
    cpu_limit = options->cpu_percent;
    memory_limit = options->memory_limit < INT64_MAX ? (int64_t)options->memory_limit : 0;
    slice = (cpu_limit != 0 ? seconds : SLICES) * 1000000000 / SLICES;
    slices = 0;
    memset(&cpu, 0, sizeof cpu);
    memset(&memory, 0, sizeof memory);
    memset(&before, 0, sizeof before);
}

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

static void read_usage(struct usage *usage)
{
    int64_t listed = machtrace_inprocess_list(ids, THREADS_MAX);
    char path[64], text[1024];
    usage->count = 0;
    for (int64_t index = 0; index < listed && index < THREADS_MAX; index++) {
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
        usage->threads[usage->count].ran = user + system;
        usage->threads[usage->count++].faults = faults;
    }
}

/* The thread that used most since `before`, into the record. */
static void find_thread(struct machtrace_incident_record *record, bool by_faults)
{
    uint64_t most = 0;
    read_usage(&now_used);
    for (size_t index = 0; index < now_used.count; index++) {
        uint64_t ran = now_used.threads[index].ran, faults = now_used.threads[index].faults;
        for (size_t at = 0; at < before.count; at++) {
            if (before.threads[at].thread == now_used.threads[index].thread) {
                ran -= before.threads[at].ran;
                faults -= before.threads[at].faults;
            }
        }
        if ((by_faults ? faults : ran) < most || (by_faults ? faults : ran) == 0)
            continue;
        most = by_faults ? faults : ran;
        record->thread = now_used.threads[index].thread;
        record->ran = (int64_t)ran * (1000000000 / sysconf(_SC_CLK_TCK));
        record->faults = faults;
    }
}

/* Continue a condition: it is seen, lasts with further stacks, or has ended. */
static void advance(struct machtrace_incident_record *record, uint32_t *stacks, bool is_wrong,
                    int64_t now)
{
    record->at = now;
    if (record->number == 0) {
        if (!is_wrong || !machtrace_incident_is_allowed())
            return;
        machtrace_incident_begin(record);
        record->phase = MACHTRACE_INCIDENT_SEEN;
        *stacks = 0;
        find_thread(record, record->kind == MACHTRACE_INCIDENT_MEMORY);
    } else {
        record->phase = is_wrong ? MACHTRACE_INCIDENT_LASTS : MACHTRACE_INCIDENT_ENDED;
        if (is_wrong && *stacks >= STACKS)
            return;
    }
    if (is_wrong && record->thread != 0)
        machtrace_incident_add_stack(record);
    ++*stacks;
    machtrace_incident_write(record);
    if (!is_wrong)
        memset(record, 0, sizeof *record);
}

static void poll_cpu(int64_t now, bool is_end)
{
    int64_t first = ends[(slices + 1) % (SLICES + 1)];
    bool is_wrong = cpu.number != 0;
    if (is_end && slices > SLICES && now > first) {
        int64_t used = spent[slices % (SLICES + 1)] - spent[(slices + 1) % (SLICES + 1)];
        cpu.kind = MACHTRACE_INCIDENT_CPU;
        cpu.value = used * 100 / (now - first);
        cpu.limit = cpu_limit;
        cpu.span = now - first;
        is_wrong = cpu.value >= cpu_limit;
        if (cpu.number == 0)
            cpu.began = first;
    }
    if (is_wrong || cpu.number != 0)
        advance(&cpu, &cpu_stacks, is_wrong, now);
}

static void poll_memory(int64_t now)
{
    char text[128];
    unsigned long long resident;
    if (!read_text("/proc/self/statm", text, sizeof text) ||
        sscanf(text, "%*u %llu", &resident) != 1)
        return;
    int64_t bytes = (int64_t)resident * sysconf(_SC_PAGESIZE);
    /* It ends below 15/16, so that it does not begin and end around the limit. */
    bool is_wrong = bytes >= (memory.number == 0 ? memory_limit : memory_limit / 16 * 15);
    memory.kind = MACHTRACE_INCIDENT_MEMORY;
    memory.value = bytes;
    memory.limit = memory_limit;
    if (memory.number == 0)
        memory.began = now;
    advance(&memory, &memory_stacks, is_wrong, now);
}

void machtrace_conditions_poll(int64_t now)
{
    struct timespec time;
    if (cpu_limit == 0 && memory_limit == 0)
        return;
    bool is_end = slices == 0 || now - ends[slices % (SLICES + 1)] >= slice;
    if (is_end) {
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
        slices++;
        spent[slices % (SLICES + 1)] = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
        ends[slices % (SLICES + 1)] = now;
    }
    if (cpu_limit != 0)
        poll_cpu(now, is_end);
    if (memory_limit != 0)
        poll_memory(now);
    if (is_end)
        read_usage(&before);
}
