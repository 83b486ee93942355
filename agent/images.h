/* The images of this process, those that were unloaded included.
 *
 * An address is that of one image only as long as that is loaded: then another one may be loaded at
 * the same address. So stacks are those of an era, in which no image is unloaded: they are below an
 * outermost node of the era's own (MACHTRACE_MARK_ERA). When an image is unloaded, an era begins
 * or continues all of whose images are loaded now. So a plugin that comes and goes has two.
 */
#ifndef MACHTRACE_AGENT_IMAGES_H
#define MACHTRACE_AGENT_IMAGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MACHTRACE_IMAGES_MAX 8192
#define MACHTRACE_IMAGE_ID_MAX 32 /* bytes of an identifier */
#define MACHTRACE_AGENT_PATH_MAX 512
#define MACHTRACE_ERAS_MAX 4096
#define MACHTRACE_ERA_NOW UINT32_MAX

struct machtrace_agent_image {
    uint64_t start, end; /* of the addresses that it takes */
    uint64_t bias;       /* from the file's addresses to the process' */
    const void *headers; /* its program headers, or its Mach-O header */
    uint32_t header_count;
    _Atomic bool is_loaded;
    uint32_t id_size;
    uint8_t id[MACHTRACE_IMAGE_ID_MAX]; /* GNU build id, or UUID */
    bool is_program;
    bool has_search_path; /* DT_RPATH or DT_RUNPATH */
    bool is_fixed;        /* part of Darwin's shared cache: never unloaded, nor bound */
    bool is_seen;
    _Atomic uint32_t hooked; /* the version of the rules for which its imports were bound */
    _Atomic uint64_t slot;   /* one of the slots that were bound; 0 for none */
    char path[MACHTRACE_AGENT_PATH_MAX];
};

/* Find loaded and unloaded images, and the era that is now. If another thread does just that: wait
 * for it, or return false. */
bool machtrace_images_update(bool waits);

/* Whether images were loaded or unloaded since the last update. Waits for nothing. */
bool machtrace_images_are_stale(void);

/* Images so far; they stay at their addresses, and in their order. */
uint32_t machtrace_image_count(void);
struct machtrace_agent_image *machtrace_image(uint32_t index);

/* The image that has an address in an era, or NULL. MACHTRACE_ERA_NOW: that is loaded. */
const struct machtrace_agent_image *machtrace_image_at(uint64_t address, uint32_t era);

void machtrace_images_after_fork(void);

/* --- of each system, and for it --- */

/* Call machtrace_images_see for every loaded image; `now` has room for one. `is_again`: it may have
 * been unloaded and loaded again since the last update. */
void machtrace_images_list(struct machtrace_agent_image *now);
void machtrace_images_see(const struct machtrace_agent_image *now, bool is_again);

/* Publish the executable mappings in machtrace_recorders.code. Readers take no lock: they check the
 * version. */
void machtrace_images_list_code(void);

#endif
