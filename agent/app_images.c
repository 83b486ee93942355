/* See app_images.h. */
#include "app_images.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "images.h"
#include "machtrace.h"

#define APP_IMAGES_MAX 1024

struct range {
    _Atomic uint64_t start, end;
};

/* By address. Readers take no lock: the version is odd while the table changes. */
static struct range ranges[APP_IMAGES_MAX];
static _Atomic uint32_t count, version;

static const char *const system_folders[] = {
    "/lib/",    "/lib32/",  "/lib64/", "/libx32/",        "/usr/lib/",           "/usr/lib32/",
    "/usr/lib64/", "/usr/libx32/", "/System/", "/Library/Apple/", "/private/preboot/", "/Developer/"};

static bool begins_with(const char *path, const char *folder)
{
    return strncmp(path, folder, strlen(folder)) == 0;
}

static bool is_of_system(const char *path)
{
    bool is_simulated = false; /* a simulator's system is within Xcode */
    for (size_t index = 0; index < sizeof system_folders / sizeof *system_folders; index++)
        if (begins_with(path, system_folders[index]))
            return true;
    for (const char *part = path; *part != '\0'; part++)
        is_simulated |= begins_with(part, "/RuntimeRoot/");
    return path[0] != '/' || is_simulated; /* the vdso has no folder */
}

static bool is_of_app(const struct machtrace_agent_image *image)
{
    uint64_t own = (uint64_t)(uintptr_t)ranges;
    if (image->is_program)
        return true;
    return !image->is_fixed && !is_of_system(image->path) &&
           (own < image->start || own >= image->end);
}

static void store(uint32_t index, uint64_t start, uint64_t end)
{
    atomic_store(&ranges[index].start, start);
    atomic_store(&ranges[index].end, end);
}

void machtrace_app_images_publish(void)
{
    uint32_t used = 0;
    atomic_fetch_add(&version, 1);
    for (uint32_t index = 0; index < machtrace_image_count(); index++) {
        const struct machtrace_agent_image *image = machtrace_image(index);
        if (!atomic_load(&image->is_loaded) || !is_of_app(image) || used == APP_IMAGES_MAX)
            continue;
        uint32_t at = used++;
        for (; at > 0 && atomic_load(&ranges[at - 1].start) > image->start; at--)
            store(at, atomic_load(&ranges[at - 1].start), atomic_load(&ranges[at - 1].end));
        store(at, image->start, image->end);
    }
    atomic_store(&count, used);
    atomic_fetch_add(&version, 1);
}

/* Whether a return address is in the app; -1 if the table changed meanwhile. */
static int find(uint64_t address)
{
    uint32_t before = atomic_load(&version);
    size_t low = 0, high = atomic_load(&count);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (atomic_load(&ranges[middle].end) >= address)
            high = middle;
        else
            low = middle + 1;
    }
    bool is_in = low < APP_IMAGES_MAX && low < atomic_load(&count) &&
                 atomic_load(&ranges[low].start) < address;
    return before % 2 != 0 || atomic_load(&version) != before ? -1 : is_in;
}

size_t machtrace_app_frames(uint64_t *frames, size_t frame_count)
{
    size_t used = 0;
    for (size_t index = 0; index < frame_count; index++) {
        int is_in = -1;
        for (int trial = 0; trial < 1000 && is_in < 0; trial++)
            is_in = find(frames[index]);
        /* A frame that cannot be judged stays. */
        if (is_in != 0)
            frames[used++] = frames[index];
    }
    return used;
}
