/* Stopping all threads while code is changed that they execute: see entry.h.
 *
 * Where several instructions are replaced, no thread may be at one behind the first, nor may the
 * address of one be on its stack: the handler of a signal that interrupted it there returns to it.
 * A thread that blocks signals cannot be stopped. The agent's own thread does; it waits in a system
 * call of its own meanwhile.
 */
#include "linux/entry.h"

#include <stdlib.h>

#include "drain.h"
#include "inprocess/core/capture.h"
#include "recorder.h"
#include "thread.h"

#define STACK_MAX ((uint64_t)16 << 20) /* bytes of a stack that are searched */
#define PARK_MAX 500                   /* ms */
#define THREADS_MAX MACHTRACE_INPROCESS_THREADS_MAX

#if defined(__x86_64__) /* struct user_regs_struct (sys/user.h) */
enum { PC_WORD = 16, SP_WORD = 19 };
#else /* struct user_pt_regs (asm/ptrace.h) */
enum { PC_WORD = 32, SP_WORD = 31 };
#endif

struct stop {
    uint64_t first, last;
    void (*see)(uint64_t first, uint64_t last);
    void (*change)(void);
    int64_t listed;
    uint64_t ids[THREADS_MAX], ids_now[THREADS_MAX];
    struct machtrace_thread threads[THREADS_MAX];
};

static void see(const struct stop *stop, uint64_t address)
{
    if (address >= stop->first && address <= stop->last)
        stop->see(address, address);
}

static void search_stack(const struct stop *stop, uint64_t sp)
{
    static uint64_t words[512];
    for (uint64_t at = sp & ~UINT64_C(7); at < sp + STACK_MAX;) {
        uint64_t most = sizeof words - (at & (sizeof words - 1));
        size_t size = machtrace_read_memory(at, words, most);
        for (size_t index = 0; index < size / sizeof words[0]; index++)
            see(stop, words[index]);
        if (size < most)
            return;
        at += most;
    }
}

/* All threads are stopped. */
static void while_stopped(const struct machtrace_inprocess_capture *capture)
{
    struct stop *stop = capture->meanwhile_data;
    bool is_known = machtrace_inprocess_list(stop->ids_now, THREADS_MAX) == stop->listed;
    for (int64_t index = 0; is_known && index < stop->listed; index++)
        is_known = stop->ids[index] == stop->ids_now[index];
    for (size_t index = 0; is_known && index < capture->thread_count; index++) {
        const struct machtrace_thread *thread = &capture->threads[index];
        const uint64_t *registers = (const uint64_t *)(const void *)thread->registers;
        is_known = thread->registers_size > 8 * PC_WORD && thread->registers_size > 8 * SP_WORD;
        if (is_known) {
            see(stop, registers[PC_WORD]);
            search_stack(stop, registers[SP_WORD]);
        }
    }
    if (!is_known) /* a thread has begun or ended, or did not stop */
        stop->see(0, UINT64_MAX);
    stop->change();
}

static bool park_drain(uint32_t id)
{
    _Atomic uint32_t never = 0;
    for (int waited = 0; waited < PARK_MAX; waited++) {
        if (id == 0 || id == machtrace_thread_id() || atomic_load(&machtrace_drain_is_parked))
            return true;
        machtrace_wait(&never, 0, 1);
    }
    return false;
}

void machtrace_stop_others(uint64_t first, uint64_t last,
                           void (*occupy)(uint64_t first, uint64_t last), void (*change)(void))
{
    uint64_t self = machtrace_inprocess_id();
    struct stop *stop = calloc(1, sizeof *stop);
    if (stop == NULL || machtrace_inprocess_begin(0) != 0) {
        free(stop);
        return;
    }
    struct machtrace_inprocess_capture capture = {.answer_limit = 2000000000,
                                                  .sleep_limit = 20000000,
                                                  .together = true,
                                                  .threads = stop->threads,
                                                  .meanwhile = while_stopped,
                                                  .meanwhile_data = stop};
    stop->first = first;
    stop->last = last;
    stop->see = occupy;
    stop->change = change;
    atomic_store(&machtrace_code_changes, true);
    uint32_t drain = atomic_load(&machtrace_drain_thread);
    if (park_drain(drain)) {
        stop->listed = machtrace_inprocess_list(stop->ids, THREADS_MAX);
        for (int64_t index = 0; index < stop->listed && stop->listed <= THREADS_MAX; index++)
            if (stop->ids[index] != self && stop->ids[index] != drain)
                stop->threads[capture.thread_count++].id = stop->ids[index];
        if (stop->listed > 0 && stop->listed <= THREADS_MAX)
            machtrace_inprocess_copy(&capture);
    }
    atomic_store(&machtrace_code_changes, false);
    machtrace_inprocess_end();
    free(stop);
}
