/* Import slots of Mach-O images. See agent/imports.h.
 *
 * Which words of an image dyld binds to symbols, and how it signs them, is in the image's load
 * commands: as opcodes (LC_DYLD_INFO), which stay in memory; or as chains through the data
 * (LC_DYLD_CHAINED_FIXUPS), which dyld overwrites: they are read from the image's file. Where that
 * cannot be read, sections of pointers have their symbols in the indirect symbol table. Sources:
 * mach-o/loader.h, mach-o/fixup-chains.h, and dyld's MachOAnalyzer.
 *
 * Images of the shared cache are left alone: their calls of each other use no slots of their own.
 */
#include "imports.h"

#include <dlfcn.h>
#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <pthread.h>
#include <string.h>

#include "darwin/slots.h"
#include "inprocess/core/capture.h"
#include "recorder.h"
#include "thread.h"

/* --- images --- */

void *machtrace_hold_image(const struct machtrace_agent_image *image)
{
    if (image->is_fixed)
        return NULL;
    void *handle = dlopen(image->is_program ? NULL : image->path,
                          RTLD_LAZY | RTLD_NOLOAD | RTLD_LOCAL);
    if (handle != NULL && !atomic_load(&image->is_loaded)) {
        dlclose(handle);
        handle = NULL;
    }
    return handle;
}

void machtrace_release_image(void *handle)
{
    dlclose(handle);
}

bool machtrace_read_commands(const struct machtrace_agent_image *image,
                             struct machtrace_commands *commands)
{
    const struct mach_header_64 *header = image->headers;
    const struct load_command *command = (const void *)(header + 1);
    memset(commands, 0, sizeof *commands);
    commands->image = image;
    for (uint32_t index = 0; index < header->ncmds; index++) {
        const struct segment_command_64 *segment = (const void *)command;
        switch (command->cmd) {
        case LC_SEGMENT_64:
            if (strcmp(segment->segname, SEG_LINKEDIT) == 0)
                commands->linkedit = (const unsigned char *)(uintptr_t)(
                    segment->vmaddr + image->bias - segment->fileoff);
            if (commands->segment_count < MACHTRACE_SEGMENTS_MAX)
                commands->segments[commands->segment_count++] = segment;
            break;
        case LC_SYMTAB:
            commands->symtab = (const void *)command;
            break;
        case LC_DYSYMTAB:
            commands->dysymtab = (const void *)command;
            break;
        case LC_DYLD_INFO:
        case LC_DYLD_INFO_ONLY:
            commands->opcodes = (const void *)command;
            break;
        case LC_DYLD_CHAINED_FIXUPS:
            commands->chains = (const void *)command;
            break;
        case LC_FUNCTION_STARTS:
            commands->starts = (const void *)command;
            break;
        case LC_UUID:
            commands->uuid = (const void *)command;
            break;
        default:
            break;
        }
        command = (const void *)((const char *)command + command->cmdsize);
    }
    return commands->linkedit != NULL;
}

/* --- slots --- */

/* The word that leads to an address; the same if it is not signed. */
static uint64_t sign(uint64_t address, uint64_t slot, uint32_t signing)
{
#if defined(__arm64e__)
    if ((signing & MACHTRACE_SIGNED) == 0)
        return address;
    uint64_t discriminator = signing & 0xffff;
    if ((signing & MACHTRACE_ADDRESS_DIVERSE) != 0)
        discriminator = discriminator == 0 ? slot
                                           : (slot & ~(UINT64_C(0xffff) << 48)) | discriminator << 48;
    /* pacia, pacib, pacda and pacdb */
    switch (signing >> MACHTRACE_KEY_SHIFT & 3) {
    case 0:
        __asm__("pacia %0, %1" : "+r"(address) : "r"(discriminator));
        break;
    case 1:
        __asm__("pacib %0, %1" : "+r"(address) : "r"(discriminator));
        break;
    case 2:
        __asm__("pacda %0, %1" : "+r"(address) : "r"(discriminator));
        break;
    default:
        __asm__("pacdb %0, %1" : "+r"(address) : "r"(discriminator));
        break;
    }
    return address;
#else
    (void)slot;
    (void)signing;
    return address;
#endif
}

uint64_t machtrace_slot_word(const struct machtrace_change *change, uint64_t address)
{
    return sign(address, change->slot, change->signing);
}

uint64_t machtrace_slot_address(uint64_t word)
{
    return word & machtrace_recorders.code_bits;
}

bool machtrace_protect(const struct machtrace_change *change, bool is_writable)
{
    vm_address_t start = (vm_address_t)change->pages_start;
    vm_size_t size = (vm_size_t)(change->pages_end - change->pages_start);
    /* A copy: the pages may be mapped from the file without a right to write. */
    return vm_protect(mach_task_self(), start, size, 0,
                      is_writable ? VM_PROT_READ | VM_PROT_WRITE | VM_PROT_COPY : VM_PROT_READ) ==
           KERN_SUCCESS;
}

/* The function that a slot leads to: what it has, unless that is the image's own code that binds it
 * at the first call. */
