/* Starting and stopping: see machtrace.h. */
#define _GNU_SOURCE
#include "machtrace.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "drain.h"
#include "hooks.h"
#include "images.h"
#include "recorder.h"
#include "watchdog.h"

#define DEFAULT_TREE_BITS 20
#define DEFAULT_SPOOL_SIZE (UINT64_C(16) << 20)
#define DEFAULT_THREADS 512
#define DEFAULT_INTERVAL 50
#define LEAVE_LIMIT 200 /* ms until a hook counts as one that never returns */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic uint32_t *recording; /* a page of its own */
static int once_error;
static bool is_running;

/* --- fork --- */

/* The child has none of the agent's threads, and no mapping of the spool. */
static void child_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    if (recording != NULL)
        atomic_store(recording, 0);
    is_running = false;
    machtrace_images_after_fork();
    machtrace_imports_after_fork();
    machtrace_incidents_after_fork();
    machtrace_drain_after_fork();
    machtrace_recorders_after_fork();
}

static void prepare(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        once_error = errno;
        return;
    }
#ifdef MADV_WIPEONFORK
    /* Also for children that do not call handlers of pthread_atfork(3). */
    madvise(memory, page, MADV_WIPEONFORK);
#endif
    recording = memory;
    machtrace_recording = recording;
    once_error = pthread_atfork(NULL, NULL, child_after_fork);
}

/* --- start and stop --- */

static int add_rules(const machtrace_function_t *functions, size_t count)
{
    if (count > MACHTRACE_RULES_MAX)
        return ENOSPC;
    for (size_t index = 0; index < count; index++) {
        size_t length = functions[index].name == NULL ? 0 : strlen(functions[index].name);
        if (length == 0 || length >= MACHTRACE_SYMBOL_MAX)
            return EINVAL;
    }
    for (size_t index = 0; index < count; index++)
        if (machtrace_add_rule(functions[index].name, functions[index].flags) < 0)
            return ENOSPC;
    return 0;
}

static int start(const machtrace_options_t *options)
{
    if (is_running)
        return EALREADY;
    int error = machtrace_recorders_begin(
        options->threads_max != 0 ? options->threads_max : DEFAULT_THREADS,
        options->tree_bits != 0 ? options->tree_bits : DEFAULT_TREE_BITS);
    if (error != 0)
        return error;
    machtrace_deactivate_rules();
    error = add_rules(options->functions, options->function_count);
    if (error != 0)
        return error;
    machtrace_recorders_clear();
    for (size_t index = 0; index < options->function_count; index++)
        if ((options->functions[index].flags & MACHTRACE_GIVES_CONSENT) != 0)
            atomic_store(&machtrace_recorders.app_state,
                         MACHTRACE_CONSENT_ABSENT << MACHTRACE_STATE_SHIFT);
    machtrace_images_update(true);
    struct machtrace_drain_options spool = {
        .path = options->spool_path,
        .size = options->spool_size != 0 ? options->spool_size : DEFAULT_SPOOL_SIZE,
        .older = options->older_spools != 0 ? options->older_spools : 1,
        .interval_ms = options->interval_ms != 0 ? options->interval_ms : DEFAULT_INTERVAL,
        .rotate_seconds = options->rotate_seconds,
        .finished = options->spool_finished,
        .context = options->spool_context};
    error = machtrace_drain_begin(&spool);
    if (error != 0) {
        machtrace_deactivate_rules();
        return error;
    }
    error = machtrace_incidents_begin(options);
    if (error != 0) {
        machtrace_incidents_end();
        machtrace_drain_end();
        machtrace_deactivate_rules();
        return error;
    }
    is_running = true;
    atomic_store(recording, 1);
    struct machtrace_imports_result result;
    machtrace_enable_imports();
    machtrace_bind_imports(&result);
    machtrace_drain_report();
    return 0;
}

