/* How each extension module is defined; include it after Python.h. */
#ifndef MACHTRACE_COMMON_MODULE_H
#define MACHTRACE_COMMON_MODULE_H

/* The slot by which a module declares that it needs no interpreter's lock, for a free-threaded
 * interpreter, which has no limited API yet; elsewhere nothing. */
#if !defined(Py_LIMITED_API) && PY_VERSION_HEX >= 0x030D0000
#define MACHTRACE_GIL_SLOT {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#else
#define MACHTRACE_GIL_SLOT
#endif

/* Define the module of this name: `exec` prepares it, the rest are fields of PyModuleDef. */
#define MACHTRACE_MODULE(name, exec, text, ...)                                                    \
    static PyModuleDef_Slot slots_of##name[] = {                                                   \
        {Py_mod_exec, (void *)(exec)},                                                             \
        MACHTRACE_GIL_SLOT                                                                         \
        {0, NULL},                                                                                 \
    };                                                                                             \
    static struct PyModuleDef definition_of##name = {                                              \
        .m_base = PyModuleDef_HEAD_INIT,                                                           \
        .m_name = #name,                                                                           \
        .m_doc = (text),                                                                           \
        .m_slots = slots_of##name,                                                                 \
        __VA_ARGS__                                                                                \
    };                                                                                             \
    PyMODINIT_FUNC PyInit_##name(void);                                                            \
    PyMODINIT_FUNC PyInit_##name(void) { return PyModuleDef_Init(&definition_of##name); }

/* For a module with functions alone. */
static inline int machtrace_prepare_nothing(PyObject *module)
{
    (void)module;
    return 0;
}

static inline int machtrace_add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL)
        return -1;
    int error = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return error;
}

#endif
