/* See elf_symbol_scan.h. */
#include "ranges/elf_symbol_scan.h"

#define SHN_UNDEF 0u
#define SHN_LORESERVE 0xff00u
#define SHN_XINDEX 0xffffu
#define STT_NOTYPE 0u
#define STT_FUNC 2u
#define STT_GNU_IFUNC 10u

#define ELF32_SYM_SIZE 16u
#define ELF64_SYM_SIZE 24u

struct symbol {
    bool is_function;
    uint64_t start;
    uint64_t size;
};

static inline uint64_t number(const unsigned char *at, unsigned size)
{
    uint64_t value = 0;
    for (unsigned byte = 0; byte < size; byte++)
        value |= (uint64_t)at[byte] << (8 * byte);
    return value;
}

/* Not what marks where instructions and data alternate, nor a section's end, which has no name. */
static inline bool is_label(const struct machtrace_elf_scan *scan, uint64_t name)
{
    unsigned char first = name < scan->strings_size ? scan->strings[name] : 0;
    return first != 0 && first != '$' && first != '.';
}

static inline struct symbol symbol_of(const struct machtrace_elf_scan *scan, size_t row)
{
    const unsigned char *at = scan->table + row * (scan->is_64 ? ELF64_SYM_SIZE : ELF32_SYM_SIZE);
    unsigned type = at[scan->is_64 ? 4 : 12] & 0xfu;
    uint64_t section = number(at + (scan->is_64 ? 6 : 14), 2);
    uint64_t value = scan->is_64 ? number(at + 8, 8) : number(at + 4, 4);
    uint64_t size = scan->is_64 ? number(at + 16, 8) : number(at + 8, 4);
    bool is_defined =
        section != SHN_UNDEF && (section < SHN_LORESERVE || section == SHN_XINDEX) && value != 0;
    bool is_function = type == STT_FUNC || type == STT_GNU_IFUNC;
    if (is_defined && type == STT_NOTYPE)
        /* In another section it may be data; it counts only if its size reaches into this one. */
        is_function = is_label(scan, number(at, 4)) &&
                      ((value >= scan->low && value < scan->high) || size != 0);
    return (struct symbol){
        .is_function = is_defined && is_function,
        .start = value,
        .size = size,
    };
}

void machtrace_elf_symbols_around(const struct machtrace_elf_scan *scan, uint64_t address,
                                  struct machtrace_elf_neighbours *neighbours)
{
    *neighbours = (struct machtrace_elf_neighbours){.next = scan->high, .next_sized = scan->high};
    for (size_t row = 0; row < scan->count; row++) {
        struct symbol symbol = symbol_of(scan, row);
        if (!symbol.is_function)
            continue;
        bool is_inside = symbol.start >= scan->low && symbol.start < scan->high;
        if (symbol.start <= address) {
            uint64_t end = symbol.start + symbol.size;
            if (end < symbol.start)
                end = UINT64_MAX;
            if (symbol.size != 0 && end > neighbours->reach)
                neighbours->reach = end;
            if (is_inside && symbol.start > neighbours->last)
                neighbours->last = symbol.start;
            if (is_inside && symbol.size != 0 && symbol.start > neighbours->last_sized)
                neighbours->last_sized = symbol.start;
        } else if (is_inside) {
            if (symbol.start < neighbours->next)
                neighbours->next = symbol.start;
            if (symbol.size != 0 && symbol.start < neighbours->next_sized)
                neighbours->next_sized = symbol.start;
        }
    }
}

size_t machtrace_elf_symbols_starting(const struct machtrace_elf_scan *scan, uint64_t start,
                                      uint32_t *rows, size_t room)
{
    size_t count = 0;
    for (size_t row = 0; row < scan->count; row++) {
        struct symbol symbol = symbol_of(scan, row);
        if (symbol.is_function && symbol.start == start) {
            if (count < room)
                rows[count] = (uint32_t)row;
            count++;
        }
    }
    return count;
}
