/* A Swift-style task: functions that wait are cut where they wait, and a chain of contexts on the
 * heap records which one resumes when another is done (swift: docs/ABI/CallingConvention.rst and
 * include/swift/ABI/Task.h, AsyncContext).
 *
 * refreshFeed() awaits loadFeed() awaits downloadImage(), which waits for its data. When the data
 * has arrived a worker thread resumes in the middle of downloadImage(): under it the stack is the
 * worker's; only the contexts record which function called which.
 */
#include "kernel.h"
#include "threads.h"

#define ASYNC __attribute__((swiftasynccall))
#define CONTEXT __attribute__((swift_async_context)) AsyncContext *
#define GO_ON(continuation, context) __attribute__((musttail)) return (continuation)(context)

typedef struct AsyncContext AsyncContext;
typedef ASYNC void Continuation(CONTEXT);

struct AsyncContext {
    AsyncContext *parent;
    Continuation *resume; /* of the parent */
    uint64_t value;
};

/* What is to run next. */
static struct {
    Continuation *resume;
    AsyncContext *context;
} job;

static AsyncContext *swift_task_alloc(AsyncContext *parent, Continuation *resume) {
    AsyncContext *context = demo_allocate(sizeof *context);
    context->parent = parent;
    context->resume = resume;
    return context;
}

static void swift_task_enqueue(Continuation *resume, AsyncContext *context) {
    job.resume = resume;
    job.context = context;
}

OUTLINED static uint64_t decodePixels(uint64_t seed) {
    for (int row = 0; row < 16; row++) seed = seed * 6364136223846793005 + 1442695040888963407;
    return seed;
}

/* --- downloadImage() async --- */

OUTLINED static ASYNC void downloadImage_resume(CONTEXT context) {
    uint64_t pixels = decodePixels(context->value);
    context->parent->value = decodePixels(pixels) ^ pixels;
    GO_ON(context->resume, context->parent);
}

OUTLINED static ASYNC void downloadImage(CONTEXT context) {
    context->value = 42;
    swift_task_enqueue(downloadImage_resume, context); /* and back to the worker */
}

/* --- loadFeed() async --- */

OUTLINED static ASYNC void loadFeed_resume(CONTEXT context) {
    context->parent->value = decodePixels(context->value);
    GO_ON(context->resume, context->parent);
}

OUTLINED static ASYNC void loadFeed(CONTEXT context) {
    GO_ON(downloadImage, swift_task_alloc(context, loadFeed_resume));
}

/* --- refreshFeed() async --- */

OUTLINED static ASYNC void refreshFeed_resume(CONTEXT context) {
    context->parent->value = decodePixels(context->value);
    GO_ON(context->resume, context->parent);
}

OUTLINED static ASYNC void refreshFeed(CONTEXT context) {
    GO_ON(loadFeed, swift_task_alloc(context, refreshFeed_resume));
}

/* --- what the concurrency library does --- */

OUTLINED static ASYNC void completeTask(CONTEXT context) {
    swift_task_enqueue(0, context);
}

OUTLINED static void swift_job_run(void) {
    job.resume(job.context);
}

OUTLINED static void _dispatch_worker_thread(void) {
    while (job.resume) swift_job_run();
}

void *serve_tasks(void *argument) {
    pthread_setname_np("com.machtrace.async");
    AsyncContext *finished = swift_task_alloc(0, 0);
    swift_task_enqueue(refreshFeed, swift_task_alloc(finished, completeTask));
    _dispatch_worker_thread();
    return argument;
}
