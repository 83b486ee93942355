/* agent/images.h for macOS and iOS: from the list that dyld's callbacks maintain. An image takes the
 * addresses of its __TEXT; other segments of the shared cache's are elsewhere. */
#include "images.h"

#include <errno.h>
#include <mach-o/loader.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "inprocess/core/capture.h"
#include "inprocess/core/darwin/images.h"
#include "recorder.h"
#include "thread.h"

static struct machtrace_image *images; /* a copy of the list; under the lock of the update */
static size_t room;

static size_t copy_list(void)
{
    for (;;) {
        size_t count = machtrace_images_copy(images, room);
        if (count <= room)
            return count;
        size_t more = count + 64;
        struct machtrace_image *larger = realloc(images, more * sizeof *larger);
        if (larger == NULL)
            return room;
        images = larger;
        room = more;
    }
}

void machtrace_images_list(struct machtrace_agent_image *now)
{
    size_t count = copy_list();
    for (size_t index = 0; index < count; index++) {
        const struct machtrace_image *image = &images[index];
        const struct mach_header_64 *header = (const void *)(uintptr_t)image->load_address;
        memset(now, 0, sizeof *now);
        now->start = image->load_address;
        now->end = image->load_address + image->text_size;
        now->bias = image->slide;
        now->headers = header;
        if (image->has_uuid) {
            now->id_size = sizeof image->uuid;
            memcpy(now->id, image->uuid, sizeof image->uuid);
        }
        now->is_program = header->filetype == MH_EXECUTE;
        now->is_fixed =
            (header->flags & MH_DYLIB_IN_CACHE) != 0 || header->filetype == MH_DYLINKER;
        strncpy(now->path, image->path, sizeof now->path - 1);
        machtrace_images_see(now, false); /* dyld announces each that it loads, which is bound then */
    }
}

static int by_address(const void *one, const void *other)
{
    uint64_t first = ((const struct machtrace_image *)one)->load_address;
    uint64_t second = ((const struct machtrace_image *)other)->load_address;
    return first < second ? -1 : first > second;
}

void machtrace_images_list_code(void)
{
    struct machtrace_code *code = &machtrace_recorders.code;
    size_t count = copy_list();
    uint32_t version = atomic_load(&code->version), used = 0;
    qsort(images, count, sizeof *images, by_address);
    atomic_store(&code->version, version + 1);
    for (size_t index = 0; index < count && used < MACHTRACE_CODE_MAX; index++) {
        uint64_t start = images[index].load_address;
        atomic_store_explicit(&code->ranges[used].start, start, memory_order_release);
        atomic_store_explicit(&code->ranges[used].end, start + images[index].text_size,
                              memory_order_release);
        used++;
    }
    atomic_store(&code->count, used);
    atomic_store(&code->version, version + 2);
}

size_t machtrace_thread_name(uint32_t id, char *name, size_t size)
{
    (void)id; /* only the calling thread's name can be read without stopping others' end */
    (void)name;
    (void)size;
    return 0;
}

void machtrace_copy_threads(struct machtrace_inprocess_capture *capture)
{
    machtrace_inprocess_copy(capture);
}
