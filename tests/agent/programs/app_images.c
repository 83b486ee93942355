/* The frames of an app, with synthetic images: the first is the program.
 *
 *     app_images PATH...
 *
 * Prints for each path 1 if frames in its image are the app's. Each path is that of an image of its
 * own; a path that begins with = is that of as many images as there is room for.
 */
#include <stdio.h>
#include <string.h>

#include "app_images.h"
#include "images.h"
#include "machtrace.h"

static struct machtrace_agent_image images[MACHTRACE_IMAGES_MAX];
static uint32_t image_count;

uint32_t machtrace_image_count(void)
{
    return image_count;
}

struct machtrace_agent_image *machtrace_image(uint32_t index)
{
    return &images[index];
}

static uint64_t address_of(uint32_t index)
{
    /* Later ones are at lower addresses, as of loaders. */
    return (uint64_t)(2 * MACHTRACE_IMAGES_MAX - index) << 16;
}

static void add(const char *path)
{
    struct machtrace_agent_image *image = &images[image_count];
    image->start = address_of(image_count);
    image->end = image->start + 4096;
    image->is_program = image_count == 0;
    atomic_store(&image->is_loaded, true);
    strncpy(image->path, path, sizeof image->path - 1);
    image_count++;
}

int main(int argc, char **argv)
{
    for (int index = 1; index < argc; index++) {
        if (argv[index][0] != '=')
            add(argv[index]);
        while (argv[index][0] == '=' && image_count < MACHTRACE_IMAGES_MAX)
            add(argv[index] + 1);
    }
    machtrace_app_images_publish();
    for (uint32_t index = 0; index < image_count; index++) {
        uint64_t frames[3] = {images[index].start + 10, images[index].end, images[index].start};
        size_t left = machtrace_app_frames(frames, 3);
        printf("%zu", left == 2 ? 1 : left == 0 ? 0 : left);
    }
    printf("\n");
    return 0;
}
