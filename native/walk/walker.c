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
    let_go_of_stack(self);
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

PyDoc_STRVAR(walker_doc, "StackWalker(rules, mask, make)\n--\n\n"
                         "Walks stacks one after the other, and keeps their frames.");

static PyMethodDef walker_methods[] = {
    {"start", machtrace_walker_start, METH_VARARGS,
     PyDoc_STR("start(pc, values, code, stack_start, stack, head, outer, /)\n--\n\n"
               "Walk another stack; why that paused, or DOES_NOT_FIT of its registers.")},
    {"resume", machtrace_walker_resume, METH_NOARGS,
     PyDoc_STR("resume()\n--\n\nGo on with this stack; why that paused.")},
    {"push", machtrace_walker_push, METH_VARARGS,
     PyDoc_STR("push(pc, values, code, interrupted, is_regular, /)\n--\n\n"
               "Append a caller that was found elsewhere: PUSHED, or why not.")},
    {"part", machtrace_walker_part, METH_NOARGS,
     PyDoc_STR("part()\n--\n\n"
               "Keep the frames from here on apart, and look for no other; the depth before.")},
    {"place", machtrace_walker_place, METH_NOARGS,
     PyDoc_STR("place()\n--\n\nThe last frame's pc, and whether it was interrupted.")},
    {"values", machtrace_walker_values, METH_NOARGS,
     PyDoc_STR("values()\n--\n\nThe last frame's registers.")},
    {"finish", machtrace_walker_finish, METH_NOARGS,
     PyDoc_STR("finish()\n--\n\nEnd this stack: leave out its middle if it is deep; its depth.")},
    {"frames", machtrace_walker_frames, METH_VARARGS,
     PyDoc_STR("frames(first, end, /)\n--\n\n"
               "Addresses and codes of some of the frames that were kept, of any stack.")},
    {"objects", machtrace_walker_objects, METH_VARARGS,
     PyDoc_STR("objects(first, end, /)\n--\n\nThe same as objects, in a tuple.")},
    {"append", machtrace_walker_append, METH_VARARGS,
     PyDoc_STR("append(address, code, /)\n--\n\nKeep a frame that was found elsewhere.")},
    {"drop", machtrace_walker_drop, METH_VARARGS,
     PyDoc_STR("drop(end, /)\n--\n\nForget the frames from this one on, and the stack.")},
    {"__sizeof__", walker_sizeof, METH_NOARGS, PyDoc_STR("Bytes that it takes.")},
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
