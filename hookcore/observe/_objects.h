/* What the objects of the extension share: the attributes that they read, and how they read and write them. */

#include <time.h>

static double seconds(clockid_t which)
{
    struct timespec time;
    clock_gettime(which, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

enum {
    N_GRAD, N_VERSION, N_DTYPE, N_IS_CPU, N_DIM, N_IS_NEG, N_DATA_PTR, N_NUMEL, N_IS_CONTIGUOUS, N_TRAINING, N_GROUPS,
    N_PARAMS, N_LR, N_FOUND_INF, N_GRAD_SCALE, N_BACK, N_SETTLE, N_BEGINS, N_ENDED, N_SAW_BEGIN, N_SAW_END,
    N_INNER_BEGINS, N_INNER_ENDED, N_HELD, N_COMPILED, N_HOOKS, N_REQUIRES_GRAD, N_ARGUMENT, N_GRAD_FN,
    N_BACKWARD_HOOKS, N_DETACH, N_REGISTER, N_WHOLE, N_STATES, N_SCALE, N_LOCALS, N_SELF, N_ENABLED, N_NEED_GRAD,
    N_REACHED, N_END_PASS, N_BEGIN_UPDATE, N_RELEASE_CALLS, N_BEGIN_STEP, N_STORAGE, N_NBYTES, N_GRADIENT, N_SAW,
    N_MODULES, N_ORIGINAL, N_DATA, N_PARAMETERS,
    N_CAPTURED, N_UNSURE, N_PENDING, N_OBSERVERS, N_IS_MODEL, N_ACTS_BEFORE, N_REF, N_REHEARSES, N_TRAINED, N_IS_LEAF, N_ROOT,
    N_COUNTS, N_ROWS, N_LONE, N_WANTS_OUTPUT, N_IGNORING, N_CLOCK, N_METER, N_ENTER, N_LEAVE, N_CALLED, N_IS_COMPILING,
    N_NEXT_ID, NAMES
};
static const char *const spelled[NAMES] = {
    "grad", "_version", "dtype", "is_cpu", "dim", "is_neg", "data_ptr", "numel", "is_contiguous", "training",
    "param_groups", "params", "lr", "found_inf", "grad_scale", "f_back", "settle", "backward_begins",
    "backward_ended", "saw_step_begin", "saw_step_end", "inner_begins", "inner_ended", "held", "_compiled_call_impl",
    "_forward_hooks", "requires_grad", "argument", "grad_fn", "_backward_hooks", "detach", "_register_hook_dict", "",
    "_per_optimizer_states", "_scale", "f_locals", "self", "_enabled", "requires_grad_", "reached", "end_pass",
    "begin_update", "release_calls", "begin_step", "untyped_storage", "nbytes", "activation gradient", "saw",
    "_modules", "_orig_mod", "data", "_parameters",
    "captured", "unsure", "pending", "others", "is_model", "acts_before", "ref", "rehearses", "trained", "is_leaf", "root",
    "counts", "rows", "lone", "wants_output", "ignoring", "clock", "meter", "enter", "leave", "__call__", "_is_compiling_flag",
    "next_id"
};
static PyObject *names[NAMES];

static int intern_names(void)
{
    for (int i = 0; i < NAMES; i++)
        if ((names[i] = PyUnicode_InternFromString(spelled[i])) == NULL)
            return -1;
    return 0;
}

/* -- Reading and writing ------------------------------------------------------------------------------------------- */

/* Each returns 0 if something isn't as expected; an exception may be set then. */

static int is_attribute(PyObject *object, int name, PyObject *expected)
{
    PyObject *found = PyObject_GetAttr(object, names[name]);
    Py_DecRef(found);
    return found == expected && found != NULL;
}

static int read_integer(PyObject *owned, int64_t *number)
{
    if (owned == NULL)
        return 0;
    *number = PyLong_AsLongLong(owned);
    Py_DecRef(owned);
    return *number != -1 || !PyErr_Occurred();
}

static int call_integer(PyObject *object, int name, int64_t *number)
{
    return read_integer(PyObject_CallMethodObjArgs(object, names[name], NULL), number);
}

static int is_zero(PyObject *function)
{
    int64_t number;
    return read_integer(PyObject_CallNoArgs(function), &number) && number == 0;
}

/* What a weak reference refers to, or NULL. */
static PyObject *referred(PyObject *reference)
{
    PyObject *found = PyWeakref_GetObject(reference); /* borrowed, which is why newer versions of Python advise against it */
    if (found == NULL || found == &_Py_NoneStruct)
        return NULL;
    Py_IncRef(found);
    return found;
}

static int refers_to(PyObject *reference, PyObject *object)
{
    return PyWeakref_GetObject(reference) == object;
}

/* Whether attributes are still the same objects. `cells`: (owner, name, object). */
static int are_same(PyObject *cells)
{
    for (Py_ssize_t i = 0, many = PyTuple_Size(cells); i < many; i++) {
        PyObject *cell = PyTuple_GetItem(cells, i);
        PyObject *found = PyObject_GetAttr(PyTuple_GetItem(cell, 0), PyTuple_GetItem(cell, 1));
        Py_DecRef(found);
        if (found == NULL || found != PyTuple_GetItem(cell, 2))
            return 0;
    }
    return 1;
}

/* Whether keys are still absent from tables. `pairs`: (table, key). */
static int are_absent(PyObject *pairs)
{
    for (Py_ssize_t i = 0, many = PyTuple_Size(pairs); i < many; i++) {
        PyObject *pair = PyTuple_GetItem(pairs, i);
        if (PyDict_Contains(PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1)) != 0)
            return 0;
    }
    return 1;
}

static int set(PyObject *object, int name, PyObject *value)
{
    return PyObject_SetAttr(object, names[name], value) == 0;
}

/* The same, for a value that was made for it. */
static int give(PyObject *object, int name, PyObject *owned)
{
    int is_set = owned != NULL && set(object, name, owned);
    Py_DecRef(owned);
    return is_set;
}

/* Add this thread to a set that is an attribute, discard it, or ask whether it is there; -1 if that fails. */
static int with_thread(PyObject *object, int name, int (*act)(PyObject *, PyObject *))
{
    PyObject *threads = PyObject_GetAttr(object, names[name]), *number = PyLong_FromLongLong((long long)PyThread_get_thread_ident());
    int found = threads == NULL || number == NULL ? -1 : act(threads, number);
    Py_DecRef(number);
    Py_DecRef(threads);
    return found;
}

/* Whether each function, called without arguments, returns this very object. */
static int answer(PyObject *pairs)
{
    for (Py_ssize_t i = 0, many = PyTuple_Size(pairs); i < many; i++) {
        PyObject *pair = PyTuple_GetItem(pairs, i), *found = PyObject_CallNoArgs(PyTuple_GetItem(pair, 0));
        Py_DecRef(found);
        if (found == NULL || found != PyTuple_GetItem(pair, 1))
            return 0;
    }
    return 1;
}

/* -- Types --------------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    int type;
    Py_ssize_t offset;
    int flags;
    const char *doc;
} PyMemberDef;

enum { T_DOUBLE = 4, T_OBJECT = 6, T_BOOL = 14, T_LONGLONG = 17 };

typedef struct {
    int slot;
    void *value;
} PyType_Slot;

typedef struct {
    const char *name;
    int basic_size, item_size;
    unsigned flags;
    PyType_Slot *slots;
} PyType_Spec;

typedef struct {
    const char *name;
    PyObject *(*get)(PyObject *, void *);
    int (*set)(PyObject *, PyObject *, void *);
    const char *doc;
    void *which;
} PyGetSetDef;

enum { TP_CALL = 50, TP_CLEAR = 51, TP_DEALLOC = 52, TP_METHODS = 64, TP_NEW = 65, TP_TRAVERSE = 71, TP_MEMBERS = 72, TP_GETSET = 73 };
enum { BASE_TYPE = 1 << 10, HAVE_GC = 1 << 14 };

static int visit_each(PyObject *const *all, int many, int (*visit)(PyObject *, void *), void *context)
{
    for (int i = 0; i < many; i++) {
        int stopped = all[i] == NULL ? 0 : visit(all[i], context);
        if (stopped)
            return stopped;
    }
    return 0;
}

/* Let go of references that lie side by side. */
static int clear_each(PyObject **all, int many)
{
    for (int i = 0; i < many; i++) {
        PyObject *before = all[i];
        all[i] = NULL;
        Py_DecRef(before);
    }
    return 0;
}

static void free_object(PyObject *self, int (*clear)(PyObject *))
{
    PyObject *type = self->type;
    PyObject_GC_UnTrack(self);
    clear(self);
    PyObject_GC_Del(self);
    Py_DecRef(type);
}

/* `type`: where it is kept, too. */
static int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyObject **type)
{
    *type = PyType_FromSpec(spec);
    Py_IncRef(*type);
    return *type == NULL ? -1 : PyModule_AddObject(module, name, *type);
}
