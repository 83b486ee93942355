/* Import slots of ELF images: the words of the global offset table that lead to functions of other
 * images. See hooks.h.
 *
 * In three phases, since the loader's functions take its lock, and a thread that loads an image
 * holds that lock while it runs the image's constructors, which may call dlopen: first, without a
 * lock of ours, all that the loader knows; then the changes, under ours; then the images are
 * released.
 *
 * An image that another thread loads now is complete before the reference to it is taken, by the
 * loader's lock: its slots are relocated, and its pages are read-only again.
 */
#define _GNU_SOURCE
#include "hooks.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "images.h"
#include "recorder.h"

#if defined(__x86_64__)
#define SLOT_OF_CALL R_X86_64_JUMP_SLOT
#define SLOT_OF_ADDRESS R_X86_64_GLOB_DAT
#else
#define SLOT_OF_CALL R_AARCH64_JUMP_SLOT
#define SLOT_OF_ADDRESS R_AARCH64_GLOB_DAT
#endif

_Atomic bool machtrace_imports_are_pending;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_enabled; /* from the start to the stop */

/* What hooked slots of these two led to first. */
static void *(*real_dlopen)(const char *path, int flags);
static int (*real_dlclose)(void *handle);

/* --- what slots had --- */

struct saved {
    uint64_t slot, value;
};

static struct saved *saved; /* open addressing by slot */
static size_t saved_count, saved_room;

static struct saved *saved_at(uint64_t slot)
{
    size_t index = (size_t)(slot * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (saved_room - 1);
    while (saved[index].slot != 0 && saved[index].slot != slot)
        index = (index + 1) & (saved_room - 1);
    return &saved[index];
}

static bool save(uint64_t slot, uint64_t value)
{
    if (2 * saved_count >= saved_room) {
        size_t old_room = saved_room;
        struct saved *old = saved;
        size_t room = old_room == 0 ? 1024 : 2 * old_room;
        struct saved *larger = calloc(room, sizeof *larger);
        if (larger == NULL)
            return false;
        saved = larger;
        saved_room = room;
        for (size_t index = 0; index < old_room; index++)
            if (old[index].slot != 0)
                *saved_at(old[index].slot) = old[index];
        free(old);
    }
    struct saved *entry = saved_at(slot);
    saved_count += entry->slot == 0;
    *entry = (struct saved){slot, value};
    return true;
}

/* --- symbols of an image --- */

struct imports {
    uint64_t bias;
    const struct machtrace_agent_image *image;
    const ElfW(Sym) *symbols;
    const char *names;
    const ElfW(Half) *versions;
    const ElfW(Verneed) *needed;
    const ElfW(Rela) *relocations[2];
    size_t counts[2];
    uint64_t relro_start, relro_end; /* pages that are read-only */
};

static uint64_t address_in(uint64_t bias, uint64_t value)
{
    /* glibc has added the bias, except in images whose dynamic section is read-only. */
    return value < bias ? bias + value : value;
}

static bool read_imports(const struct machtrace_agent_image *image, struct imports *imports)
{
    const ElfW(Dyn) *dynamic = NULL;
    const ElfW(Phdr) *headers = image->headers;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    memset(imports, 0, sizeof *imports);
    imports->bias = image->bias;
    imports->image = image;
    for (uint32_t index = 0; index < image->header_count; index++) {
        uint64_t first = image->bias + headers[index].p_vaddr;
        if (headers[index].p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)(uintptr_t)first;
        } else if (headers[index].p_type == PT_GNU_RELRO) {
            imports->relro_start = first & ~(page - 1);
            imports->relro_end = (first + headers[index].p_memsz) & ~(page - 1);
        }
    }
    if (dynamic == NULL)
        return false;
    uint64_t calls_size = 0, all_size = 0;
    bool has_addends = true;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        const void *pointer =
            (const void *)(uintptr_t)address_in(image->bias, dynamic->d_un.d_ptr);
        switch (dynamic->d_tag) {
        case DT_SYMTAB:
            imports->symbols = pointer;
            break;
        case DT_STRTAB:
            imports->names = pointer;
            break;
        case DT_VERSYM:
            imports->versions = pointer;
            break;
        case DT_VERNEED:
            imports->needed = pointer;
            break;
        case DT_JMPREL:
            imports->relocations[0] = pointer;
            break;
        case DT_RELA:
            imports->relocations[1] = pointer;
            break;
        case DT_PLTRELSZ:
            calls_size = dynamic->d_un.d_val;
            break;
        case DT_RELASZ:
            all_size = dynamic->d_un.d_val;
            break;
        case DT_PLTREL:
            has_addends = dynamic->d_un.d_val == DT_RELA;
            break;
        default:
            break;
        }
    }
    imports->counts[0] =
        imports->relocations[0] == NULL || !has_addends ? 0 : calls_size / sizeof(ElfW(Rela));
    imports->counts[1] =
        imports->relocations[1] == NULL ? 0 : all_size / sizeof(ElfW(Rela));
    return imports->symbols != NULL && imports->names != NULL;
}

