/* OwnStacks: the calling thread's own walk, and the objects cached for the same stack.
 *
 * The stack is walked in place: nothing that is walked can change before the function that
 * walks it returns.
 */
#include "inprocess/objects.h"

#include <stdlib.h>
#include <string.h>

#include "inprocess/core/capture.h"
#include "inprocess/core/current_registers.h"
#include "walk/plain_walk.h"
#include "inprocess/core/stack_cache.h"
#include "walk/objects.h"

struct own_stacks {
    PyObject_HEAD
    struct table_object *rules;
    uint64_t image_changes; /* when the rules and the cache were last right */
    unsigned char code;     /* of an innermost frame */
    struct machtrace_walk walk;
    struct machtrace_stack_cache cache;
    uint64_t *plain; /* addresses of a plain walk: PLAIN_MAX */
};

/* Frames of this extension at the inner end. */
#define OWN_FRAMES 1

/* In a deeper stack all registers are followed, and its middle is not stored. */
#define PLAIN_MAX 4096

/* The stored ends of a stack, without this extension's frames. */
struct walked_stack {
    const uint64_t *addresses;
    size_t count;
    uint64_t depth; /* more than count where the middle was left out */
};

static PyObject *new_own_stacks(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"rules", "mask", "code", "image_changes", NULL};
    PyObject *rules;
    unsigned long long mask, image_changes;
    unsigned char code;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OKbK:OwnStacks", names, &rules, &mask,
                                     &code, &image_changes))
        return NULL;
    PyObject *walk_module = PyImport_ImportModule("machtrace._native._walk");
    if (walk_module == NULL)
        return NULL;
    PyObject *table_type = PyObject_GetAttrString(walk_module, "RuleTable");
    Py_DECREF(walk_module);
    if (table_type == NULL)
        return NULL;
    int is_table = PyObject_IsInstance(rules, table_type);
    Py_DECREF(table_type);
    if (is_table <= 0) {
        if (is_table == 0)
            PyErr_SetString(PyExc_TypeError, "the rules are not a RuleTable");
        return NULL;
    }
    struct own_stacks *self = (struct own_stacks *)new_instance(type);
    if (self == NULL)
        return NULL;
    self->plain = malloc(PLAIN_MAX * sizeof *self->plain);
    if (self->plain == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    Py_INCREF(rules);
    self->rules = (struct table_object *)rules;
    self->walk.mask = mask;
    self->code = code;
    self->cache.seed = (uint64_t)(uintptr_t)self * UINT64_C(0x9e3779b97f4a7c15);
    self->image_changes = image_changes;
    return (PyObject *)self;
}

static void dealloc(PyObject *object)
{
    struct own_stacks *self = (struct own_stacks *)object;
    PyObject *value;
    while ((value = machtrace_stack_cache_pop(&self->cache)) != NULL)
        Py_DECREF(value);
    machtrace_walk_release(&self->walk);
    free(self->plain);
    Py_XDECREF((PyObject *)self->rules);
    free_instance(object);
}

/* A stack of simple frames, by two registers; false if a frame needs more. */
static bool walk_plain(struct own_stacks *self, const struct machtrace_here *here, uint64_t end,
                       size_t head, size_t outer, struct walked_stack *walked)
{
    struct machtrace_plain_start start = {
        .pc = here->pc,
        .sp = here->values[MACHTRACE_HERE_SP],
        .fp = here->values[MACHTRACE_HERE_FP],
        .stack = (const unsigned char *)(uintptr_t)here->values[MACHTRACE_HERE_SP],
        .stack_size = (size_t)(end - here->values[MACHTRACE_HERE_SP]),
        .mask = self->walk.mask,
    };
    size_t count = machtrace_plain_walk(&self->rules->table, &start, self->plain, PLAIN_MAX);
    if (count <= OWN_FRAMES)
        return false;
    uint64_t *addresses = self->plain + OWN_FRAMES;
    size_t depth = count - OWN_FRAMES;
    *walked = (struct walked_stack){addresses, depth, depth};
    if (outer <= depth && head < depth - outer) {
        memmove(addresses + head, addresses + depth - outer, outer * sizeof *addresses);
        walked->count = head + outer;
    }
    return true;
}

