/* RuleTable: the Python side of rule_table.h, and no more. */
#include "walk/objects.h"

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
                    register_count <= MACHTRACE_REGISTERS && (pointer_size == 4 || pointer_size == 8);
    for (Py_ssize_t index = 0; index < preserved.len; index++) {
        unsigned char number = ((const unsigned char *)preserved.buf)[index];
        if (number < MACHTRACE_REGISTERS)
            machine.preserved[number / 64] |= UINT64_C(1) << (number % 64);
        else
            is_valid = false;
    }
    PyBuffer_Release(&preserved);
    if (!is_valid) {
        PyErr_SetString(PyExc_ValueError, "invalid machine");
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
    unsigned char number, location, from, size;
    int offset;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a recovery is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "bbbbi", &number, &location, &from, &size, &offset))
        return -1;
    *recovery = (struct machtrace_recovery){number, location, from, size, offset};
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
        PyErr_SetString(PyExc_ValueError, "the rule names an invalid register or location");
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
        PyErr_SetString(PyExc_ValueError, "unknown rule");
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

PyDoc_STRVAR(table_doc, "RuleTable(sp, fp, pointer_size, register_count, code_bits, preserved)\n"
                        "--\n\n"
                        "Simple rules, and the addresses at which they hold.");

static PyMethodDef table_methods[] = {
    {"define", table_define, METH_VARARGS,
     PyDoc_STR("define(cfa_register, cfa_offset, return_address, registers, code, must_rise, /)\n"
               "--\n\nAdd a rule; its number.")},
    {"add", table_add, METH_VARARGS,
     PyDoc_STR("add(lookup, interrupted, rule, /)\n--\n\nLet a rule hold at an address.")},
    {"clear", table_clear, METH_NOARGS, PyDoc_STR("clear()\n--\n\nRemove all rules.")},
    {"__sizeof__", table_sizeof, METH_NOARGS, PyDoc_STR("Return the size in bytes.")},
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

PyType_Spec machtrace_table_spec = {
    .name = "machtrace._native._walk.RuleTable",
    .basicsize = sizeof(struct table_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = table_slots,
};
