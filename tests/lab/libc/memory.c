/* Memory from one array, in blocks with their size before them; free blocks are listed by size. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA = 64 << 20, UNIT = 16, CLASSES = 80 };

struct header {
    size_t size;
    struct header *next;
};

static char arena[ARENA] __attribute__((aligned(16)));
static size_t used;
static struct header *unused[CLASSES];

/* Four sizes for each power of two, so that little is wasted. */
static unsigned class_of(size_t size) {
    unsigned power = 63 - (unsigned)__builtin_clzl(size | 64);
    return 4 * (power - 6) + ((size >> (power - 2)) & 3);
}

static size_t size_of_class(unsigned number) {
    return ((size_t)(4 + number % 4) << (number / 4)) << 4;
}

void *malloc(size_t size) {
    unsigned number = class_of(size);
    while (size_of_class(number) < size) {
        number++;
    }
    if (number >= CLASSES) {
        errno = ENOMEM;
        return NULL;
    }
    struct header *block = unused[number];
    if (block) {
        unused[number] = block->next;
        return block + 1;
    }
    size_t whole = size_of_class(number) + sizeof *block;
    if (whole > ARENA - used) {
        errno = ENOMEM;
        return NULL;
    }
    block = (struct header *)(arena + used);
    used += whole;
    block->size = size_of_class(number);
    return block + 1;
}

void free(void *memory) {
    if (memory) {
        struct header *block = (struct header *)memory - 1;
        unsigned number = class_of(block->size);
        block->next = unused[number];
        unused[number] = block;
    }
}

size_t malloc_usable_size(const void *memory) {
    return memory ? ((const struct header *)memory)[-1].size : 0;
}

/* No builtin: or it becomes a call of itself. */
__attribute__((no_builtin)) void *calloc(size_t count, size_t size) {
    size_t whole;
    if (__builtin_mul_overflow(count, size, &whole)) {
        return NULL;
    }
    void *memory = malloc(whole);
    return memory ? memset(memory, 0, whole) : NULL;
}

void *realloc(void *memory, size_t size) {
    size_t before = malloc_usable_size(memory);
    if (memory && size <= before && size > before / 2) {
        return memory;
    }
    void *moved = malloc(size);
    if (moved && memory) {
        memcpy(moved, memory, size < before ? size : before);
        free(memory);
    }
    return moved;
}
