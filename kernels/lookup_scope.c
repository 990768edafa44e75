/* Compiled text of one sharing scope: the twin of TextScope in proposers/shared_lookup.py.
 *
 *   ring      token ids, oldest overwritten first
 *   position  ever-growing index into the text, from 1; position p lives at ring[p % ring_tokens]
 *   slot      n-gram hash -> position of the token that followed it last; 0 = empty
 *
 * Every hit is compared with the ring token by token, and must lie wholly in what is still there,
 * so collisions and overwritten text cost a missed draft, never a wrong copy.
 */
#include "lookup.h"

#define SEPARATOR 0xFFFFFFFFu
#define DEDUP_RUN 32
#define MAX_KEY 64
#define NO_TOKEN (-1)

typedef struct {
    PyObject_HEAD
    Py_ssize_t key_len;
    uint64_t num_slots, ring_tokens, head;
    int shift;
    uint64_t *slots;
    uint32_t *ring;
} Scope;

static inline void append(Scope *self, uint32_t token) {
    self->ring[self->head % self->ring_tokens] = token;
    self->head++;
}

static inline uint64_t *find_slot(const Scope *self, const uint32_t *key) {
    uint64_t hash = LOOKUP_FOLD_BASIS;
    for (Py_ssize_t back = self->key_len - 1; back >= 0; back--) {
        hash = lookup_fold(hash, key[back]);
    }
    return &self->slots[lookup_slot(hash, self->shift)];
}

/* The stored token at `position` if the key before it is `key`, else NO_TOKEN. */
static inline int64_t follower(const Scope *self, uint64_t position, const uint32_t *key) {
    uint64_t key_len = (uint64_t)self->key_len;
    uint64_t oldest = self->head > self->ring_tokens ? self->head - self->ring_tokens : 1;
    if (position < oldest + key_len || position >= self->head) {
        return NO_TOKEN;
    }
    uint64_t at = (position - key_len) % self->ring_tokens;
    for (uint64_t i = 0; i < key_len; i++) {
        if (self->ring[at] != key[i]) {
            return NO_TOKEN;
        }
        if (++at == self->ring_tokens) {
            at = 0;
        }
    }
    return self->ring[at];
}

/* Stores the runs of `text` ([count] tokens, count <= ring_tokens - 1) not predicted already. */
static void store(Scope *self, const uint32_t *text, Py_ssize_t count) {
    int writing = 0, known_run = 0;
    for (Py_ssize_t at = self->key_len; at < count; at++) {
        const uint32_t *key = text + at - self->key_len;
        uint64_t *slot = find_slot(self, key);
        int known = follower(self, *slot, key) == (int64_t)text[at];
        if (!writing) {
            if (known) {
                continue;
            }
            for (Py_ssize_t i = 0; i < self->key_len; i++) {
                append(self, key[i]);
            }
            writing = 1;
            known_run = 0;
        }
        *slot = self->head;
        append(self, text[at]);
        known_run = known ? known_run + 1 : 0;
        if (known_run == DEDUP_RUN) {
            append(self, SEPARATOR);
            writing = 0;
        }
    }
    if (writing) {
        append(self, SEPARATOR);
    }
}

static PyObject *scope_insert(PyObject *op, PyObject *document) {
    Scope *self = (Scope *)op;
    Py_buffer view;
    if (PyObject_GetBuffer(document, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) {
        return NULL;
    }
    if (view.itemsize != sizeof(uint32_t) || view.format == NULL || view.format[0] != 'I') {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_TypeError, "document must be an array of u32 token ids");
        return NULL;
    }
    uint64_t before = self->head;
    Py_ssize_t count = view.len / (Py_ssize_t)sizeof(uint32_t);
    Py_ssize_t most = (Py_ssize_t)self->ring_tokens - 1;
    const uint32_t *text = view.buf;
    if (count > most) {
        text += count - most;
        count = most;
    }
    store(self, text, count);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(self->head - before);
}

/* The last key_len tokens of `items` as u32: 1, 0 when one is no token id, -1 on failure. */
static int read_key(const Scope *self, PyObject **items, Py_ssize_t end, uint32_t *key) {
    for (Py_ssize_t i = 0; i < self->key_len; i++) {
        int overflow;
        long long token = PyLong_AsLongLongAndOverflow(items[end - self->key_len + i], &overflow);
        if (token == -1 && overflow == 0 && PyErr_Occurred()) {
            return -1;
        }
        if (overflow != 0 || token < 0 || token >= (long long)SEPARATOR) {
            return 0;
        }
        key[i] = (uint32_t)token;
    }
    return 1;
}

