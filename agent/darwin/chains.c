/* Binds by chained fixups: see slots.h.
 *
 * dyld has overwritten the chains in memory, so they are read from the image's file, if that has
 * the image's UUID. Formats: mach-o/fixup-chains.h.
 */
#include "darwin/slots.h"

#include <fcntl.h>
#include <libkern/OSByteOrder.h>
#include <mach-o/fat.h>
#include <mach-o/fixup-chains.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct file {
    const unsigned char *bytes, *image; /* of a universal file: the part that is the image */
    size_t size, left;                  /* bytes from `bytes`, from `image` */
};

static bool has_uuid(const struct file *file, const struct uuid_command *uuid)
{
    const struct mach_header_64 *header = (const void *)file->image;
    if (file->left < sizeof *header || header->magic != MH_MAGIC_64 ||
        header->sizeofcmds > file->left - sizeof *header)
        return false;
    const unsigned char *at = (const unsigned char *)(header + 1), *end = at + header->sizeofcmds;
    for (uint32_t index = 0; index < header->ncmds; index++) {
        const struct uuid_command *command = (const void *)at;
        if ((size_t)(end - at) < sizeof(struct load_command) || command->cmdsize < 8 ||
            command->cmdsize > (size_t)(end - at))
            return false;
        if (command->cmd == LC_UUID && command->cmdsize >= sizeof *command)
            return memcmp(command->uuid, uuid->uuid, sizeof uuid->uuid) == 0;
        at += command->cmdsize;
    }
    return false;
}

/* The image in a file, by its UUID. */
static bool find_image(struct file *file, const struct uuid_command *uuid)
{
    const struct fat_header *fat = (const void *)file->bytes;
    file->image = file->bytes;
    file->left = file->size;
    if (file->size < sizeof *fat || OSSwapBigToHostInt32(fat->magic) != FAT_MAGIC)
        return has_uuid(file, uuid);
    const struct fat_arch *arch = (const void *)(fat + 1);
    uint32_t count = OSSwapBigToHostInt32(fat->nfat_arch);
    if (count > (file->size - sizeof *fat) / sizeof *arch)
        return false;
    for (uint32_t index = 0; index < count; index++) {
        uint32_t offset = OSSwapBigToHostInt32(arch[index].offset);
        if (offset >= file->size)
            continue;
        file->image = file->bytes + offset;
        file->left = file->size - offset;
        if (has_uuid(file, uuid))
            return true;
    }
    return false;
}

