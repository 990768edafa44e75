/* Compiled n-gram index: where the last tokens of a history occurred before.
 *
 * It maps every n-gram of one history, for one or several n, to the position after its
 * latest occurrence. It holds no text: it reads the caller's list, and compares every hit with it
 * token by token, so a hash collision or an entry left by a rewind is refused.
 *
 *   position  index into the history of the token after an n-gram, >= n; 0 = empty entry
 *   tag       low half of the hash; entries with one tag side by side count as one n-gram
 */
#include "lookup.h"

#include <stddef.h>
#include <string.h>

#define MAX_SIZE 64
#define FIRST_LOG2 6

typedef struct {
    uint32_t tag;
    uint32_t position;
} Entry;

typedef struct {
    Py_ssize_t size; /* n */
    Entry *entries;
    size_t used;
    int log2; /* of the number of entries */
} Table;

typedef struct {
    PyObject_HEAD
    Py_ssize_t num_tables;
    Py_ssize_t indexed; /* n-grams that end before this are in the tables */
    Table tables[MAX_SIZE];
} Index;

/* Token `at` as a 64-bit word; -1 with an exception set when it is no int of 64 bits. Only ints
 * are read: converting another object could run code that changes the list. */
static inline int read_token(const History *text, Py_ssize_t at, uint64_t *token) {
    PyObject *item = text->item(text->sequence, at);
    if (item == NULL) {
        return -1;
    }
    if (!PyLong_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "history holds a value that is no token id");
        return -1;
    }
    long long value = PyLong_AsLongLong(item);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    *token = (uint64_t)value;
    return 0;
}

/* Hashes of the n-grams that end before `end`, one for each table with n <= end; tables are
 * sorted longest first. Returns the first such table, or -1 with an exception set. */
static Py_ssize_t fold_ngrams(const Index *self, const History *text, Py_ssize_t end,
                              uint64_t *hashes) {
    uint64_t hash = LOOKUP_FOLD_BASIS, token;
    Py_ssize_t table = self->num_tables, folded = 0;
    while (table > 0 && self->tables[table - 1].size <= end) {
        for (; folded < self->tables[table - 1].size; folded++) {
            if (read_token(text, end - 1 - folded, &token) < 0) {
                return -1;
            }
            hash = lookup_fold(hash, token);
        }
        hashes[--table] = hash;
    }
    return table;
}

/* The entry that holds the hash, or the empty one where it belongs. A free entry always exists. */
static inline Entry *find_entry(const Table *table, uint64_t hash) {
    size_t mask = ((size_t)1 << table->log2) - 1;
    size_t at = lookup_slot(hash, 64 - table->log2);
    while (table->entries[at].position && table->entries[at].tag != (uint32_t)hash) {
        at = (at + 1) & mask;
    }
    return &table->entries[at];
}

/* Make room for `more` entries at a load of three quarters at most. The full hashes are computed
 * again from the text; an entry whose text has changed could only be refused and is dropped. */