static PyObject *copy_from(const Scope *self, uint64_t position, Py_ssize_t max_drafts) {
    PyObject *copy = PyList_New(0);
    uint64_t end = position + (uint64_t)max_drafts;
    if (end > self->head) {
        end = self->head;
    }
    for (; copy != NULL && position < end; position++) {
        uint32_t token = self->ring[position % self->ring_tokens];
        if (token == SEPARATOR) {
            break;
        }
        PyObject *item = PyLong_FromUnsignedLong(token);
        if (item == NULL || PyList_Append(copy, item) < 0) {
            Py_CLEAR(copy);
        }
        Py_XDECREF(item);
    }
    return copy;
}

static PyObject *scope_propose(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    Scope *self = (Scope *)op;
    uint32_t key[MAX_KEY];
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "propose takes (history, max_drafts)");
        return NULL;
    }
    Py_ssize_t max_drafts = PyNumber_AsSsize_t(args[1], NULL);
    if (max_drafts == -1 && PyErr_Occurred()) {
        return NULL;
    }
    PyObject *fast = PySequence_Fast(args[0], "history must be a sequence of token ids");
    if (fast == NULL) {
        return NULL;
    }
    Py_ssize_t end = PySequence_Fast_GET_SIZE(fast);
    int whole = 0;
    if (max_drafts > 0 && end >= self->key_len) {
        whole = read_key(self, PySequence_Fast_ITEMS(fast), end, key);
    }
    Py_DECREF(fast);
    if (whole < 0) {
        return NULL;
    }
    if (whole) {
        uint64_t position = *find_slot(self, key);
        if (follower(self, position, key) != NO_TOKEN) {
            return copy_from(self, position, max_drafts);
        }
    }
    return PyList_New(0);
}

static PyObject *scope_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Py_ssize_t num_slots, ring_tokens, key_len;
    static char *names[] = {"", "", "", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nnn", names, &num_slots, &ring_tokens,
                                     &key_len)) {
        return NULL;
    }
    if (num_slots < 2 || (num_slots & (num_slots - 1)) != 0 || key_len < 1 || key_len > MAX_KEY ||
        ring_tokens <= key_len + 1) {
        PyErr_Format(PyExc_ValueError,
                     "scope geometry (num_slots=%zd a power of two >= 2, ring_tokens=%zd > key_len "
                     "+ 1, key_len=%zd in 1..%d) -- it could not hold one match -- give it more",
                     num_slots, ring_tokens, key_len, MAX_KEY);
        return NULL;
    }
    Scope *self = (Scope *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->key_len = key_len;
    self->num_slots = (uint64_t)num_slots;
    self->ring_tokens = (uint64_t)ring_tokens;
    self->head = 1;
    self->shift = 64 - __builtin_ctzll((uint64_t)num_slots);
    self->slots = PyMem_Calloc((size_t)num_slots, sizeof(uint64_t));
    self->ring = PyMem_Calloc((size_t)ring_tokens, sizeof(uint32_t));
    if (self->slots == NULL || self->ring == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void scope_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    PyMem_Free(((Scope *)op)->slots);
    PyMem_Free(((Scope *)op)->ring);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *scope_num_bytes(PyObject *op, void *closure) {
    Scope *self = (Scope *)op;
    (void)closure;
    return PyLong_FromUnsignedLongLong(self->num_slots * sizeof(uint64_t) +
                                       self->ring_tokens * sizeof(uint32_t));
}

static PyObject *scope_num_stored(PyObject *op, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(((Scope *)op)->head - 1);
}

static PyMethodDef scope_methods[] = {
    {"insert", scope_insert, METH_O, "Store what is new of an array of u32; entries written."},
    {"propose", (PyCFunction)(void (*)(void))scope_propose, METH_FASTCALL,
     "What followed the end of the history last, [] when it never occurred."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef scope_getset[] = {
    {"num_bytes", scope_num_bytes, NULL, "Bytes of slots and ring.", NULL},
    {"num_stored", scope_num_stored, NULL, "Ring entries written since the start.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot scope_slots[] = {
    {Py_tp_doc, "Slots and ring of one sharing scope."},
    {Py_tp_new, scope_new},
    {Py_tp_dealloc, scope_dealloc},
    {Py_tp_methods, scope_methods},
    {Py_tp_getset, scope_getset},
    {0, NULL},
};

static PyType_Spec scope_spec = {
    .name = "phalanx.kernels._lookup.TextScope",
    .basicsize = sizeof(Scope),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = scope_slots,
};

int lookup_add_scope(PyObject *module) { return lookup_add_type(module, &scope_spec); }
