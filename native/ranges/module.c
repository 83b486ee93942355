/* machtrace._native._ranges: the Python side of index.h, function_starts.h, symbol_scan.h
 * and elf_symbol_scan.h.
 *
 * Built against the limited API of 3.11. Columns come and go through the buffer protocol.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "common/module.h"
#include "ranges/elf_symbol_scan.h"
#include "ranges/function_starts.h"
#include "ranges/index.h"
#include "ranges/symbol_scan.h"

#define MAX_ALIASES 4096 /* symbols at one address that are reported */

struct index_object {
    PyObject_HEAD
    struct machtrace_range_index index;
    Py_buffer starts, values; /* obj is NULL if there is none */
};

static int take_column(PyObject *object, Py_buffer *column, int flags, Py_ssize_t size,
                       const char *what)
{
    if (PyObject_GetBuffer(object, column, PyBUF_C_CONTIGUOUS | flags) != 0)
        return -1;
    if (column->itemsize != size || (uintptr_t)column->buf % (uintptr_t)size != 0) {
        PyBuffer_Release(column);
        PyErr_Format(PyExc_ValueError, "%s are of %d bytes each, aligned", what, (int)size);
        return -1;
    }
    return 0;
}

/* --- RangeIndex --- */

static PyObject *index_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"starts", "values", NULL};
    PyObject *starts, *values = Py_None;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|O:RangeIndex", names, &starts,
                                     &values))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct index_object *self = (struct index_object *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    enum machtrace_index_result result;
    size_t count;
    if (take_column(starts, &self->starts, 0, (Py_ssize_t)sizeof(uint64_t), "starts") != 0)
        goto failed;
    count = (size_t)(self->starts.len / (Py_ssize_t)sizeof(uint64_t));
    if (values != Py_None) {
        if (take_column(values, &self->values, 0, (Py_ssize_t)sizeof(int32_t), "values") != 0)
            goto failed;
        if ((size_t)self->values.len != count * sizeof(int32_t)) {
            PyErr_SetString(PyExc_ValueError, "each start has one value");
            goto failed;
        }
    }
    if (count == 0 || count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "1 to 2147483647 ranges can be indexed");
        goto failed;
    }
    Py_BEGIN_ALLOW_THREADS
    result = machtrace_range_index_make(&self->index, self->starts.buf, self->values.buf, count);
    Py_END_ALLOW_THREADS
    if (result == MACHTRACE_INDEX_MADE)
        return (PyObject *)self;
    if (result == MACHTRACE_INDEX_NO_MEMORY)
        PyErr_NoMemory();
    else
        PyErr_SetString(PyExc_ValueError, "the starts do not ascend");
failed:
    Py_DECREF(self);
    return NULL;
}

