/* The images of this process, as dyld reports them: macOS and iOS.
 *
 * dyld calls back when one is loaded or unloaded. The callbacks maintain a list that takes no lock
 * to read or write: it can be read at any time, also while threads are suspended at any point.
 */
#ifndef MACHTRACE_INPROCESS_CORE_DARWIN_IMAGES_H
#define MACHTRACE_INPROCESS_CORE_DARWIN_IMAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MACHTRACE_IMAGE_PATH_MAX 1024 /* PATH_MAX, its NUL counted */

struct machtrace_image {
    uint64_t load_address; /* of the Mach-O header */
    uint64_t slide;        /* difference between its actual and stated addresses */
    uint64_t text_size;    /* of __TEXT; 0 if there is none */
    int32_t cpu_type;
    int32_t cpu_subtype;
    unsigned char uuid[16];
    bool has_uuid;
    char path[MACHTRACE_IMAGE_PATH_MAX]; /* ends with a NUL; cut where it was longer */
};

/* Register the callbacks; dyld also reports the present images. Allocates and takes
 * dyld's lock, so nothing may be suspended. False while another thread is in the middle of it. */
bool machtrace_images_watch(void);

/* Copy images in no order, as many as there is room for; how many there are. One that comes or
 * goes just now may be left out. dyld itself is among them. */
size_t machtrace_images_copy(struct machtrace_image *images, size_t room);

/* Images that are not in the list, for want of memory. */
size_t machtrace_images_lost(void);

#endif
