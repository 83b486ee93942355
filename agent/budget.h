/* How many stacks are taken at each call site, of functions that are called very often.
 *
 * A site is the address that a call returns to, with the rule and the state of the app. It has a token
 * bucket: MACHTRACE_BUDGET_BURST stacks at once, and as many a second. A call whose site has no token
 * is counted with that site, exactly. Tokens are counted from the begin for all sites together, by the
 * agent's thread; so a hook reads no clock. No lock is taken, and any thread may come here.
 */
#ifndef MACHTRACE_AGENT_BUDGET_H
#define MACHTRACE_AGENT_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "event.h"
#include "stack_tree.h"

#define MACHTRACE_BUDGET_BURST 20 /* stacks; the tokens of a second, too */
#define MACHTRACE_BUDGET_SITES 8192

struct machtrace_site {
    _Atomic uint64_t key;   /* 1 << 63 | rule with its state << 32 | node; 0 for a free one */
    _Atomic uint64_t spent; /* the tokens of the begin up to this number are no longer there */
    _Atomic uint64_t calls; /* without a stack, since they were taken */
};

struct machtrace_budget {
    _Atomic uint64_t tokens; /* that a site ever had */
    _Atomic bool has_some;   /* sites with calls */
    uint64_t began;          /* ns; 0 until the first refill */
    struct machtrace_site shared[MACHTRACE_RULES_MAX]; /* by rule: sites without an entry */
    struct machtrace_site sites[MACHTRACE_BUDGET_SITES];
};

/* The parent of sites' nodes, in the present era. */
#define MACHTRACE_MARK_SITE 2

/* Whether the stack of a call is to be taken; else the call was counted, with the node of its caller
 * below MACHTRACE_MARK_SITE. Sites for which the tree or the table has no room share the bucket of
 * their rule; their calls are counted without a node. */
bool machtrace_budget_take(struct machtrace_budget *budget, struct machtrace_stack_tree *tree,
                           uint32_t root, uint16_t rule, uint64_t caller);

/* Let sites have the tokens of this time, which never decreases. By one thread. */
void machtrace_budget_refill(struct machtrace_budget *budget, uint64_t ns);

/* Pass the calls that were counted since the last time, and forget them; node 0 if the site is unknown.
 * By one thread. */
void machtrace_budget_drain(struct machtrace_budget *budget,
                            void (*each)(void *data, uint16_t rule, uint32_t node, uint64_t calls),
                            void *data);

/* Forget all sites; each has a whole burst. Nothing is recorded meanwhile. */
void machtrace_budget_clear(struct machtrace_budget *budget);

#endif
