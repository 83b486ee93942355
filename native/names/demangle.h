/* C++ names mangled after the Itanium C++ ABI: the common parts of the grammar. The specification,
 * machtrace/demangler/itanium, parses all of it. */
#ifndef MACHTRACE_NAMES_DEMANGLE_H
#define MACHTRACE_NAMES_DEMANGLE_H

#include <stddef.h>

/* The name as people write it, to be freed by free(), its length in *length; NULL if the name is
 * not of these parts of the grammar, is too much for the limits, or there is no memory. */
char *machtrace_cplusplus_name(const char *mangled, size_t size, int simplified, size_t *length);

#endif
