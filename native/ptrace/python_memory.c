#define _GNU_SOURCE
#include "ptrace/python_memory.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/uio.h>

#ifndef IOV_MAX
#define IOV_MAX 1024
#endif

/* --- arrays --- */

bool machtrace_array_reserve(struct machtrace_python_array *array, size_t count, size_t item_size)
{
    if (count <= array->capacity)
        return true;
    size_t capacity = array->capacity == 0 ? 64 : array->capacity;
    while (capacity < count)
        capacity *= 2;
    void *items = realloc(array->items, capacity * item_size);
    if (items == NULL)
        return false;
    array->items = items;
    array->capacity = capacity;
    return true;
}

/* Room for another item, or NULL. */
void *machtrace_array_append(struct machtrace_python_array *array, size_t item_size)
{
    if (!machtrace_array_reserve(array, array->count + 1, item_size))
        return NULL;
    return (char *)array->items + array->count++ * item_size;
}

/* --- a hash table of addresses: indexes, plus 1, of an array whose items begin with an address
   --- */

static size_t slot_of(uint64_t address, size_t mask)
{
    return (size_t)((address * UINT64_C(0x9E3779B97F4A7C15)) >> 20) & mask;
}

static uint64_t address_of(const struct machtrace_python_array *items, size_t item_size,
                           size_t index)
{
    uint64_t address;
    memcpy(&address, (const char *)items->items + index * item_size, sizeof address);
    return address;
}

/* The slot of an address, or the empty one where it belongs. The table is never full. */
uint32_t *machtrace_find_slot(const struct machtrace_python_array *slots,
                           const struct machtrace_python_array *items, size_t item_size,
                           uint64_t address)
{
    size_t mask = slots->capacity - 1;
    uint32_t *table = slots->items;
    size_t at = slot_of(address, mask);
    while (table[at] != 0 && address_of(items, item_size, table[at] - 1) != address)
        at = (at + 1) & mask;
    return &table[at];
}

/* Make the table large enough for another item. */
bool machtrace_slots_widen(struct machtrace_python_array *slots,
                           const struct machtrace_python_array *items,
                  size_t item_size)
{
    if (slots->capacity != 0 && 2 * (items->count + 1) < slots->capacity)
        return true;
    size_t capacity = slots->capacity == 0 ? 1024 : 4 * slots->capacity;
    uint32_t *table = calloc(capacity, sizeof *table);
    if (table == NULL)
        return false;
    free(slots->items);
    slots->items = table;
    slots->capacity = capacity;
    for (size_t index = 0; index < items->count; index++)
        *machtrace_find_slot(slots, items, item_size, address_of(items, item_size, index)) =
            (uint32_t)index + 1;
    return true;
}

void machtrace_slots_clear(struct machtrace_python_array *slots)
{
    if (slots->items != NULL)
        memset(slots->items, 0, slots->capacity * sizeof(uint32_t));
}

/* --- memory --- */

/* Bytes of one copy: a process may claim that its structures are a megabyte each. */
#define BYTES_MAX ((size_t)256 << 20)

static bool reserve_bytes(struct machtrace_python_reader *reader, size_t size)
{
    size_t count = reader->bytes.count;
    return size <= BYTES_MAX - count && machtrace_array_reserve(&reader->bytes, count + size, 1);
}

static size_t read_memory(pid_t thread, uint64_t address, void *to, size_t size)
{
    struct iovec here = {to, size};
    struct iovec there = {(void *)(uintptr_t)address, size};
    ssize_t count = process_vm_readv(thread, &here, 1, &there, 1, 0);
    return count < 0 ? 0 : (size_t)count;
}

static struct machtrace_python_piece *add_piece(struct machtrace_python_reader *reader,
                                                uint64_t address, size_t size)
{
    if (!machtrace_slots_widen(&reader->slots, &reader->pieces,
                               sizeof(struct machtrace_python_piece)) ||
        !reserve_bytes(reader, size))
        return NULL;
    struct machtrace_python_piece *piece = machtrace_array_append(&reader->pieces, sizeof *piece);
    if (piece == NULL)
        return NULL;
    *piece = (struct machtrace_python_piece){address, size, reader->bytes.count, 0, 0};
    reader->bytes.count += size;
    *machtrace_find_slot(&reader->slots, &reader->pieces, sizeof *piece, address) =
        (uint32_t)reader->pieces.count;
    return piece;
}

