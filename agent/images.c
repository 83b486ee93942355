/* See images.h. */
#define _GNU_SOURCE
#include "images.h"

#include "app_images.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "inprocess/core/capture.h"
#include "hooks.h"
#include "imports.h"
#include "recorder.h"

static struct machtrace_agent_image *images;
static _Atomic uint32_t image_count;
static struct era {
    _Atomic uint64_t images[MACHTRACE_IMAGES_MAX / 64]; /* a bit for each that was loaded in it */
} *eras;
static uint32_t era_count, era;
static _Atomic uint64_t last_changes; /* as machtrace_inprocess_image_changes returned it */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_equal(const struct machtrace_agent_image *one,
                     const struct machtrace_agent_image *other)
{
    return one->bias == other->bias && one->start == other->start && one->end == other->end &&
           one->headers == other->headers && one->id_size == other->id_size &&
           memcmp(one->id, other->id, one->id_size) == 0 && strcmp(one->path, other->path) == 0;
}

/* Whether a slot that was bound leads elsewhere: the loader has written it since. */
static bool is_fresh(const struct machtrace_agent_image *image)
{
    uint64_t slot = atomic_load(&image->slot);
    return slot == 0 || machtrace_stub_at(machtrace_slot_address(atomic_load(
                            (_Atomic uint64_t *)(uintptr_t)slot))) < 0;
}

/* The entry of a loaded image, or that of an equal one that was loaded before. */
void machtrace_images_see(const struct machtrace_agent_image *now, bool is_again)
{
    uint32_t count = atomic_load(&image_count);
    for (uint32_t index = 0; index < count; index++) {
        if (is_equal(&images[index], now)) {
            images[index].is_seen = true;
            if (is_again && atomic_load(&images[index].hooked) != 0 && is_fresh(&images[index]))
                atomic_store(&images[index].hooked, 0);
            return;
        }
    }
    if (count < MACHTRACE_IMAGES_MAX) {
        images[count] = *now;
        images[count].is_seen = true;
        atomic_store(&image_count, count + 1);
    }
}

/* How many images an era has; -1 if one of them is not loaded now. */
static int era_size(const struct era *candidate, const struct era *loaded)
{
    int size = 0;
    for (uint32_t word = 0; word <= atomic_load(&image_count) / 64; word++) {
        if (word == MACHTRACE_IMAGES_MAX / 64)
            break;
        if ((candidate->images[word] & ~loaded->images[word]) != 0)
            return -1;
        size += __builtin_popcountll(candidate->images[word]);
    }
    return size;
}

/* The era whose images are loaded, all of them: of several, that with the most; or a new one. */
static uint32_t choose_era(const struct era *loaded)
{
    uint32_t best = era_count;
    int most = -1;
    for (uint32_t index = 0; index < era_count; index++) {
        int size = era_size(&eras[index], loaded);
        if (size > most) {
            most = size;
            best = index;
        }
    }
    if (best < era_count)
        return best;
    /* Too many: the last one's stacks are of several then. */
    return era_count < MACHTRACE_ERAS_MAX ? era_count++ : era_count - 1;
}

static void enter_era(const struct era *loaded)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    uint32_t chosen = choose_era(loaded);
    for (uint32_t word = 0; word < MACHTRACE_IMAGES_MAX / 64; word++)
        eras[chosen].images[word] |= loaded->images[word];
    if (chosen == era)
        return;
    era = chosen;
    /* If the tree is full, stacks of both eras are below the root; no new ones are stored. */
    uint32_t root = MACHTRACE_TREE_ROOT;
    if (era != 0 && all->tree.addresses != NULL)
        root = machtrace_stack_tree_insert(&all->tree, MACHTRACE_TREE_ROOT,
                                           MACHTRACE_MARK_ERA + era);
    atomic_store(&all->root, root);
    atomic_fetch_add(&all->generation, 1);
}

static bool map_tables(void)
{
    size_t images_size = MACHTRACE_IMAGES_MAX * sizeof *images;
    if (images != NULL)
        return true;
    /* The last image is no image: others are read into it. The last era neither. */
    unsigned char *memory =
        mmap(NULL, images_size + sizeof *images + (MACHTRACE_ERAS_MAX + 1) * sizeof *eras,
             PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    eras = (struct era *)(memory + images_size + sizeof *images);
    images = (struct machtrace_agent_image *)memory;
    return true;
}

bool machtrace_images_update(bool waits)
{
    if (waits)
        pthread_mutex_lock(&lock);
    else if (pthread_mutex_trylock(&lock) != 0)
        return false;
    bool has_tables = map_tables();
    if (has_tables) {
        uint32_t count = atomic_load(&image_count);
        struct era *loaded = &eras[MACHTRACE_ERAS_MAX];
        for (uint32_t index = 0; index < count; index++)
            images[index].is_seen = false;
        atomic_store(&last_changes, machtrace_inprocess_image_changes());
        machtrace_images_list(&images[MACHTRACE_IMAGES_MAX]);
        for (uint32_t word = 0; word < MACHTRACE_IMAGES_MAX / 64; word++)
            atomic_store_explicit(&loaded->images[word], 0, memory_order_relaxed);
        for (uint32_t index = 0; index < atomic_load(&image_count); index++) {
            struct machtrace_agent_image *image = &images[index];
            if (image->is_seen)
                loaded->images[index / 64] |= UINT64_C(1) << index % 64;
            else
                atomic_store(&image->hooked, 0);
            atomic_store(&image->is_loaded, image->is_seen);
        }
        enter_era(loaded);
        machtrace_images_list_code();
        machtrace_app_images_publish();
    }
    pthread_mutex_unlock(&lock);
    return has_tables;
}

bool machtrace_images_are_stale(void)
{
    return machtrace_inprocess_image_changes() != atomic_load(&last_changes);
}

uint32_t machtrace_image_count(void)
{
    return atomic_load(&image_count);
}

struct machtrace_agent_image *machtrace_image(uint32_t index)
{
    return &images[index];
}

const struct machtrace_agent_image *machtrace_image_at(uint64_t address, uint32_t at_era)
{
    uint32_t count = atomic_load(&image_count);
    const struct machtrace_agent_image *other = NULL;
    for (uint32_t index = 0; index < count; index++) {
        const struct machtrace_agent_image *image = &images[index];
        if (address < image->start || address >= image->end)
            continue;
        if (at_era == MACHTRACE_ERA_NOW ? atomic_load(&image->is_loaded)
                                        : (eras[at_era].images[index / 64] >> index % 64 & 1) != 0)
            return image;
        /* Loaded in that era, and not seen yet then: it is none of the era's that was there. */
        if (other == NULL || atomic_load(&image->is_loaded))
            other = image;
    }
    return at_era == MACHTRACE_ERA_NOW ? NULL : other;
}

void machtrace_images_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
}
