/* machtrace._native._mapping: files mapped into memory, without an open descriptor. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <sys/mman.h>

#include "common/module.h"

typedef struct {
    PyObject_HEAD
    void *start;
    size_t size;
} FileMapping;

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    FileMapping *mapping = (FileMapping *)self;
    return PyBuffer_FillInfo(view, self, mapping->start, (Py_ssize_t)mapping->size, 1, flags);
}

/* Views hold a reference, so none exists any more. */
static void deallocate(PyObject *self)
{
    FileMapping *mapping = (FileMapping *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (mapping->start != NULL)
        munmap(mapping->start, mapping->size);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyType_Slot mapping_slots[] = {
    {Py_bf_getbuffer, (void *)get_buffer},
    {Py_tp_dealloc, (void *)deallocate},
    {Py_tp_doc, (void *)PyDoc_STR("The bytes of a file, read on access.")},
    {0, NULL},
};

static PyType_Spec mapping_spec = {
    .name = "machtrace._native._mapping.FileMapping",
    .basicsize = sizeof(FileMapping),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = mapping_slots,
};

static PyObject *map_file(PyObject *module, PyObject *arguments)
{
    int descriptor;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "in:map_file", &descriptor, &size))
        return NULL;
    if (size <= 0) {
        PyErr_SetString(PyExc_ValueError, "cannot map an empty file");
        return NULL;
    }
    PyTypeObject *type = *(PyTypeObject **)PyModule_GetState(module);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    FileMapping *mapping = (FileMapping *)allocate(type, 0); /* all zero */
    if (mapping == NULL)
        return NULL;
    void *start;
    Py_BEGIN_ALLOW_THREADS
    start = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, descriptor, 0);
    Py_END_ALLOW_THREADS
    if (start == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError); /* before anything else changes it */
        Py_DECREF(mapping);
        return NULL;
    }
    mapping->start = start;
    mapping->size = (size_t)size;
    return (PyObject *)mapping;
}

static PyMethodDef methods[] = {
    {"map_file", map_file, METH_VARARGS,
     PyDoc_STR("map_file(descriptor, size, /)\n--\n\n"
               "Map the first bytes of an open file; it may be closed then.")},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module)
{
    PyTypeObject **type = PyModule_GetState(module);
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &mapping_spec, NULL);
    return *type == NULL ? -1 : 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    PyTypeObject **type = PyModule_GetState(module);
    Py_VISIT(*type);
    return 0;
}

static int clear(PyObject *module)
{
    PyTypeObject **type = PyModule_GetState(module);
    Py_CLEAR(*type);
    return 0;
}

MACHTRACE_MODULE(_mapping, prepare, "Files mapped into memory, without keeping a descriptor.",
                 .m_size = sizeof(PyTypeObject *), .m_methods = methods, .m_traverse = traverse,
                 .m_clear = clear)
