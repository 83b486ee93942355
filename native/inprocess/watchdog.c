/* Watchdogs and beacons: the Python side of inprocess/core/watchdog.h and beacon.h, and no more. */
#include "inprocess/objects.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "inprocess/core/beacon.h"
#include "inprocess/core/linux/shared.h"
#include "inprocess/core/watchdog.h"

#define TEXT_MAX (UINT64_C(1) << 26) /* reserved, and used as far as there are mappings */
#define ROOM_MIN (UINT64_C(1) << 20)
#define MAX_SIZE (UINT64_C(1) << 32)
#define POLLS_MAX 256 /* copied at a time */

struct own_watchdog {
    PyObject_HEAD
    struct machtrace_watchdog *watchdog; /* NULL only during creation */
};

static struct machtrace_watchdog *of(PyObject *object)
{
    return ((struct own_watchdog *)object)->watchdog;
}

static PyObject *failed(int error)
{
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *start(PyTypeObject *type, struct machtrace_watchdog_options *options,
                       const Py_buffer *layout)
{
    if (layout->len != 0 && (size_t)layout->len != sizeof options->layout) {
        PyErr_SetString(PyExc_ValueError, "the layout has another size");
        return NULL;
    }
    options->has_layout = layout->len != 0;
    if (options->has_layout)
        memcpy(&options->layout, layout->buf, sizeof options->layout);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct own_watchdog *self = (struct own_watchdog *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    self->watchdog = machtrace_watchdog_start(options, &error);
    Py_END_ALLOW_THREADS
    if (self->watchdog == NULL) {
        Py_DECREF((PyObject *)self);
        return failed(error);
    }
    return (PyObject *)self;
}

static PyObject *new_own_watchdog(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"limit_ns", "interval_ns", "stack_limit", "answer_limit_ns",
                            "sleep_limit_ns", "signal", "room", "file", "info", "layout", NULL};
    struct machtrace_watchdog_options options = {.text_most = (size_t)TEXT_MAX};
    long long limit, interval, answer_limit, sleep_limit;
    unsigned long long stack_limit, room;
    Py_buffer info, layout;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "LLKLLiKiy*y*:Watchdog", names, &limit,
                                     &interval, &stack_limit, &answer_limit, &sleep_limit,
                                     &options.signal, &room, &options.file, &info, &layout))
        return NULL;
    PyObject *self = NULL;
    if (limit < 0 || interval <= 0 || stack_limit > MAX_SIZE || room < ROOM_MIN || room > MAX_SIZE ||
        info.len > MACHTRACE_WATCHDOG_INFO) {
        PyErr_SetString(PyExc_ValueError, "invalid limit, interval, stack limit, room or text");
    } else {
        options.limit = limit;
        options.interval = interval;
        options.stack_limit = (size_t)stack_limit;
        options.answer_limit = answer_limit;
        options.sleep_limit = sleep_limit;
        options.room = (size_t)room;
        options.info = info.buf;
        options.info_size = (size_t)info.len;
        self = start(type, &options, &layout);
    }
    PyBuffer_Release(&info);
    PyBuffer_Release(&layout);
    return self;
}

static void dealloc(PyObject *object)
{
    struct machtrace_watchdog *watchdog = of(object);
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    if (watchdog != NULL) {
        Py_BEGIN_ALLOW_THREADS
        machtrace_watchdog_free(watchdog);
        Py_END_ALLOW_THREADS
    }
    release(object);
    Py_DECREF(type);
}

static PyObject *watch(PyObject *object, PyObject *arguments)
{
    unsigned int thread;
    if (!PyArg_ParseTuple(arguments, "I:watch", &thread))
        return NULL;
    int error = machtrace_watchdog_watch(of(object), thread);
    if (error != 0)
        return failed(error);
    Py_RETURN_NONE;
}

static PyObject *unwatch(PyObject *object, PyObject *arguments)
{
    unsigned int thread;
    if (!PyArg_ParseTuple(arguments, "I:unwatch", &thread))
        return NULL;
    machtrace_watchdog_unwatch(of(object), thread);
    Py_RETURN_NONE;
}

static PyObject *add_idle(PyObject *object, PyObject *arguments)
{
    unsigned int thread;
    long long call;
    unsigned long long sp, pc;
    if (!PyArg_ParseTuple(arguments, "ILKK:add_idle", &thread, &call, &sp, &pc))
        return NULL;
    return PyBool_FromLong(machtrace_watchdog_add_idle(of(object), thread, call, sp, pc) == 0);
}

static PyObject *clear_idle(PyObject *object, PyObject *arguments)
{
    unsigned int thread;
    if (!PyArg_ParseTuple(arguments, "I:clear_idle", &thread))
        return NULL;
    machtrace_watchdog_clear_idle(of(object), thread);
    Py_RETURN_NONE;
}

