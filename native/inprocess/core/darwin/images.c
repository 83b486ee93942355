/* images.h: the images that dyld reported, in a list without a lock.
 *
 * Entries are never freed. An unused one is reused for a path that fits, so their number is at
 * most a few times the largest number of images at one time. Its version is odd while a thread
 * writes it; that thread may be suspended meanwhile, so readers do not wait: an image whose entry
 * is being written was just loaded, or is being unloaded.
 */
#include "inprocess/core/darwin/images.h"

#include <dlfcn.h>
#include <mach-o/dyld.h>
#include <mach-o/dyld_images.h>
#include <mach-o/loader.h>
#include <mach/mach.h>
#include <mach/task_info.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "inprocess/core/capture.h"

_Static_assert(sizeof(struct mach_header_64) == 32, "mach_header_64");
_Static_assert(offsetof(struct mach_header_64, sizeofcmds) == 20, "sizeofcmds");
_Static_assert(sizeof(struct load_command) == 8, "load_command");
_Static_assert(sizeof(struct segment_command_64) == 72, "segment_command_64");
_Static_assert(offsetof(struct segment_command_64, vmaddr) == 24, "vmaddr");
_Static_assert(sizeof(struct uuid_command) == 24, "uuid_command");
_Static_assert(sizeof(task_dyld_info_data_t) == 20, "task_dyld_info");
_Static_assert(offsetof(struct dyld_all_image_infos, dyldImageLoadAddress) == 32, "dyld");
_Static_assert(offsetof(struct dyld_all_image_infos, dyldPath) == 192, "dyldPath");

#define WORDS_MIN 8 /* of eight bytes each, for a path */
#define WORDS_MAX (MACHTRACE_IMAGE_PATH_MAX / 8)
#define READ_TRIES 16
#define DYLD_PATH_VERSION 15 /* of dyld_all_image_infos: the first that has it */

struct entry {
    struct entry *next; /* never changes */
    size_t words;       /* room of the path; never changes */
    _Atomic uint64_t version;
    _Atomic uint64_t load_address; /* 0: of no image */
    _Atomic uint64_t slide;
    _Atomic uint64_t text_size;
    _Atomic uint64_t cpu; /* subtype in the upper half */
    _Atomic uint64_t uuid[2];
    _Atomic bool has_uuid;
    _Atomic uint64_t path[];
};

static _Atomic(struct entry *) entries;
static _Atomic uint64_t changes;
static _Atomic size_t lost;

/* --- writing --- */

/* Lock an entry, if it is this image's (0: unused). */
static bool claim(struct entry *entry, uint64_t load_address)
{
    if (atomic_load(&entry->load_address) != load_address)
        return false;
    uint64_t version = atomic_load(&entry->version);
    if (version % 2 != 0 || !atomic_compare_exchange_strong(&entry->version, &version, version + 1))
        return false;
    if (atomic_load(&entry->load_address) == load_address)
        return true;
    atomic_fetch_add(&entry->version, 1);
    return false;
}

static void fill(struct entry *entry, const struct machtrace_image *image)
{
    uint64_t words[WORDS_MAX], uuid[2];
    memcpy(words, image->path, sizeof words);
    memcpy(uuid, image->uuid, sizeof uuid);
    for (size_t index = 0; index < entry->words; index++)
        atomic_store(&entry->path[index], words[index]);
    atomic_store(&entry->uuid[0], uuid[0]);
    atomic_store(&entry->uuid[1], uuid[1]);
    atomic_store(&entry->has_uuid, image->has_uuid);
    atomic_store(&entry->slide, image->slide);
    atomic_store(&entry->text_size, image->text_size);
    atomic_store(&entry->cpu,
                 (uint64_t)(uint32_t)image->cpu_subtype << 32 | (uint32_t)image->cpu_type);
    atomic_store(&entry->load_address, image->load_address);
}

static struct entry *new_entry(size_t words)
{
    struct entry *entry = calloc(1, sizeof *entry + words * sizeof entry->path[0]);
    if (entry == NULL)
        return NULL;
    entry->words = words;
    atomic_init(&entry->version, 1);
    return entry;
}

