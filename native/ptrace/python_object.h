/* machtrace._native._ptrace.PythonReader. Include it after Python.h. */
#ifndef MACHTRACE_PTRACE_PYTHON_OBJECT_H
#define MACHTRACE_PTRACE_PYTHON_OBJECT_H

#include "ptrace/python.h"

extern PyType_Spec machtrace_python_reader_spec;

/* The reader of a PythonReader; NULL if the object is of another type. */
struct machtrace_python_reader *machtrace_python_reader_of(PyObject *object);

#endif