int machtrace_start(const machtrace_options_t *options)
{
    if (options == NULL || options->size != sizeof *options || options->spool_path == NULL ||
        (options->function_count != 0 && options->functions == NULL))
        return EINVAL;
    int before = errno;
    machtrace_ignore_enter();
    pthread_once(&once, prepare);
    pthread_mutex_lock(&lock);
    int error = once_error != 0 ? once_error : start(options);
    pthread_mutex_unlock(&lock);
    machtrace_ignore_leave();
    errno = before;
    return error;
}

/* Wait for hooks that run, so that what they record is drained. */
static void wait_for_hooks(void)
{
    struct timespec pause = {0, 1000000};
    uint32_t used = atomic_load(&machtrace_recorders.used);
    for (int waited = 0; waited < LEAVE_LIMIT; waited++) {
        uint32_t index = 0;
        while (index < used && atomic_load(&machtrace_recorders.all[index].busy) == 0)
            index++;
        if (index == used)
            return;
        nanosleep(&pause, NULL);
    }
}

int machtrace_stop(void)
{
    int before = errno, error = ESRCH;
    struct machtrace_imports_result result = {0};
    machtrace_ignore_enter();
    pthread_mutex_lock(&lock);
    if (is_running) {
        machtrace_restore_imports(&result);
        atomic_store(recording, 0);
        machtrace_incidents_end();
        wait_for_hooks();
        machtrace_drain_end();
        machtrace_deactivate_rules();
        is_running = false;
        error = result.left != 0 ? EBUSY : 0;
    }
    pthread_mutex_unlock(&lock);
    machtrace_ignore_leave();
    errno = before;
    return error;
}

int machtrace_rotate(void)
{
    int before = errno, error = ESRCH;
    machtrace_ignore_enter();
    pthread_mutex_lock(&lock);
    if (is_running)
        error = machtrace_drain_rotate();
    pthread_mutex_unlock(&lock);
    machtrace_ignore_leave();
    errno = before;
    return error;
}

int machtrace_watch(const machtrace_function_t *functions, size_t count)
{
    int before = errno, error = ESRCH;
    struct machtrace_imports_result result;
    machtrace_ignore_enter();
    pthread_mutex_lock(&lock);
    if (is_running) {
        error = count == 0 ? 0 : functions == NULL ? EINVAL : add_rules(functions, count);
        machtrace_bind_imports(&result);
    }
    pthread_mutex_unlock(&lock);
    machtrace_ignore_leave();
    errno = before;
    return error;
}

int machtrace_watch_thread(void)
{
    int before = errno;
    machtrace_ignore_enter();
    pthread_mutex_lock(&lock);
    int error = is_running ? machtrace_incidents_watch() : ESRCH;
    pthread_mutex_unlock(&lock);
    machtrace_ignore_leave();
    errno = before;
    return error;
}

/* --- facts --- */

int machtrace_function_state(const char *name, uint64_t *calls)
{
    uint32_t count = atomic_load(&machtrace_rule_count);
    for (uint32_t rule = 0; rule < count; rule++) {
        if (strcmp(machtrace_rules[rule].symbol, name) != 0 ||
            !atomic_load(&machtrace_rules[rule].is_active))
            continue;
        uint64_t sum = atomic_load(&machtrace_recorders.calls[rule]);
        for (uint32_t index = 0; index < atomic_load(&machtrace_recorders.used); index++)
            sum += atomic_load(&machtrace_recorders.all[index].calls[rule]);
        if (calls != NULL)
            *calls = sum;
        return (int)atomic_load(&machtrace_rules[rule].state);
    }
    return -1;
}

void machtrace_flush(void)
{
    int before = errno;
    machtrace_ignore_enter();
    pthread_mutex_lock(&lock);
    machtrace_drain_flush();
    pthread_mutex_unlock(&lock);
    machtrace_ignore_leave();
    errno = before;
}

void machtrace_get_losses(machtrace_losses_t *losses)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    uint32_t used = atomic_load(&all->used);
    losses->events_counted = 0;
    for (uint32_t index = 0; index < used; index++)
        losses->events_counted += atomic_load(&all->all[index].counted);
    losses->stacks_incomplete = atomic_load(&all->incomplete);
    losses->stacks_cut = atomic_load(&all->cut);
    losses->ignored = atomic_load(&all->ignored);
}
