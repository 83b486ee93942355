/* agent/images.h for Linux. */
#define _GNU_SOURCE
#include "images.h"

#include <link.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "inprocess/core/capture.h"
#include "recorder.h"

static struct machtrace_agent_image *images;
static _Atomic uint32_t image_count;
static uint32_t era;
static _Atomic uint64_t last_changes; /* as machtrace_inprocess_image_changes returned it */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void read_notes(struct machtrace_agent_image *image, const unsigned char *notes,
                       uint64_t size)
{
    for (uint64_t at = 0; size - at >= sizeof(ElfW(Nhdr));) {
        ElfW(Nhdr) note;
        memcpy(&note, notes + at, sizeof note);
        at += sizeof note;
        uint64_t name_size = ((uint64_t)note.n_namesz + 3) & ~UINT64_C(3);
        uint64_t id_size = ((uint64_t)note.n_descsz + 3) & ~UINT64_C(3);
        if (name_size > size - at || id_size > size - at - name_size)
            return;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
            memcmp(notes + at, "GNU", 4) == 0 && note.n_descsz <= MACHTRACE_IMAGE_ID_MAX) {
            image->id_size = note.n_descsz;
            memcpy(image->id, notes + at + name_size, note.n_descsz);
            return;
        }
        at += name_size + id_size;
    }
}

static void read_dynamic(struct machtrace_agent_image *image, const ElfW(Dyn) *dynamic)
{
    for (; dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_RPATH || dynamic->d_tag == DT_RUNPATH)
            image->has_search_path = true;
}

static void read_image(struct machtrace_agent_image *image, const struct dl_phdr_info *info)
{
    memset(image, 0, sizeof *image);
    image->bias = info->dlpi_addr;
    image->headers = info->dlpi_phdr;
    image->header_count = info->dlpi_phnum;
    image->unloaded = MACHTRACE_IMAGE_LOADED;
    image->loaded = era;
    image->start = UINT64_MAX;
    for (size_t index = 0; index < info->dlpi_phnum; index++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[index];
        uint64_t first = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_LOAD) {
            image->start = first < image->start ? first : image->start;
            image->end = first + header->p_memsz > image->end ? first + header->p_memsz
                                                              : image->end;
        } else if (header->p_type == PT_NOTE && image->id_size == 0) {
            read_notes(image, (const unsigned char *)(uintptr_t)first, header->p_memsz);
        } else if (header->p_type == PT_DYNAMIC) {
            read_dynamic(image, (const ElfW(Dyn) *)(uintptr_t)first);
        }
    }
    strncpy(image->path, info->dlpi_name, sizeof image->path - 1);
    image->is_program = image->path[0] == '\0';
    if (image->is_program) {
        ssize_t length = readlink("/proc/self/exe", image->path, sizeof image->path - 1);
        image->path[length < 0 ? 0 : length] = '\0';
    }
}

static int see_image(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    (void)data;
    uint32_t count = atomic_load(&image_count);
    for (uint32_t index = 0; index < count; index++) {
        struct machtrace_agent_image *image = &images[index];
        if (image->unloaded == MACHTRACE_IMAGE_LOADED && image->bias == info->dlpi_addr &&
            image->headers == info->dlpi_phdr &&
            (image->is_program ? info->dlpi_name[0] == '\0'
                               : strncmp(image->path, info->dlpi_name, sizeof image->path - 1) ==
                                     0)) {
            image->is_seen = true;
            return 0;
        }
    }
    if (count < MACHTRACE_IMAGES_MAX) {
        read_image(&images[count], info);
        images[count].is_seen = true;
        atomic_store(&image_count, count + 1);
    }
    return 0;
}

static void begin_era(void)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    era++;
    /* If the tree is full, stacks of both eras are below the root; no new ones are stored. */
    uint32_t root = all->tree.addresses == NULL
                        ? MACHTRACE_TREE_ROOT
                        : machtrace_stack_tree_insert(&all->tree, MACHTRACE_TREE_ROOT,
                                                      MACHTRACE_MARK_ERA + era);
    atomic_store(&all->root, root);
    atomic_fetch_add(&all->generation, 1);
}

bool machtrace_images_update(bool waits)
{
    if (waits)
        pthread_mutex_lock(&lock);
    else if (pthread_mutex_trylock(&lock) != 0)
        return false;
    if (images == NULL) {
        void *memory = mmap(NULL, MACHTRACE_IMAGES_MAX * sizeof *images, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            pthread_mutex_unlock(&lock);
            return false;
        }
        images = memory;
    }
    uint32_t count = atomic_load(&image_count);
    for (uint32_t index = 0; index < count; index++)
        images[index].is_seen = false;
    atomic_store(&last_changes, machtrace_inprocess_image_changes());
    dl_iterate_phdr(see_image, NULL);
    bool is_unloaded = false;
    for (uint32_t index = 0; index < count; index++) {
        if (images[index].is_seen || images[index].unloaded != MACHTRACE_IMAGE_LOADED)
            continue;
        images[index].unloaded = era;
        is_unloaded = true;
    }
    if (is_unloaded)
        begin_era();
    pthread_mutex_unlock(&lock);
    return true;
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
    const struct machtrace_agent_image *later = NULL;
    for (uint32_t index = 0; index < count; index++) {
        const struct machtrace_agent_image *image = &images[index];
        if (address < image->start || address >= image->end || at_era > image->unloaded)
            continue;
        if (at_era >= image->loaded)
            return image;
        later = later == NULL ? image : later;
    }
    /* One that was loaded when its era had not begun yet. */
    return later;
}

void machtrace_images_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
}