static void index_dealloc(PyObject *object)
{
    struct index_object *self = (struct index_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    machtrace_range_index_free(&self->index);
    PyBuffer_Release(&self->starts);
    PyBuffer_Release(&self->values);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *index_find(PyObject *object, PyObject *arguments)
{
    /* Nothing changes an index once it is made, so lookups need no lock. */
    struct index_object *self = (struct index_object *)object;
    PyObject *offsets, *answers;
    unsigned long long back;
    if (!PyArg_ParseTuple(arguments, "OOK:find", &offsets, &answers, &back))
        return NULL;
    Py_buffer in, out;
    if (take_column(offsets, &in, 0, (Py_ssize_t)sizeof(uint64_t), "offsets") != 0)
        return NULL;
    if (take_column(answers, &out, PyBUF_WRITABLE, (Py_ssize_t)sizeof(int32_t), "answers") != 0) {
        PyBuffer_Release(&in);
        return NULL;
    }
    size_t count = (size_t)(in.len / (Py_ssize_t)sizeof(uint64_t));
    int fits = (size_t)out.len == count * sizeof(int32_t);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        machtrace_range_index_find(&self->index, in.buf, count, back, out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&in);
    PyBuffer_Release(&out);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "each offset has one answer");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *index_nbytes(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(machtrace_range_index_size(&((struct index_object *)object)->index));
}

static PyMethodDef index_methods[] = {
    {"find", index_find, METH_VARARGS,
     PyDoc_STR("find(offsets, answers, back, /)\n--\n\n"
               "Store for each 64-bit offset, less back, the value of its range, else -1.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef index_properties[] = {
    {"nbytes", index_nbytes, NULL,
     PyDoc_STR("The size of the index in bytes, without its columns."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot index_slots[] = {
    {Py_tp_doc, PyDoc_STR("RangeIndex(starts, values=None)\n--\n\n"
                          "Ranges by their 64-bit starts, with a 32-bit value each or their row.")},
    {Py_tp_new, index_new},
    {Py_tp_dealloc, index_dealloc},
    {Py_tp_methods, index_methods},
    {Py_tp_getset, index_properties},
    {0, NULL},
};

static PyType_Spec index_spec = {
    .name = "machtrace._native._ranges.RangeIndex",
    .basicsize = (int)sizeof(struct index_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = index_slots,
};

/* --- function starts --- */

static PyObject *function_starts(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer table;
    if (!PyArg_ParseTuple(arguments, "y*:function_starts", &table))
        return NULL;
    PyObject *starts = NULL;
    int64_t count = machtrace_function_starts_count(table.buf, (size_t)table.len);
    if (count >= 0 && count <= PY_SSIZE_T_MAX / (int64_t)sizeof(uint64_t)) {
        /* A bytearray's memory is aligned for any item. */
        starts = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)count * (Py_ssize_t)sizeof(uint64_t));
        if (starts != NULL && count != 0 &&
            machtrace_function_starts_decode(table.buf,
                                             (uint64_t *)(void *)PyByteArray_AsString(starts),
                                             (size_t)count) != 0)
            Py_CLEAR(starts);
    }
    PyBuffer_Release(&table);
    if (starts == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return starts;
}

/* --- one answer --- */

static PyObject *function_holding(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer table;
    unsigned long long base, address;
    int is_arm;
    if (!PyArg_ParseTuple(arguments, "y*KpK:function_holding", &table, &base, &is_arm, &address))
        return NULL;
    struct machtrace_function function;
    int result = machtrace_function_holding(table.buf, (size_t)table.len, base, is_arm != 0,
                                            address, &function);
    PyBuffer_Release(&table);
    if (result != 0)
        Py_RETURN_NONE;
    return Py_BuildValue("KK", (unsigned long long)function.start,
                         (unsigned long long)function.next);
}

static PyObject *list_of_rows(const uint32_t *numbers, size_t count)
{
    PyObject *rows = PyList_New(0);
    for (size_t index = 0; rows != NULL && index < count && index < MAX_ALIASES; index++) {
        PyObject *number = PyLong_FromUnsignedLong(numbers[index]);
        if (number == NULL || PyList_Append(rows, number) != 0)
            Py_CLEAR(rows);
        Py_XDECREF(number);
    }
    return rows;
}

static PyObject *symbols_at(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer table, strings, sections;
    unsigned long long base, low, high, address;
    int is_64;
    if (!PyArg_ParseTuple(arguments, "y*y*py*KKKK:symbols_at", &table, &strings, &is_64, &sections,
                          &base, &low, &high, &address))
        return NULL;
    PyObject *result = NULL, *rows = NULL;
    uint32_t *numbers = malloc(MAX_ALIASES * sizeof *numbers);
    if (numbers == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (sections.len != 256) {
        PyErr_SetString(PyExc_ValueError, "256 section numbers are required");
        goto done;
    }
    struct machtrace_symbol_scan scan = {
        .table = table.buf,
        .count = (size_t)table.len / (is_64 ? 16 : 12),
        .is_64 = is_64 != 0,
        .strings = strings.buf,
        .strings_size = (size_t)strings.len,
        .sections = sections.buf,
        .base = base,
        .bounds = {low, high},
    };
    struct machtrace_symbol_span span;
    size_t count = 0;
    bool is_named;
    Py_BEGIN_ALLOW_THREADS
    is_named = machtrace_symbol_at(&scan, address, &span);
    if (is_named)
        count = machtrace_symbols_at(&scan, span.start, numbers, MAX_ALIASES);
    Py_END_ALLOW_THREADS
    if (!is_named) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    rows = list_of_rows(numbers, count);
    if (rows != NULL)
        result = Py_BuildValue("KKN", (unsigned long long)span.start, (unsigned long long)span.end,
                               rows);
done:
    free(numbers);
    PyBuffer_Release(&table);
    PyBuffer_Release(&strings);
    PyBuffer_Release(&sections);
    return result;
}

/* Parse the arguments of both functions; false with an exception. */
static bool take_elf_table(PyObject *arguments, const char *format, struct machtrace_elf_scan *scan,
                           Py_buffer *table, Py_buffer *strings, uint64_t *address)
{
    unsigned long long low, high, at;
    int is_64;
    if (!PyArg_ParseTuple(arguments, format, table, strings, &is_64, &low, &high, &at))
        return false;
    *scan = (struct machtrace_elf_scan){
        .table = table->buf,
        .count = (size_t)table->len / (is_64 ? 24 : 16),
        .is_64 = is_64 != 0,
        .strings = strings->buf,
        .strings_size = (size_t)strings->len,
        .low = low,
        .high = high,
    };
    *address = at;
    return true;
}

static PyObject *elf_symbols_around(PyObject *module, PyObject *arguments)
{
    (void)module;
    struct machtrace_elf_scan scan;
    struct machtrace_elf_neighbours around;
    Py_buffer table, strings;
    uint64_t address;
    if (!take_elf_table(arguments, "y*y*pKKK:elf_symbols_around", &scan, &table, &strings, &address))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    machtrace_elf_symbols_around(&scan, address, &around);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&table);
    PyBuffer_Release(&strings);
    return Py_BuildValue("KKKKK", (unsigned long long)around.last,
                         (unsigned long long)around.last_sized, (unsigned long long)around.next,
                         (unsigned long long)around.next_sized, (unsigned long long)around.reach);
}

static PyObject *elf_symbols_starting(PyObject *module, PyObject *arguments)
{
    (void)module;
    struct machtrace_elf_scan scan;
    Py_buffer table, strings;
    uint64_t start;
    if (!take_elf_table(arguments, "y*y*pKKK:elf_symbols_starting", &scan, &table, &strings, &start))
        return NULL;
    PyObject *rows = NULL;
    uint32_t *numbers = malloc(MAX_ALIASES * sizeof *numbers);
    if (numbers == NULL) {
        PyErr_NoMemory();
    } else {
        size_t count;
        Py_BEGIN_ALLOW_THREADS
        count = machtrace_elf_symbols_starting(&scan, start, numbers, MAX_ALIASES);
        Py_END_ALLOW_THREADS
        rows = list_of_rows(numbers, count);
    }
    free(numbers);
    PyBuffer_Release(&table);
    PyBuffer_Release(&strings);
    return rows;
}

static PyMethodDef methods[] = {
    {"function_starts", function_starts, METH_VARARGS,
     PyDoc_STR("function_starts(table, /)\n--\n\n"
               "Return the starts in LC_FUNCTION_STARTS, 8 bytes each; None if it is malformed.")},
    {"function_holding", function_holding, METH_VARARGS,
     PyDoc_STR("function_holding(table, base, is_arm, address, /)\n--\n\n"
               "Return (start, next start) around an address in LC_FUNCTION_STARTS, or None.")},
    {"symbols_at", symbols_at, METH_VARARGS,
     PyDoc_STR(
         "symbols_at(table, strings, is_64, sections, base, low, high, address, /)\n--\n\n"
         "Return (start, end, rows) of the symbols from low to high that name an address, or\n"
         "None; base is where the image begins.")},
    {"elf_symbols_around", elf_symbols_around, METH_VARARGS,
     PyDoc_STR("elf_symbols_around(table, strings, is_64, low, high, address, /)\n--\n\n"
               "(last, last_sized, next, next_sized, reach): the starts of functions from low to\n"
               "high around an address, and the last end of those up to it.")},
    {"elf_symbols_starting", elf_symbols_starting, METH_VARARGS,
     PyDoc_STR("elf_symbols_starting(table, strings, is_64, low, high, start, /)\n--\n\n"
               "Return the rows of the functions that start there.")},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    return machtrace_add_type(module, &index_spec);
}

MACHTRACE_MODULE(_ranges, module_exec,
                 "Ranges of offsets by the million, and single names from a file's tables.",
                 .m_methods = methods)
