/* machtrace._native._walk: its types. */
#include "walk/objects.h"

#include "common/module.h"

static int module_exec(PyObject *module)
{
    struct module_state *state = PyModule_GetState(module);
    state->table_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &machtrace_table_spec, NULL);
    if (state->table_type == NULL || PyModule_AddType(module, state->table_type) != 0)
        return -1;
    if (machtrace_add_type(module, &machtrace_walker_spec) != 0)
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

MACHTRACE_MODULE(_walk, module_exec, "The loop of the stack walk, for simple frames.",
                 .m_size = sizeof(struct module_state), .m_traverse = module_traverse,
                 .m_clear = module_clear)
