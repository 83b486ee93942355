/* Series: the Python side of inprocess/core/series.h, and no more. */
#include "inprocess/objects.h"

#include <errno.h>

#include "inprocess/core/series.h"
#ifdef __linux__
#include "inprocess/core/linux/shared.h"
#endif

#define TEXT_MAX (UINT64_C(1) << 26) /* reserved, and used as far as there are mappings */
#define ROOM_MIN (UINT64_C(1) << 20)
#define MAX_SIZE (UINT64_C(1) << 32)

struct own_series {
    PyObject_HEAD
    struct machtrace_series *series; /* NULL only during creation */
};

static PyObject *new_own_series(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"interval_ns", "stack_limit", "answer_limit_ns", "sleep_limit_ns",
                            "signal",      "together",    "room",            NULL};
    long long interval, answer_limit, sleep_limit;
    unsigned long long stack_limit, room;
    int signal, together;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "LKLLipK:Series", names, &interval,
                                     &stack_limit, &answer_limit, &sleep_limit, &signal, &together,
                                     &room))
        return NULL;
    if (interval <= 0 || stack_limit > MAX_SIZE || room < ROOM_MIN || room > MAX_SIZE) {
        PyErr_SetString(PyExc_ValueError, "invalid interval, stack limit or room");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct own_series *self = (struct own_series *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    struct machtrace_series_options options = {
        .interval = interval,
        .stack_limit = (size_t)stack_limit,
        .answer_limit = answer_limit,
        .sleep_limit = sleep_limit,
        .together = together != 0,
        .signal = signal,
        .room = (size_t)room,
        .text_most = (size_t)TEXT_MAX,
#ifdef __linux__
        .mappings = machtrace_inprocess_mappings,
        .prepare_thread = machtrace_inprocess_short_turns,
#endif
    };
    int error;
    Py_BEGIN_ALLOW_THREADS
    self->series = machtrace_series_start(&options, &error);
    Py_END_ALLOW_THREADS
    if (self->series == NULL) {
        Py_DECREF((PyObject *)self);
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return (PyObject *)self;
}

static void dealloc(PyObject *object)
{
    struct own_series *self = (struct own_series *)object;
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    if (self->series != NULL) {
        Py_BEGIN_ALLOW_THREADS
        machtrace_series_free(self->series);
        Py_END_ALLOW_THREADS
    }
    release(object);
    Py_DECREF(type);
}

/* The interpreter's lock is held, which excludes other callers of take. */
static PyObject *take(PyObject *object, PyObject *arguments)
{
    struct machtrace_series *series = ((struct own_series *)object)->series;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(arguments, "n:take", &most))
        return NULL;
    size_t size = machtrace_series_waiting(series, most < 0 ? SIZE_MAX : (size_t)most);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (bytes != NULL)
        machtrace_series_take(series, (unsigned char *)PyBytes_AsString(bytes), size);
    return bytes;
}

static PyObject *counts(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct machtrace_series_counts all =
        machtrace_series_count(((struct own_series *)object)->series);
    return Py_BuildValue("(KKKKi)", (unsigned long long)all.captures, (unsigned long long)all.late,
                         (unsigned long long)all.lost, (unsigned long long)all.refused,
                         (int)all.error);
}

static PyObject *stop(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct machtrace_series *series = ((struct own_series *)object)->series;
    Py_BEGIN_ALLOW_THREADS
    machtrace_series_stop(series);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"take", take, METH_VARARGS,
     PyDoc_STR("take(most, /)\n--\n\n"
               "Take the oldest records, `most` bytes at most (-1: all); their format is in "
               "inprocess/core/series.h.")},
    {"counts", counts, METH_NOARGS,
     PyDoc_STR("counts()\n--\n\nReturn how many captures were stored, late, lost and refused; and "
               "an errno.")},
    {"stop", stop, METH_NOARGS,
     PyDoc_STR("stop()\n--\n\nStop capturing; records can still be taken.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_own_series},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc,
     (void *)PyDoc_STR("Series(interval_ns, stack_limit, answer_limit_ns, sleep_limit_ns, signal, "
                       "together, room)\n--\n\nCapture all threads at a rate, without Python.")},
    {0, NULL},
};

PyType_Spec machtrace_inprocess_series_spec = {
    .name = "machtrace._native._inprocess.Series",
    .basicsize = sizeof(struct own_series),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
