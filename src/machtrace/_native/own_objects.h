/* What the parts of machtrace._native._self share. */
#ifndef MACHTRACE_OWN_OBJECTS_H
#define MACHTRACE_OWN_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec machtrace_own_stacks_spec;

#endif