static PyObject *wait_for(PyObject *object, PyObject *arguments)
{
    unsigned int seen;
    long long for_ns;
    if (!PyArg_ParseTuple(arguments, "IL:wait", &seen, &for_ns))
        return NULL;
    struct machtrace_watchdog *watchdog = of(object);
    Py_BEGIN_ALLOW_THREADS
    seen = machtrace_watchdog_wait(watchdog, seen, for_ns < 0 ? 0 : for_ns);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLong(seen);
}

static PyObject *wake(PyObject *object, PyObject *unused)
{
    (void)unused;
    machtrace_watchdog_wake(of(object));
    Py_RETURN_NONE;
}

/* The interpreter's lock is held, which excludes other callers. */
static PyObject *take(PyObject *object, PyObject *unused)
{
    (void)unused;
    size_t size = machtrace_watchdog_waiting(of(object));
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (bytes != NULL)
        machtrace_watchdog_take(of(object), (unsigned char *)PyBytes_AsString(bytes), size);
    return bytes;
}

static PyObject *polls(PyObject *object, PyObject *arguments)
{
    unsigned long long first;
    static struct machtrace_watchdog_poll copied[POLLS_MAX];
    if (!PyArg_ParseTuple(arguments, "K:polls", &first))
        return NULL;
    size_t count = machtrace_watchdog_polls(of(object), first, copied, POLLS_MAX);
    return PyBytes_FromStringAndSize((const char *)copied, (Py_ssize_t)(count * sizeof *copied));
}

static PyObject *counts(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct machtrace_watchdog_counts all = machtrace_watchdog_count(of(object));
    return Py_BuildValue("(KKLLKKLK)", (unsigned long long)all.polls, (unsigned long long)all.late,
                         (long long)all.latest, (long long)all.cpu,
                         (unsigned long long)all.captures, (unsigned long long)all.stops,
                         (long long)all.longest_stop, (unsigned long long)all.lost);
}

static PyObject *stop(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct machtrace_watchdog *watchdog = of(object);
    Py_BEGIN_ALLOW_THREADS
    machtrace_watchdog_stop(watchdog);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"watch", watch, METH_VARARGS, PyDoc_STR("watch(thread, /)\n--\n\nWatch a thread.")},
    {"unwatch", unwatch, METH_VARARGS,
     PyDoc_STR("unwatch(thread, /)\n--\n\nStop watching a thread.")},
    {"add_idle", add_idle, METH_VARARGS,
     PyDoc_STR("add_idle(thread, call, sp, pc, /)\n--\n\n"
               "State that the thread is idle in this call; False if it is not watched.")},
    {"clear_idle", clear_idle, METH_VARARGS,
     PyDoc_STR("clear_idle(thread, /)\n--\n\nForget all idle calls of the thread.")},
    {"wait", wait_for, METH_VARARGS,
     PyDoc_STR("wait(seen, for_ns, /)\n--\n\n"
               "Wait for news, without the interpreter's lock, and return their number.")},
    {"wake", wake, METH_NOARGS, PyDoc_STR("wake()\n--\n\nLet those who wait return.")},
    {"take", take, METH_NOARGS,
     PyDoc_STR("take()\n--\n\nTake the records that were not taken yet; their format is in "
               "inprocess/core/watchdog.h.")},
    {"polls", polls, METH_VARARGS,
     PyDoc_STR("polls(first, /)\n--\n\nCopy recorded polls, from the one of this number on.")},
    {"counts", counts, METH_NOARGS,
     PyDoc_STR("counts()\n--\n\nReturn rounds, late ones, the longest delay, processor time, "
               "captures, stops, the longest stop and lost captures.")},
    {"stop", stop, METH_NOARGS,
     PyDoc_STR("stop()\n--\n\nStop watching; records can still be taken.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_own_watchdog},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc,
     (void *)PyDoc_STR("Watchdog(limit_ns, interval_ns, stack_limit, answer_limit_ns, "
                       "sleep_limit_ns, signal, room, file, info, layout)\n--\n\n"
                       "Watch threads of this process, without Python.")},
    {0, NULL},
};

