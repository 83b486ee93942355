/* Where the fields of capture.h are, for tests that read them from outside. */
#include "inprocess/core/capture.h"
#include "inprocess/core/darwin/images.h"

#define THREAD(field) offsetof(struct machtrace_thread, field)
#define CAPTURE(field) offsetof(struct machtrace_inprocess_capture, field)
#define IMAGE(field) offsetof(struct machtrace_image, field)

const uint64_t layout_thread[] = {
    sizeof(struct machtrace_thread),
    THREAD(id),
    THREAD(buffer),
    THREAD(room),
    THREAD(outcome),
    THREAD(error),
    THREAD(pthread_or_queue),
    THREAD(registers),
    THREAD(registers_size),
    THREAD(stacks),
    THREAD(stack_count),
    THREAD(requested_at),
    THREAD(stopped_at),
    THREAD(resumed_at),
};
const uint64_t layout_capture[] = {
    sizeof(struct machtrace_inprocess_capture),
    CAPTURE(stack_limit),
    CAPTURE(together),
    CAPTURE(threads),
    CAPTURE(thread_count),
};
const uint64_t layout_image[] = {
    sizeof(struct machtrace_image), IMAGE(load_address), IMAGE(slide), IMAGE(text_size),
    IMAGE(cpu_type), IMAGE(cpu_subtype), IMAGE(uuid), IMAGE(has_uuid), IMAGE(path),
};
