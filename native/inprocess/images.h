/* The images of this process for Python, where the capture core keeps a list of them: Darwin. */
#ifndef MACHTRACE_OWN_IMAGES_H
#define MACHTRACE_OWN_IMAGES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* A list of (load address, slide, size of __TEXT, CPU type, CPU subtype, UUID or None, path). */
PyObject *machtrace_own_images(PyObject *module, PyObject *unused);

#endif
