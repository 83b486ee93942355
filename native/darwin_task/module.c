/* machtrace._native._darwin_task: the Python side of task.h, and no more.
 *
 * Built against the limited API of 3.11. The module has no state: ports are integers, which
 * machtrace.targets.darwin.task closes. Results of the kernel are returned, not raised:
 * Python interprets them.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/darwin/memory.h"
#include "common/module.h"
#include "common/thread_rows.h"
#include "darwin_task/task.h"

#define LISTED_MAX 16384                      /* threads that are listed */
#define STACK_MAX (UINT64_C(1) << 30)         /* bytes of one */
#define STACKS_MAX (UINT64_C(1) << 32)        /* bytes of all that are copied at a time */
#define PRESENT 32768                          /* bytes a thread, allocated beforehand */
#define READ_MAX (UINT64_C(1) << 30)
#define LONG_READ (UINT64_C(1) << 17)

/* --- processes --- */

static PyObject *process(PyObject *module, PyObject *arguments)
{
    (void)module;
    int pid;
    if (!PyArg_ParseTuple(arguments, "i:process", &pid))
        return NULL;
    struct machtrace_task_process facts;
    int error = machtrace_task_process(pid, &facts);
    if (error != 0)
        return Py_BuildValue("(iO)", error, Py_None);
    return Py_BuildValue("(i(i(III)IIyyiiI))", 0, facts.parent, facts.user, facts.real_user,
                         facts.saved_user, facts.flags, facts.status, facts.name, facts.path,
                         facts.cpu_type, facts.cpu_subtype, facts.code_signing);
}

static PyObject *rights(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    struct machtrace_task_rights facts;
    machtrace_task_rights(&facts);
    return Py_BuildValue("(ILNNii)", facts.user,
                         facts.integrity_known ? (long long)facts.integrity : -1LL,
                         PyBool_FromLong(facts.has_debugger_entitlement),
                         PyBool_FromLong(facts.is_translated), facts.address_bits, facts.cpu_type);
}

static PyObject *open_task(PyObject *module, PyObject *arguments)
{
    (void)module;
    int pid;
    if (!PyArg_ParseTuple(arguments, "i:open_task", &pid))
        return NULL;
    struct machtrace_task_port task;
    Py_BEGIN_ALLOW_THREADS /* a daemon may be queried, which may prompt the user */
    machtrace_task_open(pid, &task);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(Iiiii)", task.port, (int)task.kind, task.read_error, task.control_error,
                         task.name_error);
}

static PyObject *close_task(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned int port;
    if (!PyArg_ParseTuple(arguments, "I:close_task", &port))
        return NULL;
    machtrace_task_close(port);
    Py_RETURN_NONE;
}

/* --- memory --- */

static PyObject *find_region(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned int port;
    unsigned long long address;
    if (!PyArg_ParseTuple(arguments, "IK:find_region", &port, &address))
        return NULL;
    struct machtrace_mach_region region = {0, 0, 0, 0};
    int result = machtrace_mach_find_region(port, address, &region);
    return Py_BuildValue("(iKKiI)", result, (unsigned long long)region.start,
                         (unsigned long long)(region.end - region.start), region.protection,
                         region.tag);
}

/* As much as can be read. */
static PyObject *read_range(unsigned int port, unsigned long long address, unsigned long long size)
{
    if (size > READ_MAX) {
        PyErr_SetString(PyExc_ValueError, "more than a gigabyte is requested");
        return NULL;
    }
    unsigned char *bytes = malloc(size == 0 ? 1 : (size_t)size);
    if (bytes == NULL)
        return PyErr_NoMemory();
    size_t got;
    if (size < LONG_READ) { /* to get the interpreter's lock back may take longer than this does */
        machtrace_mach_read(port, address, bytes, (size_t)size, &got);
    } else {
        Py_BEGIN_ALLOW_THREADS
        machtrace_mach_read(port, address, bytes, (size_t)size, &got);
        Py_END_ALLOW_THREADS
    }
    PyObject *result = PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)got);
    free(bytes);
    return result;
}

static PyObject *read_memory(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned int port;
    PyObject *ranges;
    if (!PyArg_ParseTuple(arguments, "IO!:read_memory", &port, &PyList_Type, &ranges))
        return NULL;
    Py_ssize_t count = PyList_Size(ranges);
    PyObject *chunks = PyList_New(count);
    for (Py_ssize_t index = 0; chunks != NULL && index < count; index++) {
        unsigned long long address, size;
        PyObject *range = PyList_GetItem(ranges, index); /* borrowed */
        if (range == NULL || !PyTuple_Check(range)) {
            if (range != NULL)
                PyErr_SetString(PyExc_TypeError, "a range is an address and a size");
            Py_CLEAR(chunks);
            break;
        }
        PyObject *bytes = NULL;
        if (PyArg_ParseTuple(range, "KK", &address, &size))
            bytes = read_range(port, address, size);
        if (bytes == NULL || PyList_SetItem(chunks, index, bytes) != 0)
            Py_CLEAR(chunks);
    }
    return chunks;
}

static PyObject *dyld_info(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned int port;
    if (!PyArg_ParseTuple(arguments, "I:dyld_info", &port))
        return NULL;
    struct machtrace_task_images images = {0, 0, 0};
    int result = machtrace_task_images(port, &images);
    return Py_BuildValue("(iKKi)", result, (unsigned long long)images.address,
                         (unsigned long long)images.size, images.format);
}

static PyObject *label_offset(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    uint16_t version, offset;
    if (!machtrace_task_label_offset(&version, &offset))
        Py_RETURN_NONE;
    return Py_BuildValue("(ii)", (int)version, (int)offset);
}

