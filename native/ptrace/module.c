/* machtrace._native._ptrace: the Python side of ptrace.h and freeze.h, and no more.
 *
 * Built against the limited API of 3.11, so that one binary serves every later
 * version. The module has no state.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ptrace/freeze.h"
#include "ptrace/idle.h"
#include "ptrace/ptrace.h"
#include "ptrace/python_object.h"
#include "ptrace/stopped.h"
#include "common/module.h"
#include "common/thread_rows.h"

static int parse_id(PyObject *object, pid_t *id)
{
    long value = PyLong_AsLong(object);
    if (PyErr_Occurred())
        return -1;
    /* Zero and below would mean process groups to waitid. */
    if (value <= 0 || value > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a thread id is a positive 32-bit integer");
        return -1;
    }
    *id = (pid_t)value;
    return 0;
}

static int check_stack_limit(unsigned long long limit)
{
    if (limit <= (1ULL << 40))
        return 0;
    PyErr_SetString(PyExc_ValueError, "the stack limit exceeds a terabyte");
    return -1;
}

static int parse_threads(PyObject *ids, struct machtrace_capture *capture)
{
    if (machtrace_threads_of(ids, &capture->threads, &capture->thread_count) != 0)
        return -1;
    for (size_t index = 0; index < capture->thread_count; index++) {
        pid_t id;
        if (parse_id(PyTuple_GetItem(ids, (Py_ssize_t)index), &id) != 0)
            return -1;
        capture->threads[index].id = (uint64_t)id;
    }
    return 0;
}

typedef int capture_function(struct machtrace_capture *capture);

/* A stop lasts as long as its copy: another thread of this process, which would take the processor
 * meanwhile, is left without the interpreter's lock. */
