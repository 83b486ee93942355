/* Import slots that the loader has not bound yet: those of images that bind at the first call.
 *
 * What the loader will bind depends on the scope of the image (the global one, that of dlopen(3),
 * RTLD_DEEPBIND, DT_SYMBOLIC), on its rules for versions, and on what is loaded until then. Only the
 * loader knows that, so it binds these, too: the stub of such a slot enters the loader's resolver as the
 * image's linkage table would, at the first call, for the image and the symbol of the slot. But the
 * number that it passes is that of a relocation of the agent's, behind the image's own: its word is the
 * binding's target, so that the slot stays hooked. Threads may do so at once, and handlers of signals,
 * as with any slot that is bound at the first call.
 *
 * Images of the start have one scope, so that their slots share a stub. What is here is under the lock
 * of imports.c, but for machtrace_settle_late.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "imports.h"
#include "inprocess/core/linux/shared.h"
#include "recorder.h"

#define MAPS_TEXT ((size_t)1 << 24) /* bytes of /proc/self/maps that are read */
#define ARENA_SIZE UINT64_C(65536)
#define ARENAS_MAX 64
#define ROOM (2 * sizeof(ElfW(Rela))) /* so that a multiple of its size is in it */
/* The resolver takes 32 bits: the number of the relocation on x86-64, its offset on arm64. */
#define REACH (UINT64_C(1) << 32)

static struct late {
    struct machtrace_late entry;
    const char *symbol, *version; /* of images of the start; or else: */
    const struct machtrace_agent_image *image;
    uint64_t slot;
    uint64_t room; /* for the relocation */
    int stub;
    _Atomic bool is_settled;
} all[MACHTRACE_STUBS];
static _Atomic uint32_t count;

static struct arena {
    uint64_t start, used;
} arenas[ARENAS_MAX];
static uint32_t arena_count;

/* --- memory behind an image's relocations --- */

static bool is_in_reach(uint64_t address, uint64_t size, uint64_t table)
{
    return address > table && address + size - table < REACH;
}

