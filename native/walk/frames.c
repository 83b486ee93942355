/* StackWalker: the stored frames of all stacks, as bytes or as objects. */
#include "walk/objects.h"

#include <stdlib.h>

static PyObject *bytes_of(const void *items, size_t count, size_t size)
{
    return PyBytes_FromStringAndSize(count != 0 ? items : NULL, (Py_ssize_t)(count * size));
}

PyObject *machtrace_walker_frames(PyObject *object, PyObject *arguments)
{
    struct walker_object *self = (struct walker_object *)object;
    Py_ssize_t first, end;
    if (!PyArg_ParseTuple(arguments, "nn:frames", &first, &end))
        return NULL;
    PyObject *addresses = NULL, *codes = NULL;
    LOCK(object)
    const struct machtrace_walk *walk = &self->walk;
    if (first < 0 || end < first || (size_t)end > walk->count) {
        PyErr_SetString(PyExc_IndexError, "there are no such frames");
    } else if (first == end) {
        addresses = bytes_of(NULL, 0, 1);
        codes = bytes_of(NULL, 0, 1);
    } else {
        size_t count = (size_t)(end - first);
        addresses = bytes_of(walk->addresses + first, count, sizeof *walk->addresses);
        codes = bytes_of(walk->codes + first, count, sizeof *walk->codes);
    }
    UNLOCK()
    if (addresses == NULL || codes == NULL) {
        Py_XDECREF(addresses);
        Py_XDECREF(codes);
        return NULL;
    }
    return Py_BuildValue("(NN)", addresses, codes);
}

/* A new reference to the object for a frame. */
static PyObject *frame_as_object(struct walker_object *self, uint64_t address, unsigned char code)
{
    if (self->frames == NULL) {
        self->frames = calloc(FRAMES_REMEMBERED, sizeof *self->frames);
        if (self->frames == NULL)
            return PyErr_NoMemory();
    }
    uint64_t hash = (address ^ (uint64_t)code << 56) * UINT64_C(0x9e3779b97f4a7c15);
    struct frame *frame = &self->frames[(hash >> 32) % FRAMES_REMEMBERED];
    if (frame->object == NULL || frame->address != address || frame->code != code) {
        PyObject *made = PyObject_CallFunction(self->make, "Kb", address, code);
        if (made == NULL)
            return NULL;
        PyObject *old = frame->object;
        *frame = (struct frame){address, made, code};
        Py_XDECREF(old);
        Py_INCREF(made);
        return made;
    }
    Py_INCREF(frame->object);
    return frame->object;
}

PyObject *machtrace_walker_objects(PyObject *object, PyObject *arguments)
{
    struct walker_object *self = (struct walker_object *)object;
    Py_ssize_t first, end;
    if (!PyArg_ParseTuple(arguments, "nn:objects", &first, &end))
        return NULL;
    PyObject *frames = NULL;
    LOCK(object)
    const struct machtrace_walk *walk = &self->walk;
    bool is_valid = first >= 0 && end >= first;
    if (is_valid && (size_t)end <= walk->count)
        frames = PyTuple_New(end - first);
    for (Py_ssize_t index = first; frames != NULL && index < end; index++) {
        /* What makes an object may run anything, and that may have dropped the frames. */
        PyObject *frame = NULL;
        if ((size_t)index < walk->count)
            frame = frame_as_object(self, walk->addresses[index], walk->codes[index]);
        if (frame == NULL || PyTuple_SetItem(frames, index - first, frame) != 0)
            Py_CLEAR(frames);
    }
    if (frames == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_IndexError, "there are no such frames");
    UNLOCK()
    return frames;
}

PyObject *machtrace_walker_append(PyObject *object, PyObject *arguments)
{
    struct walker_object *self = (struct walker_object *)object;
    PyObject *address;
    unsigned char code;
    if (!PyArg_ParseTuple(arguments, "O!b:append", &PyLong_Type, &address, &code))
        return NULL;
    unsigned long long value = PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred())
        return NULL;
    int error;
    LOCK(object)
    error = machtrace_walk_keep(&self->walk, value, code);
    UNLOCK()
    if (error != 0)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject *machtrace_walker_drop(PyObject *object, PyObject *arguments)
{
    struct walker_object *self = (struct walker_object *)object;
    Py_ssize_t end;
    if (!PyArg_ParseTuple(arguments, "n:drop", &end))
        return NULL;
    bool is_valid;
    LOCK(object)
    struct machtrace_walk *walk = &self->walk;
    is_valid = end >= 0 && (size_t)end <= walk->count;
    if (is_valid) {
        let_go_of_stack(self);
        walk->count = (size_t)end;
        if (end == 0 && walk->room > ROOM_KEPT)
            machtrace_walk_release(walk);
        machtrace_walk_begin(walk, 0, 0);
    }
    UNLOCK()
    if (!is_valid) {
        PyErr_SetString(PyExc_IndexError, "there are no such frames");
        return NULL;
    }
    Py_RETURN_NONE;
}
