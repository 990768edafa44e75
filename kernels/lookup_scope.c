/* Compiled text of one sharing scope: the twin of TextScope in proposers/shared_lookup.py.
 *
 *   ring      token ids, oldest overwritten first
 *   position  ever-growing index into the text, from 1; position p lives at ring[p % ring_tokens]
 *   slot      n-gram hash -> position of the token that followed it last; 0 = empty
 *   bucket    the WAYS neighbouring slots where an n-gram may be; a new one takes the oldest
 *
 * Every hit is compared with the ring token by token, and must lie wholly in what is still there,
 * so collisions and overwritten text cost a missed draft, never a wrong copy.
 */
#include "lookup.h"

#define SEPARATOR 0xFFFFFFFFu
#define DEDUP_RUN 32
#define MAX_KEY 64
#define WAYS 4
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

/* The key's slot and, in *token, what followed it last; else the oldest slot of its bucket and
 * NO_TOKEN. Empty and overwritten slots hold the smallest positions, so they go first. */
static inline uint64_t *find_slot(const Scope *self, const uint32_t *key, int64_t *token) {
    uint64_t hash = LOOKUP_FOLD_BASIS;
    for (Py_ssize_t back = self->key_len - 1; back >= 0; back--) {
        hash = lookup_fold(hash, key[back]);
    }
    uint64_t *bucket = &self->slots[lookup_slot(hash, self->shift) * WAYS], *oldest = bucket;
    for (uint64_t *slot = bucket; slot < bucket + WAYS; slot++) {
        *token = follower(self, *slot, key);
        if (*token != NO_TOKEN) {
            return slot;
        }
        if (*slot < *oldest) {
            oldest = slot;
        }
    }
    return oldest;
}

/* Stores the runs of `text` ([count] tokens, count <= ring_tokens - 1) not predicted already. */
static void store(Scope *self, const uint32_t *text, Py_ssize_t count) {
    int writing = 0, known_run = 0;
    for (Py_ssize_t at = self->key_len; at < count; at++) {
        const uint32_t *key = text + at - self->key_len;
        int64_t follows;
        uint64_t *slot = find_slot(self, key, &follows);
        int known = follows == (int64_t)text[at];
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

/* The last key_len tokens as u32; 0 when there are fewer or one is no token id. */
static int read_key(const Scope *self, const History *text, uint32_t *key) {
    if (text->length < self->key_len) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < self->key_len; i++) {
        PyObject *item = text->item(text->sequence, text->length - self->key_len + i);
        int overflow = 0;
        if (item == NULL || !PyLong_Check(item)) {
            PyErr_Clear();
            return 0;
        }
        long long token = PyLong_AsLongLongAndOverflow(item, &overflow);
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
    History text;
    if (lookup_open_history(args[0], &text) < 0) {
        return NULL;
    }
    int whole = max_drafts > 0 && read_key(self, &text, key);
    Py_DECREF(text.sequence);
    if (whole) {
        int64_t follows;
        uint64_t position = *find_slot(self, key, &follows);
        if (follows != NO_TOKEN) {
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
    int power_of_two = num_slots >= 2 * WAYS && (num_slots & (num_slots - 1)) == 0;
    if (!power_of_two || key_len < 1 || key_len > MAX_KEY || ring_tokens <= key_len + 1) {
        PyErr_Format(PyExc_ValueError,
                     "scope geometry (num_slots=%zd a power of two >= 8, ring_tokens=%zd > key_len "
                     "+ 1, key_len=%zd in 1..%d) -- it could not hold one match -- give it more",
                     num_slots, ring_tokens, key_len, MAX_KEY);
        return NULL;
    }
    Scope *self = (Scope *)lookup_alloc(type);
    if (self == NULL) {
        return NULL;
    }
    self->key_len = key_len;
    self->num_slots = (uint64_t)num_slots;
    self->ring_tokens = (uint64_t)ring_tokens;
    self->head = 1;
    self->shift = 64 - __builtin_ctzll((uint64_t)(num_slots / WAYS));
    self->slots = PyMem_Calloc((size_t)num_slots, sizeof(uint64_t));
    self->ring = PyMem_Calloc((size_t)ring_tokens, sizeof(uint32_t));
    if (self->slots == NULL || self->ring == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void scope_dealloc(PyObject *op) {
    PyMem_Free(((Scope *)op)->slots);
    PyMem_Free(((Scope *)op)->ring);
    lookup_free(op);
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
