/* Binds by opcodes and by indirect symbols: see slots.h. */
#include "darwin/slots.h"

#include <mach-o/nlist.h>
#include <string.h>

uint64_t machtrace_read_number(const unsigned char **at, const unsigned char *end)
{
    uint64_t value = 0;
    for (unsigned shift = 0; *at < end && shift < 64; shift += 7) {
        unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            break;
    }
    return value;
}

/* --- opcodes --- */

struct reader {
    struct machtrace_changes *changes;
    const struct machtrace_commands *commands;
    void *handle;
    const unsigned char *at, *end;
    struct machtrace_bind bind;
    uint64_t svma;
    bool is_pointer;
};

static void bind(struct reader *reader, uint64_t count, uint64_t skip)
{
    for (; count > 0; count--) {
        reader->bind.slot = reader->svma + reader->commands->image->bias;
        if (reader->is_pointer && reader->bind.symbol != NULL)
            machtrace_find_slot(reader->changes, reader->commands, reader->handle, &reader->bind);
        reader->svma += 8 + skip;
    }
}

static void set_segment(struct reader *reader, unsigned index)
{
    uint64_t offset = machtrace_read_number(&reader->at, reader->end);
    if (index < reader->commands->segment_count)
        reader->svma = reader->commands->segments[index]->vmaddr + offset;
    else
        reader->at = reader->end;
}

static void run(struct reader *reader)
{
    unsigned char byte = *reader->at++;
    unsigned char low = byte & BIND_IMMEDIATE_MASK;
    uint64_t count;
    switch (byte & BIND_OPCODE_MASK) {
    case BIND_OPCODE_DONE: /* of lazy binds after each */
        if (!reader->bind.is_lazy)
            reader->at = reader->end;
        break;
    case BIND_OPCODE_SET_DYLIB_ORDINAL_ULEB:
        machtrace_read_number(&reader->at, reader->end);
        break;
    case BIND_OPCODE_SET_SYMBOL_TRAILING_FLAGS_IMM: {
        const unsigned char *name = reader->at;
        const unsigned char *zero = memchr(name, 0, (size_t)(reader->end - name));
        reader->bind.symbol = zero == NULL ? NULL : (const char *)name;
        reader->at = zero == NULL ? reader->end : zero + 1;
        break;
    }
    case BIND_OPCODE_SET_TYPE_IMM:
        reader->is_pointer = low == BIND_TYPE_POINTER;
        break;
    case BIND_OPCODE_SET_ADDEND_SLEB: /* a slot behind the function is none that is called */
        reader->is_pointer = machtrace_read_number(&reader->at, reader->end) == 0;
        break;
    case BIND_OPCODE_SET_SEGMENT_AND_OFFSET_ULEB:
        set_segment(reader, low);
        break;
    case BIND_OPCODE_ADD_ADDR_ULEB:
        reader->svma += machtrace_read_number(&reader->at, reader->end);
        break;
    case BIND_OPCODE_DO_BIND:
        bind(reader, 1, 0);
        break;
    case BIND_OPCODE_DO_BIND_ADD_ADDR_ULEB:
        bind(reader, 1, machtrace_read_number(&reader->at, reader->end));
        break;
    case BIND_OPCODE_DO_BIND_ADD_ADDR_IMM_SCALED:
        bind(reader, 1, (uint64_t)low * 8);
        break;
    case BIND_OPCODE_DO_BIND_ULEB_TIMES_SKIPPING_ULEB:
        count = machtrace_read_number(&reader->at, reader->end);
        bind(reader, count, machtrace_read_number(&reader->at, reader->end));
        break;
    case BIND_OPCODE_THREADED: /* of arm64e before chained fixups; its pointers are overwritten */
        reader->at = reader->end;
        break;
    default: /* the ordinals of libraries: symbols are known by name alone */
        break;
    }
}

void machtrace_read_opcodes(struct machtrace_changes *changes,
                            const struct machtrace_commands *commands, void *handle)
{
    const struct dyld_info_command *info = commands->opcodes;
    const uint32_t tables[3][2] = {{info->bind_off, info->bind_size},
                                   {info->weak_bind_off, info->weak_bind_size},
                                   {info->lazy_bind_off, info->lazy_bind_size}};
    for (int table = 0; table < 3; table++) {
        struct reader reader = {.changes = changes,
                                .commands = commands,
                                .handle = handle,
                                .at = commands->linkedit + tables[table][0],
                                .bind.is_lazy = table == 2,
                                .is_pointer = true};
        reader.end = reader.at + tables[table][1];
        while (reader.at < reader.end)
            run(&reader);
    }
}

/* --- indirect symbols --- */

static void read_section(struct machtrace_changes *changes,
                         const struct machtrace_commands *commands, void *handle,
                         const struct section_64 *section)
{
    uint32_t type = section->flags & SECTION_TYPE;
    if (type != S_LAZY_SYMBOL_POINTERS && type != S_NON_LAZY_SYMBOL_POINTERS)
        return;
    const uint32_t *indirect =
        (const void *)(commands->linkedit + commands->dysymtab->indirectsymoff);
    const struct nlist_64 *symbols = (const void *)(commands->linkedit + commands->symtab->symoff);
    const char *names = (const char *)commands->linkedit + commands->symtab->stroff;
    /* Stubs of arm64e authenticate words of this section with their addresses, by key IA. */
    uint32_t signing = strcmp(section->sectname, "__auth_got") == 0
                           ? MACHTRACE_SIGNED | MACHTRACE_ADDRESS_DIVERSE
                           : 0;
    for (uint64_t index = 0; index < section->size / 8; index++) {
        uint64_t entry = section->reserved1 + index;
        if (entry >= commands->dysymtab->nindirectsyms ||
            indirect[entry] >= commands->symtab->nsyms)
            continue;
        struct machtrace_bind bind = {
            .symbol = names + symbols[indirect[entry]].n_un.n_strx,
            .slot = section->addr + commands->image->bias + 8 * index,
            .signing = signing,
            .is_lazy = type == S_LAZY_SYMBOL_POINTERS};
        machtrace_find_slot(changes, commands, handle, &bind);
    }
}

void machtrace_read_sections(struct machtrace_changes *changes,
                             const struct machtrace_commands *commands, void *handle)
{
    if (commands->symtab == NULL || commands->dysymtab == NULL)
        return;
    for (uint32_t index = 0; index < commands->segment_count; index++) {
        const struct segment_command_64 *segment = commands->segments[index];
        const struct section_64 *sections = (const void *)(segment + 1);
        for (uint32_t number = 0; number < segment->nsects; number++)
            read_section(changes, commands, handle, &sections[number]);
    }
}
