/* Words of a Mach-O image that dyld binds to symbols: slots.c, chains.c; used by imports.c. */
#ifndef MACHTRACE_AGENT_DARWIN_SLOTS_H
#define MACHTRACE_AGENT_DARWIN_SLOTS_H

#include <mach-o/loader.h>

#include "imports.h"

#define MACHTRACE_SEGMENTS_MAX 64

/* How a word is signed: the discriminator below, and: */
#define MACHTRACE_SIGNED (1u << 31)
#define MACHTRACE_ADDRESS_DIVERSE (1u << 30) /* the slot's address is mixed in */
#define MACHTRACE_KEY_SHIFT 28               /* 0 to 3: IA, IB, DA, DB */

/* An image in memory. */
struct machtrace_commands {
    const struct machtrace_agent_image *image;
    const unsigned char *linkedit; /* where the file's offset 0 would be */
    const struct segment_command_64 *segments[MACHTRACE_SEGMENTS_MAX];
    uint32_t segment_count;
    const struct symtab_command *symtab;
    const struct dysymtab_command *dysymtab;
    const struct dyld_info_command *opcodes;
    const struct linkedit_data_command *chains, *starts;
    const struct uuid_command *uuid;
};

struct machtrace_bind {
    const char *symbol;
    uint64_t slot; /* Avma */
    uint32_t signing;
    bool is_lazy;
};

bool machtrace_read_commands(const struct machtrace_agent_image *image,
                             struct machtrace_commands *commands);

/* Add a change if there is a rule for the symbol. */
void machtrace_find_slot(struct machtrace_changes *changes,
                         const struct machtrace_commands *commands, void *handle,
                         const struct machtrace_bind *bind);

/* Call machtrace_find_slot for all binds of LC_DYLD_INFO; of LC_DYLD_CHAINED_FIXUPS, by the image's
 * file: false if that cannot be read; and of sections that have indirect symbols. */
void machtrace_read_opcodes(struct machtrace_changes *changes,
                            const struct machtrace_commands *commands, void *handle);
bool machtrace_read_chains(struct machtrace_changes *changes,
                           const struct machtrace_commands *commands, void *handle);
void machtrace_read_sections(struct machtrace_changes *changes,
                             const struct machtrace_commands *commands, void *handle);

/* A ULEB128 number. */
uint64_t machtrace_read_number(const unsigned char **at, const unsigned char *end);

#endif
