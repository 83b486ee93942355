/* Stacks and their text: see machtrace.h. */
#define _GNU_SOURCE
#include "machtrace.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inprocess/core/capture.h"
#include "images.h"
#include "recorder.h"
#include "thread.h"
#include "walk/frame_records.h"

#define DEFAULT_THREADS 512
#define DEFAULT_TREE_BITS 20
#define STACK_LIMIT ((size_t)1 << 23) /* bytes of another thread's stack */

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void begin(void)
{
    machtrace_ignore_enter();
    machtrace_recorders_begin(DEFAULT_THREADS, DEFAULT_TREE_BITS);
    machtrace_images_update(true);
    machtrace_ignore_leave();
}

static bool is_ready(void)
{
    if (machtrace_recorders.all == NULL)
        pthread_once(&once, begin);
    return machtrace_recorders.all != NULL;
}

/* --- another thread --- */

#if defined(__aarch64__) /* struct user_pt_regs (asm/ptrace.h), arm_thread_state64_t */
enum { FP_WORD = 29, PC_WORD = 32 };
#elif defined(__APPLE__)
enum { FP_WORD = 6, PC_WORD = 16 }; /* x86_thread_state64_t */
#else
enum { FP_WORD = 4, PC_WORD = 16 }; /* struct user_regs_struct (sys/user.h) */
#endif

static uint64_t word_of(const struct machtrace_thread *thread, size_t word)
{
    uint64_t value;
    memcpy(&value, thread->registers + word * sizeof value, sizeof value);
    return value;
}

static size_t walk_copy(const struct machtrace_thread *thread, uint64_t *frames, size_t capacity)
{
    uint64_t pc = word_of(thread, PC_WORD);
    struct machtrace_records_walk walk = {word_of(thread, FP_WORD), 1,
                                          MACHTRACE_RECORDS_BROKEN};
    size_t room = 1;
    for (size_t index = 0; index < thread->stack_count; index++)
        room += (size_t)thread->stacks[index].size / 16; /* the size of a record */
    uint64_t *all = malloc(room * sizeof *all);
    if (all == NULL)
        return 0;
    all[0] = pc;
    for (size_t index = 0; index < thread->stack_count; index++) {
        const struct machtrace_stack *copy = &thread->stacks[index];
        if (copy->size == 0)
            continue;
        struct machtrace_frame_stack stack = {copy->start, copy->start + copy->size, copy->bytes,
                                              machtrace_recorders.code_bits};
        machtrace_frame_records(&stack, &walk, all, room);
        if (walk.end != MACHTRACE_RECORDS_BROKEN)
            break;
    }
    for (size_t index = 0; index < walk.count && index < capacity; index++)
        frames[index] = all[index];
    free(all);
    return walk.count;
}

static size_t take_other(uint64_t id, uint64_t *frames, size_t capacity)
{
    size_t count = 0;
    struct machtrace_thread thread;
    memset(&thread, 0, sizeof thread);
    thread.id = id;
    thread.room = STACK_LIMIT;
    thread.buffer = malloc(STACK_LIMIT);
    if (thread.buffer != NULL && machtrace_inprocess_begin(0) == 0) {
        struct machtrace_inprocess_capture capture = {.stack_limit = STACK_LIMIT,
                                                      .threads = &thread,
                                                      .thread_count = 1};
        machtrace_copy_threads(&capture);
        machtrace_inprocess_end();
        if (thread.outcome == MACHTRACE_COPIED)
            count = walk_copy(&thread, frames, capacity);
    }
    free(thread.buffer);
    return count;
}

/* --- the calling thread --- */

#define CALLER ((uint64_t)(uintptr_t)__builtin_return_address(0))
#define FRAME ((const uint64_t *)__builtin_frame_address(0))

/* Its own record is at the frame address: the caller's frame pointer, and what CALLER is. */
#define CALLER_FRAME (FRAME[0])
#define OWN_STACK ((uint64_t)(uintptr_t)FRAME)

__attribute__((noinline)) size_t machtrace_backtrace(machtrace_thread_t thread, uint64_t *frames,
                                                     size_t capacity)
{
    int before = errno;
    size_t depth = 0;
    if (thread == MACHTRACE_THREAD_SELF || thread == machtrace_inprocess_id()) {
        if (is_ready())
            machtrace_stack_here(CALLER, OWN_STACK, CALLER_FRAME, frames, capacity, &depth);
    } else {
        machtrace_ignore_enter();
        if (is_ready())
            depth = take_other(thread, frames, capacity);
        machtrace_ignore_leave();
    }
    errno = before;
    return depth;
}

