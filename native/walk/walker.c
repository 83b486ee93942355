/* StackWalker: the Python side of stack_walk.h, and no more. */
#include "walk/objects.h"

#include <stdlib.h>

static PyObject *walker_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"rules", "mask", "make", NULL};
    struct module_state *state = PyType_GetModuleState(type);
    PyObject *rules, *make;
    unsigned long long mask;
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(arguments, keywords, "O!KO:StackWalker", names,
                                     state->table_type, &rules, &mask, &make))
        return NULL;
    struct walker_object *self = (struct walker_object *)new_instance(type);
    if (self == NULL)
        return NULL;
    Py_INCREF(rules);
    self->rules = (struct table_object *)rules;
    Py_INCREF(make);
    self->make = make;
    self->walk.mask = mask;
    return (PyObject *)self;
}

static void walker_dealloc(PyObject *object)
{
    struct walker_object *self = (struct walker_object *)object;
    release_stack(self);
    machtrace_walk_release(&self->walk);
    if (self->frames != NULL) {
        for (size_t index = 0; index < FRAMES_REMEMBERED; index++)
            Py_XDECREF(self->frames[index].object);
        free(self->frames);
    }
    Py_XDECREF(self->make);
    Py_XDECREF((PyObject *)self->rules);
    free_instance(object);
}

static PyObject *walker_sizeof(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct walker_object *self = (struct walker_object *)object;
    size_t size = sizeof *self;
    LOCK(object)
    size += self->walk.room * (sizeof(uint64_t) + sizeof(uint8_t));
    if (self->frames != NULL)
        size += FRAMES_REMEMBERED * sizeof *self->frames;
    UNLOCK()
    return PyLong_FromSize_t(size);
}

static Py_ssize_t walker_length(PyObject *object)
{
    size_t count;
    LOCK(object)
    count = ((struct walker_object *)object)->walk.count;
    UNLOCK()
    return (Py_ssize_t)count;
}

static PyObject *bytes_of(const void *items, size_t count, size_t size)
{
    return PyBytes_FromStringAndSize(count != 0 ? items : NULL, (Py_ssize_t)(count * size));
}

static PyObject *walker_frames(PyObject *object, PyObject *arguments)
{
    struct walker_object *self = (struct walker_object *)object;
    Py_ssize_t first, end;
    if (!PyArg_ParseTuple(arguments, "nn:frames", &first, &end))
        return NULL;
    PyObject *addresses = NULL, *codes = NULL;
    LOCK(object)
    const struct machtrace_walk *walk = &self->walk;
    if (first < 0 || end < first || (size_t)end > walk->count) {
        PyErr_SetString(PyExc_IndexError, "no such frames are stored");
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

static PyObject *walker_objects(PyObject *object, PyObject *arguments)
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
        /* Creating an object may run any code, which may have dropped the frames. */
        PyObject *frame = NULL;
        if ((size_t)index < walk->count)
            frame = frame_as_object(self, walk->addresses[index], walk->codes[index]);
        if (frame == NULL || PyTuple_SetItem(frames, index - first, frame) != 0)
            Py_CLEAR(frames);
    }
    if (frames == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_IndexError, "no such frames are stored");
    UNLOCK()
    return frames;
}

static PyObject *walker_append(PyObject *object, PyObject *arguments)
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
    error = machtrace_walk_append(&self->walk, value, code);
    UNLOCK()
    if (error != 0)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *walker_drop(PyObject *object, PyObject *arguments)
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
        release_stack(self);
        walk->count = (size_t)end;
        if (end == 0 && walk->room > ROOM_RETAINED)
            machtrace_walk_release(walk);
        machtrace_walk_begin(walk, 0, 0);
    }
    UNLOCK()
    if (!is_valid) {
        PyErr_SetString(PyExc_IndexError, "no such frames are stored");
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(walker_doc, "StackWalker(rules, mask, make)\n--\n\n"
                         "Walk stacks in sequence, and store their frames.");

static PyMethodDef walker_methods[] = {
    {"start", machtrace_walker_start, METH_VARARGS,
     PyDoc_STR(
         "start(pc, values, code, stack_start, stack, head, outer, /)\n--\n\n"
         "Walk another stack; return why the walk paused, or DOES_NOT_FIT for its registers.")},
    {"resume", machtrace_walker_resume, METH_NOARGS,
     PyDoc_STR("resume()\n--\n\nContinue with this stack; return why the walk paused.")},
    {"push", machtrace_walker_push, METH_VARARGS,
     PyDoc_STR("push(pc, values, code, interrupted, is_regular, /)\n--\n\n"
               "Append a caller from another unwinder: return PUSHED, or why not.")},
    {"part", machtrace_walker_part, METH_NOARGS,
     PyDoc_STR("part()\n--\n\n"
               "End this part of the stack and begin the next; return the depth before.")},
    {"place", machtrace_walker_place, METH_NOARGS,
     PyDoc_STR("place()\n--\n\nReturn the last frame's pc, and whether it was interrupted.")},
    {"values", machtrace_walker_values, METH_NOARGS,
     PyDoc_STR("values()\n--\n\nReturn the last frame's registers.")},
    {"finish", machtrace_walker_finish, METH_NOARGS,
     PyDoc_STR(
         "finish()\n--\n\nEnd this stack, omit its middle if it is deep, and return its depth.")},
    {"frames", walker_frames, METH_VARARGS,
     PyDoc_STR("frames(first, end, /)\n--\n\n"
               "Return addresses and codes of some of the stored frames, of any stack.")},
    {"objects", walker_objects, METH_VARARGS,
     PyDoc_STR("objects(first, end, /)\n--\n\nReturn the same as objects, in a tuple.")},
    {"append", walker_append, METH_VARARGS,
     PyDoc_STR("append(address, code, /)\n--\n\nStore a frame from another unwinder.")},
    {"drop", walker_drop, METH_VARARGS,
     PyDoc_STR("drop(end, /)\n--\n\nRemove the frames from this one on, and release the stack.")},
    {"__sizeof__", walker_sizeof, METH_NOARGS, PyDoc_STR("Return the size in bytes.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot walker_slots[] = {
    {Py_tp_new, walker_new},
    {Py_tp_dealloc, walker_dealloc},
    {Py_tp_methods, walker_methods},
    {Py_tp_doc, (void *)walker_doc},
    {Py_sq_length, walker_length},
    {0, NULL},
};

PyType_Spec machtrace_walker_spec = {
    .name = "machtrace._native._walk.StackWalker",
    .basicsize = sizeof(struct walker_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = walker_slots,
};
