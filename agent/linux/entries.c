/* Hooks at a function's first instruction: see agent/entries.h and entry.h. */
#define _GNU_SOURCE
#include "entries.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include "drain.h"
#include "images.h"
#include "imports.h"
#include "linux/entry.h"
#include "linux/system.h"
#include "thread.h"

#define ARENA_SIZE 16384
#define ARENA_STEP (UINT64_C(1) << 20) /* between addresses that are tried */
#define TRIES 50 /* of functions that a thread is in, a millisecond apart */

struct entry {
    uint64_t function, island;
    struct machtrace_displaced code;
    uint8_t original[MACHTRACE_PATCH_SIZE]; /* what the patch replaced */
    uint64_t pages, pages_size;
    int rights;
    void *handle; /* the image's, while the hook is installed */
    uint16_t rule;
    bool is_installed, is_wanted, is_occupied, is_writable;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry entries[MACHTRACE_RULES_MAX];
static _Atomic uint32_t count;

/* Memory near functions that is writable until the batch is whole. */
static struct arena {
    uint64_t start, used;
} arenas[MACHTRACE_RULES_MAX];
static uint32_t arena_count;

static const char *const reasons[] = {
    [MACHTRACE_NOT_REFUSED] = "",
    [MACHTRACE_REFUSED_SHORT] = "the function is too short",
    [MACHTRACE_REFUSED_TARGET] = "the function branches to its first instructions",
    [MACHTRACE_REFUSED_INSTRUCTION] = "one of its first instructions cannot be moved",
    [MACHTRACE_REFUSED_DISTANCE] = "no memory near it is free",
    [MACHTRACE_REFUSED_SAME] = "another watched function is the same code",
    [MACHTRACE_REFUSED_RIGHTS] = "its code cannot be changed",
    [MACHTRACE_REFUSED_THREADS] = "a thread may be at its first instructions"};

static uint8_t *bytes_at(uint64_t address)
{
    return (uint8_t *)(uintptr_t)address;
}

/* Library functions may be those that are changed. */
static bool is_equal(const uint8_t *one, const uint8_t *other, uint32_t size)
{
    uint32_t index = 0;
    while (index < size && one[index] == other[index])
        index++;
    return index == size;
}

uint64_t machtrace_entry_function(uint64_t target)
{
    for (uint32_t index = 0; index < atomic_load(&count); index++)
        if (entries[index].island + MACHTRACE_ISLAND_ENTRY == target)
            return entries[index].function;
    return target;
}

/* --- islands --- */

static bool is_near(uint64_t one, uint64_t other)
{
    uint64_t distance = one < other ? other - one : one - other;
    return distance < machtrace_island_reach;
}

static struct arena *arena_near(uint64_t function)
{
    for (uint32_t index = 0; index < arena_count; index++)
        if (is_near(arenas[index].start, function) &&
            arenas[index].used + MACHTRACE_ISLAND_SIZE <= ARENA_SIZE)
            return &arenas[index];
    if (arena_count == MACHTRACE_RULES_MAX)
        return NULL;
    uint64_t base = function & ~(ARENA_STEP - 1);
    for (uint64_t step = ARENA_STEP; step < machtrace_island_reach; step += ARENA_STEP)
        for (int side = 0; side < 2; side++) {
            uint64_t hint = side == 0 ? base + step : base - step;
            void *memory = mmap((void *)(uintptr_t)hint, ARENA_SIZE, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            if (memory == MAP_FAILED)
                continue;
            if (is_near((uint64_t)(uintptr_t)memory, function)) {
                arenas[arena_count] = (struct arena){(uint64_t)(uintptr_t)memory, 0};
                return &arenas[arena_count++];
            }
            munmap(memory, ARENA_SIZE);
        }
    return NULL;
}

/* --- preparing --- */

/* Memory rights of an image's code: a target of indirect calls stays checked. */
static int rights_of(const struct machtrace_agent_image *image, uint64_t address)
{
    const ElfW(Phdr) *headers = image->headers;
    int rights = 0;
    for (uint32_t index = 0; index < image->header_count; index++) {
        const ElfW(Phdr) *header = &headers[index];
        uint64_t start = image->bias + header->p_vaddr;
        if (header->p_type == PT_LOAD && address - start < header->p_memsz)
            rights |= ((header->p_flags & PF_R) != 0 ? PROT_READ : 0) |
                      ((header->p_flags & PF_W) != 0 ? PROT_WRITE : 0) |
                      ((header->p_flags & PF_X) != 0 ? PROT_EXEC : 0);
#if defined(__aarch64__)
        /* Its property GNU_PROPERTY_AARCH64_FEATURE_1_AND is the first; as the loader reads it. */
        if (header->p_type == PT_GNU_PROPERTY && header->p_memsz >= 32) {
            uint32_t words[7];
            memcpy(words, bytes_at(start), sizeof words);
            if (words[4] == 0xc0000000 && (words[6] & 1) != 0 &&
                (getauxval(AT_HWCAP2) & (1ul << 17 /* HWCAP2_BTI */)) != 0)
                rights |= 0x10; /* PROT_BTI */
        }
#endif
    }
    return rights;
}

/* Whether the processor has copies of return addresses: ARCH_SHSTK_STATUS, asm/prctl.h. */
static bool has_shadow_stack(void)
{
    uint64_t features = 0;
#if defined(__x86_64__)
    machtrace_system(SYS_arch_prctl, 0x5005, machtrace_address_of(&features), 0, 0, 0, 0);
#endif
    return (features & 1) != 0;
}

/* What the handler that stops threads may be in, when all have stopped. */
static bool is_of_handler(uint64_t function)
{
    return function == (uint64_t)(uintptr_t)dlsym(RTLD_DEFAULT, "syscall") ||
           function == (uint64_t)(uintptr_t)dlsym(RTLD_DEFAULT, "clock_gettime");
}

static enum machtrace_refusal prepare(uint16_t rule, uint64_t function, uint64_t size,
                                      const struct machtrace_agent_image *image,
                                      struct entry *entry)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct arena *arena = arena_near(function);
    if (arena == NULL)
        return MACHTRACE_REFUSED_DISTANCE;
    memset(entry, 0, sizeof *entry);
    entry->rule = rule;
    entry->function = function;
    entry->island = arena->start + arena->used;
    entry->rights = rights_of(image, function);
    if (entry->rights == 0)
        return MACHTRACE_REFUSED_RIGHTS;
    enum machtrace_refusal refusal = machtrace_displace(bytes_at(function), function, size,
                                                        entry->island, 0, &entry->code);
    if (refusal != MACHTRACE_NOT_REFUSED)
        return refusal;
    uint64_t first = function + entry->code.offset;
    for (uint32_t index = 0; index < atomic_load(&count); index++)
        if (entries[index].is_wanted &&
            first + MACHTRACE_PATCH_SIZE - 1 - entries[index].function -
                    entries[index].code.offset <
                2 * MACHTRACE_PATCH_SIZE - 1)
            return MACHTRACE_REFUSED_SAME;
    if (entry->code.has_call && has_shadow_stack())
        return MACHTRACE_REFUSED_INSTRUCTION;
    if (entry->code.boundaries != 0 && is_of_handler(function))
        return MACHTRACE_REFUSED_THREADS;
    int stub = machtrace_bind_target(rule, entry->island + MACHTRACE_ISLAND_ENTRY);
    if (stub < 0)
        return MACHTRACE_REFUSED_DISTANCE;
    uint64_t stubs = (uint64_t)(uintptr_t)machtrace_stubs;
    machtrace_displace(bytes_at(function), function, size, entry->island,
                       stubs + (uint64_t)stub * MACHTRACE_STUB_SIZE, &entry->code);
    memcpy(bytes_at(entry->island), entry->code.island, entry->code.island_size);
    arena->used += MACHTRACE_ISLAND_SIZE;
    memcpy(entry->original, bytes_at(first), entry->code.patch_size);
    entry->pages = first & ~(page - 1);
    entry->pages_size = ((first + entry->code.patch_size - 1) & ~(page - 1)) + page - entry->pages;
    return MACHTRACE_NOT_REFUSED;
}

static uint8_t *patched(const struct entry *entry)
{
    return bytes_at(entry->function + entry->code.offset);
}

/* A program that is linked at a fixed address has linker stubs for functions whose address it takes,
 * without a size. */
static bool has_code(const void *function)
{
    return function != NULL && machtrace_function_size((uint64_t)(uintptr_t)function) != 0;
}

/* The function of a rule, and a reference that ensures that its image stays loaded. */
static uint64_t find_function(const char *symbol, const struct machtrace_agent_image **image,
                              void **handle)
{
    void *function = dlsym(RTLD_DEFAULT, symbol);
    for (uint32_t index = 0; !has_code(function) && index < machtrace_image_count(); index++) {
        if (!atomic_load(&machtrace_image(index)->is_loaded))
            continue;
        void *one = machtrace_hold_image(machtrace_image(index));
        void *other = one == NULL ? NULL : machtrace_symbol_in(one, symbol);
        if (function == NULL || has_code(other))
            function = other;
        if (one != NULL)
            machtrace_release_image(one);
    }
    uint64_t address = (uint64_t)(uintptr_t)function;
    *image = function == NULL ? NULL : machtrace_image_at(address, MACHTRACE_ERA_NOW);
    *handle = *image == NULL ? NULL : machtrace_hold_image(*image);
    return *handle == NULL ? 0 : address;
}

static void refuse(struct machtrace_watched *rule, enum machtrace_refusal refusal)
{
    strcpy(rule->other, reasons[refusal]);
    atomic_store(&rule->state, MACHTRACE_RULE_REFUSED);
}

/* Let one of the entries be that of a rule; false if there is none to install. */
static bool prepare_rule(uint16_t number)
{
    struct machtrace_watched *rule = &machtrace_rules[number];
    const struct machtrace_agent_image *image;
    void *handle;
    uint64_t function = find_function(rule->symbol, &image, &handle);
    if (function == 0)
        return false;
    uint32_t index = 0, last = atomic_load(&count);
    while (index < last && (entries[index].rule != number || entries[index].function != function))
        index++;
    struct entry *entry = &entries[index];
    atomic_store(&rule->target, function);
    if (index < last && entry->is_installed) { /* in the child of a fork */
        entry->is_wanted = true;
        machtrace_release_image(handle);
        return false;
    }
    bool is_known =
        index < last && is_equal(patched(entry), entry->original, entry->code.patch_size);
    enum machtrace_refusal refusal = MACHTRACE_NOT_REFUSED;
    if (!is_known) {
        entry = &entries[last];
        refusal = last == MACHTRACE_RULES_MAX
                      ? MACHTRACE_REFUSED_DISTANCE
                      : prepare(number, function, machtrace_function_size(function), image, entry);
    }
    if (refusal != MACHTRACE_NOT_REFUSED) {
        refuse(rule, refusal);
        machtrace_release_image(handle);
        return false;
    }
    if (!is_known)
        atomic_store(&count, last + 1);
    entry->handle = handle;
    entry->is_wanted = true;
    return true;
}

/* --- installing --- */

static bool make_writable(struct entry *entry, bool is_writable)
{
    /* It stays executable: the code may be that of this very call. */
    int rights = entry->rights | (is_writable ? PROT_WRITE : 0);
    entry->is_writable = is_writable;
    return mprotect((void *)(uintptr_t)entry->pages, entry->pages_size, rights) == 0;
}

static bool waits(const struct entry *entry)
{
    return entry->is_wanted && !entry->is_installed && !entry->is_occupied;
}

static void install_waiting(void)
{
    for (uint32_t index = 0; index < atomic_load(&count); index++) {
        struct entry *entry = &entries[index];
        if (waits(entry)) {
            machtrace_replace_code(patched(entry), entry->code.patch, entry->code.patch_size);
            entry->is_installed = true;
        }
    }
}

/* Threads may be behind the first of the instructions at these addresses. */
static void occupy(uint64_t first, uint64_t last)
{
    for (uint32_t index = 0; index < atomic_load(&count); index++) {
        struct entry *entry = &entries[index];
        uint64_t start = (uint64_t)(uintptr_t)patched(entry);
        for (uint32_t offset = 1; offset < 32; offset++)
            if ((entry->code.boundaries >> offset & 1) != 0 && start + offset >= first &&
                start + offset <= last)
                entry->is_occupied = true;
    }
}

static void install(void)
{
    uint64_t first = UINT64_MAX, last = 0;
    for (uint32_t index = 0; index < arena_count; index++) {
        mprotect((void *)(uintptr_t)arenas[index].start, ARENA_SIZE, PROT_READ | PROT_EXEC);
        arenas[index].used = ARENA_SIZE;
    }
    for (uint32_t index = 0; index < atomic_load(&count); index++) {
        struct entry *entry = &entries[index];
        uint64_t start = (uint64_t)(uintptr_t)patched(entry);
        entry->is_occupied = entry->code.boundaries != 0;
        if (!entry->is_wanted || entry->is_installed || !entry->is_occupied)
            continue;
        first = start < first ? start : first;
        last = start + 31 > last ? start + 31 : last;
    }
    install_waiting();
    for (int attempt = 0; last != 0 && attempt < TRIES; attempt++) {
        _Atomic uint32_t never = 0;
        if (attempt != 0)
            machtrace_wait(&never, 0, 1);
        for (uint32_t index = 0; index < atomic_load(&count); index++)
            entries[index].is_occupied = false;
        machtrace_stop_others(first, last, occupy, install_waiting);
        bool is_left = false;
        for (uint32_t index = 0; index < atomic_load(&count); index++)
            is_left |= entries[index].is_wanted && !entries[index].is_installed;
        if (!is_left)
            break;
    }
}

/* --- all of it --- */

static bool is_unbound(uint32_t rule)
{
    uint32_t state = atomic_load(&machtrace_rules[rule].state);
    return machtrace_is_at_entry(rule) && state != MACHTRACE_RULE_BOUND &&
           state != MACHTRACE_RULE_REFUSED;
}

bool machtrace_bind_entries(struct machtrace_imports_result *result, bool is_waiting)
{
    uint32_t rules = atomic_load(&machtrace_rule_count);
    bool is_needed = false;
    for (uint32_t rule = 0; rule < rules && !is_needed; rule++)
        is_needed = is_unbound(rule);
    if (!is_needed)
        return true;
    is_waiting &= machtrace_thread_id() != atomic_load(&machtrace_drain_thread);
    if ((is_waiting ? pthread_mutex_lock(&lock) : pthread_mutex_trylock(&lock)) != 0)
        return false;
    for (uint32_t rule = 0; machtrace_imports_are_enabled() && rule < rules; rule++) {
        if (is_unbound(rule))
            prepare_rule((uint16_t)rule);
    }
    for (uint32_t index = 0; index < atomic_load(&count); index++) {
        struct entry *entry = &entries[index];
        if (entry->is_wanted && !entry->is_installed && !make_writable(entry, true)) {
            refuse(&machtrace_rules[entry->rule], MACHTRACE_REFUSED_RIGHTS);
            machtrace_release_image(entry->handle);
            entry->is_wanted = false;
        }
    }
    install();
    for (uint32_t index = 0; index < atomic_load(&count); index++) {
        struct entry *entry = &entries[index];
        struct machtrace_watched *rule = &machtrace_rules[entry->rule];
        if (!entry->is_wanted || atomic_load(&rule->state) == MACHTRACE_RULE_BOUND)
            continue;
        if (entry->is_installed) {
            atomic_store(&rule->slots, 1);
            atomic_store(&rule->state, MACHTRACE_RULE_BOUND);
            result->changed++;
        } else {
            refuse(rule, MACHTRACE_REFUSED_THREADS);
        }
    }
    for (uint32_t index = 0; index < atomic_load(&count); index++) {
        struct entry *entry = &entries[index];
        if (!entry->is_writable)
            continue;
        make_writable(entry, false);
        if (!entry->is_installed) {
            machtrace_release_image(entry->handle);
            entry->is_wanted = false;
        }
    }
    pthread_mutex_unlock(&lock);
    return true;
}

void machtrace_restore_entries(struct machtrace_imports_result *result)
{
    pthread_mutex_lock(&lock);
    for (uint32_t index = 0; index < atomic_load(&count); index++) {
        struct entry *entry = &entries[index];
        if (!entry->is_installed)
            continue;
        if (is_equal(patched(entry), entry->code.patch, entry->code.patch_size) &&
            make_writable(entry, true)) {
            machtrace_replace_code(patched(entry), entry->original, entry->code.patch_size);
            make_writable(entry, false);
            result->changed++;
        } else {
            result->left++;
        }
        entry->is_installed = entry->is_wanted = false;
        if (entry->handle != NULL)
            machtrace_release_image(entry->handle);
        entry->handle = NULL;
    }
    pthread_mutex_unlock(&lock);
}

void machtrace_entries_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
}
