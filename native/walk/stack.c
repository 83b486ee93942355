/* StackWalker: one stack, from frame to frame. */
#include "walk/objects.h"


/* Whether the registers are such as the loop takes; -1 with an exception set. */
static int take_registers(struct machtrace_walk *walk, const struct machtrace_machine *machine,
                          PyObject *values)
{
    Py_ssize_t count = PyTuple_Size(values);
    if (count > machine->register_count)
        return 0;
    walk->known[0] = 0;
    walk->known[1] = 0;
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *item = PyTuple_GetItem(values, number);
        if (item == Py_None)
            continue;
        unsigned long long value = PyLong_AsUnsignedLongLong(item);
        if (value == (unsigned long long)-1 && PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_OverflowError))
                return -1;
            PyErr_Clear();
            return 0;
        }
        walk->values[number] = value;
        walk->known[number / 64] |= UINT64_C(1) << (number % 64);
    }
    return (int)(walk->known[machine->sp / 64] >> (machine->sp % 64) & 1);
}

/* Put a frame behind the others, and make its registers those of the walk; FAILED with an
 * exception set. */
static int put_frame(struct walker_object *self, PyObject *pc, PyObject *values,
                     unsigned char code, bool interrupted, bool is_regular)
{
    struct machtrace_walk *walk = &self->walk;
    const struct machtrace_machine *machine = &self->rules->table.machine;
    unsigned long long address = PyLong_AsUnsignedLongLong(pc);
    if (address == (unsigned long long)-1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return FAILED;
        PyErr_Clear();
        return DOES_NOT_FIT;
    }
    uint64_t last_sp = walk->values[machine->sp];
    int fits = take_registers(walk, machine, values);
    if (fits <= 0)
        return fits < 0 ? FAILED : DOES_NOT_FIT;
    enum machtrace_progress progress = machtrace_walk_push(
        walk, last_sp, address, walk->values[machine->sp], code, is_regular);
    if (progress == MACHTRACE_NO_ROOM) {
        PyErr_NoMemory();
        return FAILED;
    }
    walk->interrupted = interrupted;
    return (int)progress;
}

static PyObject *pause_as_int(enum machtrace_pause pause)
{
    if (pause == MACHTRACE_NO_MEMORY)
        return PyErr_NoMemory();
    return PyLong_FromLong((long)pause);
}

PyObject *machtrace_walker_start(PyObject *object, PyObject *arguments)
{
    struct walker_object *self = (struct walker_object *)object;
    PyObject *pc, *values, *stack;
    unsigned char code;
    unsigned long long stack_start;
    Py_ssize_t head, outer;
    if (!PyArg_ParseTuple(arguments, "O!O!bKOnn:start", &PyLong_Type, &pc, &PyTuple_Type, &values,
                          &code, &stack_start, &stack, &head, &outer))
        return NULL;
    if (head < 0 || outer < 0) {
        PyErr_SetString(PyExc_ValueError, "a number of frames is negative");
        return NULL;
    }
    PyObject *result = NULL;
    LOCK_BOTH(object, (PyObject *)self->rules)
    struct machtrace_walk *walk = &self->walk;
    release_stack(self);
    if (PyObject_GetBuffer(stack, &self->stack, PyBUF_SIMPLE) != 0) {
        self->stack.obj = NULL;
    } else {
        walk->stack = self->stack.buf;
        walk->stack_size = (size_t)self->stack.len;
        walk->stack_start = stack_start;
        machtrace_walk_begin(walk, (size_t)head, (size_t)outer);
        int put = put_frame(self, pc, values, code, true, true);
        if (put == DOES_NOT_FIT)
            result = PyLong_FromLong(DOES_NOT_FIT);
        else if (put != FAILED)
            result = pause_as_int(machtrace_walk_run(&self->rules->table, walk));
    }
    UNLOCK_BOTH()
    return result;
}

PyObject *machtrace_walker_resume(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct walker_object *self = (struct walker_object *)object;
    PyObject *result;
    LOCK_BOTH(object, (PyObject *)self->rules)
    result = pause_as_int(machtrace_walk_run(&self->rules->table, &self->walk));
    UNLOCK_BOTH()
    return result;
}

PyObject *machtrace_walker_push(PyObject *object, PyObject *arguments)
{
    struct walker_object *self = (struct walker_object *)object;
    PyObject *pc, *values;
    unsigned char code;
    int interrupted, is_regular;
    if (!PyArg_ParseTuple(arguments, "O!O!bpp:push", &PyLong_Type, &pc, &PyTuple_Type, &values,
                          &code, &interrupted, &is_regular))
        return NULL;
    int put;
    LOCK_BOTH(object, (PyObject *)self->rules)
    put = put_frame(self, pc, values, code, interrupted != 0, is_regular != 0);
    UNLOCK_BOTH()
    return put == FAILED ? NULL : PyLong_FromLong(put);
}

/* The frames from here on are the callers of an async function. */
PyObject *machtrace_walker_part(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct walker_object *self = (struct walker_object *)object;
    unsigned long long depth;
    LOCK(object)
    depth = self->walk.depth;
    machtrace_walk_part(&self->walk);
    self->walk.declines_async = false;
    UNLOCK()
    return PyLong_FromUnsignedLongLong(depth);
}

static PyObject *values_as_tuple(const struct machtrace_walk *walk, unsigned count)
{
    PyObject *values = PyTuple_New((Py_ssize_t)count);
    if (values == NULL)
        return NULL;
    for (unsigned number = 0; number < count; number++) {
        PyObject *value;
        if (walk->known[number / 64] >> (number % 64) & 1) {
            value = PyLong_FromUnsignedLongLong(walk->values[number]);
        } else {
            Py_INCREF(Py_None);
            value = Py_None;
        }
        if (value == NULL || PyTuple_SetItem(values, (Py_ssize_t)number, value) != 0) {
            Py_DECREF(values);
            return NULL;
        }
    }
    return values;
}

PyObject *machtrace_walker_place(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct walker_object *self = (struct walker_object *)object;
    unsigned long long pc;
    int interrupted;
    LOCK(object)
    pc = self->walk.pc;
    interrupted = self->walk.interrupted;
    UNLOCK()
    return Py_BuildValue("(KN)", pc, PyBool_FromLong(interrupted));
}

PyObject *machtrace_walker_values(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct walker_object *self = (struct walker_object *)object;
    PyObject *values;
    LOCK_BOTH(object, (PyObject *)self->rules)
    values = values_as_tuple(&self->walk, self->rules->table.machine.register_count);
    UNLOCK_BOTH()
    return values;
}

/* Fold this stack, and release its bytes. */
PyObject *machtrace_walker_finish(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct walker_object *self = (struct walker_object *)object;
    unsigned long long depth;
    LOCK(object)
    machtrace_walk_fold(&self->walk);
    release_stack(self);
    depth = self->walk.depth;
    UNLOCK()
    return PyLong_FromUnsignedLongLong(depth);
}