/* Read what the last copy used: nearly all that this one will need. */
void machtrace_python_prefetch(struct machtrace_python_reader *reader)
{
    struct iovec there[IOV_MAX];
    struct machtrace_python_piece *hints = reader->hints.items;
    size_t next = 0;
    while (next < reader->hints.count) {
        size_t count = 0;
        size_t size = 0;
        for (; count < IOV_MAX && next + count < reader->hints.count; count++) {
            there[count] = (struct iovec){(void *)(uintptr_t)hints[next + count].address,
                                          hints[next + count].size};
            size += hints[next + count].size;
        }
        if (!reserve_bytes(reader, size))
            return;
        struct iovec here = {(char *)reader->bytes.items + reader->bytes.count, size};
        ssize_t got = process_vm_readv(reader->thread, &here, 1, there, count, 0);
        size_t left = got < 0 ? 0 : (size_t)got;
        size_t end = next + count;
        for (; next < end && hints[next].size <= left; next++) {
            struct machtrace_python_piece *piece = add_piece(reader, hints[next].address,
                                                            hints[next].size);
            if (piece == NULL)
                return;
            piece->idle = hints[next].idle + 1;
            left -= hints[next].size;
        }
        if (next < end)
            next++; /* it cannot be read any more */
    }
}

struct machtrace_python_piece *machtrace_python_piece(struct machtrace_python_reader *reader,
                                                      uint64_t address, size_t size)
{
    if (reader->slots.capacity != 0) {
        uint32_t slot =
            *machtrace_find_slot(&reader->slots, &reader->pieces, sizeof(struct
   machtrace_python_piece), address);
        struct machtrace_python_piece *piece =
            slot == 0 ? NULL : (struct machtrace_python_piece *)reader->pieces.items + (slot - 1);
        if (piece != NULL && piece->size >= size) {
            piece->idle = 0;
            return piece->offset == NOT_READ ? NULL : piece;
        }
        if (piece != NULL) { /* too short: other things were here at the last copy */
            if (!reserve_bytes(reader, size))
                return NULL;
            piece->offset = reader->bytes.count;
            piece->size = size;
            piece->idle = 0;
            unsigned char *to = (unsigned char *)reader->bytes.items + piece->offset;
            if (read_memory(reader->thread, address, to, size) == size) {
                reader->bytes.count += size;
                return piece;
            }
            piece->offset = NOT_READ;
            return NULL;
        }
    }
    struct machtrace_python_piece *piece = add_piece(reader, address, size);
    if (piece == NULL)
        return NULL;
    piece->idle = 0;
    unsigned char *to = (unsigned char *)reader->bytes.items + piece->offset;
    if (read_memory(reader->thread, address, to, size) == size)
        return piece;
    piece->offset = NOT_READ;
    return NULL;
}

/* `size` bytes of memory, valid until the next call; or NULL if they cannot be read. */
const unsigned char *machtrace_python_memory(struct machtrace_python_reader *reader,
                                             uint64_t address,
                                      size_t size)
{
    const struct machtrace_python_piece *piece = machtrace_python_piece(reader, address, size);
    return piece == NULL ? NULL : (unsigned char *)reader->bytes.items + piece->offset;
}

bool machtrace_python_word(struct machtrace_python_reader *reader, uint64_t address, uint64_t *word)
{
    const unsigned char *data = machtrace_python_memory(reader, address, sizeof *word);
    if (data == NULL)
        return false;
    *word = word_in(data, 0);
    return true;
}

/* Remember what was used lately, for the next copy. */
void machtrace_python_keep_hints(struct machtrace_python_reader *reader)
{
    struct machtrace_python_array used = reader->hints;
    used.count = 0;
    const struct machtrace_python_piece *pieces = reader->pieces.items;
    for (size_t index = 0; index < reader->pieces.count; index++) {
        if (pieces[index].idle > IDLE_MAX || pieces[index].offset == NOT_READ)
            continue;
        struct machtrace_python_piece *hint = machtrace_array_append(&used, sizeof *hint);
        if (hint == NULL)
            break;
        *hint = pieces[index];
    }
    reader->hints = used;
}