/* Any stack, by all registers that calls preserve. */
static enum machtrace_pause walk_exactly(struct own_stacks *self, const struct machtrace_here *here,
                                         uint64_t end, size_t head, size_t outer,
                                         struct walked_stack *walked)
{
    struct machtrace_walk *walk = &self->walk;
    uint64_t sp = here->values[MACHTRACE_HERE_SP];
    walk->count = 0;
    machtrace_walk_begin(walk, head + OWN_FRAMES, outer);
    for (unsigned number = 0; number < MACHTRACE_HERE_MAX; number++)
        walk->values[number] = here->values[number];
    walk->known[0] = here->known;
    walk->known[1] = 0;
    walk->stack_start = sp;
    walk->stack = (const unsigned char *)(uintptr_t)sp;
    walk->stack_size = (size_t)(end - sp);
    walk->interrupted = true;
    enum machtrace_pause pause = MACHTRACE_NO_MEMORY;
    if (machtrace_walk_push(walk, 0, here->pc, sp, self->code, true) == MACHTRACE_PUSHED)
        pause = machtrace_walk_run(&self->rules->table, walk);
    walk->stack = NULL;
    walk->stack_size = 0;
    if (pause == MACHTRACE_ROOT) {
        machtrace_walk_fold(walk);
        *walked = (struct walked_stack){walk->addresses + OWN_FRAMES, walk->count - OWN_FRAMES,
                                        walk->depth - OWN_FRAMES};
    }
    return pause;
}

/* Walk from these registers, on the stack from sp to its end. */
static enum machtrace_pause walk_from(struct own_stacks *self, const struct machtrace_here *here,
                                      size_t head, size_t outer, struct walked_stack *walked)
{
    const struct machtrace_machine *machine = &self->rules->table.machine;
    uint64_t end = machtrace_inprocess_stack_end();
    if (end <= here->values[MACHTRACE_HERE_SP])
        return MACHTRACE_DECLINED; /* on another stack than the system made for the thread */
    if (machine->register_count > MACHTRACE_REGISTERS || machine->sp != MACHTRACE_HERE_SP ||
        machine->fp != MACHTRACE_HERE_FP)
        return MACHTRACE_DECLINED;
    if (walk_plain(self, here, end, head, outer, walked))
        return MACHTRACE_ROOT;
    return walk_exactly(self, here, end, head, outer, walked);
}

/* The rule that a walk lacks, as twice its address, and one if it was interrupted; None
 * where nothing of the kind would help. */
static PyObject *missing(const struct own_stacks *self, enum machtrace_pause pause)
{
    if (pause == MACHTRACE_NO_MEMORY)
        return PyErr_NoMemory();
    uint64_t pc = self->walk.pc;
    if (pause != MACHTRACE_NO_RULE || pc >> 63 != 0)
        Py_RETURN_NONE;
    uint64_t lookup = pc - (self->walk.interrupted ? 0 : 1);
    return PyLong_FromUnsignedLongLong(lookup << 1 | (self->walk.interrupted ? 1 : 0));
}

/* find(head, outer, variant). Its arguments are in a tuple: with this convention alone the
 * interpreter does not specialise calls once they are frequent, so that the frames
 * between this and the interpreter's are always the same. */