static int reserve(Table *table, const History *text, size_t more) {
    Table grown = *table;
    while ((table->used + more) * 4 > ((size_t)3 << grown.log2)) {
        grown.log2++;
    }
    if (grown.log2 == table->log2) {
        return 0;
    }
    grown.entries = PyMem_Calloc((size_t)1 << grown.log2, sizeof(Entry));
    if (grown.entries == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    grown.used = 0;
    for (size_t at = 0; at < (size_t)1 << table->log2; at++) {
        Entry old = table->entries[at];
        uint64_t hash = LOOKUP_FOLD_BASIS, token;
        if (old.position == 0 || (Py_ssize_t)old.position >= text->length) {
            continue;
        }
        for (Py_ssize_t back = 1; back <= table->size; back++) {
            if (read_token(text, (Py_ssize_t)old.position - back, &token) < 0) {
                PyMem_Free(grown.entries);
                return -1;
            }
            hash = lookup_fold(hash, token);
        }
        if ((uint32_t)hash == old.tag) {
            Entry *entry = find_entry(&grown, hash);
            grown.used += entry->position == 0;
            if (entry->position < old.position) {
                *entry = old;
            }
        }
    }
    PyMem_Free(table->entries);
    *table = grown;
    return 0;
}

static int observe_text(Index *self, const History *text) {
    uint64_t hashes[MAX_SIZE];
    Py_ssize_t done = self->indexed, end = text->length;
    if (done >= end) {
        self->indexed = end; /* a rewind, or nothing new */
        return 0;
    }
    if (end > (Py_ssize_t)UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "history longer than 2^32 tokens");
        return -1;
    }
    for (Py_ssize_t t = 0; t < self->num_tables; t++) {
        if (reserve(&self->tables[t], text, (size_t)(end - done)) < 0) {
            return -1;
        }
    }
    for (Py_ssize_t at = done > 0 ? done : 1; at < end; at++) {
        Py_ssize_t first = fold_ngrams(self, text, at, hashes);
        if (first < 0) {
            return -1;
        }
        for (Py_ssize_t t = first; t < self->num_tables; t++) {
            Entry *entry = find_entry(&self->tables[t], hashes[t]);
            self->tables[t].used += entry->position == 0;
            entry->tag = (uint32_t)hashes[t];
            entry->position = (uint32_t)at;
        }
        self->indexed = at + 1;
    }
    self->indexed = end;
    return 0;
}

/* How many tokens before `one` equal those before `other`, counted backwards up to `count`.
 * -1 with an exception set on failure. */
static Py_ssize_t equal_back(const History *text, Py_ssize_t one, Py_ssize_t other,
                             Py_ssize_t count) {
    Py_ssize_t equal = 0;
    uint64_t a, b;
    for (; equal < count; equal++) {
        if (read_token(text, one - 1 - equal, &a) < 0 ||
            read_token(text, other - 1 - equal, &b) < 0) {
            return -1;
        }
        if (a != b) {
            break;
        }
    }
    return equal;
}

/* Sets *start and *size to the longest indexed n-gram that ends the text; *size 0 when none. */
static int find_continuation(const Index *self, const History *text, Py_ssize_t *start,
                             Py_ssize_t *size) {
    uint64_t hashes[MAX_SIZE];
    Py_ssize_t end = text->length, first = fold_ngrams(self, text, end, hashes);
    *start = *size = 0;
    if (first < 0) {
        return -1;
    }
    for (Py_ssize_t t = first; t < self->num_tables; t++) {
        const Table *table = &self->tables[t];
        __builtin_prefetch(&table->entries[lookup_slot(hashes[t], 64 - table->log2)]);
    }
    for (Py_ssize_t t = first; t < self->num_tables; t++) {
        Py_ssize_t length = self->tables[t].size;
        Py_ssize_t position = (Py_ssize_t)find_entry(&self->tables[t], hashes[t])->position;
        if (position < length || position >= end) {
            continue;
        }
        Py_ssize_t equal = equal_back(text, position, end, length);
        if (equal < 0) {
            return -1;
        }
        if (equal == length) {
            *start = position;
            *size = length;
            return 0;
        }
    }
    return 0;
}

/* The pair that both look-ups return; faster than Py_BuildValue. */
static PyObject *start_and_length(Py_ssize_t start, Py_ssize_t length) {
    PyObject *first = PyLong_FromSsize_t(start), *second = PyLong_FromSsize_t(length);
    PyObject *pair = first != NULL && second != NULL ? PyTuple_Pack(2, first, second) : NULL;
    Py_XDECREF(first);
    Py_XDECREF(second);
    return pair;
}