/* The version that an import needs; NULL for none. */
static const char *version_of(const struct imports *imports, uint32_t symbol)
{
    if (imports->versions == NULL || imports->needed == NULL)
        return NULL;
    uint16_t wanted = imports->versions[symbol] & 0x7fff;
    const ElfW(Verneed) *file = imports->needed;
    for (;;) {
        const ElfW(Vernaux) *version =
            (const ElfW(Vernaux) *)((const char *)file + file->vn_aux);
        for (uint32_t index = 0; index < file->vn_cnt; index++) {
            if (version->vna_other == wanted)
                return imports->names + version->vna_name;
            version = (const ElfW(Vernaux) *)((const char *)version + version->vna_next);
        }
        if (file->vn_next == 0)
            return NULL;
        file = (const ElfW(Verneed) *)((const char *)file + file->vn_next);
    }
}

static bool is_within(const struct machtrace_agent_image *image, uint64_t address)
{
    return address >= image->start && address < image->end;
}

/* The function that a slot leads to: what it has, unless the loader has not resolved it yet. */
static uint64_t target_of(const struct imports *imports, void *handle, uint32_t symbol,
                          uint64_t value)
{
    const ElfW(Sym) *entry = &imports->symbols[symbol];
    if (!is_within(imports->image, value) ||
        (entry->st_shndx != SHN_UNDEF && value == imports->bias + entry->st_value))
        return value;
    const char *name = imports->names + entry->st_name;
    const char *version = version_of(imports, symbol);
    void *found = version == NULL ? dlsym(RTLD_DEFAULT, name)
                                  : dlvsym(RTLD_DEFAULT, name, version);
    if (found == NULL)
        found = dlsym(handle, name);
    return (uint64_t)(uintptr_t)found;
}

/* --- the rules by name --- */

#define NAME_SLOTS 2048

struct names {
    int16_t rules[NAME_SLOTS]; /* the rule and one; 0 where the slot is free */
    uint32_t count;
};