static void publish(struct entry *entry)
{
    struct entry *first = atomic_load(&entries);
    do
        entry->next = first;
    while (!atomic_compare_exchange_weak(&entries, &first, entry));
}

static void add(const struct machtrace_image *image)
{
    size_t needed = strlen(image->path) / 8 + 1;
    struct entry *entry;
    for (entry = atomic_load(&entries); entry != NULL; entry = entry->next)
        if (entry->words >= needed && claim(entry, 0))
            break;
    if (entry != NULL) {
        fill(entry, image);
        atomic_fetch_add(&entry->version, 1);
    } else {
        size_t words = WORDS_MIN;
        while (words < needed)
            words *= 2; /* few sizes, so that most fit again */
        entry = new_entry(words);
        if (entry == NULL) {
            atomic_fetch_add(&lost, 1);
            return;
        }
        fill(entry, image);
        atomic_fetch_add(&entry->version, 1);
        publish(entry);
    }
}

static void forget(uint64_t load_address)
{
    for (struct entry *entry = atomic_load(&entries); entry != NULL; entry = entry->next) {
        if (claim(entry, load_address)) {
            atomic_store(&entry->load_address, 0);
            atomic_fetch_add(&entry->version, 1);
            return;
        }
    }
}

/* --- reading --- */

static void read_once(struct entry *entry, struct machtrace_image *image)
{
    uint64_t words[WORDS_MAX] = {0}, uuid[2];
    for (size_t index = 0; index < entry->words; index++)
        words[index] = atomic_load(&entry->path[index]);
    uuid[0] = atomic_load(&entry->uuid[0]);
    uuid[1] = atomic_load(&entry->uuid[1]);
    uint64_t cpu = atomic_load(&entry->cpu);
    image->load_address = atomic_load(&entry->load_address);
    image->slide = atomic_load(&entry->slide);
    image->text_size = atomic_load(&entry->text_size);
    image->cpu_type = (int32_t)(uint32_t)cpu;
    image->cpu_subtype = (int32_t)(uint32_t)(cpu >> 32);
    image->has_uuid = atomic_load(&entry->has_uuid);
    memcpy(image->uuid, uuid, sizeof image->uuid);
    memcpy(image->path, words, sizeof image->path);
}

/* False if it is unused, or is being written. */
static bool take(struct entry *entry, struct machtrace_image *image)
{
    for (int tries = 0; tries < READ_TRIES; tries++) {
        uint64_t version = atomic_load(&entry->version);
        if (version % 2 != 0 || atomic_load(&entry->load_address) == 0)
            return false;
        read_once(entry, image);
        if (atomic_load(&entry->version) == version)
            return image->load_address != 0;
    }
    return false;
}

size_t machtrace_images_copy(struct machtrace_image *images, size_t room)
{
    size_t count = 0;
    struct machtrace_image spare;
    for (struct entry *entry = atomic_load(&entries); entry != NULL; entry = entry->next)
        if (take(entry, count < room ? &images[count] : &spare))
            count++;
    return count;
}

size_t machtrace_images_lost(void)
{
    return atomic_load(&lost);
}

/* --- callbacks from dyld --- */

static void describe(const struct mach_header_64 *header, struct machtrace_image *image)
{
    const char *at = (const char *)(header + 1);
    const char *end = at + header->sizeofcmds;
    image->load_address = (uint64_t)(uintptr_t)header;
    image->cpu_type = header->cputype;
    image->cpu_subtype = header->cpusubtype;
    for (uint32_t index = 0; index < header->ncmds; index++) {
        const struct load_command *command = (const void *)at;
        size_t left = (size_t)(end - at);
        if (left < sizeof *command || command->cmdsize < sizeof *command || command->cmdsize > left)
            return;
        if (command->cmd == LC_SEGMENT_64 && command->cmdsize >= sizeof(struct segment_command_64)) {
            const struct segment_command_64 *segment = (const void *)at;
            if (strncmp(segment->segname, SEG_TEXT, sizeof segment->segname) == 0) {
                image->text_size = segment->vmsize;
                image->slide = image->load_address - segment->vmaddr;
            }
        } else if (command->cmd == LC_UUID && command->cmdsize >= sizeof(struct uuid_command)) {
            memcpy(image->uuid, ((const struct uuid_command *)command)->uuid, sizeof image->uuid);
            image->has_uuid = true;
        }
        at += command->cmdsize;
    }
}

