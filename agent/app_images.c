/* See app_images.h. */
#include "app_images.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "images.h"
#include "machtrace.h"

/* By address. Readers take no lock: the version is odd while the table changes. */
static struct {
    _Atomic uint64_t start, end;
} ranges[MACHTRACE_IMAGES_MAX];
static _Atomic uint32_t count, version;

static struct range {
    uint64_t start, end;
} sorted[MACHTRACE_IMAGES_MAX]; /* before they are published */

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

/* --- the app's own folder --- */

/* Bytes of a program's path that are its outermost bundle, or else its folder, with the slash. */
static size_t own_folder(const char *path)
{
    static const char *const bundles[] = {".app/", ".appex/", ".xctest/"};
    const char *last = strrchr(path, '/');
    for (const char *at = path; *at != '\0'; at++)
        for (size_t index = 0; index < sizeof bundles / sizeof *bundles; index++)
            if (at != path && at[-1] != '/' && begins_with(at, bundles[index]))
                return (size_t)(at - path) + strlen(bundles[index]);
    return path[0] != '/' || last == NULL ? 0 : (size_t)(last - path) + 1;
}

static bool is_within(const char *path, const char *program, size_t folder)
{
    return folder != 0 && strncmp(path, program, folder) == 0;
}

/* The loader is never the app's: a folder that it is in is the system's. */
static bool is_loader(const char *path)
{
    const char *last = strrchr(path, '/');
    return last != NULL && (begins_with(last, "/ld-") || begins_with(last, "/ld.so") ||
                            begins_with(last, "/ld64.so") || begins_with(last, "/dyld"));
}

static const char *find_program(size_t *folder)
{
    const char *program = "";
    uint32_t images = machtrace_image_count();
    for (uint32_t index = 0; index < images; index++)
        if (machtrace_image(index)->is_program)
            program = machtrace_image(index)->path;
    *folder = own_folder(program);
    for (uint32_t index = 0; index < images; index++) {
        const struct machtrace_agent_image *image = machtrace_image(index);
        if (is_loader(image->path) && is_within(image->path, program, *folder))
            *folder = 0;
    }
    return program;
}

static bool is_of_app(const struct machtrace_agent_image *image, const char *program, size_t folder)
{
    uint64_t own = (uint64_t)(uintptr_t)ranges;
    if (image->is_program)
        return true;
    if (image->is_fixed || (own >= image->start && own < image->end))
        return false;
    return is_within(image->path, program, folder) || !is_of_system(image->path);
}

/* --- the table --- */

static int by_address(const void *one, const void *other)
{
    uint64_t first = ((const struct range *)one)->start;
    uint64_t second = ((const struct range *)other)->start;
    return first < second ? -1 : first > second;
}

void machtrace_app_images_publish(void)
{
    uint32_t used = 0;
    size_t folder;
    const char *program = find_program(&folder);
    for (uint32_t index = 0; index < machtrace_image_count(); index++) {
        const struct machtrace_agent_image *image = machtrace_image(index);
        if (atomic_load(&image->is_loaded) && is_of_app(image, program, folder))
            sorted[used++] = (struct range){image->start, image->end};
    }
    qsort(sorted, used, sizeof *sorted, by_address);
    atomic_fetch_add(&version, 1);
    for (uint32_t index = 0; index < used; index++) {
        atomic_store(&ranges[index].start, sorted[index].start);
        atomic_store(&ranges[index].end, sorted[index].end);
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
    bool is_in = low < MACHTRACE_IMAGES_MAX && low < atomic_load(&count) &&
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