static bool open_file(const struct machtrace_commands *commands, struct file *file)
{
    struct stat status;
    int descriptor = open(commands->image->path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    void *bytes = MAP_FAILED;
    if (fstat(descriptor, &status) == 0 && status.st_size > 0) {
        file->size = (size_t)status.st_size;
        bytes = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    }
    close(descriptor);
    if (bytes == MAP_FAILED)
        return false;
    file->bytes = bytes;
    if (find_image(file, commands->uuid))
        return true;
    munmap(bytes, file->size);
    return false;
}

/* --- chains --- */

struct chains {
    struct machtrace_changes *changes;
    const struct machtrace_commands *commands;
    void *handle;
    const struct dyld_chained_fixups_header *header;
    const struct file *file;
};

/* NULL if an import is none of a function's. */
static const char *symbol_of(const struct chains *chains, uint32_t ordinal)
{
    const struct dyld_chained_fixups_header *header = chains->header;
    const unsigned char *bytes = (const unsigned char *)header;
    const unsigned char *imports = bytes + header->imports_offset;
    const char *names = (const char *)bytes + header->symbols_offset;
    if (ordinal >= header->imports_count)
        return NULL;
    uint32_t word;
    uint64_t wide;
    switch (header->imports_format) {
    case DYLD_CHAINED_IMPORT:
        memcpy(&word, imports + 4 * ordinal, sizeof word);
        return names + (word >> 9);
    case DYLD_CHAINED_IMPORT_ADDEND:
        memcpy(&word, imports + 8 * ordinal, sizeof word);
        return names + (word >> 9);
    case DYLD_CHAINED_IMPORT_ADDEND64:
        memcpy(&wide, imports + 16 * ordinal, sizeof wide);
        return names + (wide >> 32);
    default:
        return NULL;
    }
}

static bool is_arm64e(uint16_t format)
{
    return format == DYLD_CHAINED_PTR_ARM64E || format == DYLD_CHAINED_PTR_ARM64E_USERLAND ||
           format == DYLD_CHAINED_PTR_ARM64E_USERLAND24;
}

/* One word of a chain; how many bytes to the next, or 0. */
static uint64_t read_word(const struct chains *chains, uint16_t format, uint64_t word,
                          uint64_t slot)
{
    struct machtrace_bind bind = {.slot = slot};
    bool is_bind;
    uint32_t ordinal;
    uint64_t next, addend;
    if (is_arm64e(format)) {
        bool is_signed = word >> 63 != 0;
        is_bind = (word >> 62 & 1) != 0;
        next = (word >> 51 & 0x7ff) * 8;
        ordinal = (uint32_t)(word & (format == DYLD_CHAINED_PTR_ARM64E_USERLAND24 ? 0xffffff
                                                                                 : 0xffff));
        addend = is_signed ? 0 : word >> 32 & 0x7ffff;
        if (is_signed)
            bind.signing = MACHTRACE_SIGNED | (uint32_t)(word >> 32 & 0xffff) |
                           (uint32_t)(word >> 48 & 1) * MACHTRACE_ADDRESS_DIVERSE |
                           (uint32_t)(word >> 49 & 3) << MACHTRACE_KEY_SHIFT;
    } else {
        is_bind = word >> 63 != 0;
        next = (word >> 51 & 0xfff) * 4;
        ordinal = (uint32_t)(word & 0xffffff);
        addend = word >> 24 & 0xff;
    }
    bind.symbol = is_bind && addend == 0 ? symbol_of(chains, ordinal) : NULL;
    if (bind.symbol != NULL)
        machtrace_find_slot(chains->changes, chains->commands, chains->handle, &bind);
    return next;
}

static void read_segment(const struct chains *chains, const struct segment_command_64 *segment,
                         const struct dyld_chained_starts_in_segment *starts)
{
    const struct file *file = chains->file;
    uint16_t format = starts->pointer_format;
    if ((!is_arm64e(format) && format != DYLD_CHAINED_PTR_64 &&
         format != DYLD_CHAINED_PTR_64_OFFSET) ||
        segment->fileoff > file->left || segment->filesize > file->left - segment->fileoff)
        return;
    for (uint32_t page = 0; page < starts->page_count; page++) {
        uint64_t at = (uint64_t)page * starts->page_size + starts->page_start[page];
        uint64_t next = 1;
        if (starts->page_start[page] == DYLD_CHAINED_PTR_START_NONE)
            continue;
        for (; next != 0 && segment->filesize >= 8 && at <= segment->filesize - 8; at += next) {
            uint64_t word;
            memcpy(&word, file->image + segment->fileoff + at, sizeof word);
            next = read_word(chains, format, word,
                             segment->vmaddr + chains->commands->image->bias + at);
        }
    }
}

/* dyld has checked all but the file: the tables are those of the loaded image. */
bool machtrace_read_chains(struct machtrace_changes *changes,
                           const struct machtrace_commands *commands, void *handle)
{
    struct file file;
    if (commands->chains == NULL || commands->uuid == NULL || !open_file(commands, &file))
        return false;
    const unsigned char *bytes = commands->linkedit + commands->chains->dataoff;
    struct chains chains = {changes, commands, handle, (const void *)bytes, &file};
    bool is_known = chains.header->symbols_format == 0;
    const struct dyld_chained_starts_in_image *starts =
        (const void *)(bytes + chains.header->starts_offset);
    for (uint32_t index = 0; is_known && index < starts->seg_count; index++)
        if (starts->seg_info_offset[index] != 0 && index < commands->segment_count)
            read_segment(&chains, commands->segments[index],
                         (const void *)((const unsigned char *)starts + starts->seg_info_offset[index]));
    munmap((void *)(uintptr_t)file.bytes, file.size);
    return is_known;
}