/* --- threads --- */

static PyObject *list_threads(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned int port;
    if (!PyArg_ParseTuple(arguments, "I:list_threads", &port))
        return NULL;
    struct machtrace_task_thread_info *infos = calloc(LISTED_MAX, sizeof *infos);
    if (infos == NULL)
        return PyErr_NoMemory();
    size_t count;
    int result;
    Py_BEGIN_ALLOW_THREADS
    result = machtrace_task_threads(port, infos, LISTED_MAX, &count);
    Py_END_ALLOW_THREADS
    if (count > LISTED_MAX)
        count = LISTED_MAX;
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t index = 0; list != NULL && index < count; index++) {
        const struct machtrace_task_thread_info *info = &infos[index];
        PyObject *row = Py_BuildValue("(KKKiiyK)", (unsigned long long)info->id,
                                      (unsigned long long)info->handle,
                                      (unsigned long long)info->queue_address, info->run_state,
                                      info->suspend_count, info->name,
                                      (unsigned long long)info->cpu_ns);
        if (row == NULL || PyList_SetItem(list, (Py_ssize_t)index, row) != 0)
            Py_CLEAR(list);
    }
    free(infos);
    return list == NULL ? NULL : Py_BuildValue("(iN)", result, list);
}

static int take_ids(PyObject *ids, struct machtrace_task_capture *capture)
{
    if (machtrace_threads_of(ids, &capture->threads, &capture->thread_count) != 0)
        return -1;
    for (size_t index = 0; index < capture->thread_count; index++) {
        capture->threads[index].id =
            PyLong_AsUnsignedLongLong(PyTuple_GetItem(ids, (Py_ssize_t)index));
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* Room for all stacks; enough for most is allocated before anything is stopped. */
static int make_room(struct machtrace_task_capture *capture)
{
    uint64_t room = (capture->stack_limit + 4096) * (uint64_t)(capture->thread_count + 1);
    if (room > STACKS_MAX)
        room = STACKS_MAX;
    void *bytes = mmap(NULL, (size_t)room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (bytes == MAP_FAILED) {
        PyErr_NoMemory();
        return -1;
    }
    capture->buffer = bytes;
    capture->room = (size_t)room;
    uint64_t present = PRESENT * (uint64_t)capture->thread_count;
    memset(bytes, 0, (size_t)(present < room ? present : room));
    return 0;
}

static PyObject *copy_threads(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *ids;
    unsigned int port;
    unsigned long long stack_limit, address_mask;
    int together;
    if (!PyArg_ParseTuple(arguments, "IO!KKp:copy_threads", &port, &PyTuple_Type, &ids,
                          &stack_limit, &address_mask, &together))
        return NULL;
    struct machtrace_task_capture capture = {
        .port = port,
        .address_mask = address_mask,
        .stack_limit = (size_t)(stack_limit < STACK_MAX ? stack_limit : STACK_MAX),
        .together = together != 0,
    };
    PyObject *result = NULL;
    if (take_ids(ids, &capture) == 0 && make_room(&capture) == 0) {
        int error;
        Py_BEGIN_ALLOW_THREADS
        error = machtrace_task_copy(&capture);
        Py_END_ALLOW_THREADS
        PyObject *rows = machtrace_thread_rows(capture.threads, capture.thread_count);
        result = rows == NULL ? NULL : Py_BuildValue("(iiN)", error, capture.resume_error, rows);
    }
    if (capture.buffer != NULL)
        munmap(capture.buffer, capture.room);
    free(capture.threads);
    return result;
}

static PyMethodDef methods[] = {
    {"process", process, METH_VARARGS,
     PyDoc_STR("process(pid, /)\n--\n\nReturn what the system reports about a process without its "
               "port.")},
    {"rights", rights, METH_NOARGS,
     PyDoc_STR("rights()\n--\n\nReturn this process' rights, and the system that it runs on.")},
    {"open_task", open_task, METH_VARARGS,
     PyDoc_STR(
         "open_task(pid, /)\n--\n\nReturn a task port; 0 with the reasons if there is none.")},
    {"close_task", close_task, METH_VARARGS,
     PyDoc_STR("close_task(port, /)\n--\n\nRelease a task port.")},
    {"find_region", find_region, METH_VARARGS,
     PyDoc_STR("find_region(port, address, /)\n--\n\nReturn the region that holds the address, or "
               "the next above.")},
    {"read_memory", read_memory, METH_VARARGS,
     PyDoc_STR("read_memory(port, ranges, /)\n--\n\nRead each range, as far as possible.")},
    {"dyld_info", dyld_info, METH_VARARGS,
     PyDoc_STR("dyld_info(port, /)\n--\n\nReturn where dyld's list of images is.")},
    {"label_offset", label_offset, METH_NOARGS,
     PyDoc_STR("label_offset()\n--\n\nReturn the offset of a dispatch queue's label.")},
    {"list_threads", list_threads, METH_VARARGS,
     PyDoc_STR(
         "list_threads(port, /)\n--\n\nReturn the threads of a task, in the kernel's order.")},
    {"copy_threads", copy_threads, METH_VARARGS,
     PyDoc_STR("copy_threads(port, threads, stack_limit, address_mask, together, /)\n--\n\n"
               "Stop, copy and resume threads.")},
    {NULL, NULL, 0, NULL},
};

MACHTRACE_MODULE(_darwin_task, machtrace_prepare_nothing,
                 "Capture other processes of macOS by their task ports.",
                 .m_methods = methods)