PyType_Spec machtrace_inprocess_watchdog_spec = {
    .name = "machtrace._native._inprocess.Watchdog",
    .basicsize = sizeof(struct own_watchdog),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

/* --- beacons --- */

/* A function that is an idle wait, such as a selector's select, with a beacon around it. */
struct idle_wait {
    PyObject_HEAD
    PyObject *function;
};

static PyObject *new_idle_wait(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *function;
    if (keywords != NULL && PyDict_Size(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "IdleWait takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "O:IdleWait", &function))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct idle_wait *self = (struct idle_wait *)allocate(type, 0);
    if (self != NULL) {
        Py_INCREF(function);
        self->function = function;
    }
    return (PyObject *)self;
}

static int traverse_idle_wait(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((struct idle_wait *)object)->function);
    return 0;
}

static int clear_idle_wait(PyObject *object)
{
    Py_CLEAR(((struct idle_wait *)object)->function);
    return 0;
}

static void free_idle_wait(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    PyObject_GC_UnTrack(object);
    clear_idle_wait(object);
    release(object);
    Py_DECREF(type);
}

static PyObject *call_idle_wait(PyObject *object, PyObject *arguments, PyObject *keywords)
{
    machtrace_beacon_idle();
    PyObject *result = PyObject_Call(((struct idle_wait *)object)->function, arguments, keywords);
    machtrace_beacon_busy();
    return result;
}

static PyType_Slot idle_wait_slots[] = {
    {Py_tp_new, new_idle_wait},
    {Py_tp_dealloc, free_idle_wait},
    {Py_tp_traverse, traverse_idle_wait},
    {Py_tp_clear, clear_idle_wait},
    {Py_tp_call, call_idle_wait},
    {Py_tp_doc, (void *)PyDoc_STR("IdleWait(function, /)\n--\n\n"
                                  "Calls a function in which the calling thread is idle.")},
    {0, NULL},
};

PyType_Spec machtrace_inprocess_idle_wait_spec = {
    .name = "machtrace._native._inprocess.IdleWait",
    .basicsize = sizeof(struct idle_wait),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = idle_wait_slots,
};

/* (busy since, task) of a thread; None if it states nothing. */
PyObject *machtrace_beacon_state(PyObject *module, PyObject *arguments)
{
    unsigned int thread;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "I:beacon_state", &thread))
        return NULL;
    const struct machtrace_beacon *line = machtrace_beacon_of(thread);
    if (line == NULL)
        Py_RETURN_NONE;
    return Py_BuildValue("(LK)", (long long)atomic_load(&line->busy_since),
                         (unsigned long long)atomic_load(&line->task));
}

/* The thread has left its loop: it states nothing about itself any more. */
PyObject *machtrace_beacon_silence(PyObject *module, PyObject *arguments)
{
    unsigned int thread;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "I:beacon_silence", &thread))
        return NULL;
    struct machtrace_beacon *line = machtrace_beacon_of(thread);
    if (line != NULL)
        atomic_store(&line->busy_since, MACHTRACE_BEACON_SILENT);
    Py_RETURN_NONE;
}

/* --- scopes --- */

struct own_scope {
    PyObject_HEAD
    int64_t limit;
    char label[MACHTRACE_LABEL_SIZE];
    bool is_entered;
    struct machtrace_scope outer;
};

static PyObject *new_scope(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"seconds", "name", NULL};
    double seconds;
    const char *name = "";
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "d|s:deadline", names, &seconds, &name))
        return NULL;
    if (!(seconds > 0 && seconds < 1e9)) {
        PyErr_SetString(PyExc_ValueError, "a deadline is more than 0 and less than 1e9 seconds");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct own_scope *self = (struct own_scope *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->limit = (int64_t)(seconds * 1e9);
    size_t size = strlen(name);
    if (size >= sizeof self->label) {
        size = sizeof self->label - 1;
        while (size > 0 && ((unsigned char)name[size] & 0xc0) == 0x80) /* whole characters */
            size--;
    }
    memcpy(self->label, name, size);
    return (PyObject *)self;
}

static void free_scope(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *enter_scope(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct own_scope *self = (struct own_scope *)object;
    if (self->is_entered) {
        PyErr_SetString(PyExc_RuntimeError, "this deadline's scope was entered already");
        return NULL;
    }
    self->is_entered = true;
    machtrace_scope_enter(&self->outer, self->limit, self->label);
    Py_INCREF(object);
    return object;
}

static PyObject *leave_scope(PyObject *object, PyObject *arguments)
{
    (void)arguments;
    struct own_scope *self = (struct own_scope *)object;
    if (self->is_entered)
        machtrace_scope_leave(&self->outer);
    self->is_entered = false;
    Py_RETURN_NONE;
}

static PyMethodDef scope_methods[] = {
    {"__enter__", enter_scope, METH_NOARGS, NULL},
    {"__exit__", leave_scope, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot scope_slots[] = {
    {Py_tp_new, new_scope},
    {Py_tp_dealloc, free_scope},
    {Py_tp_methods, scope_methods},
    {Py_tp_doc,
     (void *)PyDoc_STR("Scope(seconds, name='')\n--\n\n"
                       "A scope that the calling thread should leave within some seconds.")},
    {0, NULL},
};

PyType_Spec machtrace_inprocess_scope_spec = {
    .name = "machtrace._native._inprocess.Scope",
    .basicsize = sizeof(struct own_scope),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = scope_slots,
};
