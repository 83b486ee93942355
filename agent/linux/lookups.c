/* See lookups.h. No lock of the agent is taken, nor memory allocated: allocators look up functions. */
#define _GNU_SOURCE
#include "linux/lookups.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <string.h>

#include "entries.h"
#include "images.h"
#include "imports.h"
#include "recorder.h"
#include "rule_names.h"

static int rule_of(const char *name)
{
    uint32_t count = atomic_load(&machtrace_rule_count);
    for (uint32_t rule = 0; rule < count; rule++)
        if (atomic_load(&machtrace_rules[rule].is_active) && !machtrace_is_at_entry(rule) &&
            strcmp(machtrace_rules[rule].symbol, name) == 0)
            return (int)rule;
    return -1;
}

/* The dynamic symbol of a function; NULL if none has the address. */
static const ElfW(Sym) *symbol_at(uint64_t address)
{
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    if (dladdr1((void *)(uintptr_t)address, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 ||
        symbol == NULL || (uint64_t)(uintptr_t)info.dli_saddr != address)
        return NULL;
    return symbol;
}

bool machtrace_is_linkage(uint64_t address)
{
    const struct machtrace_agent_image *image = machtrace_image_at(address, MACHTRACE_ERA_NOW);
    const ElfW(Sym) *symbol =
        image == NULL || !image->is_program ? NULL : symbol_at(address);
    return symbol != NULL && symbol->st_shndx == SHN_UNDEF;
}

uint64_t machtrace_likely_target(const char *name, void *handle)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    if (found != NULL && machtrace_is_linkage((uint64_t)(uintptr_t)found))
        found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        found = machtrace_symbol_in(handle, name);
    return (uint64_t)(uintptr_t)found;
}

/* Whether calls of an address are not recorded yet: it is no variable, no hook, and none of the linker
 * stubs that programs at fixed addresses have, which use an import slot. */
static bool is_function(uint64_t address)
{
    if (machtrace_stub_at(address) >= 0 || machtrace_image_at(address, MACHTRACE_ERA_NOW) == NULL)
        return false;
    const ElfW(Sym) *symbol = symbol_at(address);
    /* Of functions that the loader chooses, no symbol has the address. */
    return symbol == NULL ||
           (symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT);
}

/* The stub of a function, if a rule has the name; else that itself. */
static void *watched(const char *name, void *function)
{
    uint64_t target = (uint64_t)(uintptr_t)function;
    int rule = function == NULL ? -1 : rule_of(name);
    if (rule < 0 || !is_function(target))
        return function;
    int stub =
        machtrace_bind((uint16_t)rule, target, machtrace_replacement_of_name(name));
    if (stub < 0)
        return function;
    struct machtrace_watched *row = &machtrace_rules[rule];
    atomic_store(&row->target, target);
    atomic_store(&row->state, MACHTRACE_RULE_BOUND);
    const struct machtrace_bodies *bodies = atomic_load(&machtrace_recorders.bodies);
    if (bodies == NULL || (uint32_t)stub >= bodies->stubs)
        atomic_store(&machtrace_imports_are_pending, true); /* the agent's thread publishes it */
    return (void *)(uintptr_t)(machtrace_stubs + (size_t)stub * MACHTRACE_STUB_SIZE);
}

static void *real_lookup(enum machtrace_replacement replacement, void *handle, const char *name,
                         const char *version)
{
    uintptr_t real = (uintptr_t)machtrace_real[replacement];
    if (replacement == MACHTRACE_DLVSYM)
        return ((void *(*)(void *, const char *, const char *))real)(handle, name, version);
    return ((void *(*)(void *, const char *))real)(handle, name);
}

static void *look_up(void *handle, const char *name)
{
    return watched(name, real_lookup(MACHTRACE_DLSYM, handle, name, NULL));
}

static void *look_up_version(void *handle, const char *name, const char *version)
{
    return watched(name, real_lookup(MACHTRACE_DLVSYM, handle, name, version));
}

/* Whether the global scope has the symbol, and the image that calls would have the same: it may have
 * been loaded so that its own scope is first (RTLD_DEEPBIND). */
static bool is_global(enum machtrace_replacement replacement, const char *name,
                      const char *version, uint64_t caller)
{
    const struct machtrace_agent_image *image = machtrace_image_at(caller - 1, MACHTRACE_ERA_NOW);
    void *global = real_lookup(replacement, RTLD_DEFAULT, name, version);
    if (image == NULL || global == NULL || image->is_program)
        return image != NULL && global != NULL;
    void *handle = machtrace_hold_image(image);
    void *own = handle == NULL ? NULL : real_lookup(replacement, handle, name, version);
    if (handle != NULL)
        machtrace_release_image(handle);
    return handle != NULL && (own == NULL || own == global);
}

/* RTLD_NEXT depends on the image that calls: those calls are left alone. */
uint64_t machtrace_lookup_of(const struct machtrace_binding *binding, const uint64_t arguments[3],
                             uint64_t caller)
{
    enum machtrace_replacement replacement = (enum machtrace_replacement)binding->replacement;
    void *handle = (void *)(uintptr_t)arguments[0];
    const char *name = (const char *)(uintptr_t)arguments[1];
    bool is_left = handle == RTLD_NEXT || name == NULL || rule_of(name) < 0;
    if (!is_left && handle == RTLD_DEFAULT) {
        const char *version = (const char *)(uintptr_t)arguments[2];
        int before = errno;
        machtrace_ignore_enter();
        is_left = !is_global(replacement, name, version, caller);
        machtrace_ignore_leave();
        errno = before;
    }
    if (is_left)
        return atomic_load(&binding->target);
    return replacement == MACHTRACE_DLSYM ? (uint64_t)(uintptr_t)look_up
                                          : (uint64_t)(uintptr_t)look_up_version;
}