static PyObject *find(PyObject *object, PyObject *arguments)
{
    struct own_stacks *self = (struct own_stacks *)object;
    if (PyTuple_Size(arguments) != 3) {
        PyErr_SetString(PyExc_TypeError, "find takes 3 arguments");
        return NULL;
    }
    Py_ssize_t head = PyLong_AsSsize_t(PyTuple_GetItem(arguments, 0));
    Py_ssize_t outer = PyLong_AsSsize_t(PyTuple_GetItem(arguments, 1));
    unsigned long variant = PyLong_AsUnsignedLong(PyTuple_GetItem(arguments, 2));
    if (PyErr_Occurred())
        return NULL;
    if (head < 0 || outer < 0 || head > PY_SSIZE_T_MAX / 2 || outer > PY_SSIZE_T_MAX / 2 ||
        variant > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "invalid number of frames, or variant");
        return NULL;
    }
    struct machtrace_here here = {0, {0}, 0};
    struct walked_stack walked = {NULL, 0, 0};
    PyObject *result = NULL;
    uint64_t changes = machtrace_image_changes();
    LOCK_BOTH(object, (PyObject *)self->rules)
    MACHTRACE_TAKE_HERE(&here);
    enum machtrace_pause pause = MACHTRACE_DECLINED;
    if (changes == self->image_changes)
        pause = walk_from(self, &here, (size_t)head, (size_t)outer, &walked);
    if (pause != MACHTRACE_ROOT) {
        result = missing(self, pause);
    } else {
        result = machtrace_stack_cache_find(&self->cache, walked.addresses, walked.count,
                                            walked.depth, (uint32_t)variant);
        if (result != NULL)
            Py_INCREF(result);
        else
            result = Py_BuildValue("[Ky#]", (unsigned long long)walked.depth,
                                   (const char *)walked.addresses,
                                   (Py_ssize_t)(walked.count * sizeof *walked.addresses));
    }
    UNLOCK_BOTH()
    return result;
}

/* Cache the result for a stack, at the position that find returned. */
static PyObject *remember(PyObject *object, PyObject *arguments)
{
    struct own_stacks *self = (struct own_stacks *)object;
    unsigned long long depth;
    Py_buffer known;
    unsigned int variant;
    PyObject *value;
    if (!PyArg_ParseTuple(arguments, "Ky*IO!:remember", &depth, &known, &variant, &PyTuple_Type,
                          &value))
        return NULL;
    void *removed = NULL;
    int error;
    Py_INCREF(value);
    LOCK(object)
    error = machtrace_stack_cache_put(&self->cache, known.buf, (size_t)known.len / sizeof(uint64_t),
                                      depth, variant, value, &removed);
    UNLOCK()
    PyBuffer_Release(&known);
    Py_XDECREF((PyObject *)removed);
    if (error != 0) {
        Py_DECREF(value);
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

static Py_ssize_t length(PyObject *object)
{
    size_t count;
    LOCK(object)
    count = ((struct own_stacks *)object)->cache.count;
    UNLOCK()
    return (Py_ssize_t)count;
}

static PyObject *is_current(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(((struct own_stacks *)object)->image_changes ==
                           machtrace_image_changes());
}

static PyMethodDef methods[] = {
    {"find", find, METH_VARARGS,
     PyDoc_STR("find(head, outer, variant, /)\n--\n\n"
               "Return the object cached for the calling thread's stack, else its depth and "
               "addresses in a list; or the rule that is missing, or None.")},
    {"remember", remember, METH_VARARGS,
     PyDoc_STR("remember(depth, addresses, variant, value, /)\n--\n\n"
               "Cache the value, which find then returns for this stack.")},
    {"is_current", is_current, METH_NOARGS,
     PyDoc_STR("is_current()\n--\n\nReturn whether no image was loaded or unloaded since.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_own_stacks},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc,
     (void *)PyDoc_STR("OwnStacks(rules, mask, code, image_changes)\n--\n\n"
                       "The calling thread's own walk, and objects cached for its stacks.")},
    {Py_sq_length, length},
    {0, NULL},
};

PyType_Spec machtrace_inprocess_stacks_spec = {
    .name = "machtrace._native._inprocess.OwnStacks",
    .basicsize = sizeof(struct own_stacks),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
