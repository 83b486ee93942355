/* What is known of this process and of the calling thread, with nothing stopped. */
#define _GNU_SOURCE
#include "capture.h"

#include <dirent.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

uint64_t machtrace_own_id(void)
{
    return (uint64_t)syscall(SYS_gettid);
}

int64_t machtrace_own_list(uint64_t *ids, size_t room)
{
    DIR *directory = opendir("/proc/self/task");
    if (directory == NULL)
        return -1;
    int64_t count = 0;
    const struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        char *end;
        unsigned long long id = strtoull(entry->d_name, &end, 10);
        if (end == entry->d_name || *end != '\0')
            continue;
        if ((size_t)count < room)
            ids[count] = id;
        count++;
    }
    closedir(directory);
    return count;
}

static int first_object(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    uint64_t *changes = data;
    /* Apart, so that one of each does not look like none: there are fewer than 2^32 of either. */
    *changes = (uint64_t)info->dlpi_adds << 32 | (uint32_t)info->dlpi_subs;
    return 1;
}

/* glibc's dl_iterate_phdr takes the lock under which its list changes, which is never held while
 * code of an image is run. */
uint64_t machtrace_own_image_changes(void)
{
    uint64_t changes = 0;
    dl_iterate_phdr(first_object, &changes);
    return changes;
}

static int this_object(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct machtrace_own_range *range = data;
    uint64_t here = (uint64_t)(uintptr_t)&machtrace_own_list;
    uint64_t start = UINT64_MAX;
    uint64_t end = 0;
    bool holds = false;
    for (size_t index = 0; index < info->dlpi_phnum; index++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[index];
        if (header->p_type != PT_LOAD)
            continue;
        uint64_t first = info->dlpi_addr + header->p_vaddr;
        uint64_t last = first + header->p_memsz;
        holds = holds || (here >= first && here < last);
        start = first < start ? first : start;
        end = last > end ? last : end;
    }
    if (holds)
        *range = (struct machtrace_own_range){start, end};
    return holds;
}

struct machtrace_own_range machtrace_own_image(void)
{
    struct machtrace_own_range range = {0, 0};
    dl_iterate_phdr(this_object, &range);
    return range;
}

uint64_t machtrace_own_stack_end(void)
{
    static _Thread_local uint64_t known;
    if (known == 0) {
        pthread_attr_t attributes;
        void *start;
        size_t size;
        if (pthread_getattr_np(pthread_self(), &attributes) != 0)
            return 0;
        if (pthread_attr_getstack(&attributes, &start, &size) == 0)
            known = (uint64_t)(uintptr_t)start + size;
        pthread_attr_destroy(&attributes);
    }
    return known;
}
