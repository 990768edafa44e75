/* Lookup tables of the lookup drafters: what the two types of the compiled module share. */
#ifndef PHALANX_LOOKUP_H
#define PHALANX_LOOKUP_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define LOOKUP_FOLD_BASIS 0xcbf29ce484222325ULL
#define LOOKUP_FOLD_PRIME 0x100000001b3ULL
#define LOOKUP_SPREAD 0x9e3779b97f4a7c15ULL

/* One step of the n-gram hash. Folding runs from the last token backwards, so the hash of a short
 * n-gram is a stage of the hash of every longer one with the same end. */
static inline uint64_t lookup_fold(uint64_t hash, uint64_t token) {
    hash = (hash ^ token) * LOOKUP_FOLD_PRIME;
    return (hash << 29) | (hash >> 35);
}

/* The top bits of the spread hash: a table of 2^(64 - shift) entries, shift in 1..63. */
static inline uint64_t lookup_slot(uint64_t hash, int shift) {
    return (hash * LOOKUP_SPREAD) >> shift;
}

/* Object memory of a type made from a spec, through the stable interface. */
static inline PyObject *lookup_alloc(PyTypeObject *type) {
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

static inline void lookup_free(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF(type);
}

/* The caller's token ids during one call: a list or a tuple, of which a reference is held. */
typedef struct {
    PyObject *sequence;
    PyObject *(*item)(PyObject *, Py_ssize_t); /* borrowed; checks bounds */
    Py_ssize_t length;
} History;

/* Lists and tuples are read in place, another sequence is copied. -1 with an exception set. */
int lookup_open_history(PyObject *history, History *opened);

/* Each adds a type to the module; -1 with an exception set on failure. */
int lookup_add_type(PyObject *module, PyType_Spec *spec);
int lookup_add_index(PyObject *module);
int lookup_add_scope(PyObject *module);

#endif