#define RULE_DLOPEN (-2)
#define RULE_DLCLOSE (-3)

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (; *name != '\0'; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

static void read_rules(struct names *names)
{
    memset(names, 0, sizeof *names);
    names->count = atomic_load(&machtrace_rule_count);
    for (uint32_t rule = 0; rule < names->count; rule++) {
        if (!atomic_load(&machtrace_rules[rule].is_active))
            continue;
        uint32_t index = hash_of(machtrace_rules[rule].symbol) % NAME_SLOTS;
        while (names->rules[index] != 0)
            index = (index + 1) % NAME_SLOTS;
        names->rules[index] = (int16_t)(rule + 1);
    }
}

/* The rule of a function; -1 if there is none. */
static int rule_of(const struct names *names, const char *name)
{
    uint32_t index = hash_of(name) % NAME_SLOTS;
    for (; names->rules[index] != 0; index = (index + 1) % NAME_SLOTS)
        if (strcmp(machtrace_rules[names->rules[index] - 1].symbol, name) == 0)
            return names->rules[index] - 1;
    return strcmp(name, "dlopen") == 0    ? RULE_DLOPEN
           : strcmp(name, "dlclose") == 0 ? RULE_DLCLOSE
                                          : -1;
}

/* --- changes --- */

struct change {
    uint64_t slot, value, target;
    int rule;
    uint64_t relro_start, relro_end;
};

struct held {
    struct machtrace_agent_image *image;
    void *handle;
};

struct changes {
    struct change *all;
    size_t count, room;
    struct held *images;
    size_t image_count;
    uint32_t version;
    bool is_complete;
};

static void add_change(struct changes *changes, struct change change)
{
    if (changes->count == changes->room) {
        size_t room = changes->room == 0 ? 256 : 2 * changes->room;
        struct change *larger = realloc(changes->all, room * sizeof *larger);
        if (larger == NULL) {
            changes->is_complete = false;
            return;
        }
        changes->all = larger;
        changes->room = room;
    }
    changes->all[changes->count++] = change;
}

static bool is_loaded(const struct machtrace_agent_image *image)
{
    return atomic_load(&image->is_loaded);
}

/* The image's reference, which ensures that it stays loaded; NULL if it is not any more. */
static void *hold(const struct machtrace_agent_image *image)
{
    void *handle =
        dlopen(image->is_program ? NULL : image->path, RTLD_LAZY | RTLD_NOLOAD | RTLD_LOCAL);
    struct link_map *map;
    if (handle != NULL && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 &&
        map->l_addr == image->bias && is_loaded(image))
        return handle;
    if (handle != NULL)
        dlclose(handle);
    return NULL;
}

static bool is_agent(const struct machtrace_agent_image *image)
{
#ifdef MACHTRACE_AGENT_LIBRARY
    return is_within(image, (uint64_t)(uintptr_t)machtrace_stubs);
#else
    (void)image;
    return false;
#endif
}

/* Whether a slot leads to a stub: in the child of a fork, or since the slot was left at a stop. */
static bool is_bound(int rule, uint64_t value)
{
    int stub = machtrace_stub_at(value);
    if (stub >= 0 && rule >= 0 && machtrace_bindings[stub].rule == rule)
        atomic_store(&machtrace_rules[rule].state, MACHTRACE_RULE_BOUND);
    return stub >= 0;
}

static void collect(struct changes *changes, const struct names *names,
                    const struct imports *imports, void *handle)
{
    for (int table = 0; table < 2; table++) {
        for (size_t index = 0; index < imports->counts[table]; index++) {
            const ElfW(Rela) *relocation = &imports->relocations[table][index];
            uint32_t type = (uint32_t)ELF64_R_TYPE(relocation->r_info);
            uint32_t symbol = (uint32_t)ELF64_R_SYM(relocation->r_info);
            if (symbol == 0 || (type != SLOT_OF_CALL && type != SLOT_OF_ADDRESS))
                continue;
            uint64_t slot = imports->bias + relocation->r_offset;
            uint64_t value = atomic_load((_Atomic uint64_t *)(uintptr_t)slot);
            int rule = -1;
            if (names != NULL) {
                rule = rule_of(names, imports->names + imports->symbols[symbol].st_name);
                if (rule == -1 || is_bound(rule, value))
                    continue;
            } else if (machtrace_stub_at(value) < 0 &&
                       (saved_room == 0 || saved_at(slot)->slot == 0)) {
                continue;
            }
            uint64_t target = names == NULL ? 0 : target_of(imports, handle, symbol, value);
            if (names != NULL && target == 0)
                continue; /* a weak import that nothing defines */
            add_change(changes, (struct change){slot, value, target, rule, imports->relro_start,
                                                imports->relro_end});
        }
    }
}

/* Phase one: what to change, in images that are held from now on. Without names the images alone. */
static void prepare(struct changes *changes, const struct names *names, uint32_t version)
{
    memset(changes, 0, sizeof *changes);
    changes->is_complete = true;
    changes->version = version;
    uint32_t count = machtrace_image_count();
    changes->images = calloc(count + 1, sizeof *changes->images);
    if (changes->images == NULL) {
        changes->is_complete = false;
        return;
    }
    for (uint32_t index = 0; index < count; index++) {
        struct machtrace_agent_image *image = machtrace_image(index);
        if (!is_loaded(image) || is_agent(image) ||
            (names != NULL && atomic_load(&image->hooked) == version))
            continue;
        void *handle = hold(image);
        if (handle == NULL)
            continue;
        changes->images[changes->image_count++] = (struct held){image, handle};
        struct imports imports;
        if (names != NULL && read_imports(image, &imports))
            collect(changes, names, &imports, handle);
    }
}

/* Phase three. */
static void finish(struct changes *changes)
{
    for (size_t index = 0; index < changes->image_count; index++)
        dlclose(changes->images[index].handle);
    free(changes->images);
    free(changes->all);
}

/* Make the read-only pages of the change's image writable, or read-only again. */
static bool protect(const struct change *change, int protection)
{
    return mprotect((void *)(uintptr_t)change->relro_start,
                    change->relro_end - change->relro_start, protection) == 0;
}

static bool is_read_only(const struct change *change)
{
    return change->slot >= change->relro_start && change->slot < change->relro_end;
}

static bool replace(const struct change *change, uint64_t expected, uint64_t value)
{
    return atomic_compare_exchange_strong((_Atomic uint64_t *)(uintptr_t)change->slot, &expected,
                                          value);
}

/* Apply changes in order; those of an image are consecutive, so its pages change twice. */
static void apply(const struct changes *changes, struct machtrace_imports_result *result,
                  void (*one)(const struct change *change,
                              struct machtrace_imports_result *result))
{
    const struct change *writable = NULL;
    for (size_t index = 0; index < changes->count; index++) {
        const struct change *change = &changes->all[index];
        if (is_read_only(change) &&
            (writable == NULL || writable->relro_start != change->relro_start)) {
            if (writable != NULL)
                protect(writable, PROT_READ);
            writable = protect(change, PROT_READ | PROT_WRITE) ? change : NULL;
            if (writable == NULL) {
                result->left++;
                continue;
            }
        }
        one(change, result);
    }
    if (writable != NULL)
        protect(writable, PROT_READ);
}

static void bind_one(const struct change *change, struct machtrace_imports_result *result)
{
    struct machtrace_watched *rule = change->rule < 0 ? NULL : &machtrace_rules[change->rule];
    const char *name = rule == NULL ? "" : rule->symbol;
    enum machtrace_replacement replacement = MACHTRACE_NOT_REPLACED;
    if (change->rule == RULE_DLOPEN || strcmp(name, "dlopen") == 0) {
        replacement = MACHTRACE_DLOPEN;
        if (real_dlopen == NULL)
            real_dlopen = (void *(*)(const char *, int))(uintptr_t)change->target;
    } else if (change->rule == RULE_DLCLOSE || strcmp(name, "dlclose") == 0) {
        replacement = MACHTRACE_DLCLOSE;
        if (real_dlclose == NULL)
            real_dlclose = (int (*)(void *))(uintptr_t)change->target;
    }
    int stub = machtrace_bind(rule == NULL ? MACHTRACE_NO_RULE : (uint16_t)change->rule,
                              change->target, replacement);
    if (stub < 0) {
        if (rule != NULL)
            atomic_store(&rule->state, MACHTRACE_RULE_NO_STUB);
        return;
    }
    if (!save(change->slot, change->value))
        return;
    uint64_t address = (uint64_t)(uintptr_t)machtrace_stubs +
                       (uint64_t)stub * MACHTRACE_STUB_SIZE;
    /* If the loader has resolved it meanwhile, it leads to the same function; that is restored
     * then, and not what was before. */
    uint64_t value = change->value;
    while (!replace(change, value, address)) {
        value = atomic_load((_Atomic uint64_t *)(uintptr_t)change->slot);
        if (machtrace_stub_at(value) >= 0)
            return;
        save(change->slot, value);
    }
    result->changed++;
    if (rule != NULL) {
        atomic_store(&rule->target, change->target);
        atomic_store(&rule->state, MACHTRACE_RULE_BOUND);
        atomic_fetch_add(&rule->slots, 1);
    }
}

static void restore_one(const struct change *change, struct machtrace_imports_result *result)
{
    struct saved *entry = saved_room == 0 ? NULL : saved_at(change->slot);
    if (entry == NULL || entry->slot == 0)
        return;
    if (machtrace_stub_at(change->value) >= 0 && replace(change, change->value, entry->value))
        result->changed++;
    else if (change->value != entry->value)
        result->left++;
}

/* --- bodies of watched functions, and rules without imports --- */

static int by_address(const void *one, const void *other)
{
    const uint64_t *first = one, *second = other;
    return *first < *second ? -1 : *first > *second;
}

/* Earlier ones stay, since threads may use them; there are few, since stubs are not released. */
static void publish_bodies(void)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    const struct machtrace_bodies *last = atomic_load(&all->bodies);
    uint32_t stubs = 0;
    while (stubs < MACHTRACE_STUBS && atomic_load(&machtrace_bindings[stubs].target) != 0)
        stubs++;
    if (last != NULL && last->stubs >= stubs)
        return;
    struct machtrace_bodies *bodies =
        malloc(sizeof *bodies + stubs * sizeof bodies->ranges[0]);
    if (bodies == NULL)
        return;
    size_t count = 0;
    for (uint32_t stub = 0; stub < stubs; stub++) {
        const struct machtrace_binding *binding = &machtrace_bindings[stub];
        uint64_t target = atomic_load(&binding->target);
        Dl_info info;
        const ElfW(Sym) *symbol = NULL;
        if (binding->rule == MACHTRACE_NO_RULE ||
            dladdr1((void *)(uintptr_t)target, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 ||
            symbol == NULL || (uint64_t)(uintptr_t)info.dli_saddr != target)
            continue;
        bodies->ranges[count].start = target;
        bodies->ranges[count].end = target + symbol->st_size;
        count++;
    }
    qsort(bodies->ranges, count, sizeof bodies->ranges[0], by_address);
    /* Several stubs may lead to one function. */
    bodies->count = 0;
    for (size_t index = 0; index < count; index++)
        if (bodies->count == 0 ||
            bodies->ranges[bodies->count - 1].start != bodies->ranges[index].start)
            bodies->ranges[bodies->count++] = bodies->ranges[index];
    bodies->stubs = stubs;
    bodies->earlier = last;
    if (atomic_compare_exchange_strong(&all->bodies, &last, bodies))
        atomic_fetch_add(&all->generation, 1);
    else
        free(bodies); /* another thread knows as much, or will at the next change */
}

static void find_absent(void)
{
    uint32_t count = atomic_load(&machtrace_rule_count);
    for (uint32_t index = 0; index < count; index++) {
        struct machtrace_watched *rule = &machtrace_rules[index];
        uint32_t state = atomic_load(&rule->state);
        if (state != MACHTRACE_RULE_UNUSED && state != MACHTRACE_RULE_ABSENT)
            continue;
        void *function = dlsym(RTLD_DEFAULT, rule->symbol);
        atomic_store(&rule->target, (uint64_t)(uintptr_t)function);
        atomic_store(&rule->state,
                     function == NULL ? MACHTRACE_RULE_ABSENT : MACHTRACE_RULE_UNUSED);
    }
}

/* --- all of it --- */

/* False if another thread does the same: then that is done later. */
static bool bind_imports(struct machtrace_imports_result *result, bool waits)
{
    struct names names;
    struct changes changes;
    uint32_t version = atomic_load(&machtrace_rules_version);
    if (version == 0)
        return true;
    if (!machtrace_images_update(waits))
        return false;
    read_rules(&names);
    prepare(&changes, &names, version);
    bool is_locked = true;
    if (waits)
        pthread_mutex_lock(&lock);
    else
        is_locked = pthread_mutex_trylock(&lock) == 0;
    if (is_locked && !is_enabled) {
        pthread_mutex_unlock(&lock);
    } else if (is_locked) {
        apply(&changes, result, bind_one);
        for (size_t index = 0; index < changes.image_count && changes.is_complete; index++)
            atomic_store(&changes.images[index].image->hooked, version);
        pthread_mutex_unlock(&lock);
        if (result->changed != 0)
            publish_bodies();
        find_absent();
    }
    finish(&changes);
    return is_locked;
}

void machtrace_bind_imports(struct machtrace_imports_result *result)
{
    memset(result, 0, sizeof *result);
    machtrace_ignore_enter();
    atomic_store(&machtrace_imports_are_pending, false);
    bind_imports(result, true);
    machtrace_ignore_leave();
}

void machtrace_enable_imports(void)
{
    pthread_mutex_lock(&lock);
    is_enabled = true;
    pthread_mutex_unlock(&lock);
}

void machtrace_restore_imports(struct machtrace_imports_result *result)
{
    struct changes changes;
    memset(result, 0, sizeof *result);
    machtrace_ignore_enter();
    /* Nothing is bound from here on, so all that is will be found. */
    pthread_mutex_lock(&lock);
    is_enabled = false;
    pthread_mutex_unlock(&lock);
    machtrace_images_update(true);
    prepare(&changes, NULL, 0);
    pthread_mutex_lock(&lock);
    for (size_t index = 0; index < changes.image_count; index++) {
        struct imports imports;
        if (read_imports(changes.images[index].image, &imports))
            collect(&changes, NULL, &imports, NULL);
    }
    apply(&changes, result, restore_one);
    result->left += !changes.is_complete;
    if (saved != NULL)
        memset(saved, 0, saved_room * sizeof *saved);
    saved_count = 0;
    uint32_t count = machtrace_image_count();
    for (uint32_t index = 0; index < count; index++)
        atomic_store(&machtrace_image(index)->hooked, 0);
    pthread_mutex_unlock(&lock);
    finish(&changes);
    machtrace_ignore_leave();
}

void machtrace_imports_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
}

