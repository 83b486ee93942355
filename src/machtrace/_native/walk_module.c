/* machtrace._native._walk: the Python side of stack_walk.h, and no more.
 *
 * Built against the limited API of 3.11. What is hot is one call a stack, so arguments are
 * positional, and registers are read straight from the tuple of a RegisterSet.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "function_starts.h"
#include "stack_walk.h"

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

/* Frames as objects: one for each place in the table of those that were made, the last that was
 * asked for. */
#define FRAMES_REMEMBERED 8192

/* Frames whose room is not given back, so that the next stacks need not ask for it again. */
#define ROOM_KEPT 65536

struct frame {
    uint64_t address;
    PyObject *object; /* NULL where there is none yet */
    unsigned char code;
};

struct walker_object {
    PyObject_HEAD
    struct table_object *rules;
    PyObject *make; /* (address, code) to object */
    struct frame *frames; /* FRAMES_REMEMBERED, or NULL */
    struct machtrace_walk walk;
    Py_buffer stack; /* obj is NULL where there is none */
};

static void free_instance(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *new_instance(PyTypeObject *type)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocate(type, 0);
}

/* --- RuleTable --- */

static PyObject *table_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"sp",        "fp",        "pointer_size", "register_count",
                            "code_bits", "preserved", NULL};
    unsigned char sp, fp, pointer_size, register_count;
    unsigned long long code_bits;
    Py_buffer preserved;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "bbbbKy*:RuleTable", names, &sp, &fp,
                                     &pointer_size, &register_count, &code_bits, &preserved))
        return NULL;
    struct machtrace_machine machine = {sp, fp, pointer_size, register_count, code_bits, {0, 0}};
    bool is_valid = sp < register_count && fp < register_count &&
                    register_count <= MACHTRACE_REGISTERS && pointer_size != 0;
    for (Py_ssize_t index = 0; index < preserved.len; index++) {
        unsigned char number = ((const unsigned char *)preserved.buf)[index];
        if (number < MACHTRACE_REGISTERS)
            machine.preserved[number / 64] |= UINT64_C(1) << (number % 64);
        else
            is_valid = false;
    }
    PyBuffer_Release(&preserved);
    if (!is_valid) {
        PyErr_SetString(PyExc_ValueError, "there is no such machine");
        return NULL;
    }
    struct table_object *self = (struct table_object *)new_instance(type);
    if (self == NULL)
        return NULL;
    self->table.machine = machine;
    self->table.seed = (uint64_t)(uintptr_t)self * UINT64_C(0x9e3779b97f4a7c15);
    return (PyObject *)self;
}

static void table_dealloc(PyObject *self)
{
    machtrace_table_clear(&((struct table_object *)self)->table);
    free_instance(self);
}

static int take_recovery(PyObject *item, struct machtrace_recovery *recovery)
{
    unsigned char number, place, from, size;
    int offset;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a recovery is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "bbbbi", &number, &place, &from, &size, &offset))
        return -1;
    *recovery = (struct machtrace_recovery){number, place, from, size, offset};
    return 0;
}

static PyObject *table_define(PyObject *self, PyObject *arguments)
{
    unsigned char cfa_register, code;
    int cfa_offset, must_rise;
    PyObject *return_address, *registers;
    if (!PyArg_ParseTuple(arguments, "biO!O!bp:define", &cfa_register, &cfa_offset,
                          &PyTuple_Type, &return_address, &PyTuple_Type, &registers, &code,
                          &must_rise))
        return NULL;
    struct machtrace_rule rule = {
        .cfa_register = cfa_register,
        .cfa_offset = cfa_offset,
        .code = code,
        .must_rise = must_rise != 0,
    };
    struct machtrace_recovery saved[UINT8_MAX];
    Py_ssize_t count = PyTuple_Size(registers);
    if (count > UINT8_MAX) {
        PyErr_SetString(PyExc_ValueError, "a rule names each register once at most");
        return NULL;
    }
    if (take_recovery(return_address, &rule.return_address) != 0)
        return NULL;
    for (Py_ssize_t index = 0; index < count; index++) {
        if (take_recovery(PyTuple_GetItem(registers, index), &saved[index]) != 0)
            return NULL;
    }
    int64_t number;
    LOCK(self)
    number = machtrace_table_define(&((struct table_object *)self)->table, &rule, saved,
                                    (size_t)count);
    UNLOCK()
    if (number == -1)
        return PyErr_NoMemory();
    if (number < 0) {
        PyErr_SetString(PyExc_ValueError, "the rule names a register or a place that is none");
        return NULL;
    }
    return PyLong_FromLongLong(number);
}

