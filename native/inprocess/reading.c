/* Files, memory and images that a snapshot of this process reads. */
#include "inprocess/objects.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "inprocess/core/capture.h"
#ifdef __APPLE__
#include "inprocess/core/darwin/images.h"
#endif

/* Without releasing the interpreter's lock: to take it again takes longer than the reading. */
PyObject *machtrace_read_file(PyObject *module, PyObject *arguments)
{
    (void)module;
    const char *path;
    if (!PyArg_ParseTuple(arguments, "s:read_file", &path))
        return NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    size_t room = 1 << 16, size = 0;
    char *bytes = malloc(room);
    ssize_t got = 0;
    while (bytes != NULL && (got = read(file, bytes + size, room - size)) > 0) {
        size += (size_t)got;
        if (size == room) {
            char *more = realloc(bytes, room *= 2);
            if (more == NULL)
                free(bytes);
            bytes = more;
        }
    }
    int error = errno;
    close(file);
    PyObject *result = NULL;
    errno = error;
    if (bytes == NULL)
        PyErr_NoMemory();
    else if (got < 0)
        PyErr_SetFromErrno(PyExc_OSError);
    else
        result = PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size);
    free(bytes);
    return result;
}

/* Like read_file, without releasing the interpreter's lock. Unmapped memory is an error. */
PyObject *machtrace_read_memory(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned long long address;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "Kn:read_memory", &address, &size))
        return NULL;
    if (size < 0) {
        PyErr_SetString(PyExc_ValueError, "negative size");
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    if (bytes == NULL)
        return NULL;
    if (machtrace_inprocess_read(address, PyBytes_AsString(bytes), (size_t)size) != (size_t)size) {
        Py_DECREF(bytes);
        errno = EFAULT;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return bytes;
}

#ifdef __APPLE__

#define MORE 64 /* images that may be loaded between counting and copying them */

static PyObject *image_as_tuple(const struct machtrace_image *image)
{
    PyObject *uuid = Py_None;
    if (image->has_uuid)
        uuid = PyBytes_FromStringAndSize((const char *)image->uuid, sizeof image->uuid);
    else
        Py_INCREF(uuid);
    if (uuid == NULL)
        return NULL;
    return Py_BuildValue("(KKKiiNy)", (unsigned long long)image->load_address,
                         (unsigned long long)image->slide, (unsigned long long)image->text_size,
                         image->cpu_type, image->cpu_subtype, uuid, image->path);
}

PyObject *machtrace_inprocess_images(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    machtrace_images_watch();
    size_t room = machtrace_images_copy(NULL, 0) + MORE;
    struct machtrace_image *images = calloc(room, sizeof *images);
    if (images == NULL)
        return PyErr_NoMemory();
    size_t count = machtrace_images_copy(images, room);
    if (count > room)
        count = room;
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t index = 0; list != NULL && index < count; index++) {
        PyObject *row = image_as_tuple(&images[index]);
        if (row == NULL || PyList_SetItem(list, (Py_ssize_t)index, row) != 0)
            Py_CLEAR(list);
    }
    free(images);
    return list;
}

#endif