static PyObject *index_observe(PyObject *op, PyObject *history) {
    History text;
    if (lookup_open_history(history, &text) < 0) {
        return NULL;
    }
    int failed = observe_text((Index *)op, &text);
    Py_DECREF(text.sequence);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *index_continuation(PyObject *op, PyObject *history) {
    History text;
    Py_ssize_t start, size;
    if (lookup_open_history(history, &text) < 0) {
        return NULL;
    }
    int failed = find_continuation((Index *)op, &text, &start, &size);
    Py_DECREF(text.sequence);
    return failed ? NULL : start_and_length(start, size);
}

static PyObject *index_match(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    History text;
    Py_ssize_t start = 0, matched = 0;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "match takes (history, wanted)");
        return NULL;
    }
    Py_ssize_t wanted = PyNumber_AsSsize_t(args[1], NULL);
    if ((wanted == -1 && PyErr_Occurred()) || lookup_open_history(args[0], &text) < 0) {
        return NULL;
    }
    int failed = observe_text((Index *)op, &text) < 0 ||
                 find_continuation((Index *)op, &text, &start, &matched) < 0;
    Py_ssize_t most = wanted < start ? wanted : start;
    if (!failed && matched > 0 && matched < most) {
        Py_ssize_t more = equal_back(&text, start - matched, text.length - matched, most - matched);
        failed = more < 0;
        matched += more;
    }
    Py_DECREF(text.sequence);
    return failed ? NULL : start_and_length(start, matched);
}

static PyObject *index_num_bytes(PyObject *op, void *closure) {
    Index *self = (Index *)op;
    size_t bytes = 0;
    (void)closure;
    for (Py_ssize_t t = 0; t < self->num_tables; t++) {
        bytes += sizeof(Entry) << self->tables[t].log2;
    }
    return PyLong_FromSize_t(bytes);
}

static PyObject *index_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Py_ssize_t count = PyTuple_Size(args);
    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "NgramIndex takes sizes only");
        return NULL;
    }
    Index *self = (Index *)lookup_alloc(type); /* zeroed */
    if (self == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t size = PyNumber_AsSsize_t(PyTuple_GetItem(args, i), NULL), at = 0;
        if (size == -1 && PyErr_Occurred()) {
            Py_DECREF(self);
            return NULL;
        }
        if (size < 1 || size > MAX_SIZE) {
            PyErr_Format(PyExc_ValueError,
                         "n-gram size out of range (size=%zd, 1..%d) -- it would match everywhere "
                         "or never -- choose a size in the range",
                         size, MAX_SIZE);
            Py_DECREF(self);
            return NULL;
        }
        while (at < self->num_tables && self->tables[at].size > size) {
            at++;
        }
        if (at < self->num_tables && self->tables[at].size == size) {
            continue;
        }
        memmove(&self->tables[at + 1], &self->tables[at],
                (size_t)(self->num_tables - at) * sizeof(Table));
        self->num_tables++;
        Entry *entries = PyMem_Calloc((size_t)1 << FIRST_LOG2, sizeof(Entry));
        self->tables[at] = (Table){.size = size, .entries = entries, .log2 = FIRST_LOG2};
        if (entries == NULL) {
            Py_DECREF(self);
            return PyErr_NoMemory();
        }
    }
    if (self->num_tables == 0) {
        PyErr_SetString(PyExc_ValueError,
                        "n-gram sizes (sizes=(), at least one) -- nothing could be looked up -- "
                        "give at least one size");
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void index_dealloc(PyObject *op) {
    Index *self = (Index *)op;
    for (Py_ssize_t t = 0; t < self->num_tables; t++) {
        PyMem_Free(self->tables[t].entries);
    }
    lookup_free(op);
}

static PyMethodDef index_methods[] = {
    {"observe", index_observe, METH_O, "Index every n-gram that a token follows."},
    {"continuation", index_continuation, METH_O, "(start, size) of the longest match, (0, 0)."},
    {"match", (PyCFunction)(void (*)(void))index_match, METH_FASTCALL,
     "observe, continuation and the match's length up to `wanted`: (start, matched)."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef index_getset[] = {
    {"num_bytes", index_num_bytes, NULL, "Bytes of the tables.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot index_slots[] = {
    {Py_tp_doc, "Latest occurrence of every n-gram of one history."},
    {Py_tp_new, index_new},
    {Py_tp_dealloc, index_dealloc},
    {Py_tp_methods, index_methods},
    {Py_tp_getset, index_getset},
    {0, NULL},
};

static PyType_Spec index_spec = {
    .name = "phalanx.kernels._lookup.NgramIndex",
    .basicsize = sizeof(Index),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = index_slots,
};

int lookup_add_index(PyObject *module) { return lookup_add_type(module, &index_spec); }
