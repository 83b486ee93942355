/* machtrace._native._inprocess: the Python side of inprocess/core/capture.h, and no more.
 *
 * Built against the limited API of 3.11. The module has no state except the buffers that threads
 * are copied to, which the next capture reuses.
 */
#include "inprocess/objects.h"

#include <errno.h>
#include <sys/mman.h>

#include "inprocess/core/capture.h"
#include "common/module.h"
#include "common/thread_rows.h"
#include "inprocess/core/batches.h"

#define BATCH 16 /* threads that are signalled at a time */
#define RED_ZONE 128
#define LIMIT_MAX (UINT64_C(1) << 32)

/* Used between machtrace_inprocess_begin and machtrace_inprocess_end only. */
static struct machtrace_inprocess_buffers buffers;

static void keep(struct machtrace_thread *thread, void *unused)
{
    (void)unused;
    machtrace_thread_keep(thread);
}

static int run(const struct machtrace_inprocess_capture *all, int signal)
{
    int error = machtrace_inprocess_begin(signal);
    if (error != 0)
        return error;
    size_t batch = all->together ? MACHTRACE_INPROCESS_THREADS_MAX : BATCH;
    if (batch > all->thread_count)
        batch = all->thread_count;
    error = batch == 0 ? 0 : machtrace_inprocess_buffers_have(&buffers, batch, all->stack_limit);
    if (error == 0)
        machtrace_inprocess_copy_all(&buffers, all, keep, NULL);
    machtrace_inprocess_end();
    return error;
}

static int take_ids(PyObject *ids, struct machtrace_inprocess_capture *capture)
{
    if (machtrace_threads_of(ids, &capture->threads, &capture->thread_count) != 0)
        return -1;
    for (size_t index = 0; index < capture->thread_count; index++) {
        unsigned long long id = PyLong_AsUnsignedLongLong(PyTuple_GetItem(ids, (Py_ssize_t)index));
        if (PyErr_Occurred())
            return -1;
        if (id == 0 || id > INT32_MAX || id == machtrace_inprocess_id()) {
            PyErr_SetString(PyExc_ValueError, "not the id of another thread");
            return -1;
        }
        capture->threads[index].id = id;
    }
    return 0;
}

static void free_capture(struct machtrace_inprocess_capture *capture)
{
    for (size_t index = 0; capture->threads != NULL && index < capture->thread_count; index++)
        machtrace_thread_release(&capture->threads[index]);
    free(capture->threads);
}