__attribute__((noinline)) uint32_t machtrace_stack_identity(void)
{
    size_t depth;
    return is_ready() ? machtrace_stack_here(CALLER, OWN_STACK, CALLER_FRAME, NULL, 0, &depth)
                      : MACHTRACE_TREE_ROOT;
}

/* --- text --- */

#define TEXTS 4096 /* stacks whose text is cached; a power of two */
#define LINE_SIZE 512

struct text {
    uint32_t node;
    size_t length;
    char bytes[];
};

static _Atomic(struct text *) texts[TEXTS];

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* The line that backtrace_symbols(3) of Libc makes. */
static size_t write_line(char *line, size_t index, uint64_t address)
{
    Dl_info info = {0};
    /* A return address may be the first one behind the function. */
    uint64_t inside = address - 1;
    bool is_found = dladdr((void *)(uintptr_t)inside, &info) != 0;
    const char *image = is_found && info.dli_fname != NULL ? last_part(info.dli_fname) : "???";
    const char *symbol = "0x0";
    uint64_t offset = address;
    if (is_found && info.dli_sname != NULL) {
        symbol = info.dli_sname;
        offset = address - (uint64_t)(uintptr_t)info.dli_saddr;
    } else if (is_found && info.dli_fname != NULL) {
        symbol = image;
        offset = address - (uint64_t)(uintptr_t)info.dli_fbase;
    }
    int length = snprintf(line, LINE_SIZE, "%-4zu%-35s 0x%016" PRIx64 " %.300s + %" PRIu64 "\n",
                          index, image, address, symbol, offset);
    return length < 0 ? 0 : length < LINE_SIZE ? (size_t)length : LINE_SIZE - 1;
}

static struct text *make_text(uint32_t node, const uint64_t *frames, size_t depth)
{
    struct text *made = malloc(sizeof *made + depth * LINE_SIZE + 1);
    if (made == NULL)
        return NULL;
    made->node = node;
    made->length = 0;
    for (size_t index = 0; index < depth; index++)
        made->length += write_line(made->bytes + made->length, index, frames[index]);
    made->bytes[made->length] = '\0';
    struct text *smaller = realloc(made, sizeof *made + made->length + 1);
    return smaller != NULL ? smaller : made;
}

/* The text of a stack; `*is_owned` if the caller is to free it. */
static struct text *text_of(uint32_t node, bool *is_owned)
{
    uint32_t index = node * UINT32_C(0x9e3779b1) >> 20;
    *is_owned = false;
    for (uint32_t step = 0; step < 16; step++) {
        struct text *present = atomic_load(&texts[(index + step) % TEXTS]);
        if (present != NULL && present->node == node)
            return present;
        if (present == NULL)
            break;
    }
    const struct machtrace_stack_tree *tree = &machtrace_recorders.tree;
    size_t depth = machtrace_stack_tree_read(tree, node, NULL, 0);
    uint64_t *frames = malloc((depth + 1) * sizeof *frames);
    if (frames == NULL)
        return NULL;
    machtrace_stack_tree_read(tree, node, frames, depth);
    while (depth > 0 && frames[depth - 1] < MACHTRACE_MARK_END)
        depth--;
    struct text *made = make_text(node, frames, depth);
    free(frames);
    for (uint32_t step = 0; step < 16 && made != NULL; step++) {
        struct text *present = NULL;
        if (atomic_compare_exchange_strong(&texts[(index + step) % TEXTS], &present, made))
            return made;
        if (present->node == node) {
            free(made);
            return present;
        }
    }
    *is_owned = true;
    return made;
}

__attribute__((noinline)) size_t machtrace_call_stack_symbols(char *text, size_t size)
{
    int before = errno;
    size_t depth = 0, length = 0;
    bool is_owned = false;
    if (!is_ready())
        return 0;
    uint32_t node = machtrace_stack_here(CALLER, OWN_STACK, CALLER_FRAME, NULL, 0, &depth);
    machtrace_ignore_enter();
    struct text *whole = node == MACHTRACE_TREE_ROOT ? NULL : text_of(node, &is_owned);
    if (size != 0)
        text[0] = '\0';
    if (whole != NULL) {
        length = whole->length;
        if (size != 0) {
            size_t copied = length < size ? length : size - 1;
            memcpy(text, whole->bytes, copied);
            text[copied] = '\0';
        }
        if (is_owned)
            free(whole);
    }
    machtrace_ignore_leave();
    errno = before;
    return length;
}