static void name(struct machtrace_image *image, const char *path)
{
    if (path != NULL)
        strncpy(image->path, path, sizeof image->path - 1);
}

static void image_added(const struct mach_header *header, intptr_t slide)
{
    struct machtrace_image image;
    memset(&image, 0, sizeof image);
    describe((const struct mach_header_64 *)(const void *)header, &image);
    image.slide = (uint64_t)slide;
    Dl_info info;
    if (dladdr(header, &info) != 0)
        name(&image, info.dli_fname);
    add(&image);
    atomic_fetch_add(&changes, 1); /* last, so that a reader of this number sees the image */
}

static void image_removed(const struct mach_header *header, intptr_t slide)
{
    (void)slide;
    forget((uint64_t)(uintptr_t)header);
    atomic_fetch_add(&changes, 1);
}

/* dyld reports all images except itself. */
static void add_dyld(void)
{
    task_dyld_info_data_t where;
    mach_msg_type_number_t count = TASK_DYLD_INFO_COUNT;
    if (task_info(mach_task_self(), TASK_DYLD_INFO, (task_info_t)&where, &count) != KERN_SUCCESS ||
        where.all_image_info_addr == 0 || where.all_image_info_format != TASK_DYLD_ALL_IMAGE_INFO_64)
        return;
    const struct dyld_all_image_infos *infos =
        (const void *)(uintptr_t)where.all_image_info_addr;
    if (infos->dyldImageLoadAddress == NULL)
        return;
    struct machtrace_image image;
    memset(&image, 0, sizeof image);
    describe((const void *)infos->dyldImageLoadAddress, &image);
    name(&image, infos->version >= DYLD_PATH_VERSION && infos->dyldPath != NULL ? infos->dyldPath
                                                                               : "/usr/lib/dyld");
    add(&image);
}

enum { UNWATCHED, BEGUN, WATCHED };
static _Atomic int watching;

bool machtrace_images_watch(void)
{
    /* Nobody waits for another thread here: it may wait for dyld's lock, and we hold that. */
    int expected = UNWATCHED;
    if (!atomic_compare_exchange_strong(&watching, &expected, BEGUN))
        return expected == WATCHED;
    add_dyld();
    /* Removals first, so that none is missed; dyld does not unload an image during its callback. */
    _dyld_register_func_for_remove_image(image_removed);
    _dyld_register_func_for_add_image(image_added);
    atomic_store(&watching, WATCHED);
    return true;
}

uint64_t machtrace_inprocess_image_changes(void)
{
    static _Atomic uint64_t untold;
    if (!machtrace_images_watch()) /* a number that is returned but once */
        return UINT64_MAX - atomic_fetch_add(&untold, 1);
    return atomic_load(&changes);
}

bool machtrace_inprocess_image_changes_may_wait(void)
{
    return atomic_load(&watching) == UNWATCHED;
}

struct machtrace_range machtrace_inprocess_image(void)
{
    /* Not __dso_handle: not all linkers define it as the header. */
    Dl_info info;
    if (dladdr((const void *)&changes, &info) == 0)
        return (struct machtrace_range){0, 0};
    const struct mach_header_64 *header = info.dli_fbase;
    uint64_t base = (uint64_t)(uintptr_t)header;
    const struct load_command *command = (const struct load_command *)(const void *)(header + 1);
    uint64_t slide = 0;
    uint64_t end = 0;
    for (uint32_t index = 0; index < header->ncmds; index++) {
        if (command->cmd == LC_SEGMENT_64) {
            const struct segment_command_64 *segment = (const void *)command;
            if (strcmp(segment->segname, SEG_TEXT) == 0)
                slide = base - segment->vmaddr;
            if (segment->filesize != 0 && segment->vmaddr + segment->vmsize > end)
                end = segment->vmaddr + segment->vmsize;
        }
        command = (const void *)((const char *)command + command->cmdsize);
    }
    return (struct machtrace_range){base, end + slide};
}