static PyObject *failed_to_begin(int error)
{
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* The threads and their Python frames, of one moment: the interpreter's lock is held from before
 * the frames are requested until they are stored, and nothing is collected. */
static PyObject *run_locked(struct machtrace_inprocess_capture *capture, int signal,
                            PyObject *current_frames)
{
    int was_collecting = PyGC_Disable();
    PyObject *frames = PyObject_CallObject(current_frames, NULL);
    PyObject *chains = NULL, *result = NULL;
    if (frames != NULL && PyDict_Check(frames)) {
        int error = run(capture, signal);
        if (error != 0)
            failed_to_begin(error);
        else
            chains = machtrace_python_frames(frames);
    } else if (frames != NULL) {
        PyErr_SetString(PyExc_TypeError, "frames are in a dictionary");
    }
    if (was_collecting)
        PyGC_Enable();
    if (chains != NULL) {
        PyObject *rows = machtrace_thread_rows(capture->threads, capture->thread_count);
        result = rows == NULL ? NULL : Py_BuildValue("(NO)", rows, chains);
    }
    Py_XDECREF(chains);
    Py_XDECREF(frames); /* last: destructors may run any code */
    return result;
}

static PyObject *copy_threads(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *ids;
    Py_buffer ranges;
    unsigned long long stack_limit;
    long long answer_limit;
    long long sleep_limit;
    int signal, together;
    PyObject *current_frames;
    if (!PyArg_ParseTuple(arguments, "O!y*KLLipO:copy_threads", &PyTuple_Type, &ids, &ranges,
                          &stack_limit, &answer_limit, &sleep_limit, &signal, &together,
                          &current_frames))
        return NULL;
    struct machtrace_inprocess_capture capture = {
        .ranges = ranges.buf,
        .range_count = (size_t)ranges.len / sizeof *capture.ranges,
        .stack_limit = (size_t)stack_limit,
        .answer_limit = answer_limit,
        .sleep_limit = sleep_limit,
        .together = together != 0,
    };
    PyObject *result = NULL;
    if (stack_limit > LIMIT_MAX) {
        PyErr_SetString(PyExc_ValueError, "the stack limit exceeds four gigabytes");
    } else if (take_ids(ids, &capture) == 0) {
        if (current_frames != Py_None) {
            result = run_locked(&capture, signal, current_frames);
        } else {
            int error;
            Py_BEGIN_ALLOW_THREADS
            error = run(&capture, signal);
            Py_END_ALLOW_THREADS
            PyObject *rows = error != 0 ? failed_to_begin(error)
                                        : machtrace_thread_rows(capture.threads,
                                                                capture.thread_count);
            result = rows == NULL ? NULL : Py_BuildValue("(N{})", rows);
        }
    }
    free_capture(&capture);
    PyBuffer_Release(&ranges);
    return result;
}

static PyObject *copy_here(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer ranges;
    unsigned long long stack_limit;
    if (!PyArg_ParseTuple(arguments, "y*K:copy_here", &ranges, &stack_limit))
        return NULL;
    struct machtrace_inprocess_capture capture = {
        .ranges = ranges.buf,
        .range_count = (size_t)ranges.len / sizeof *capture.ranges,
        .stack_limit = (size_t)stack_limit,
    };
    struct machtrace_thread thread = {.id = machtrace_inprocess_id()};
    PyObject *result = NULL;
    if (stack_limit > LIMIT_MAX) {
        PyErr_SetString(PyExc_ValueError, "the stack limit exceeds four gigabytes");
    } else {
        thread.room = 2 * ((size_t)stack_limit + RED_ZONE);
        void *bytes =
            mmap(NULL, thread.room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
        if (bytes == MAP_FAILED) {
            PyErr_NoMemory();
        } else {
            thread.buffer = bytes;
            machtrace_inprocess_copy_here(&capture, &thread);
            result = machtrace_thread_row(&thread);
            munmap(bytes, thread.room);
        }
    }
    PyBuffer_Release(&ranges);
    return result;
}

static PyObject *list_threads(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    uint64_t ids[4096];
    const size_t room = sizeof ids / sizeof *ids;
    int64_t count = machtrace_inprocess_list(ids, room);
    if (count < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    size_t known = (size_t)count < room ? (size_t)count : room;
    PyObject *tuple = PyTuple_New((Py_ssize_t)known);
    for (size_t index = 0; tuple != NULL && index < known; index++) {
        PyObject *id = PyLong_FromUnsignedLongLong(ids[index]);
        if (id == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)index, id) != 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *own_image(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    struct machtrace_range range = machtrace_inprocess_image();
    return Py_BuildValue("(KK)", (unsigned long long)range.start, (unsigned long long)range.end);
}

uint64_t machtrace_image_changes(void)
{
    uint64_t changes;
    if (!machtrace_inprocess_image_changes_may_wait())
        return machtrace_inprocess_image_changes();
    Py_BEGIN_ALLOW_THREADS
    changes = machtrace_inprocess_image_changes();
    Py_END_ALLOW_THREADS
    return changes;
}

static PyObject *image_changes(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromUnsignedLongLong(machtrace_image_changes());
}

static PyObject *signal_in_use(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong(machtrace_inprocess_signal());
}

static PyMethodDef methods[] = {
    {"copy_threads", copy_threads, METH_VARARGS,
     PyDoc_STR(
         "copy_threads(threads, ranges, stack_limit, answer_limit_ns, sleep_limit_ns, "
         "signal, together, current_frames, /)\n--\n\n"
         "Copy other threads of this process, with sys._current_frames their Python frames too.")},
    {"copy_here", copy_here, METH_VARARGS,
     PyDoc_STR("copy_here(ranges, stack_limit, /)\n--\n\nCopy the calling thread.")},
    {"list_threads", list_threads, METH_NOARGS,
     PyDoc_STR("list_threads()\n--\n\nReturn the ids of this process' threads, 4096 at most.")},
    {"read_file", machtrace_read_file, METH_VARARGS,
     PyDoc_STR("read_file(path, /)\n--\n\nRead a file of /proc at once.")},
    {"read_memory", machtrace_read_memory, METH_VARARGS,
     PyDoc_STR("read_memory(address, size, /)\n--\n\nRead this process' memory.")},
    {"own_image", own_image, METH_NOARGS,
     PyDoc_STR("own_image()\n--\n\nReturn this extension's start and end address.")},
#if defined(__APPLE__)
    {"own_images", machtrace_inprocess_images, METH_NOARGS,
     PyDoc_STR("own_images()\n--\n\nReturn the images of this process, as dyld reported them.")},
#endif
#if defined(__linux__)
    {"beacon_state", machtrace_beacon_state, METH_VARARGS,
     PyDoc_STR("beacon_state(thread, /)\n--\n\n"
               "Return since when a thread is busy, and its task; None if it states nothing.")},
    {"beacon_silence", machtrace_beacon_silence, METH_VARARGS,
     PyDoc_STR("beacon_silence(thread, /)\n--\n\nState that a thread has left its loop.")},
#endif
    {"image_changes", image_changes, METH_NOARGS,
     PyDoc_STR(
         "image_changes()\n--\n\nReturn a number that changes with the images of this process.")},
    {"signal_in_use", signal_in_use, METH_NOARGS,
     PyDoc_STR(
         "signal_in_use()\n--\n\nReturn the signal that stops threads; 0 if none is in use yet.")},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    machtrace_image_changes(); /* the first call may wait */
    if (machtrace_add_type(module, &machtrace_inprocess_stacks_spec) != 0)
        return -1;
#if defined(__linux__)
    if (machtrace_add_type(module, &machtrace_inprocess_watchdog_spec) != 0 ||
        machtrace_add_type(module, &machtrace_inprocess_idle_wait_spec) != 0 ||
        machtrace_add_type(module, &machtrace_inprocess_scope_spec) != 0)
        return -1;
#endif
    return machtrace_add_type(module, &machtrace_inprocess_series_spec);
}

MACHTRACE_MODULE(_inprocess, module_exec,
                 "Stop, copy, resume: threads of this process; and the calling thread's own walk.",
                 .m_methods = methods)
