/* The functions around one address, by an ELF symbol table as it lies in the file.
 *
 * See symbol_scan.h. Which symbols are functions is decided as SymbolRows.is_function of
 * machtrace/formats/elf/symtab.py decides it.
 */
#ifndef MACHTRACE_RANGES_ELF_SYMBOL_SCAN_H
#define MACHTRACE_RANGES_ELF_SYMBOL_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct machtrace_elf_scan {
    const unsigned char *table; /* Elf32_Sym or Elf64_Sym, little-endian */
    size_t count;
    bool is_64;
    const unsigned char *strings; /* the string table */
    size_t strings_size;
    uint64_t low, high; /* the section with code that holds the address */
};

/* Functions of the section, by their starts. A start of 0 stands for none: no function is there. */
struct machtrace_elf_neighbours {
    uint64_t last;       /* the last start up to the address */
    uint64_t last_sized; /* the same of functions that state a size */
    uint64_t next;       /* the first start after the address; high if there is none */
    uint64_t next_sized;
    uint64_t reach; /* the last end of functions of any section that start up to the address */
};

void machtrace_elf_symbols_around(const struct machtrace_elf_scan *scan, uint64_t address,
                                  struct machtrace_elf_neighbours *neighbours);

/* The rows of the functions at `start`, in the table's order. Returns how many there are, and fills
 * in at most `room`. */
size_t machtrace_elf_symbols_starting(const struct machtrace_elf_scan *scan, uint64_t start,
                                      uint32_t *rows, size_t room);

#endif