static PyObject *table_add(PyObject *self, PyObject *arguments)
{
    PyObject *address;
    int interrupted;
    unsigned int rule;
    if (!PyArg_ParseTuple(arguments, "O!pI:add", &PyLong_Type, &address, &interrupted, &rule))
        return NULL;
    unsigned long long lookup = PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred())
        return NULL;
    int error;
    LOCK(self)
    error = machtrace_table_add(&((struct table_object *)self)->table, lookup, interrupted != 0,
                                rule);
    UNLOCK()
    if (error == -1)
        return PyErr_NoMemory();
    if (error != 0) {
        PyErr_SetString(PyExc_ValueError, "there is no such rule");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *table_clear(PyObject *self, PyObject *unused)
{
    (void)unused;
    LOCK(self)
    machtrace_table_clear(&((struct table_object *)self)->table);
    UNLOCK()
    Py_RETURN_NONE;
}

static PyObject *table_sizeof(PyObject *self, PyObject *unused)
{
    (void)unused;
    size_t size;
    LOCK(self)
    size = machtrace_table_size(&((struct table_object *)self)->table);
    UNLOCK()
    return PyLong_FromSize_t(size + sizeof(PyObject));
}

static Py_ssize_t table_length(PyObject *self)
{
    size_t count;
    LOCK(self)
    count = ((struct table_object *)self)->table.slot_count;
    UNLOCK()
    return (Py_ssize_t)count;
}

PyDoc_STRVAR(table_doc,
             "RuleTable(sp, fp, pointer_size, register_count, code_bits, preserved)\n"
             "--\n\n"
             "Rules that need no thought, and the addresses at which they hold.");

static PyMethodDef table_methods[] = {
    {"define", table_define, METH_VARARGS,
     PyDoc_STR("define(cfa_register, cfa_offset, return_address, registers, code, must_rise, /)\n"
               "--\n\nAdd a rule; its number.")},
    {"add", table_add, METH_VARARGS,
     PyDoc_STR("add(lookup, interrupted, rule, /)\n--\n\nLet a rule hold at an address.")},
    {"clear", table_clear, METH_NOARGS, PyDoc_STR("clear()\n--\n\nForget everything.")},
    {"__sizeof__", table_sizeof, METH_NOARGS, PyDoc_STR("Bytes that it takes.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot table_slots[] = {
    {Py_tp_new, table_new},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, table_methods},
    {Py_tp_doc, (void *)table_doc},
    {Py_sq_length, table_length},
    {0, NULL},
};

static PyType_Spec table_spec = {
    .name = "machtrace._native._walk.RuleTable",
    .basicsize = sizeof(struct table_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = table_slots,
};

/* --- StackWalker --- */

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

static void let_go_of_stack(struct walker_object *self)
{
    self->walk.stack = NULL;
    self->walk.stack_size = 0;
    if (self->stack.obj != NULL)
        PyBuffer_Release(&self->stack);
    self->stack.obj = NULL;
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

/* What put_frame did, beside MACHTRACE_PUSHED and its like. */
enum { DOES_NOT_FIT = -1, FAILED = -2 };

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

static PyObject *walker_start(PyObject *object, PyObject *arguments)
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
        PyErr_SetString(PyExc_ValueError, "fewer than no frames cannot be kept");
        return NULL;
    }
    PyObject *result = NULL;
    LOCK_BOTH(object, (PyObject *)self->rules)
    struct machtrace_walk *walk = &self->walk;
    let_go_of_stack(self);
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

static PyObject *walker_resume(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct walker_object *self = (struct walker_object *)object;
    PyObject *result;
    LOCK_BOTH(object, (PyObject *)self->rules)
    result = pause_as_int(machtrace_walk_run(&self->rules->table, &self->walk));
    UNLOCK_BOTH()
    return result;
}

static PyObject *walker_push(PyObject *object, PyObject *arguments)
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
static PyObject *walker_part(PyObject *object, PyObject *unused)
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

static PyObject *walker_place(PyObject *object, PyObject *unused)
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

static PyObject *walker_values(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct walker_object *self = (struct walker_object *)object;
    PyObject *values;
    LOCK_BOTH(object, (PyObject *)self->rules)
    values = values_as_tuple(&self->walk, self->rules->table.machine.register_count);
    UNLOCK_BOTH()
    return values;
}

static PyObject *bytes_of(const void *items, size_t count, size_t size)
{
    return PyBytes_FromStringAndSize(count != 0 ? items : NULL, (Py_ssize_t)(count * size));
}

/* Fold this stack, and let go of its bytes. */
static PyObject *walker_finish(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct walker_object *self = (struct walker_object *)object;
    unsigned long long depth;
    LOCK(object)
    machtrace_walk_fold(&self->walk);
    let_go_of_stack(self);
    depth = self->walk.depth;
    UNLOCK()
    return PyLong_FromUnsignedLongLong(depth);
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
    error = machtrace_walk_keep(&self->walk, value, code);
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
    {"start", walker_start, METH_VARARGS,
     PyDoc_STR("start(pc, values, code, stack_start, stack, head, outer, /)\n--\n\n"
               "Walk another stack; why that paused, or DOES_NOT_FIT of its registers.")},
    {"resume", walker_resume, METH_NOARGS,
     PyDoc_STR("resume()\n--\n\nGo on with this stack; why that paused.")},
    {"push", walker_push, METH_VARARGS,
     PyDoc_STR("push(pc, values, code, interrupted, is_regular, /)\n--\n\n"
               "Append a caller that was found elsewhere: PUSHED, or why not.")},
    {"part", walker_part, METH_NOARGS,
     PyDoc_STR("part()\n--\n\n"
               "Keep the frames from here on apart, and look for no other; the depth before.")},
    {"place", walker_place, METH_NOARGS,
     PyDoc_STR("place()\n--\n\nThe last frame's pc, and whether it was interrupted.")},
    {"values", walker_values, METH_NOARGS,
     PyDoc_STR("values()\n--\n\nThe last frame's registers.")},
    {"finish", walker_finish, METH_NOARGS,
     PyDoc_STR("finish()\n--\n\nEnd this stack: leave out its middle if it is deep; its depth.")},
    {"frames", walker_frames, METH_VARARGS,
     PyDoc_STR("frames(first, end, /)\n--\n\n"
               "Addresses and codes of some of the frames that were kept, of any stack.")},
    {"objects", walker_objects, METH_VARARGS,
     PyDoc_STR("objects(first, end, /)\n--\n\nThe same as objects, in a tuple.")},
    {"append", walker_append, METH_VARARGS,
     PyDoc_STR("append(address, code, /)\n--\n\nKeep a frame that was found elsewhere.")},
    {"drop", walker_drop, METH_VARARGS,
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

static PyType_Spec walker_spec = {
    .name = "machtrace._native._walk.StackWalker",
    .basicsize = sizeof(struct walker_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = walker_slots,
};

/* --- the module --- */

static PyObject *function_starts(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer table;
    unsigned long long base;
    if (!PyArg_ParseTuple(arguments, "y*K:function_starts", &table, &base))
        return NULL;
    PyObject *starts = NULL;
    int64_t count = machtrace_function_starts_count(table.buf, (size_t)table.len);
    if (count >= 0 && count <= PY_SSIZE_T_MAX / (int64_t)sizeof(uint64_t)) {
        /* A bytearray's memory is aligned for any item. */
        starts = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)count * (Py_ssize_t)sizeof(uint64_t));
        if (starts != NULL && count != 0 &&
            machtrace_function_starts_decode(table.buf, base,
                                             (uint64_t *)(void *)PyByteArray_AsString(starts),
                                             (size_t)count) != 0)
            Py_CLEAR(starts);
    }
    PyBuffer_Release(&table);
    if (starts == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return starts;
}

static PyMethodDef methods[] = {
    {"function_starts", function_starts, METH_VARARGS,
     PyDoc_STR("function_starts(table, base, /)\n--\n\n"
               "The starts in LC_FUNCTION_STARTS, 8 bytes each; None of a malformed table.")},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    struct module_state *state = PyModule_GetState(module);
    state->table_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &table_spec, NULL);
    if (state->table_type == NULL || PyModule_AddType(module, state->table_type) != 0)
        return -1;
    PyObject *walker = PyType_FromModuleAndSpec(module, &walker_spec, NULL);
    if (walker == NULL)
        return -1;
    int error = PyModule_AddType(module, (PyTypeObject *)walker);
    Py_DECREF(walker);
    if (error != 0)
        return -1;
    static const struct {
        const char *name;
        int value;
    } constants[] = {
        {"ROOT", MACHTRACE_ROOT},           {"NO_RULE", MACHTRACE_NO_RULE},
        {"DECLINED", MACHTRACE_DECLINED},   {"PUSHED", MACHTRACE_PUSHED},
        {"PASSED", MACHTRACE_PASSED},       {"TOO_DEEP", MACHTRACE_TOO_DEEP},
        {"DOES_NOT_FIT", DOES_NOT_FIT},     {"AT_CFA", MACHTRACE_AT_CFA},
        {"CFA_PLUS", MACHTRACE_CFA_PLUS},   {"IN_REGISTER", MACHTRACE_IN_REGISTER},
        {"LOST", MACHTRACE_LOST},
    };
    for (size_t index = 0; index < sizeof constants / sizeof *constants; index++) {
        if (PyModule_AddIntConstant(module, constants[index].name, constants[index].value) != 0)
            return -1;
    }
    return 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct module_state *state = PyModule_GetState(module);
    Py_VISIT(state->table_type);
    return 0;
}

static int module_clear(PyObject *module)
{
    struct module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->table_type);
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
#if !defined(Py_LIMITED_API) && PY_VERSION_HEX >= 0x030D0000
    /* A free-threaded interpreter, which has no limited API yet. */
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_walk",
    .m_doc = "The loop of the stack walk, for frames that need no thought.",
    .m_size = sizeof(struct module_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__walk(void);

PyMODINIT_FUNC PyInit__walk(void)
{
    return PyModuleDef_Init(&definition);
}
