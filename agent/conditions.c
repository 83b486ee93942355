/* Conditions of the process: processor time and resident memory, and the thread that has a part in
 * them most. */
#include <string.h>

#include "incidents.h"
#include "usage.h"

#define SLICES 16 /* of a window */
#define DEFAULT_SECONDS 60
#define STACKS 20 /* of one incident */

static struct machtrace_usage before, now_used; /* two slices ago at most, and now */
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

/* The thread that used most since `before`, into the record. */
static void find_thread(struct machtrace_incident_record *record, bool by_faults)
{
    uint64_t most = 0;
    machtrace_usage_read(&now_used);
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
        record->ran = (int64_t)ran;
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
    int64_t bytes = machtrace_usage_memory();
    if (bytes < 0)
        return;
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
    if (cpu_limit == 0 && memory_limit == 0)
        return;
    bool is_end = slices == 0 || now - ends[slices % (SLICES + 1)] >= slice;
    if (is_end) {
        slices++;
        spent[slices % (SLICES + 1)] = machtrace_usage_processor();
        ends[slices % (SLICES + 1)] = now;
    }
    if (cpu_limit != 0)
        poll_cpu(now, is_end);
    if (memory_limit != 0)
        poll_memory(now);
    if (is_end)
        machtrace_usage_read(&before);
}
