/* Slots that all modules of this package have; include it after Python.h. */
#ifndef MACHTRACE_MODULE_SLOTS_H
#define MACHTRACE_MODULE_SLOTS_H

/* The slot by which a module declares that it needs no interpreter's lock, for a free-threaded
 * interpreter, which has no limited API yet; elsewhere nothing. */
#if !defined(Py_LIMITED_API) && PY_VERSION_HEX >= 0x030D0000
#define MACHTRACE_GIL_SLOT {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#else
#define MACHTRACE_GIL_SLOT
#endif

#endif
