/* Import slots of ELF images: words of the global offset table. See agent/imports.h.
 *
 * An image that another thread loads now is complete before the reference to it is taken, by the
 * loader's lock: its slots are relocated, and its pages are read-only again.
 */
#define _GNU_SOURCE
#include "imports.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "linux/lookups.h"
#include "linux/system.h"
#include "recorder.h"
#include "thread.h"

#define PAUSE_NS 100000
#define PAUSES_MAX 2000

#if defined(__x86_64__)
#define SLOT_OF_CALL R_X86_64_JUMP_SLOT
#define SLOT_OF_ADDRESS R_X86_64_GLOB_DAT
#define WORD_OF_DATA R_X86_64_64
#else
#define SLOT_OF_CALL R_AARCH64_JUMP_SLOT
#define SLOT_OF_ADDRESS R_AARCH64_GLOB_DAT
#define WORD_OF_DATA R_AARCH64_ABS64
#endif

/* --- symbols of an image --- */

static bool is_audited; /* by LD_AUDIT, LD_PROFILE or the program's DT_AUDIT */

struct imports {
    uint64_t bias;
    const struct machtrace_agent_image *image;
    const ElfW(Sym) *symbols;
    const char *names;
    const ElfW(Half) *versions;
    const ElfW(Verneed) *needed;
    const ElfW(Rela) *relocations[2];
    size_t counts[2];
    const uint64_t *got;
    bool is_symbolic;
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
        case DT_PLTGOT:
            imports->got = pointer;
            break;
        case DT_SYMBOLIC:
            imports->is_symbolic = true;
            break;
        case DT_FLAGS:
            imports->is_symbolic |= (dynamic->d_un.d_val & DF_SYMBOLIC) != 0;
            break;
        case DT_AUDIT:
        case DT_DEPAUDIT:
            is_audited |= image->is_program;
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

/* The images that were loaded before the first of them was initialised: dlopen() would run their
 * constructors, and they are never unloaded. A handle is a link map. */
static struct link_map *first_map;
static uint32_t startup_count;

void machtrace_imports_before_initialisers(void)
{
    Dl_info information;
    struct link_map *map = NULL;
    if (dladdr1(&first_map, &information, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL)
        return;
    while (map->l_prev != NULL)
        map = map->l_prev;
    first_map = map;
    for (; map != NULL; map = map->l_next)
        startup_count++;
}

static struct link_map *find_startup_map(const void *handle, uint64_t bias)
{
    struct link_map *map = first_map;
    for (uint32_t index = 0; index < startup_count; index++, map = map->l_next)
        if (handle != NULL ? handle == map : bias == map->l_addr)
            return map;
    return NULL;
}

void *machtrace_symbol_in(void *handle, const char *name)
{
    /* The scope of an image that was not loaded by dlopen() is that of the program. */
    return dlsym(find_startup_map(handle, 0) == NULL ? handle : RTLD_NEXT, name);
}

static bool is_within(const struct machtrace_agent_image *image, uint64_t address)
{
    return address >= image->start && address < image->end;
}

/* Whether a word of data, which the program may have changed, is what the loader stored. */
static bool is_as_loaded(const struct imports *imports, void *handle, uint32_t symbol,
                         uint64_t slot, uint64_t value)
{
    const char *name = imports->names + imports->symbols[symbol].st_name;
    const char *version = version_of(imports, symbol);
    if (slot >= imports->relro_start && slot < imports->relro_end)
        return true;
    return (version != NULL &&
            value == (uint64_t)(uintptr_t)dlvsym(RTLD_DEFAULT, name, version)) ||
           value == (uint64_t)(uintptr_t)dlsym(RTLD_DEFAULT, name) ||
           value == (uint64_t)(uintptr_t)machtrace_symbol_in(handle, name);
}

/* Whether the loader has not bound the slot of a call: it leads to the image's linkage table. */
static bool is_unbound(const struct imports *imports, uint32_t symbol, uint64_t value)
{
    const ElfW(Sym) *entry = &imports->symbols[symbol];
    bool is_own = entry->st_shndx != SHN_UNDEF && value == imports->bias + entry->st_value;
    /* The second word is the link map of images whose slots are bound late. */
    return is_within(imports->image, value) && !is_own && imports->got != NULL &&
           imports->got[1] != 0;
}

static void set_unbound(struct machtrace_change *change, const struct imports *imports,
                        void *handle, const ElfW(Rela) *relocation)
{
    uint32_t symbol = (uint32_t)ELF64_R_SYM(relocation->r_info);
    const ElfW(Sym) *entry = &imports->symbols[symbol];
    const char *name = imports->names + entry->st_name;
    struct machtrace_unbound *unbound = &change->unbound;
    unbound->info = relocation->r_info;
    unbound->relocations = (uint64_t)(uintptr_t)imports->relocations[0];
    /* For auditors the loader has another resolver, and keeps what it binds in tables of its own. */
    if (imports->got[1] == (uint64_t)(uintptr_t)handle && imports->got[2] != 0 && !is_audited)
        unbound->got = (uint64_t)(uintptr_t)imports->got;
    if (find_startup_map(handle, 0) != NULL && entry->st_shndx == SHN_UNDEF &&
        !imports->is_symbolic) {
        unbound->symbol = name;
        unbound->version = version_of(imports, symbol);
    }
    change->target = machtrace_likely_target(name, handle);
}

/* --- slots of an image --- */

static _Atomic long process;

static bool has_value(const char *variable)
{
    const char *value = getenv(variable);
    return value != NULL && *value != '\0';
}

void machtrace_imports_begin(void)
{
    process = getpid();
    is_audited |= has_value("LD_AUDIT") || has_value("LD_PROFILE");
}

/* The image's reference, which ensures that it stays loaded; NULL if it is not any more. */
void *machtrace_hold_image(const struct machtrace_agent_image *image)
{
    struct link_map *map = find_startup_map(NULL, image->bias);
    if (map != NULL)
        return map;
    void *handle =
        dlopen(image->is_program ? NULL : image->path, RTLD_LAZY | RTLD_NOLOAD | RTLD_LOCAL);
    if (handle != NULL && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 &&
        map->l_addr == image->bias && atomic_load(&image->is_loaded))
        return handle;
    if (handle != NULL)
        dlclose(handle);
    return NULL;
}

void machtrace_release_image(void *handle)
{
    if (find_startup_map(handle, 0) == NULL)
        dlclose(handle);
}

static void find_slot(struct machtrace_changes *changes, const struct imports *imports,
                      void *handle, const ElfW(Rela) *relocation)
{
    uint32_t type = (uint32_t)ELF64_R_TYPE(relocation->r_info);
    uint32_t symbol = (uint32_t)ELF64_R_SYM(relocation->r_info);
    /* Tables of functions, as compilers and programs make them, have the address alone. */
    bool is_of_table = type == WORD_OF_DATA && relocation->r_addend == 0 &&
                       relocation->r_offset % sizeof(uint64_t) == 0;
    if (symbol == 0 || (type != SLOT_OF_CALL && type != SLOT_OF_ADDRESS && !is_of_table))
        return;
    uint64_t slot = imports->bias + relocation->r_offset;
    const char *name = imports->names + imports->symbols[symbol].st_name;
    struct machtrace_change *change = machtrace_add_change(changes, imports->image, name, slot);
    if (change == NULL)
        return;
    if (slot >= imports->relro_start && slot < imports->relro_end) {
        change->pages_start = imports->relro_start;
        change->pages_end = imports->relro_end;
    }
    if (changes->names == NULL)
        return;
    change->target = change->value;
    if (type == SLOT_OF_CALL && is_unbound(imports, symbol, change->value)) {
        set_unbound(change, imports, handle, relocation);
        bool is_weak = ELF64_ST_BIND(imports->symbols[symbol].st_info) == STB_WEAK;
        if (change->target == 0 && is_weak)
            machtrace_drop_change(changes); /* nothing defines it */
    } else if (change->target == 0 || machtrace_is_linkage(change->target) ||
               (is_of_table && !is_as_loaded(imports, handle, symbol, slot, change->value))) {
        machtrace_drop_change(changes);
    }
}

void machtrace_find_slots(struct machtrace_changes *changes,
                          const struct machtrace_agent_image *image, void *handle)
{
    struct imports imports;
    if (!read_imports(image, &imports))
        return;
    for (int table = 0; table < 2; table++)
        for (size_t index = 0; index < imports.counts[table]; index++)
            find_slot(changes, &imports, handle, &imports.relocations[table][index]);
}

/* No Objective-C. */
bool machtrace_bind_methods(struct machtrace_imports_result *result, bool waits)
{
    (void)result;
    (void)waits;
    return true;
}

void machtrace_restore_methods(struct machtrace_imports_result *result)
{
    (void)result;
}

void machtrace_methods_after_fork(void)
{
}

uint64_t machtrace_slot_word(const struct machtrace_change *change, uint64_t address)
{
    (void)change;
    return address;
}

uint64_t machtrace_slot_address(uint64_t word)
{
    return word;
}

bool machtrace_protect(const struct machtrace_change *change, bool is_writable)
{
    return mprotect((void *)(uintptr_t)change->pages_start,
                    change->pages_end - change->pages_start,
                    is_writable ? PROT_READ | PROT_WRITE : PROT_READ) == 0;
}

uint64_t machtrace_function_size(uint64_t address)
{
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    if (dladdr1((void *)(uintptr_t)address, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 ||
        symbol == NULL || (uint64_t)(uintptr_t)info.dli_saddr != address)
        return 0;
    return symbol->st_size;
}

/* --- images that are loaded and unloaded --- */

static bool bind_new(void)
{
    struct machtrace_imports_result result = {0};
    return machtrace_bind_all(&result, false);
}

static bool begin_era(void)
{
    return machtrace_images_update(false);
}

/* Another thread that does the same needs no time to speak of, but the caller may hold the loader's
 * lock: so it waits for a limited time, and then leaves it to the agent's thread. */
static void images_changed(bool (*look)(void))
{
    struct timespec pause = {0, PAUSE_NS};
    bool is_done;
    machtrace_ignore_enter();
    for (int pauses = 0; !(is_done = look()) && pauses < PAUSES_MAX; pauses++)
        machtrace_system(SYS_nanosleep, machtrace_address_of(&pause), 0, 0, 0, 0, 0);
    if (!is_done)
        atomic_store(&machtrace_imports_are_pending, true);
    machtrace_ignore_leave();
}

static void *open_image(const char *path, int flags)
{
    void *(*real)(const char *, int) =
        (void *(*)(const char *, int))(uintptr_t)machtrace_real[MACHTRACE_DLOPEN];
    void *handle = real(path, flags);
    if (handle != NULL)
        images_changed(bind_new);
    return handle;
}

/* The era begins when the image is gone, and before others can be loaded by the caller. */
static int close_image(void *handle)
{
    int (*real)(void *) = (int (*)(void *))(uintptr_t)machtrace_real[MACHTRACE_DLCLOSE];
    int result = real(handle);
    images_changed(begin_era);
    return result;
}

/* A pass that begins now has all calls of this thread. In the child of vfork(2), and in handlers of
 * signals, too: no lock is taken. */
static void store_all(void)
{
    struct timespec pause = {0, PAUSE_NS};
    uint32_t before = atomic_load(&machtrace_recorders.passes);
    if (machtrace_system(SYS_getpid, 0, 0, 0, 0, 0, 0) != process)
        return; /* of vfork(2): the process does not end */
    atomic_fetch_add(&machtrace_recorders.endings, 1);
    for (int pauses = 0;
         atomic_load(&machtrace_recorders.passes) - before < 2 && pauses < PAUSES_MAX; pauses++) {
        machtrace_wake(&machtrace_recorders.wake);
        machtrace_system(SYS_nanosleep, machtrace_address_of(&pause), 0, 0, 0, 0, 0);
    }
}

/* dlopen(3) searches names without a slash in directories that the calling image states, and
 * expands $ORIGIN to its directory. Then it has to be called by that image, and the loaded one's
 * imports are bound by the agent's thread, a little later. */
uint64_t machtrace_replacement_of(const struct machtrace_binding *binding,
                                  const uint64_t arguments[3], uint64_t caller)
{
    const char *path = (const char *)(uintptr_t)arguments[0];
    if (binding->replacement == MACHTRACE_ENDS) {
        store_all();
        return atomic_load(&binding->target);
    }
    if (binding->replacement >= MACHTRACE_DLSYM)
        return machtrace_lookup_of(binding, arguments, caller);
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
