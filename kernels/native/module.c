/* The Python module phalanx.kernels._native: addresses and sizes in, nothing but C after that.
 *
 * The operands were checked in Python (kernels/<operation>.py). A call that touches more than a few
 * hundred KiB releases the interpreter lock; for a smaller one that would cost more than the call.
 * Only the stable ABI is used, so one build serves every later Python. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "native.h"
#include "thread_pool.h"

/* Raised whenever a signature or the meaning of an argument changes; see native_library.py. */
#define LIBRARY_VERSION 1
#define RELEASE_BYTES (256 * 1024)
#define MAX_ARGUMENTS 20

union argument {
    long long i;
    double f;
};

/* `format` has one letter per argument: p address, n non-negative size, i integer, f float. */
static int parse(const char *name, const char *format, PyObject *const *objects, Py_ssize_t count,
                 union argument *out) {
    Py_ssize_t expected = (Py_ssize_t)strlen(format);
    if (count != expected) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments (got %zd)", name, expected, count);
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (format[i] == 'f')
            out[i].f = PyFloat_AsDouble(objects[i]);
        else if (format[i] == 'p')
            out[i].i = (long long)(intptr_t)PyLong_AsVoidPtr(objects[i]);
        else
            out[i].i = PyLong_AsLongLong(objects[i]);
        if (PyErr_Occurred()) return 0;
        if (format[i] == 'n' && out[i].i < 0) {
            PyErr_Format(PyExc_ValueError, "%s: argument %zd is negative (%lld)", name, i,
                         out[i].i);
            return 0;
        }
    }
    return 1;
}

static void *address(union argument argument) { return (void *)(intptr_t)argument.i; }

/* Run an operation, with the interpreter lock released when it is long. */
#define RUN(status, work, call)            \
    do {                                   \
        if ((work) < RELEASE_BYTES) {      \
            status = (call);               \
        } else {                           \
            Py_BEGIN_ALLOW_THREADS         \
            status = (call);               \
            Py_END_ALLOW_THREADS           \
        }                                  \
    } while (0)