/* --- images that are loaded and unloaded --- */

static void images_changed(void)
{
    struct machtrace_imports_result result = {0, 0};
    machtrace_ignore_enter();
    if (!bind_imports(&result, false))
        atomic_store(&machtrace_imports_are_pending, true);
    machtrace_ignore_leave();
}

static void *open_image(const char *path, int flags)
{
    void *handle = real_dlopen(path, flags);
    if (handle != NULL)
        images_changed();
    return handle;
}

/* The era begins when the image is gone, and before others can be loaded by the caller. */
static int close_image(void *handle)
{
    int result = real_dlclose(handle);
    machtrace_ignore_enter();
    if (!machtrace_images_update(false))
        atomic_store(&machtrace_imports_are_pending, true);
    machtrace_ignore_leave();
    return result;
}

/* dlopen(3) searches names without a slash in directories that the calling image states, and
 * expands $ORIGIN to its directory. Then it has to be called by that image, and the loaded one's
 * imports are bound by the agent's thread, a little later. */
uint64_t machtrace_replacement_of(const struct machtrace_binding *binding, const char *path,
                                  uint64_t caller)
{
    if (binding->replacement == MACHTRACE_DLCLOSE)
        return (uint64_t)(uintptr_t)close_image;
    if (path != NULL && (strchr(path, '$') != NULL || strchr(path, '/') == NULL)) {
        const struct machtrace_agent_image *image =
            machtrace_image_at(caller - 1, MACHTRACE_ERA_NOW);
        if (image == NULL || image->has_search_path || strchr(path, '$') != NULL)
            return atomic_load(&binding->target);
    }
    return (uint64_t)(uintptr_t)open_image;
}
