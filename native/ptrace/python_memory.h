/* The memory that one copy of CPython's structures reads, and the arrays that it is stored in.
 * For ptrace/python.c alone. */
#ifndef MACHTRACE_PTRACE_PYTHON_MEMORY_H
#define MACHTRACE_PTRACE_PYTHON_MEMORY_H

#include <string.h>

#include "ptrace/python.h"

struct machtrace_python_piece {
    uint64_t address;
    size_t size;
    size_t offset; /* in bytes; NOT_READ if it cannot be read */
    uint64_t visitor; /* the thread, plus 1, that has a row for the frame at this address */
    unsigned idle; /* copies since it was last used */
};
#define NOT_READ SIZE_MAX

/* Copies for which a range is read though it was not used: frames come and go. */
#define IDLE_MAX 8

static inline uint64_t word_in(const unsigned char *data, uint64_t offset)
{
    uint64_t word;
    memcpy(&word, data + offset, sizeof word);
    return word;
}

bool machtrace_array_reserve(struct machtrace_python_array *array, size_t count, size_t item_size);
void *machtrace_array_append(struct machtrace_python_array *array, size_t item_size);
uint32_t *machtrace_find_slot(const struct machtrace_python_array *slots,
                           const struct machtrace_python_array *items, size_t item_size,
                           uint64_t address);
bool machtrace_slots_widen(struct machtrace_python_array *slots,
                           const struct machtrace_python_array *items,
                  size_t item_size);
void machtrace_slots_clear(struct machtrace_python_array *slots);
void machtrace_python_prefetch(struct machtrace_python_reader *reader);
struct machtrace_python_piece *machtrace_python_piece(struct machtrace_python_reader *reader,
                                                      uint64_t address, size_t size);
const unsigned char *machtrace_python_memory(struct machtrace_python_reader *reader,
                                             uint64_t address,
                                      size_t size);
bool machtrace_python_word(struct machtrace_python_reader *reader, uint64_t address,
                           uint64_t *word);
void machtrace_python_keep_hints(struct machtrace_python_reader *reader);

#endif
