/* Shared by the parts of machtrace._native._walk: its objects, and how they are created and locked.
 *
 * Built against the limited API of 3.11. The hot path is one call a stack, so arguments are
 * positional, and registers are read straight from the tuple of a RegisterSet.
 */
#ifndef MACHTRACE_WALK_OBJECTS_H
#define MACHTRACE_WALK_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "walk/rule_table.h"
#include "walk/stack_walk.h"

#ifdef Py_GIL_DISABLED
#define LOCK(object) Py_BEGIN_CRITICAL_SECTION(object)
#define LOCK_BOTH(one, other) Py_BEGIN_CRITICAL_SECTION2(one, other)
#define UNLOCK() Py_END_CRITICAL_SECTION()
#define UNLOCK_BOTH() Py_END_CRITICAL_SECTION2()
#else /* the interpreter's lock is held throughout */
#define LOCK(object) {
#define LOCK_BOTH(one, other) {
#define UNLOCK() }
#define UNLOCK_BOTH() }
#endif

struct module_state {
    PyTypeObject *table_type;
};

struct table_object {
    PyObject_HEAD
    struct machtrace_table table;
};

/* Frames as objects: each slot of the cache has the object that was requested last. */
#define FRAMES_REMEMBERED 8192

/* Frames whose memory is not freed, so that the next stacks need not allocate it again. */
#define ROOM_RETAINED 65536

struct frame {
    uint64_t address;
    PyObject *object; /* NULL if there is none yet */
    unsigned char code;
};

/* Results of put_frame, beside MACHTRACE_PUSHED and the others. */
enum { DOES_NOT_FIT = -1, FAILED = -2 };

struct walker_object {
    PyObject_HEAD
    struct table_object *rules;
    PyObject *make; /* (address, code) to object */
    struct frame *frames; /* FRAMES_REMEMBERED, or NULL */
    struct machtrace_walk walk;
    Py_buffer stack; /* obj is NULL if there is none */
};

/* Allocate a zeroed object of a type of this module; free one. */
static inline PyObject *new_instance(PyTypeObject *type)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocate(type, 0);
}

static inline void free_instance(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static inline void release_stack(struct walker_object *self)
{
    self->walk.stack = NULL;
    self->walk.stack_size = 0;
    if (self->stack.obj != NULL)
        PyBuffer_Release(&self->stack);
    self->stack.obj = NULL;
}

extern PyType_Spec machtrace_table_spec;
extern PyType_Spec machtrace_walker_spec;

/* Methods of a StackWalker for the stack that is walked: stack.c. */
PyObject *machtrace_walker_start(PyObject *object, PyObject *arguments);
PyObject *machtrace_walker_resume(PyObject *object, PyObject *unused);
PyObject *machtrace_walker_push(PyObject *object, PyObject *arguments);
PyObject *machtrace_walker_part(PyObject *object, PyObject *unused);
PyObject *machtrace_walker_place(PyObject *object, PyObject *unused);
PyObject *machtrace_walker_values(PyObject *object, PyObject *unused);
PyObject *machtrace_walker_finish(PyObject *object, PyObject *unused);

#endif
