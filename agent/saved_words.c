/* See saved_words.h. */
#include "saved_words.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static struct saved {
    uint64_t slot, word;
} *saved; /* open addressing by slot */
static size_t saved_count, saved_room;

static struct saved *saved_at(uint64_t slot)
{
    size_t index = (size_t)(slot * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (saved_room - 1);
    while (saved[index].slot != 0 && saved[index].slot != slot)
        index = (index + 1) & (saved_room - 1);
    return &saved[index];
}

bool machtrace_save_word(uint64_t slot, uint64_t word)
{
    if (2 * saved_count >= saved_room) {
        size_t old_room = saved_room;
        struct saved *old = saved;
        size_t room = old_room == 0 ? 1024 : 2 * old_room;
        struct saved *larger = calloc(room, sizeof *larger);
        if (larger == NULL)
            return false;
        saved = larger;
        saved_room = room;
        for (size_t index = 0; index < old_room; index++)
            if (old[index].slot != 0)
                *saved_at(old[index].slot) = old[index];
        free(old);
    }
    struct saved *entry = saved_at(slot);
    saved_count += entry->slot == 0;
    *entry = (struct saved){slot, word};
    return true;
}

bool machtrace_saved_word(uint64_t slot, uint64_t *word)
{
    const struct saved *entry = saved_room == 0 ? NULL : saved_at(slot);
    if (entry == NULL || entry->slot == 0)
        return false;
    *word = entry->word;
    return true;
}

void machtrace_forget_saved_words(void)
{
    if (saved != NULL)
        memset(saved, 0, saved_room * sizeof *saved);
    saved_count = 0;
}
