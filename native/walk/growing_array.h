/* Arrays that grow. */
#ifndef MACHTRACE_GROWING_ARRAY_H
#define MACHTRACE_GROWING_ARRAY_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Room for at least one more item of a growing array; 0, or -1 where there is no memory. */
static inline int make_room(void **items, size_t *room, size_t count, size_t item_size)
{
    if (count < *room)
        return 0;
    size_t wanted = *room != 0 ? *room * 2 : 64;
    if (wanted > SIZE_MAX / 2 / item_size)
        return -1;
    void *moved = realloc(*items, wanted * item_size);
    if (moved == NULL)
        return -1;
    *items = moved;
    *room = wanted;
    return 0;
}

#endif
