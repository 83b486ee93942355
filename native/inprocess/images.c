/* images.h over inprocess/core/darwin/images.h. */
#include "inprocess/images.h"

#include <stdlib.h>

#include "inprocess/core/darwin/images.h"

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

PyObject *machtrace_own_images(PyObject *module, PyObject *unused)
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
