/* The compiled module of the lookup drafters: NgramIndex and TextScope, behind lookup_native.py. */
#include "lookup.h"

#define LOOKUP_VERSION 1

int lookup_open_history(PyObject *history, History *opened) {
    opened->sequence = PySequence_Fast(history, "history must be a sequence of token ids");
    if (opened->sequence == NULL) {
        return -1;
    }
    int is_list = PyList_Check(opened->sequence);
    opened->item = is_list ? PyList_GetItem : PyTuple_GetItem;
    opened->length = is_list ? PyList_Size(opened->sequence) : PyTuple_Size(opened->sequence);
    return 0;
}

int lookup_add_type(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int failed = type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static int lookup_exec(PyObject *module) {
    if (PyModule_AddIntConstant(module, "VERSION", LOOKUP_VERSION) < 0 ||
        lookup_add_index(module) < 0 || lookup_add_scope(module) < 0) {
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot lookup_slots[] = {
    {Py_mod_exec, lookup_exec},
    {0, NULL},
};

static PyModuleDef lookup_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "phalanx.kernels._lookup",
    .m_doc = "Compiled lookup tables of the lookup drafters.",
    .m_size = 0,
    .m_slots = lookup_slots,
};

PyMODINIT_FUNC PyInit__lookup(void) { return PyModuleDef_Init(&lookup_module); }
