/* Shared by the parts of machtrace._native._inprocess. */
#ifndef MACHTRACE_INPROCESS_OBJECTS_H
#define MACHTRACE_INPROCESS_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

extern PyType_Spec machtrace_inprocess_stacks_spec;
extern PyType_Spec machtrace_inprocess_series_spec;
#ifdef __linux__
extern PyType_Spec machtrace_inprocess_watchdog_spec;
extern PyType_Spec machtrace_inprocess_idle_wait_spec;
extern PyType_Spec machtrace_inprocess_scope_spec;
#endif

/* From the result of sys._current_frames: a dictionary from pthread to a list of (code, line,
 * whether the frame began a run of the interpreter's loop: 1, 0, or -1 unknown), innermost first.
 * Runs no Python code as long as nothing is collected meanwhile. */
PyObject *machtrace_python_frames(PyObject *current_frames);

/* machtrace_inprocess_image_changes; where it may wait, with the interpreter's lock released. */
uint64_t machtrace_image_changes(void);

/* Functions of the module: (path) and (address, size) to bytes. */
PyObject *machtrace_read_file(PyObject *module, PyObject *arguments);
PyObject *machtrace_read_memory(PyObject *module, PyObject *arguments);

#ifdef __linux__
/* Functions of the module: (thread). */
PyObject *machtrace_beacon_state(PyObject *module, PyObject *arguments);
PyObject *machtrace_beacon_silence(PyObject *module, PyObject *arguments);
#endif

#ifdef __APPLE__
/* A list of (load address, slide, size of __TEXT, CPU type, CPU subtype, UUID or None, path). */
PyObject *machtrace_inprocess_images(PyObject *module, PyObject *unused);
#endif

#endif
