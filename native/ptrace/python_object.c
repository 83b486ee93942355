#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "ptrace/python_object.h"

#include <string.h>

struct python_reader {
    PyObject_HEAD
    struct machtrace_python_reader reader;
};

static void reader_dealloc(PyObject *object)
{
    machtrace_python_release(&((struct python_reader *)object)->reader);
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *reader_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    Py_buffer layout;
    if (keywords != NULL && PyDict_Size(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "PythonReader takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "y*:PythonReader", &layout))
        return NULL;
    struct python_reader *self = NULL;
    if ((size_t)layout.len == sizeof self->reader.layout) {
        allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
        self = (struct python_reader *)allocate(type, 0);
        if (self != NULL)
            memcpy(&self->reader.layout, layout.buf, sizeof self->reader.layout);
    } else {
        PyErr_SetString(PyExc_ValueError, "the layout has another size");
    }
    PyBuffer_Release(&layout);
    return (PyObject *)self;
}

#define ITEMS(array, type) ((const type *)(array).items)

static PyObject *interpreter_row(const struct machtrace_python_reader *reader, size_t index)
{
    const struct machtrace_python_interpreter *interpreter =
        &ITEMS(reader->interpreters, struct machtrace_python_interpreter)[index];
    return Py_BuildValue("(KKKK)", (unsigned long long)interpreter->address,
                         (unsigned long long)interpreter->gil,
                         (unsigned long long)interpreter->gil_holder,
                         (unsigned long long)interpreter->gil_locked);
}

static PyObject *thread_row(const struct machtrace_python_reader *reader, size_t index)
{
    const struct machtrace_python_thread *thread =
        &ITEMS(reader->threads, struct machtrace_python_thread)[index];
    const struct machtrace_python_link *links =
        ITEMS(reader->links, struct machtrace_python_link) + thread->first_link;
    const struct machtrace_python_row *rows =
        ITEMS(reader->rows, struct machtrace_python_row) + thread->first_row;
    return Py_BuildValue(
        "(KKKKKKy#y#)", (unsigned long long)thread->interpreter, (unsigned long long)thread->state,
        (unsigned long long)thread->native_id, (unsigned long long)thread->ident,
        (unsigned long long)thread->error, (unsigned long long)thread->error_address,
        thread->link_count == 0 ? "" : (const char *)links,
        (Py_ssize_t)(thread->link_count * sizeof *links),
        thread->row_count == 0 ? "" : (const char *)rows,
        (Py_ssize_t)(thread->row_count * sizeof *rows));
}

static PyObject *code_row(const struct machtrace_python_reader *reader, size_t index)
{
    const struct machtrace_python_code *code =
        &ITEMS(reader->codes, struct machtrace_python_code)[index];
    const char *texts = reader->texts.items == NULL ? "" : reader->texts.items;
    return Py_BuildValue("(KKKKy#Ky#y#)", (unsigned long long)code->serial,
                         (unsigned long long)code->first_line,
                         (unsigned long long)code->instruction_count,
                         (unsigned long long)code->name.width, texts + code->name.offset,
                         (Py_ssize_t)code->name.size, (unsigned long long)code->file.width,
                         texts + code->file.offset, (Py_ssize_t)code->file.size,
                         texts + code->lines.offset, (Py_ssize_t)code->lines.size);
}

static PyObject *list_rows(const struct machtrace_python_reader *reader, size_t count,
                           PyObject *(*row_of)(const struct machtrace_python_reader *, size_t))
{
    PyObject *rows = PyList_New((Py_ssize_t)count);
    for (size_t index = 0; rows != NULL && index < count; index++) {
        PyObject *row = row_of(reader, index);
        if (row == NULL || PyList_SetItem(rows, (Py_ssize_t)index, row) != 0)
            Py_CLEAR(rows);
    }
    return rows;
}

static PyObject *reader_copied(PyObject *object, PyObject *unused)
{
    (void)unused;
    const struct machtrace_python_reader *reader = &((struct python_reader *)object)->reader;
    PyObject *interpreters = list_rows(reader, reader->interpreters.count, interpreter_row);
    PyObject *threads = interpreters == NULL
                            ? NULL
                            : list_rows(reader, reader->threads.count, thread_row);
    PyObject *codes = threads == NULL ? NULL : list_rows(reader, reader->codes.count, code_row);
    if (codes != NULL)
        return Py_BuildValue("(NNNOKK)", interpreters, threads, codes,
                             reader->forgot ? Py_True : Py_False, (unsigned long long)reader->error,
                             (unsigned long long)reader->error_address);
    Py_XDECREF(interpreters);
    Py_XDECREF(threads);
    return NULL;
}

PyDoc_STRVAR(reader_doc, "PythonReader(layout, /)\n--\n\n"
                         "Copies what CPython stores about its threads, of one process.");

static PyMethodDef reader_methods[] = {
    {"copied", reader_copied, METH_NOARGS,
     PyDoc_STR("copied()\n--\n\nReturn the last copy: interpreters, threads, new code, whether "
               "earlier code was forgotten, and the error that ended it.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_new, (void *)reader_new},
    {Py_tp_dealloc, (void *)reader_dealloc},
    {Py_tp_methods, reader_methods},
    {Py_tp_doc, (void *)reader_doc},
    {0, NULL},
};

PyType_Spec machtrace_python_reader_spec = {
    .name = "machtrace._native._ptrace.PythonReader",
    .basicsize = sizeof(struct python_reader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = reader_slots,
};

struct machtrace_python_reader *machtrace_python_reader_of(PyObject *object)
{
    destructor release = (destructor)PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc);
    return release == reader_dealloc ? &((struct python_reader *)object)->reader : NULL;
}