static PyObject *none_or_error(enum status status) {
    if (status == STATUS_NO_MEMORY) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *in_range_or_error(enum status status) {
    if (status == STATUS_NO_MEMORY) return PyErr_NoMemory();
    return PyBool_FromLong(status == STATUS_OK);
}

#define ENTRY(name) \
    static PyObject *name(PyObject *self, PyObject *const *objects, Py_ssize_t count)

ENTRY(py_linear) {
    (void)self;
    union argument v[MAX_ARGUMENTS];
    if (!parse("linear", "pnpipnnnn", objects, count, v)) return NULL;
    struct linear_args a = {
        .x = address(v[0]), .x_stride = (size_t)v[1].i, .w = address(v[2]), .dtype = (int)v[3].i,
        .out = address(v[4]), .out_stride = (size_t)v[5].i, .rows = (size_t)v[6].i,
        .num_out = (size_t)v[7].i, .width = (size_t)v[8].i};
    enum status status;
    RUN(status, (a.num_out + a.rows) * a.width * 4, op_linear(&a));
    return none_or_error(status);
}

ENTRY(py_linear_argmax) {
    (void)self;
    union argument v[MAX_ARGUMENTS];
    if (!parse("linear_argmax", "pnpipppnnn", objects, count, v)) return NULL;
    struct argmax_args a = {
        .x = address(v[0]), .x_stride = (size_t)v[1].i, .w = address(v[2]), .dtype = (int)v[3].i,
        .value = address(v[4]), .index = address(v[5]), .log_sum_exp = address(v[6]),
        .rows = (size_t)v[7].i, .num_out = (size_t)v[8].i, .width = (size_t)v[9].i};
    enum status status;
    RUN(status, (a.num_out + a.rows) * a.width * 4, op_linear_argmax(&a));
    return none_or_error(status);
}

ENTRY(py_gated_experts) {
    (void)self;
    union argument v[MAX_ARGUMENTS];
    if (!parse("gated_experts", "pnppipppnnnnn", objects, count, v)) return NULL;
    struct experts_args a = {
        .x = address(v[0]), .x_stride = (size_t)v[1].i, .gate_up = address(v[2]),
        .down = address(v[3]), .dtype = (int)v[4].i, .expert_ids = address(v[5]),
        .weights = address(v[6]), .out = address(v[7]), .rows = (size_t)v[8].i,
        .num_chosen = (size_t)v[9].i, .num_experts = (size_t)v[10].i, .inner = (size_t)v[11].i,
        .width = (size_t)v[12].i};
    enum status status;
    RUN(status, a.rows * a.num_chosen * a.inner * a.width * 4, op_gated_experts(&a));
    return in_range_or_error(status);
}

ENTRY(py_gated_mlp) {
    (void)self;
    union argument v[MAX_ARGUMENTS];
    if (!parse("gated_mlp", "pnppipnnn", objects, count, v)) return NULL;
    struct experts_args a = {
        .x = address(v[0]), .x_stride = (size_t)v[1].i, .gate_up = address(v[2]),
        .down = address(v[3]), .dtype = (int)v[4].i, .expert_ids = NULL, .weights = NULL,
        .out = address(v[5]), .rows = (size_t)v[6].i, .num_chosen = 1, .num_experts = 1,
        .inner = (size_t)v[7].i, .width = (size_t)v[8].i};
    enum status status;
    RUN(status, (a.rows + 1) * a.inner * a.width * 4, op_gated_experts(&a));
    return none_or_error(status);
}

ENTRY(py_rms_norm) {
    (void)self;
    union argument v[MAX_ARGUMENTS];
    if (!parse("rms_norm", "pnpifpnn", objects, count, v)) return NULL;
    struct norm_args a = {
        .x = address(v[0]), .x_stride = (size_t)v[1].i, .weight = address(v[2]),
        .dtype = (int)v[3].i, .eps = (float)v[4].f, .normed = address(v[5]),
        .rows = (size_t)v[6].i, .width = (size_t)v[7].i};
    enum status status;
    RUN(status, a.rows * a.width * 4, op_rms_norm(&a));
    return none_or_error(status);
}

ENTRY(py_add_rms_norm) {
    (void)self;
    union argument v[MAX_ARGUMENTS];
    if (!parse("add_rms_norm", "pnpnpifppnn", objects, count, v)) return NULL;
    struct norm_args a = {
        .x = address(v[0]), .x_stride = (size_t)v[1].i, .residual = address(v[2]),
        .residual_stride = (size_t)v[3].i, .weight = address(v[4]), .dtype = (int)v[5].i,
        .eps = (float)v[6].f, .normed = address(v[7]), .total = address(v[8]),
        .rows = (size_t)v[9].i, .width = (size_t)v[10].i};
    enum status status;
    RUN(status, a.rows * a.width * 4, op_rms_norm(&a));
    return none_or_error(status);
}

ENTRY(py_rotary) {
    (void)self;
    union argument v[MAX_ARGUMENTS];
    if (!parse("rotary", "pnpnpppnnnnnn", objects, count, v)) return NULL;
    struct rotary_args a = {
        .q = address(v[0]), .q_stride = (size_t)v[1].i, .k = address(v[2]),
        .k_stride = (size_t)v[3].i, .cos = address(v[4]), .sin = address(v[5]),
        .positions = address(v[6]), .rows = (size_t)v[7].i, .num_heads = (size_t)v[8].i,
        .num_kv_heads = (size_t)v[9].i, .head_dim = (size_t)v[10].i, .half = (size_t)v[11].i,
        .num_positions = (size_t)v[12].i};
    enum status status;
    RUN(status, a.rows * (a.num_heads + a.num_kv_heads) * a.head_dim * 4, op_rotary(&a));
    return in_range_or_error(status);
}

ENTRY(py_kv_store) {
    (void)self;
    union argument v[MAX_ARGUMENTS];
    if (!parse("kv_store", "pnpnppipnnn", objects, count, v)) return NULL;
    struct store_args a = {
        .k = address(v[0]), .k_stride = (size_t)v[1].i, .v = address(v[2]),
        .v_stride = (size_t)v[3].i, .k_pool = address(v[4]), .v_pool = address(v[5]),
        .dtype = (int)v[6].i, .slots = address(v[7]), .rows = (size_t)v[8].i,
        .num_slots = (size_t)v[9].i, .slot_width = (size_t)v[10].i};
    enum status status;
    RUN(status, a.rows * a.slot_width * 8, op_kv_store(&a));
    return in_range_or_error(status);
}

ENTRY(py_paged_attention) {
    (void)self;
    union argument v[MAX_ARGUMENTS];
    if (!parse("paged_attention", "pnppipppfpnnnnnnnn", objects, count, v)) return NULL;
    struct attention_args a = {
        .q = address(v[0]), .q_stride = (size_t)v[1].i, .k_pool = address(v[2]),
        .v_pool = address(v[3]), .dtype = (int)v[4].i, .block_tables = address(v[5]),
        .row_seq = address(v[6]), .row_last = address(v[7]), .scale = (float)v[8].f,
        .out = address(v[9]), .rows = (size_t)v[10].i, .num_heads = (size_t)v[11].i,
        .num_kv_heads = (size_t)v[12].i, .head_dim = (size_t)v[13].i,
        .num_blocks = (size_t)v[14].i, .block_size = (size_t)v[15].i,
        .num_seqs = (size_t)v[16].i, .table_width = (size_t)v[17].i};
    if (a.num_kv_heads == 0 || a.block_size == 0 || a.num_heads % a.num_kv_heads != 0)
        return in_range_or_error(STATUS_OUT_OF_RANGE);
    enum status status;
    size_t positions = a.table_width * a.block_size;
    RUN(status, a.rows * positions * a.num_heads * a.head_dim * 4, op_paged_attention(&a));
    return in_range_or_error(status);
}

ENTRY(py_softmax_topk) {
    (void)self;
    union argument v[MAX_ARGUMENTS];
    if (!parse("softmax_topk", "pppnnni", objects, count, v)) return NULL;
    struct router_args a = {
        .logits = address(v[0]), .ids = address(v[1]), .weights = address(v[2]),
        .rows = (size_t)v[3].i, .num_experts = (size_t)v[4].i, .top_k = (size_t)v[5].i,
        .normalize = (int)v[6].i};
    enum status status;
    RUN(status, a.rows * a.num_experts * 16, op_router(&a));
    return none_or_error(status);
}

ENTRY(py_grouped_sigmoid_topk) {
    (void)self;
    union argument v[MAX_ARGUMENTS];
    if (!parse("grouped_sigmoid_topk", "ppppnnnnnif", objects, count, v)) return NULL;
    struct router_args a = {
        .logits = address(v[0]), .bias = address(v[1]), .ids = address(v[2]),
        .weights = address(v[3]), .rows = (size_t)v[4].i, .num_experts = (size_t)v[5].i,
        .top_k = (size_t)v[6].i, .num_groups = (size_t)v[7].i, .topk_groups = (size_t)v[8].i,
        .normalize = (int)v[9].i, .scale = (float)v[10].f};
    enum status status;
    RUN(status, a.rows * a.num_experts * 16, op_router(&a));
    return none_or_error(status);
}

static PyObject *py_num_threads(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return PyLong_FromLong(pool_num_threads());
}

static PyObject *py_set_num_threads(PyObject *self, PyObject *object) {
    (void)self;
    long num_threads = PyLong_AsLong(object);
    if (num_threads == -1 && PyErr_Occurred()) return NULL;
    if (num_threads < 1) {
        PyErr_Format(PyExc_ValueError, "bad thread count (num_threads=%ld, limit >= 1)",
                     num_threads);
        return NULL;
    }
    pool_set_num_threads(num_threads > 1 << 20 ? 1 << 20 : (int)num_threads);
    Py_RETURN_NONE;
}

static PyObject *py_instruction_set(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return PyUnicode_FromString(isa_in_use()->name);
}

static PyObject *py_instruction_sets(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    Py_ssize_t count = 0;
    while (isa_at((size_t)count) != NULL) count++;
    PyObject *names = PyTuple_New(count);
    for (Py_ssize_t i = 0; names != NULL && i < count; i++) {
        PyObject *name = PyUnicode_FromString(isa_at((size_t)i)->name);
        if (name == NULL || PyTuple_SetItem(names, i, name) != 0) {
            Py_DECREF(names);
            return NULL;
        }
    }
    return names;
}

static PyObject *py_set_instruction_set(PyObject *self, PyObject *object) {
    (void)self;
    const char *name = PyUnicode_AsUTF8AndSize(object, NULL);
    if (name == NULL) return NULL;
    if (!isa_use(name)) {
        PyErr_Format(PyExc_ValueError, "instruction set cannot run here (name=%s)", name);
        return NULL;
    }
    Py_RETURN_NONE;
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    FAST(linear),
    FAST(linear_argmax),
    FAST(gated_experts),
    FAST(gated_mlp),
    FAST(rms_norm),
    FAST(add_rms_norm),
    FAST(rotary),
    FAST(kv_store),
    FAST(paged_attention),
    FAST(softmax_topk),
    FAST(grouped_sigmoid_topk),
    {"num_threads", py_num_threads, METH_NOARGS, NULL},
    {"set_num_threads", py_set_num_threads, METH_O, NULL},
    {"instruction_set", py_instruction_set, METH_NOARGS, NULL},
    {"instruction_sets", py_instruction_sets, METH_NOARGS, NULL},
    {"set_instruction_set", py_set_instruction_set, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_native",
    .m_doc = "Native CPU operations; see kernels/native_library.py.", .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "VERSION", LIBRARY_VERSION) != 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
