/* machtrace._native._ptrace: the Python side of ptrace.h, and no more.
 *
 * Built against the limited API of 3.11, so that one binary serves every later
 * version. The module has no state.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdlib.h>

#include "ptrace/ptrace.h"
#include "common/module_slots.h"

/* (id, outcome, errno, uninterruptible, registers, stacks, asked, stopped, resumed) */
static PyObject *thread_as_tuple(const struct machtrace_thread *thread)
{
    PyObject *stacks = PyTuple_New((Py_ssize_t)thread->stack_count);
    if (stacks == NULL)
        return NULL;
    for (size_t index = 0; index < thread->stack_count; index++) {
        const struct machtrace_stack *stack = &thread->stacks[index];
        PyObject *pair = Py_BuildValue("(Ky#)", (unsigned long long)stack->start,
                                       stack->bytes == NULL ? "" : (const char *)stack->bytes,
                                       (Py_ssize_t)stack->size);
        if (pair == NULL || PyTuple_SetItem(stacks, (Py_ssize_t)index, pair) != 0) {
            Py_DECREF(stacks);
            return NULL;
        }
    }
    return Py_BuildValue("(iiiiy#NLLL)", (int)thread->id, (int)thread->outcome, thread->error,
                         (int)thread->uninterruptible, (const char *)thread->registers,
                         (Py_ssize_t)thread->registers_size, stacks, (long long)thread->asked_at,
                         (long long)thread->stopped_at, (long long)thread->resumed_at);
}

static PyObject *all_as_list(const struct machtrace_capture *capture)
{
    PyObject *list = PyList_New((Py_ssize_t)capture->thread_count);
    if (list == NULL)
        return NULL;
    for (size_t index = 0; index < capture->thread_count; index++) {
        PyObject *item = thread_as_tuple(&capture->threads[index]);
        if (item == NULL || PyList_SetItem(list, (Py_ssize_t)index, item) != 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static int take_ids(PyObject *ids, struct machtrace_capture *capture)
{
    Py_ssize_t count = PyTuple_Size(ids);
    if (count < 0)
        return -1;
    capture->threads = calloc(count > 0 ? (size_t)count : 1, sizeof *capture->threads);
    if (capture->threads == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    capture->thread_count = (size_t)count;
    for (Py_ssize_t index = 0; index < count; index++) {
        long id = PyLong_AsLong(PyTuple_GetItem(ids, index));
        if (PyErr_Occurred())
            return -1;
        /* Zero and below would mean process groups to waitid. */
        if (id <= 0 || id > INT32_MAX) {
            PyErr_SetString(PyExc_ValueError, "a thread id is a positive 32-bit integer");
            return -1;
        }
        capture->threads[index].id = (pid_t)id;
    }
    return 0;
}

static PyObject *run(struct machtrace_capture *capture)
{
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = machtrace_capture_run(capture);
    Py_END_ALLOW_THREADS
    if (error != 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    PyObject *list = all_as_list(capture);
    machtrace_capture_release(capture);
    return list;
}

static PyObject *copy_threads(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *ids;
    Py_buffer mappings;
    unsigned long long stack_limit;
    long long stop_limit;
    long long sleep_limit;
    if (!PyArg_ParseTuple(arguments, "O!y*KLL:copy_threads", &PyTuple_Type, &ids, &mappings,
                          &stack_limit, &stop_limit, &sleep_limit))
        return NULL;
    struct machtrace_capture capture = {
        .mappings = mappings.buf,
        .mapping_count = (size_t)mappings.len / sizeof *capture.mappings,
        .stack_limit = (size_t)stack_limit,
        .stop_limit = stop_limit,
        .sleep_limit = sleep_limit,
    };
    PyObject *result = NULL;
    if (stack_limit > (1ULL << 40))
        PyErr_SetString(PyExc_ValueError, "the stack limit exceeds a terabyte");
    else if (take_ids(ids, &capture) == 0)
        result = run(&capture);
    free(capture.threads);
    PyBuffer_Release(&mappings);
    return result;
}

PyDoc_STRVAR(copy_threads_doc,
             "copy_threads(threads, mappings, stack_limit, stop_limit_ns, sleep_limit_ns, /)\n"
             "--\n\n"
             "Copy threads of another process, each stopped only for its own copy.");

static PyMethodDef methods[] = {
    {"copy_threads", copy_threads, METH_VARARGS, copy_threads_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    MACHTRACE_GIL_SLOT
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_ptrace",
    .m_doc = "Stop, copy, resume: threads of other Linux processes.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__ptrace(void);

PyMODINIT_FUNC PyInit__ptrace(void)
{
    return PyModuleDef_Init(&definition);
}