static PyObject *run(struct machtrace_capture *capture, capture_function *copy)
{
    int error;
    if (copy == machtrace_traced_copy_all) {
        error = copy(capture);
    } else {
        Py_BEGIN_ALLOW_THREADS
        error = copy(capture);
        Py_END_ALLOW_THREADS
    }
    if (error != 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    PyObject *list = machtrace_thread_rows(capture->threads, capture->thread_count);
    machtrace_capture_release(capture);
    return list;
}

static PyObject *copied(PyObject *arguments, capture_function *copy)
{
    PyObject *ids;
    Py_buffer mappings;
    unsigned long long stack_limit;
    long long stop_limit;
    long long sleep_limit;
    if (!PyArg_ParseTuple(arguments, "O!y*KLL", &PyTuple_Type, &ids, &mappings,
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
    if (check_stack_limit(stack_limit) == 0 && parse_threads(ids, &capture) == 0)
        result = run(&capture, copy);
    free(capture.threads);
    PyBuffer_Release(&mappings);
    return result;
}

static PyObject *copy_threads(PyObject *module, PyObject *arguments)
{
    (void)module;
    return copied(arguments, machtrace_capture_run);
}

static PyObject *copy_traced(PyObject *module, PyObject *arguments)
{
    (void)module;
    return copied(arguments, machtrace_traced_copy_all);
}

PyDoc_STRVAR(copy_threads_doc,
             "copy_threads(threads, mappings, stack_limit, stop_limit_ns, sleep_limit_ns, /)\n"
             "--\n\n"
             "Copy threads of another process, each stopped only for its own copy.");

/* --- a process that is traced for longer: every call is made by the OS thread that seized it --- */

static PyObject *request(int number, PyObject *arguments)
{
    int thread = 0;
    unsigned long data = 0; /* options, or a signal */
    if (!PyArg_ParseTuple(arguments, "|ik", &thread, &data))
        return NULL;
    if (ptrace(number, thread, NULL, (void *)data) == -1)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

#define REQUEST(name, number)                                                                      \
    static PyObject *name(PyObject *module, PyObject *arguments)                                   \
    {                                                                                              \
        (void)module;                                                                              \
        return request(number, arguments);                                                         \
    }
REQUEST(trace_me, PTRACE_TRACEME)
REQUEST(seize, PTRACE_SEIZE)
REQUEST(interrupt_thread, PTRACE_INTERRUPT)
REQUEST(leave_stopped, PTRACE_LISTEN)
REQUEST(resume_thread, PTRACE_CONT)
REQUEST(detach, PTRACE_DETACH)

/* Stops the thread for as long as its release takes; keeps the interpreter's lock, which would take
 * longer to take again. */
static PyObject *unseize(PyObject *module, PyObject *arguments)
{
    (void)module;
    int thread = 0;
    long long stop_limit;
    if (!PyArg_ParseTuple(arguments, "iL:unseize", &thread, &stop_limit))
        return NULL;
    int signal = 0;
    int error = machtrace_stopped_unseize(thread, stop_limit, &signal);
    if (error == 0)
        return PyLong_FromLong(signal);
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *signal_information(PyObject *module, PyObject *thread)
{
    (void)module;
    pid_t id;
    siginfo_t information = {0};
    if (parse_id(thread, &id) != 0)
        return NULL;
    if (ptrace(PTRACE_GETSIGINFO, id, NULL, &information) == -1)
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyBytes_FromStringAndSize((const char *)&information, sizeof information);
}

/* Children and tracees of other OS threads are left to those: __WNOTHREAD. */
static PyObject *await_event(PyObject *module, PyObject *arguments)
{
    (void)module;
    int waits;
    if (!PyArg_ParseTuple(arguments, "p:await_event", &waits))
        return NULL;
    int status = 0;
    pid_t thread;
    do {
        Py_BEGIN_ALLOW_THREADS
        thread = waitpid(-1, &status, __WALL | __WNOTHREAD | (waits ? 0 : WNOHANG));
        Py_END_ALLOW_THREADS
    } while (thread == -1 && errno == EINTR && PyErr_CheckSignals() == 0);
    if (PyErr_Occurred())
        return NULL;
    if (thread == -1)
        return PyErr_SetFromErrno(PyExc_OSError);
    return Py_BuildValue("(ii)", (int)thread, status);
}

/* --- idle threads --- */

static const char wait_idle_doc[] = PyDoc_STR(
    "wait_idle(threads, clock, cpu_ns, most_cpu_ns, interval_ns, check_ns, until_ns, due_ns, wake,\n"
    "          is_traced, /)\n"
    "--\n\n"
    "Poll threads until one is elsewhere, the clock is most_cpu_ns beyond cpu_ns, a signal\n"
    "arrived, wake is readable, or until until_ns (CLOCK_MONOTONIC); until check_ns if the clock\n"
    "is beyond cpu_ns. The threads have a descriptor of syscall, one of schedstat or -1, and how\n"
    "the first file begins and ends while they are idle. Return when the next poll is due; polls,\n"
    "late polls and the longest delay; when all were idle last, 0 for never; and the second file\n"
    "of each at that time.");

static PyObject *idle_result(const struct machtrace_idle_wait *wait)
{
    PyObject *texts = PyTuple_New((Py_ssize_t)wait->thread_count);
    for (size_t index = 0; texts != NULL && index < wait->thread_count; index++) {
        const struct machtrace_idle_thread *thread = &wait->threads[index];
        PyObject *text = PyBytes_FromStringAndSize(thread->schedules[wait->last],
                                                   (Py_ssize_t)thread->sizes[wait->last]);
        if (text == NULL || PyTuple_SetItem(texts, (Py_ssize_t)index, text) != 0)
            Py_CLEAR(texts);
    }
    if (texts == NULL)
        return NULL;
    return Py_BuildValue("(KKKKKN)", (unsigned long long)wait->due_ns,
                         (unsigned long long)wait->polls, (unsigned long long)wait->late_polls,
                         (unsigned long long)wait->latest_ns, (unsigned long long)wait->at_ns,
                         texts);
}

static PyObject *wait_idle(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *threads;
    int clock, wake, is_traced;
    unsigned long long cpu_ns, most_cpu_ns, interval_ns, check_ns, until_ns, due_ns;
    if (!PyArg_ParseTuple(arguments, "O!iKKKKKKip:wait_idle", &PyTuple_Type, &threads, &clock,
                          &cpu_ns, &most_cpu_ns, &interval_ns, &check_ns, &until_ns, &due_ns,
                          &wake, &is_traced))
        return NULL;
    struct machtrace_idle_wait wait = {
        .thread_count = (size_t)PyTuple_Size(threads),
        .clock = clock,
        .cpu_ns = cpu_ns,
        .most_cpu_ns = most_cpu_ns,
        .interval_ns = interval_ns == 0 ? 1 : interval_ns,
        .check_ns = check_ns,
        .until_ns = until_ns,
        .wake = wake,
        .is_traced = is_traced != 0,
        .due_ns = due_ns,
    };
    wait.threads = calloc(wait.thread_count + 1, sizeof *wait.threads);
    if (wait.threads == NULL)
        return PyErr_NoMemory();
    PyObject *result = NULL;
    for (size_t index = 0; index < wait.thread_count; index++) {
        struct machtrace_idle_thread *thread = &wait.threads[index];
        PyObject *item = PyTuple_GetItem(threads, (Py_ssize_t)index);
        Py_ssize_t head_size, tail_size;
        if (!PyTuple_Check(item)) {
            PyErr_SetString(PyExc_TypeError, "a thread is a tuple");
            goto done;
        }
        if (!PyArg_ParseTuple(item, "iiy#y#", &thread->call, &thread->schedule, &thread->head,
                              &head_size, &thread->tail, &tail_size))
            goto done;
        thread->head_size = (size_t)head_size;
        thread->tail_size = (size_t)tail_size;
    }
    Py_BEGIN_ALLOW_THREADS
    machtrace_wait_idle(&wait);
    Py_END_ALLOW_THREADS
    result = idle_result(&wait);
done:
    free(wait.threads);
    return result;
}

/* --- FrozenProcess --- */

/* The interpreter's lock is held while a process is expected to freeze: to take it again would keep
 * the process frozen until another thread of this one yields it. */
#define FREEZE_WITH_LOCK_NS 10000000
#define FOREVER_NS (INT64_C(1) << 60)

struct frozen_process {
    PyObject_HEAD
    struct machtrace_freeze freeze;
    PyObject *reader; /* of freeze.python, or None */
    pid_t owner; /* the process that froze it: a fork has no tracer to end */
    bool is_frozen;
};

static void resume(struct frozen_process *self)
{
    if (self->is_frozen && self->owner == getpid())
        machtrace_freeze_end(&self->freeze);
    self->is_frozen = false;
}

static void frozen_dealloc(PyObject *object)
{
    struct frozen_process *self = (struct frozen_process *)object;
    resume(self);
    machtrace_freeze_release(&self->freeze);
    Py_XDECREF(self->reader);
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static int parse_wanted(PyObject *ids, struct machtrace_freeze *freeze)
{
    freeze->wants_all = ids == Py_None;
    if (freeze->wants_all)
        return 0;
    Py_ssize_t count = PyTuple_Size(ids);
    if (count < 0)
        return -1;
    freeze->wanted = calloc(count > 0 ? (size_t)count : 1, sizeof *freeze->wanted);
    if (freeze->wanted == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    freeze->wanted_count = (size_t)count;
    for (Py_ssize_t index = 0; index < count; index++)
        if (parse_id(PyTuple_GetItem(ids, index), &freeze->wanted[index]) != 0)
            return -1;
    return 0;
}

static int freeze_process(struct frozen_process *self)
{
    struct machtrace_freeze *freeze = &self->freeze;
    int error = machtrace_freeze_start(freeze);
    if (error == 0) {
        self->is_frozen = true;
        self->owner = getpid();
        if (!machtrace_freeze_await(freeze, FREEZE_WITH_LOCK_NS)) {
            Py_BEGIN_ALLOW_THREADS
            while (!machtrace_freeze_await(freeze, FOREVER_NS))
                continue;
            Py_END_ALLOW_THREADS
        }
        error = freeze->error;
    }
    if (error == 0)
        return 0;
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

static PyObject *frozen_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *ids;
    Py_buffer mappings;
    int task_folder;
    unsigned long long stack_limit;
    long long stop_limit;
    long long sleep_limit;
    PyObject *reader = Py_None;
    int is_brief = 0, is_traced = 0;
    if (keywords != NULL && PyDict_Size(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "FrozenProcess takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "iOy*KLL|Opp:FrozenProcess", &task_folder, &ids, &mappings,
                          &stack_limit, &stop_limit, &sleep_limit, &reader, &is_brief,
                          &is_traced))
        return NULL;
    struct machtrace_python_reader *python =
        reader == Py_None ? NULL : machtrace_python_reader_of(reader);
    if (reader != Py_None && python == NULL) {
        PyErr_SetString(PyExc_TypeError, "expected a PythonReader or None");
        PyBuffer_Release(&mappings);
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct frozen_process *self = (struct frozen_process *)allocate(type, 0);
    if (self != NULL) {
        self->freeze.task_folder = task_folder;
        self->freeze.settings = (struct machtrace_capture){
            .mappings = mappings.buf,
            .mapping_count = (size_t)mappings.len / sizeof *self->freeze.settings.mappings,
            .stack_limit = (size_t)stack_limit,
            .stop_limit = stop_limit,
            .sleep_limit = sleep_limit,
        };
        self->freeze.is_brief = is_brief;
        self->freeze.is_traced = is_traced;
        self->reader = Py_NewRef(reader);
        self->freeze.python = python;
        if (check_stack_limit(stack_limit) != 0 || parse_wanted(ids, &self->freeze) != 0 ||
            freeze_process(self) != 0) {
            Py_DECREF((PyObject *)self);
            self = NULL;
        }
    }
    PyBuffer_Release(&mappings); /* all stacks are copied */
    return (PyObject *)self;
}

/* Keeps the interpreter's lock, see FREEZE_WITH_LOCK_NS. */
static PyObject *frozen_read(PyObject *object, PyObject *arguments)
{
    struct frozen_process *self = (struct frozen_process *)object;
    unsigned long long address;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "Kn:read", &address, &size))
        return NULL;
    if (!self->is_frozen || self->freeze.is_brief || size < 0) {
        PyErr_SetString(PyExc_ValueError,
                        size < 0 ? "the size is negative" : "the process was resumed");
        return NULL;
    }
    pid_t thread = 0;
    for (size_t index = 0; thread == 0 && index < self->freeze.thread_count; index++)
        if (self->freeze.threads[index].is_stopped)
            thread = (pid_t)self->freeze.threads[index].thread.id;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    if (bytes == NULL)
        return NULL;
    struct iovec here = {PyBytes_AsString(bytes), (size_t)size};
    struct iovec there = {(void *)(uintptr_t)address, (size_t)size};
    ssize_t count = thread == 0 ? -1 : process_vm_readv(thread, &here, 1, &there, 1, 0);
    if (count == size)
        return bytes;
    PyObject *part = PyBytes_FromStringAndSize(here.iov_base, count < 0 ? 0 : count);
    Py_DECREF(bytes);
    return part;
}

static PyObject *frozen_resume(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct frozen_process *self = (struct frozen_process *)object;
    resume(self);
    PyObject *rows = PyList_New(0);
    for (size_t index = 0; rows != NULL && index < self->freeze.thread_count; index++) {
        const struct machtrace_frozen_thread *frozen = &self->freeze.threads[index];
        if (!frozen->is_wanted)
            continue;
        PyObject *row = machtrace_thread_row(&frozen->thread);
        if (row == NULL || PyList_Append(rows, row) != 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    return rows;
}

static PyObject *frozen_threads(PyObject *object, void *unused)
{
    (void)unused;
    struct frozen_process *self = (struct frozen_process *)object;
    PyObject *ids = PyList_New(0);
    for (size_t index = 0; ids != NULL && index < self->freeze.thread_count; index++) {
        const struct machtrace_frozen_thread *frozen = &self->freeze.threads[index];
        if (!frozen->is_wanted || frozen->thread.outcome == MACHTRACE_GONE)
            continue;
        PyObject *id = PyLong_FromUnsignedLongLong(frozen->thread.id);
        if (id == NULL || PyList_Append(ids, id) != 0)
            Py_CLEAR(ids);
        Py_XDECREF(id);
    }
    return ids;
}

static PyObject *frozen_is_whole(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((struct frozen_process *)object)->freeze.is_whole);
}

PyDoc_STRVAR(frozen_doc,
             "FrozenProcess(task_folder, threads, mappings, stack_limit, stop_limit_ns, "
             "sleep_limit_ns, reader=None, is_brief=False, is_traced=False, /)\n--\n\n"
             "All threads of another process, stopped together until resume(); if brief, only until "
             "all is copied. If traced, this OS thread has seized all of them, and makes all calls.");

static PyMethodDef frozen_methods[] = {
    {"read", frozen_read, METH_VARARGS,
     PyDoc_STR("read(address, size, /)\n--\n\n"
               "Read memory; fewer bytes, whole pages at the far end, where not all is readable.")},
    {"resume", frozen_resume, METH_NOARGS,
     PyDoc_STR("resume()\n--\n\nResume the process and return its copied threads.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef frozen_properties[] = {
    {"threads", frozen_threads, NULL, PyDoc_STR("Ids of the wanted threads that exist."), NULL},
    {"is_whole", frozen_is_whole, NULL, PyDoc_STR("Whether nothing of the process runs."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot frozen_slots[] = {
    {Py_tp_new, (void *)frozen_new},
    {Py_tp_dealloc, (void *)frozen_dealloc},
    {Py_tp_methods, frozen_methods},
    {Py_tp_getset, frozen_properties},
    {Py_tp_doc, (void *)frozen_doc},
    {0, NULL},
};

static PyType_Spec frozen_spec = {
    .name = "machtrace._native._ptrace.FrozenProcess",
    .basicsize = sizeof(struct frozen_process),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = frozen_slots,
};

/* --- the module --- */

static int module_exec(PyObject *module)
{
    if (machtrace_add_type(module, &machtrace_python_reader_spec) != 0)
        return -1;
    return machtrace_add_type(module, &frozen_spec);
}

static PyObject *copy_stopped(PyObject *module, PyObject *arguments)
{
    (void)module;
    return copied(arguments, machtrace_stopped_copy_all);
}

static PyMethodDef methods[] = {
    {"copy_threads", copy_threads, METH_VARARGS, copy_threads_doc},
    {"copy_traced", copy_traced, METH_VARARGS,
     PyDoc_STR("copy_traced(threads, mappings, stack_limit, stop_limit_ns, sleep_limit_ns, /)\n"
               "--\n\nCopy threads that this OS thread has seized, each stopped only for its own "
               "copy. One that is stopped for another reason stays so, for await_event().")},
    {"copy_stopped", copy_stopped, METH_VARARGS,
     PyDoc_STR("copy_stopped(threads, mappings, stack_limit, stop_limit_ns, sleep_limit_ns, /)\n"
               "--\n\nCopy threads that are stopped already, and leave them stopped.")},
    {"trace_me", trace_me, METH_VARARGS,
     PyDoc_STR("trace_me()\n--\n\nHave the OS thread that forked this process trace it.")},
    {"seize", seize, METH_VARARGS,
     PyDoc_STR("seize(thread, options, /)\n--\n\nTrace a thread, which continues to run.")},
    {"interrupt", interrupt_thread, METH_VARARGS,
     PyDoc_STR("interrupt(thread, /)\n--\n\nRequest a stop, which await_event() reports.")},
    {"listen", leave_stopped, METH_VARARGS,
     PyDoc_STR("listen(thread, /)\n--\n\nLeave a thread in the stop of job control.")},
    {"resume", resume_thread, METH_VARARGS,
     PyDoc_STR("resume(thread, signal, /)\n--\n\nContinue a stopped thread, with a signal or 0.")},
    {"detach", detach, METH_VARARGS,
     PyDoc_STR("detach(thread, signal, /)\n--\n\nRelease a stopped thread, with a signal or 0.")},
    {"unseize", unseize, METH_VARARGS,
     PyDoc_STR("unseize(thread, stop_limit_ns, /)\n--\n\n"
               "Stop and release a seized thread. If a signal stopped it first, return the signal "
               "and leave it stopped; otherwise return 0.")},
    {"signal_information", signal_information, METH_O,
     PyDoc_STR("signal_information(thread, /)\n--\n\nReturn the siginfo_t of a stopped thread.")},
    {"wait_idle", wait_idle, METH_VARARGS, wait_idle_doc},
    {"await_event", await_event, METH_VARARGS,
     PyDoc_STR("await_event(waits, /)\n--\n\n"
               "Return a thread and its wait status; 0 and 0 if nothing happened and it does not "
               "wait.")},
    {NULL, NULL, 0, NULL},
};

MACHTRACE_MODULE(_ptrace, module_exec, "Stop, copy, resume: threads of other Linux processes.",
                 .m_methods = methods)
