/* agent/images.h for Linux. */
#define _GNU_SOURCE
#include "images.h"

#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "inprocess/core/capture.h"
#include "inprocess/core/linux/shared.h"
#include "recorder.h"
#include "thread.h"

#define MAPS_TEXT ((size_t)1 << 24) /* bytes of /proc/self/maps that are read */

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

void machtrace_images_list_code(void)
{
    struct machtrace_code *code = &machtrace_recorders.code;
    size_t room = MAPS_TEXT;
    char *text = mmap(NULL, room, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (text == MAP_FAILED)
        return;
    int64_t size = machtrace_inprocess_mappings(text, room - 1);
    uint32_t version = atomic_load(&code->version), count = 0;
    atomic_store(&code->version, version + 1);
    for (char *line = text; size > 0 && count < MACHTRACE_CODE_MAX;) {
        char *end = strchr(line, '\n'), *at;
        if (end == NULL)
            break;
        uint64_t start = strtoull(line, &at, 16);
        uint64_t last = *at == '-' ? strtoull(at + 1, &at, 16) : 0;
        if (end - at > 3 && at[3] == 'x') {
            atomic_store_explicit(&code->ranges[count].start, start, memory_order_release);
            atomic_store_explicit(&code->ranges[count].end, last, memory_order_release);
            count++;
        }
        line = end + 1;
    }
    atomic_store(&code->count, count);
    atomic_store(&code->version, version + 2);
    munmap(text, room);
}

size_t machtrace_thread_name(uint32_t id, char *name, size_t room)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%u/comm", id);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? 0 : read(file, name, room);
    if (file >= 0)
        close(file);
    if (size > 0 && name[size - 1] == '\n')
        size--;
    return size < 0 ? 0 : (size_t)size;
}

struct look {
    struct machtrace_agent_image *now;
    unsigned long long unloads;
};

static unsigned long long last_unloads; /* under the lock of the update */

static int see_image(struct dl_phdr_info *info, size_t size, void *data)
{
    struct look *look = data;
    bool is_counted = size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs;
    if (is_counted)
        look->unloads = info->dlpi_subs;
    read_image(look->now, info);
    machtrace_images_see(look->now, !is_counted || look->unloads != last_unloads);
    return 0;
}

void machtrace_images_list(struct machtrace_agent_image *now)
{
    struct look look = {now, last_unloads};
    dl_iterate_phdr(see_image, &look);
    last_unloads = look.unloads;
}