/* A quarter into a gap: the heap may grow into it from below, and a stack from above. */
static uint64_t map_in_gap(uint64_t start, uint64_t end, uint64_t table)
{
    uint64_t last = table + REACH < end ? table + REACH : end;
    if (last < start || last - start < 4 * ARENA_SIZE)
        return 0;
    uint64_t hint = (start + (last - start) / 4) & ~(ARENA_SIZE - 1);
    void *memory = mmap((void *)(uintptr_t)hint, ARENA_SIZE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    if (is_in_reach((uint64_t)(uintptr_t)memory, ARENA_SIZE, table))
        return (uint64_t)(uintptr_t)memory;
    munmap(memory, ARENA_SIZE);
    return 0;
}

static uint64_t map_behind(uint64_t table)
{
    uint64_t found = 0, before = table;
    char *text = mmap(NULL, MAPS_TEXT, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (text == MAP_FAILED)
        return 0;
    int64_t size = machtrace_inprocess_mappings(text, MAPS_TEXT - 1);
    for (char *line = text, *end; size > 0 && found == 0 && (end = strchr(line, '\n')) != NULL;
         line = end + 1) {
        char *at;
        uint64_t start = strtoull(line, &at, 16);
        uint64_t last = *at == '-' ? strtoull(at + 1, &at, 16) : start;
        if (start > before)
            found = map_in_gap(before, start, table);
        before = last > before ? last : before;
    }
    munmap(text, MAPS_TEXT);
    return found;
}

static uint64_t find_room(uint64_t table)
{
    for (uint32_t index = 0; index < arena_count; index++) {
        struct arena *arena = &arenas[index];
        if (arena->used + ROOM <= ARENA_SIZE &&
            is_in_reach(arena->start + arena->used, ROOM, table)) {
            arena->used += ROOM;
            return arena->start + arena->used - ROOM;
        }
    }
    uint64_t start = arena_count == ARENAS_MAX ? 0 : map_behind(table);
    if (start != 0)
        arenas[arena_count++] = (struct arena){start, ROOM};
    return start;
}

/* --- bindings --- */

static bool is_equal(const char *one, const char *other)
{
    return one == other || (one != NULL && other != NULL && strcmp(one, other) == 0);
}

static bool is_same(const struct late *late, const struct machtrace_change *change, uint16_t rule)
{
    if (change->unbound.symbol == NULL)
        return late->symbol == NULL && late->slot == change->slot;
    return late->symbol != NULL && machtrace_bindings[late->stub].rule == rule &&
           strcmp(late->symbol, change->unbound.symbol) == 0 &&
           is_equal(late->version, change->unbound.version);
}

static bool is_free(const struct late *late)
{
    return late->symbol == NULL && !atomic_load(&late->image->is_loaded);
}

/* One for the change; one whose image was unloaded, so that no thread can be in its stub; or none. */
static struct late *find(const struct machtrace_change *change, uint16_t rule)
{
    struct late *unused = NULL;
    uint32_t known = atomic_load(&count);
    for (uint32_t index = 0; index < known; index++) {
        if (is_same(&all[index], change, rule))
            return &all[index];
        if (unused == NULL && is_free(&all[index]))
            unused = &all[index];
    }
    return unused;
}

/* As the image's linkage table enters the resolver: System V gABI's supplements for both processors. */
static void set_entry(struct late *late, const struct machtrace_change *change)
{
    const struct machtrace_unbound *unbound = &change->unbound;
    const uint64_t *got = (const uint64_t *)(uintptr_t)unbound->got;
    uint64_t size = sizeof(ElfW(Rela)), table = unbound->relocations;
    uint64_t number = (late->room - table + size - 1) / size;
    ElfW(Rela) *relocation = (ElfW(Rela) *)(uintptr_t)(table + number * size);
    relocation->r_offset =
        (uint64_t)(uintptr_t)&machtrace_bindings[late->stub].target - change->image->bias;
    relocation->r_info = unbound->info;
    relocation->r_addend = 0;
#if defined(__x86_64__)
    late->entry.first = got[1];
    late->entry.second = number;
#else
    late->entry.first = unbound->got + 2 * sizeof *got;
    late->entry.second = unbound->got + (3 + number) * sizeof *got;
#endif
    late->entry.resolver = got[2];
}

static int bind_late(const struct machtrace_change *change, uint16_t rule,
                     enum machtrace_replacement replacement)
{
    uint64_t table = change->unbound.relocations;
    struct late *late = find(change, rule);
    if (late != NULL && late->symbol != NULL)
        return late->stub; /* of an image that is never unloaded */
    bool is_new = late == NULL;
    if (is_new) {
        if (atomic_load(&count) == MACHTRACE_STUBS)
            return -1;
        late = &all[atomic_load(&count)];
    }
    if (late->room == 0 || !is_in_reach(late->room, ROOM, table))
        late->room = find_room(table);
    if (late->room == 0)
        return -1;
    if (is_new) {
        late->stub = machtrace_bind_late(rule, &late->entry, replacement);
        if (late->stub < 0)
            return -1;
        atomic_store(&count, atomic_load(&count) + 1);
    }
    late->symbol = change->unbound.symbol;
    late->version = change->unbound.version;
    late->image = change->image;
    late->slot = change->slot;
    atomic_store(&late->entry.likely, change->target);
    set_entry(late, change);
    struct machtrace_binding *binding = &machtrace_bindings[late->stub];
    binding->rule = rule;
    binding->replacement = (uint16_t)replacement;
    atomic_store(&binding->target, MACHTRACE_NOT_BOUND);
    atomic_store(&late->is_settled, false);
    return late->stub;
}

int machtrace_bind_change(const struct machtrace_change *change, uint16_t rule,
                          enum machtrace_replacement replacement)
{
    if (change->unbound.info == 0)
        return machtrace_bind(rule, change->target, replacement);
    return change->unbound.got == 0 ? -1 : bind_late(change, rule, replacement);
}

void machtrace_settle_late(bool is_loader_free)
{
    uint32_t known = atomic_load(&count);
    for (uint32_t index = 0; index < known; index++) {
        struct late *late = &all[index];
        const struct machtrace_binding *binding = &machtrace_bindings[late->stub];
        uint64_t target = atomic_load(&binding->target);
        if (target <= MACHTRACE_NOT_BOUND || atomic_exchange(&late->is_settled, true))
            continue;
        if (binding->rule != MACHTRACE_NO_RULE) {
            uint64_t none = 0;
            atomic_compare_exchange_strong(&machtrace_rules[binding->rule].target, &none, target);
        }
        if (target != atomic_load(&late->entry.likely) && is_loader_free)
            machtrace_publish_late_body(target);
    }
}
