/* machtrace._native._names: C++ names, read in C. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "names/demangle.h"
#include "common/module.h"

static PyObject *cplusplus_name(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *name;
    int simplified;
    if (!PyArg_ParseTuple(arguments, "Up:cplusplus_name", &name, &simplified))
        return NULL;
    Py_ssize_t size;
    const char *mangled = PyUnicode_AsUTF8AndSize(name, &size);
    if (mangled == NULL) {
        PyErr_Clear(); /* a lone surrogate: no text, so no name of a compiler's */
        Py_RETURN_NONE;
    }
    if (size != PyUnicode_GetLength(name) || memchr(mangled, '\0', (size_t)size) != NULL)
        Py_RETURN_NONE; /* not of ASCII, or no symbol's name */
    size_t length;
    char *demangled = machtrace_cplusplus_name(mangled, (size_t)size, simplified, &length);
    if (demangled == NULL)
        Py_RETURN_NONE;
    PyObject *text = PyUnicode_DecodeUTF8(demangled, (Py_ssize_t)length, "strict");
    free(demangled);
    return text;
}

static PyMethodDef methods[] = {
    {"cplusplus_name", cplusplus_name, METH_VARARGS,
     PyDoc_STR("cplusplus_name(mangled, simplified, /)\n--\n\n"
               "Return the demangled name; None if this reader does not support it.")},
    {NULL, NULL, 0, NULL},
};

MACHTRACE_MODULE(_names, machtrace_prepare_nothing, "C++ names, read in C.", .m_methods = methods)
