/* Memory of a Darwin task, this one or another, as the kernel reads it.
 *
 * Only the kernel is called, nothing is allocated and no lock is taken: to be used while threads
 * are suspended, too.
 */
#ifndef MACHTRACE_COMMON_DARWIN_MEMORY_H
#define MACHTRACE_COMMON_DARWIN_MEMORY_H

#include <mach/mach.h>
#include <stddef.h>
#include <stdint.h>

#include "common/thread.h"

struct machtrace_mach_region {
    uint64_t start;
    uint64_t end;
    vm_prot_t protection;
    uint32_t tag; /* VM_MEMORY_… */
};

/* The region that holds `address`, or the next one above it; submaps are entered. */
kern_return_t machtrace_mach_find_region(vm_map_read_t task, uint64_t address,
                                         struct machtrace_mach_region *region);

/* Where the stack that `sp` is on can be read: from its red zone, of `red_zone` bytes, as far as
 * `limit` bytes above `sp` or its end. KERN_INVALID_ADDRESS where `sp` is on no stack. */
kern_return_t machtrace_mach_find_stack(vm_map_read_t task, uint64_t sp, size_t red_zone,
                                        size_t limit, uint64_t *start, uint64_t *end);

/* Read as much from `address` on as possible; `got` is how much. Fails if that is nothing. */
kern_return_t machtrace_mach_read(vm_map_read_t task, uint64_t address, unsigned char *to,
                                  size_t size, size_t *got);

/* Copy as much of the stack that `sp` is on to `to` as there is room for. Fails if there was
 * something to read, and it could not be read; nothing is copied then. */
kern_return_t machtrace_mach_copy_stack(vm_map_read_t task, uint64_t sp, size_t limit,
                                        unsigned char *to, size_t room,
                                        struct machtrace_stack *stack);

#endif
