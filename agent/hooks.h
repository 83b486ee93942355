/* Hooks at function entry: rules, and the stubs that stand for watched functions.
 *
 * A stub saves the registers that have arguments, calls machtrace_hook_entry, restores them and
 * jumps to the function. The stack stays as the program made it. Stubs are code of the agent: none
 * is written at run time.
 */
#ifndef MACHTRACE_AGENT_HOOKS_H
#define MACHTRACE_AGENT_HOOKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "event.h"

struct machtrace_agent_image;

#define MACHTRACE_STUBS 2048
#define MACHTRACE_STUB_SIZE 16
#define MACHTRACE_SYMBOL_MAX 128
#define MACHTRACE_NO_RULE UINT16_MAX

/* What became of a rule; in the spool. */
enum machtrace_rule_state {
    MACHTRACE_RULE_UNUSED = 0,  /* the function exists, and nothing imports it */
    MACHTRACE_RULE_BOUND = 1,
    MACHTRACE_RULE_ABSENT = 2,  /* no image defines it, and none imports it */
    MACHTRACE_RULE_NO_STUB = 3, /* all stubs are taken */
    MACHTRACE_RULE_INHERITED = 4, /* bound; the method is `other`, of a superclass */
    MACHTRACE_RULE_SHARED = 5,    /* bound; `other` has the same implementation */
    MACHTRACE_RULE_REFUSED = 6    /* it cannot be hooked: `other` is why */
};

struct machtrace_watched {
    char symbol[MACHTRACE_SYMBOL_MAX];
    _Atomic uint32_t stacks; /* an enum machtrace_stacks */
    _Atomic bool is_at_entry; /* its first instructions are replaced, and no import slot */
    _Atomic bool gives_consent;
    _Atomic bool is_active;
    _Atomic uint32_t state;
    _Atomic uint32_t slots; /* import slots that lead to its stubs now */
    _Atomic uint64_t target;
    char other[MACHTRACE_SYMBOL_MAX]; /* set before the state */
};

enum machtrace_replacement {
    MACHTRACE_NOT_REPLACED,
    MACHTRACE_DLOPEN, /* bind the imports of what it loads */
    MACHTRACE_DLCLOSE, /* begin an era */
    MACHTRACE_DLSYM,   /* return the stub of a watched function: Linux */
    MACHTRACE_DLVSYM,
    MACHTRACE_ENDS, /* store what was recorded before the process ends, or is replaced: Linux */
    MACHTRACE_REPLACEMENTS
};

/* How the loader binds an import at its first call, Linux: see linux/late_slots.c. */
struct machtrace_late {
    uint64_t first, second; /* what its resolver expects: linux/stubs.S */
    uint64_t resolver;
    _Atomic uint64_t likely; /* the function, as far as it is known before; or 0 */
};

/* What a stub does. Never changes once `target` is set, but that the loader stores the target that a
 * late one has not yet: MACHTRACE_NOT_BOUND. */
#define MACHTRACE_NOT_BOUND 1
struct machtrace_binding {
    _Atomic uint64_t target; /* set last */
    _Atomic(const struct machtrace_late *) late; /* or NULL */
    uint16_t rule;           /* or MACHTRACE_NO_RULE */
    uint16_t replacement;
};

extern struct machtrace_watched machtrace_rules[MACHTRACE_RULES_MAX];
extern _Atomic uint32_t machtrace_rule_count;
extern _Atomic uint32_t machtrace_rules_version; /* changes with every change of a rule */
extern struct machtrace_binding machtrace_bindings[MACHTRACE_STUBS];

/* Not 0 while calls are recorded. On a page that is cleared in the child of a fork. */
extern _Atomic uint32_t *machtrace_recording;

/* The first stub, and those behind it at distances of MACHTRACE_STUB_SIZE. */
extern const unsigned char machtrace_stubs[];

/* Called by stubs: the address of the function to jump to, or MACHTRACE_NOT_BOUND. `arguments` are the
 * first six integer arguments or more, in their order on aarch64, and in the reverse on x86-64. */
uint64_t machtrace_hook_entry(uint32_t stub, uint64_t caller, uint64_t sp, uint64_t fp,
                              const uint64_t *arguments);

/* Called by stubs whose function is not bound. */
const struct machtrace_late *machtrace_late_of(uint32_t stub);

/* The binding of a function for a rule, a new one if needed; -1 if all stubs are taken. Takes no lock;
 * threads that come at once may make two. */
int machtrace_bind(uint16_t rule, uint64_t target, enum machtrace_replacement replacement);

/* A new binding of a function that the loader binds at the first call. */
int machtrace_bind_late(uint16_t rule, const struct machtrace_late *late,
                        enum machtrace_replacement replacement);

/* The number of the stub at an address; -1 if there is none. */
int machtrace_stub_at(uint64_t address);

/* The rule of a function, a new one if needed, without effect yet; -1 if there are too many or the
 * name has no length that a name has. By one thread at a time. */
int machtrace_add_rule(const char *symbol, uint32_t flags);

/* The calls of no rule are recorded until it is added again. */
void machtrace_deactivate_rules(void);

/* --- import slots: linux/imports.c --- */

struct machtrace_imports_result {
    uint64_t changed; /* slots */
    uint64_t left;    /* slots that something else has changed since, and that were left */
    uint64_t unbound; /* slots that are not bound, and cannot be hooked so */
    const struct machtrace_agent_image *unbound_image; /* of one of them */
};

/* Let binding have an effect, until the slots are restored. */
void machtrace_enable_imports(void);

/* Let the slots of all images lead to stubs, where that is not done for these rules yet. */
void machtrace_bind_imports(struct machtrace_imports_result *result);

/* Store what every slot had before. Nothing is bound any more then. */
void machtrace_restore_imports(struct machtrace_imports_result *result);

/* Whether images were loaded whose imports could not be bound at once. */
extern _Atomic bool machtrace_imports_are_pending;

void machtrace_imports_after_fork(void);

/* The function to call instead: that itself where it depends on the image that calls. `arguments` are
 * the first three. */
uint64_t machtrace_replacement_of(const struct machtrace_binding *binding,
                                  const uint64_t arguments[3], uint64_t caller);

#endif
