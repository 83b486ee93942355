/* The words that import slots had before they led to stubs. By one thread at a time: under the lock of
 * imports.c. */
#ifndef MACHTRACE_AGENT_SAVED_WORDS_H
#define MACHTRACE_AGENT_SAVED_WORDS_H

#include <stdbool.h>
#include <stdint.h>

/* Instead of the slot's last one; false if there is no memory for it. */
bool machtrace_save_word(uint64_t slot, uint64_t word);

/* Whether the slot has one. */
bool machtrace_saved_word(uint64_t slot, uint64_t *word);

void machtrace_forget_saved_words(void);

#endif