static uint64_t target_of(const struct machtrace_commands *commands, void *handle,
                          const char *symbol, uint64_t address, bool is_lazy)
{
    const struct machtrace_agent_image *image = commands->image;
    if (!is_lazy || address < image->start || address >= image->end)
        return address;
    void *function = dlsym(handle != NULL ? handle : RTLD_DEFAULT, symbol);
    if (function == NULL)
        function = dlsym(RTLD_DEFAULT, symbol);
    return machtrace_slot_address((uint64_t)(uintptr_t)function);
}

/* The name of a function of C: without the variant that x86_64 has of some, as _stat$INODE64. */
static bool read_name(const char *symbol, char *name)
{
    size_t length = 0;
    if (*symbol++ != '_')
        return false;
    for (; symbol[length] != '\0' && (length == 0 || symbol[length] != '$'); length++)
        if (length < MACHTRACE_SYMBOL_MAX - 1)
            name[length] = symbol[length];
    name[length < MACHTRACE_SYMBOL_MAX ? length : 0] = '\0';
    return true;
}

void machtrace_find_slot(struct machtrace_changes *changes,
                         const struct machtrace_commands *commands, void *handle,
                         const struct machtrace_bind *bind)
{
    char name[MACHTRACE_SYMBOL_MAX];
    if (!read_name(bind->symbol, name))
        return;
    const struct segment_command_64 *segment = NULL;
    uint64_t svma = bind->slot - commands->image->bias;
    for (uint32_t index = 0; index < commands->segment_count; index++)
        if (svma - commands->segments[index]->vmaddr < commands->segments[index]->vmsize)
            segment = commands->segments[index];
    if (segment == NULL || (segment->initprot & VM_PROT_WRITE) == 0 || svma % 8 != 0)
        return;
    struct machtrace_change *change =
        machtrace_add_change(changes, commands->image, name, bind->slot);
    if (change == NULL)
        return;
    uint64_t address = machtrace_slot_address(change->value);
    if ((segment->flags & SG_READ_ONLY) != 0) {
        change->pages_start = segment->vmaddr + commands->image->bias;
        change->pages_end = change->pages_start + segment->vmsize;
    }
    change->signing = bind->signing;
    if (changes->names == NULL)
        return;
    change->target = target_of(commands, handle, bind->symbol + 1, address, bind->is_lazy);
    /* A weak import that nothing defines; or a word that is not what is assumed of it. */
    if (change->target == 0 || sign(address, bind->slot, bind->signing) != change->value)
        machtrace_drop_change(changes);
}

void machtrace_find_slots(struct machtrace_changes *changes,
                          const struct machtrace_agent_image *image, void *handle)
{
    struct machtrace_commands commands;
    if (!machtrace_read_commands(image, &commands))
        return;
    if (commands.opcodes != NULL)
        machtrace_read_opcodes(changes, &commands, handle);
    if (commands.opcodes == NULL && !machtrace_read_chains(changes, &commands, handle))
        machtrace_read_sections(changes, &commands, handle);
}

int machtrace_bind_change(const struct machtrace_change *change, uint16_t rule,
                          enum machtrace_replacement replacement)
{
    return machtrace_bind(rule, change->target, replacement);
}

void machtrace_settle_late(bool is_loader_free)
{
    (void)is_loader_free;
}

/* --- functions --- */

/* By LC_FUNCTION_STARTS: distances from the header on. */
uint64_t machtrace_function_size(uint64_t address)
{
    struct machtrace_commands commands;
    const struct machtrace_agent_image *image = machtrace_image_at(address, MACHTRACE_ERA_NOW);
    if (image == NULL || !machtrace_read_commands(image, &commands) || commands.starts == NULL)
        return 0;
    const unsigned char *at = commands.linkedit + commands.starts->dataoff;
    const unsigned char *end = at + commands.starts->datasize;
    uint64_t start = image->start;
    while (at < end && start <= address) {
        uint64_t distance = machtrace_read_number(&at, end);
        if (distance == 0)
            break;
        if (start == address)
            return distance;
        start += distance;
    }
    return start == address ? image->end - start : 0;
}

/* --- images that are loaded and unloaded --- */

/* dyld has bound the image, and runs none of its code before this returns. Its lock may be held:
 * only locks are waited for whose holders call no function of dyld. */
static void image_added(const struct mach_header *header, intptr_t slide)
{
    (void)slide;
    machtrace_ignore_enter();
    if (machtrace_imports_are_enabled() && machtrace_images_update(true)) {
        uint32_t count = machtrace_image_count();
        for (uint32_t index = 0; index < count; index++) {
            struct machtrace_agent_image *image = machtrace_image(index);
            if (image->headers == header && !image->is_fixed && atomic_load(&image->is_loaded))
                machtrace_bind_image(image);
        }
        /* Its classes are registered after this. */
        atomic_store(&machtrace_imports_are_pending, true);
        machtrace_wake(&machtrace_recorders.wake);
    }
    machtrace_ignore_leave();
}

/* The era ends before another image can be loaded at the address. */
static void image_removed(const struct mach_header *header, intptr_t slide)
{
    (void)header;
    (void)slide;
    machtrace_ignore_enter();
    if (machtrace_imports_are_enabled())
        machtrace_images_update(true);
    machtrace_ignore_leave();
}

static void watch_images(void)
{
    machtrace_inprocess_image_changes(); /* the list's own callbacks come first */
    _dyld_register_func_for_remove_image(image_removed);
    _dyld_register_func_for_add_image(image_added);
}

void machtrace_imports_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_images);
}
