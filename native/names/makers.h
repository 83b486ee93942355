/* How pieces of a demangled C++ name are put together. */
#ifndef MACHTRACE_NAMES_MAKERS_H
#define MACHTRACE_NAMES_MAKERS_H

#include "names/pieces.h"

#define MAKER(name)                                                                       \
    const struct piece *name(struct arena *arena, const struct piece *const *parts, uint32_t count, \
                             const void *extra)

/* Parts of a function's type besides its result and parameters. */
struct function_tail {
    struct text qualifiers, exception;
};

/* Parts of a function's encoding besides its name, result and parameters. */
struct encoding_tail {
    struct text qualifiers;
    int has_result;
};

/* An operator; the levels of precedence are those of Precedence in demangler/itanium/nodes.py. */
enum precedence { PRIMARY, UNARY = 2, CAST, OR_IF = 15, ASSIGN = 17, COMMA };

struct operation {
    struct text symbol;
    uint8_t precedence;
    uint8_t is_enclosed; /* in parentheses, as its > would end a list */
};

MAKER(machtrace_make_pointer);
MAKER(machtrace_make_reference);         /* extra: how many &, a uint8_t */
MAKER(machtrace_make_suffixed);          /* extra: a text */
MAKER(machtrace_make_qualified);         /* extra: a text */
MAKER(machtrace_make_prefixed);          /* extra: a text */
MAKER(machtrace_make_function);          /* extra: a function_tail */
MAKER(machtrace_make_array);             /* extra: a text, the dimension */
MAKER(machtrace_make_vector);            /* extra: a text, the dimension */
MAKER(machtrace_make_pointer_to_member); /* parts: the class, the member */
MAKER(machtrace_make_scoped);
MAKER(machtrace_make_adjacent);
MAKER(machtrace_make_arguments);
MAKER(machtrace_make_folded_arguments);
MAKER(machtrace_make_with_arguments);
MAKER(machtrace_make_list);
MAKER(machtrace_make_constructor);
MAKER(machtrace_make_destructor);
MAKER(machtrace_make_encoding); /* extra: an encoding_tail */
MAKER(machtrace_make_lambda);   /* extra: a text: its number */
MAKER(machtrace_make_cast);     /* extra: a text, the value */
MAKER(machtrace_make_construction_vtable);
MAKER(machtrace_make_prefix); /* extra: an operation */
MAKER(machtrace_make_binary); /* extra: an operation */
MAKER(machtrace_make_applied); /* extra: an operation: its symbol, the part in parentheses */

#endif
