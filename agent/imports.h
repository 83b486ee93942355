/* Import slots: the words of images that lead to functions of other images.
 *
 * In three phases, since the loader's functions take its lock, and a thread that loads an image may
 * hold that lock while it comes here: first, without a lock of ours, all that the loader knows;
 * then the changes, under ours, without a call of the loader; then the images are released.
 */
#ifndef MACHTRACE_AGENT_IMPORTS_H
#define MACHTRACE_AGENT_IMPORTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hooks.h"
#include "images.h"

/* Linux: what the loader needs to bind a slot at its first call. */
struct machtrace_unbound {
    uint64_t info; /* of its relocation; 0 where the slot is bound */
    uint64_t relocations, got; /* the image's tables, DT_JMPREL and DT_PLTGOT; 0: it cannot be hooked */
    const char *symbol, *version; /* where the image has the scope of the start; or NULL */
};

struct machtrace_change {
    uint64_t slot, value; /* the word that it has now */
    uint64_t target;      /* the function's address; where it is unbound, what that will likely be */
    struct machtrace_unbound unbound;
    int rule;
    uint64_t pages_start, pages_end; /* that are read-only, and the slot among them; or 0 */
    uint32_t signing;                /* arm64e: how the word is signed; see darwin/imports.c */
    const struct machtrace_agent_image *image;
};

struct machtrace_changes {
    struct machtrace_change *all;
    size_t count, room;
    struct machtrace_held {
        struct machtrace_agent_image *image;
        void *handle;
    } *images;
    size_t image_count;
    const struct machtrace_names *names; /* NULL where slots are to be restored */
    bool is_complete;
};

/* Add the change of a slot if there is a rule for its symbol, or if it is to be restored; the
 * change, whose target, pages and signing are to be set, or NULL. */
struct machtrace_change *machtrace_add_change(struct machtrace_changes *changes,
                                              const struct machtrace_agent_image *image,
                                              const char *symbol, uint64_t slot);

/* Take the last change back. */
void machtrace_drop_change(struct machtrace_changes *changes);

/* Whether binding has an effect now. */
bool machtrace_imports_are_enabled(void);

/* Bind the imports of an image that cannot be unloaded meanwhile. Waits for the lock. */
void machtrace_bind_image(struct machtrace_agent_image *image);

/* Find images, and bind their imports; false if another thread does. */
bool machtrace_bind_all(struct machtrace_imports_result *result, bool waits);

/* Let frames of functions that were bound since be recognised as those of watched functions. */
void machtrace_publish_bodies(void);

/* The same, of a function that the loader has bound since. */
void machtrace_publish_late_body(uint64_t function);

/* The binding of a rule for a function; -1 if all stubs are taken. */
int machtrace_bind_target(uint16_t rule, uint64_t target);

/* What hooked slots of these led to first; 0 before. */
extern uint64_t machtrace_real[MACHTRACE_REPLACEMENTS];

/* --- of each system --- */

/* Before the first image is bound. */
void machtrace_imports_begin(void);

/* Linux with glibc: state that no image of the process is initialised yet. */
void machtrace_imports_before_initialisers(void);

/* Ensure that an image stays loaded; NULL if it is not any more. */
void *machtrace_hold_image(const struct machtrace_agent_image *image);
void machtrace_release_image(void *handle);

/* Linux: a function by its name, in an image that stays loaded or in those that it uses; NULL if they
 * have none. */
void *machtrace_symbol_in(void *handle, const char *name);

/* Call machtrace_add_change for every slot of an image. */
void machtrace_find_slots(struct machtrace_changes *changes,
                          const struct machtrace_agent_image *image, void *handle);

/* The binding of a slot for a rule, or for none; -1 if all stubs are taken. Under the lock. */
int machtrace_bind_change(const struct machtrace_change *change, uint16_t rule,
                          enum machtrace_replacement replacement);

/* Linux: take note of what the loader has bound since; without its functions, if it may be locked for
 * long. By the agent's thread. */
void machtrace_settle_late(bool is_loader_free);

/* The word of a slot that leads to an address, and the reverse. */
uint64_t machtrace_slot_word(const struct machtrace_change *change, uint64_t address);
uint64_t machtrace_slot_address(uint64_t word);

/* Make the change's pages writable, or read-only again. */
bool machtrace_protect(const struct machtrace_change *change, bool is_writable);

/* Replace the methods of rules, "-[Class selector]" or "+[Class selector]", whose classes are
 * registered; false if another thread does, and `waits` is not set. */
bool machtrace_bind_methods(struct machtrace_imports_result *result, bool waits);
void machtrace_restore_methods(struct machtrace_imports_result *result);
void machtrace_methods_after_fork(void);

/* The size of the function at an address; 0 if unknown. */
uint64_t machtrace_function_size(uint64_t address);

#endif
