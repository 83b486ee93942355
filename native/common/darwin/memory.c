/* memory.h: vm_region_recurse_64 and vm_read_overwrite.
 *
 * Both take 64-bit addresses on every system that is left, as their namesakes of mach_vm.h do,
 * which iOS has no header for.
 */
#include "common/darwin/memory.h"

#include <mach/vm_region.h>
#include <stdbool.h>

#include "common/darwin/registers.h"

#define ADJOINING_MAX 64  /* regions that one stack is looked for in */
#define SUBMAPS_MAX 16    /* nested in one another; the kernel has two levels */
#define MIN_PAGE 4096 /* every page size is a multiple */
#define PART 65536         /* read at once before single pages are tried */

_Static_assert(sizeof(vm_address_t) == 8, "vm_address_t");
_Static_assert(sizeof(vm_size_t) == 8, "vm_size_t");
_Static_assert(sizeof(mach_port_t) == 4, "mach_port_t");
/* Packed to four bytes. The long form has counts of pages besides, and the kernel counts them. */
_Static_assert(VM_REGION_SUBMAP_SHORT_INFO_COUNT_64 == 12, "vm_region_submap_short_info_64");
_Static_assert(offsetof(vm_region_submap_short_info_data_64_t, user_tag) == 20, "user_tag");
_Static_assert(offsetof(vm_region_submap_short_info_data_64_t, is_submap) == 32, "is_submap");

kern_return_t machtrace_mach_find_region(vm_map_read_t task, uint64_t address,
                                         struct machtrace_mach_region *region)
{
    natural_t depth = 0;
    for (int level = 0; level < SUBMAPS_MAX; level++) {
        vm_address_t start = (vm_address_t)address;
        vm_size_t size = 0;
        vm_region_submap_short_info_data_64_t info;
        mach_msg_type_number_t count = VM_REGION_SUBMAP_SHORT_INFO_COUNT_64;
        kern_return_t result = vm_region_recurse_64(task, &start, &size, &depth,
                                                    (vm_region_recurse_info_t)&info, &count);
        if (result != KERN_SUCCESS)
            return result;
        if (!info.is_submap) {
            *region = (struct machtrace_mach_region){start, start + size, info.protection,
                                                     info.user_tag};
            return KERN_SUCCESS;
        }
        depth++;
    }
    return KERN_INVALID_ADDRESS;
}

static bool is_readable(const struct machtrace_mach_region *region)
{
    return (region->protection & VM_PROT_READ) != 0;
}

kern_return_t machtrace_mach_find_stack(vm_map_read_t task, uint64_t sp, size_t red_zone,
                                        size_t limit, uint64_t *start, uint64_t *end)
{
    struct machtrace_mach_region region, next;
    kern_return_t result = machtrace_mach_find_region(task, sp, &region);
    if (result != KERN_SUCCESS)
        return result;
    if (region.start <= sp && !is_readable(&region)) {
        /* Of a stack that overflowed the pointer is in the guard below it. */
        uint64_t above = region.end;
        result = machtrace_mach_find_region(task, above, &region);
        if (result != KERN_SUCCESS)
            return result;
        if (region.start != above)
            return KERN_INVALID_ADDRESS;
    } else if (region.start > sp) {
        return KERN_INVALID_ADDRESS; /* nothing is mapped where it points */
    }
    if (!is_readable(&region))
        return KERN_INVALID_ADDRESS;
    uint64_t most = sp > UINT64_MAX - limit ? UINT64_MAX : sp + limit;
    *start = sp < red_zone ? 0 : sp - red_zone;
    if (*start < region.start)
        *start = region.start;
    *end = region.end;
    /* A mapping whose parts were treated differently is in several regions. */
    for (int count = 0; count < ADJOINING_MAX && *end < most; count++) {
        if (machtrace_mach_find_region(task, *end, &next) != KERN_SUCCESS || next.start != *end ||
            !is_readable(&next) || next.tag != region.tag)
            break;
        *end = next.end;
    }
    if (*end > most)
        *end = most;
    return *start < *end ? KERN_SUCCESS : KERN_INVALID_ADDRESS;
}

static kern_return_t read_part(vm_map_read_t task, uint64_t address, unsigned char *to, size_t size)
{
    vm_size_t got = 0;
    kern_return_t result =
        vm_read_overwrite(task, (vm_address_t)address, size, (vm_address_t)to, &got);
    return result == KERN_SUCCESS && got != size ? KERN_FAILURE : result;
}

/* Read parts that end at multiples of `unit`, until one cannot be read. */
static kern_return_t read_parts(vm_map_read_t task, uint64_t address, unsigned char *to, size_t size,
                                size_t unit, size_t *done)
{
    kern_return_t result = KERN_SUCCESS;
    while (*done < size && result == KERN_SUCCESS) {
        size_t part = unit - (size_t)((address + *done) % unit);
        if (part > size - *done)
            part = size - *done;
        result = read_part(task, address + *done, to + *done, part);
        if (result == KERN_SUCCESS)
            *done += part;
    }
    return result;
}

kern_return_t machtrace_mach_read(vm_map_read_t task, uint64_t address, unsigned char *to,
                                  size_t size, size_t *got)
{
    *got = 0;
    if (size == 0)
        return KERN_SUCCESS;
    kern_return_t result = read_part(task, address, to, size);
    if (result == KERN_SUCCESS) {
        *got = size;
        return result;
    }
    /* All or nothing is read at once; so find where it ends. */
    result = read_parts(task, address, to, size, PART, got);
    if (result != KERN_SUCCESS)
        result = read_parts(task, address, to, size, MIN_PAGE, got);
    return *got != 0 ? KERN_SUCCESS : result;
}

kern_return_t machtrace_mach_copy_stack(vm_map_read_t task, uint64_t sp, size_t limit,
                                        unsigned char *to, size_t room,
                                        struct machtrace_stack *stack)
{
    *stack = (struct machtrace_stack){sp, 0, NULL};
    if (limit == 0 || room == 0)
        return KERN_SUCCESS;
    uint64_t start, end;
    kern_return_t result =
        machtrace_mach_find_stack(task, sp, MACHTRACE_DARWIN_RED_ZONE, limit, &start, &end);
    if (result == KERN_INVALID_ADDRESS)
        return KERN_SUCCESS; /* it is on no stack */
    size_t got = 0;
    if (result == KERN_SUCCESS)
        result = machtrace_mach_read(task, start, to,
                                     end - start < room ? (size_t)(end - start) : room, &got);
    if (got != 0)
        *stack = (struct machtrace_stack){start, got, to};
    return result;
}
