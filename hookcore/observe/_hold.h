/* A call of a model in a step that isn't captured, held by reference. hookcore/recorder/calls/keeping.py says what that
 * means.
 *
 * This does what Python does for the same call of the same model with plain tensors, and makes the same objects. All else
 * is left to its host, which may be the one for another model. Whatever may fail, or run Python, comes before the first change, or is harmless if the host
 * does it again.
 */

typedef struct {
    PyObject head;
    int64_t rest; /* calls that it may hold before the host sees one again */
    double spent_s; /* in all calls so far */
    PyObject *entered, *left; /* the host's */
    PyObject *facts; /* the tuple that the following ones belong to */
    PyObject *model, *kept, *plans, *key, *plan, *cells, *absent, *answers, *modes, *state, *held, *arrival, *ordered, *handles;
    PyObject *tensor, *numbers, *limit, *table, *number, *before, *after, *after_number, *track, *holding;
} Hold;

enum { HOLD_FACTS = 24 }; /* references in `facts`, in the order above; keeping.py has the same list */

/* A plain tensor as it is held: itself or, if it has a graph, an alias without it. NULL if it has no version. */
static PyObject *alias_of(PyObject *tensor)
{
    PyObject *inference = PyObject_CallMethodObjArgs(tensor, names[N_IS_INFERENCE], NULL), *alias = NULL, *found = NULL;
    PyObject *has_graph = inference != &_Py_FalseStruct ? NULL : PyObject_GetAttr(tensor, names[N_REQUIRES_GRAD]);
    if (has_graph == &_Py_FalseStruct)
        Py_IncRef(found = tensor);
    else if (has_graph == &_Py_TrueStruct && (alias = PyObject_CallMethodObjArgs(tensor, names[N_DETACH], NULL)) != NULL)
        found = PyObject_CallMethodObjArgs(alias, names[N_NEED_GRAD], NULL);
    Py_DecRef(alias);
    Py_DecRef(has_graph);
    Py_DecRef(inference);
    return found;
}

/* The tensors among the arguments, with their versions; NULL if any argument is neither a plain tensor nor a number.
 * `kept`: the list that the arguments are added to as they are held. */
static PyObject *versions_of(const Hold *hold, PyObject *args, PyObject *kept)
{
    Py_ssize_t many = PyTuple_Size(args);
    PyObject *versions = many < 0 ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; versions != NULL && i < many; i++) {
        PyObject *item = PyTuple_GetItem(args, i), *version = NULL;
        int is_fine = 1;
        if (item->type == (void *)hold->tensor) {
            PyObject *alias = alias_of(item);
            is_fine = alias != NULL && PyList_Append(kept, alias) == 0 && (version = PyObject_GetAttr(item, names[N_VERSION])) != NULL;
            PyObject *noted = is_fine ? Py_BuildValue("OnOO", names[N_ARGUMENT], i, alias, version) : NULL;
            is_fine = noted != NULL && PyList_Append(versions, noted) == 0;
            Py_DecRef(noted);
            Py_DecRef(version);
            Py_DecRef(alias);
        } else {
            is_fine = PySequence_Contains(hold->numbers, (PyObject *)item->type) == 1 && PyList_Append(kept, item) == 0;
        }
        if (!is_fine) {
            Py_DecRef(versions);
            versions = NULL;
        }
    }
    return versions;
}

static int is_as_known(const Hold *hold, PyObject *module)
{
    return PyDict_Contains(hold->table, hold->number) == 1 && refers_to(hold->model, module) && PyDict_GetItemWithError(hold->plans, hold->key) == hold->plan &&
           are_same(hold->cells) && are_absent(hold->absent) && answer(hold->modes) && answer(hold->answers);
}

/* Make the object that holds the call. */
static PyObject *make_held(const Hold *hold, PyObject *args)
{
    PyObject *kept = PyList_New(0), *versions = kept == NULL ? NULL : versions_of(hold, args, kept), *held = NULL;
    if (versions != NULL)
        held = PyObject_CallMethodObjArgs(hold->held, names[N_NEW], hold->held, NULL);
    int is_made = held != NULL && set(held, N_VERSIONS, versions) && give(held, N_ARGS, PyList_AsTuple(kept)) && set(held, N_KWARGS, &_Py_NoneStruct) &&
                  set(held, N_ENTRY, &_Py_NoneStruct) && give(held, N_UPDATES, PyObject_GetAttr(hold->track, names[N_UPDATES])) &&
                  give(held, N_NUMBERS, PyList_New(0)) && give(held, N_GENERATORS, PyObject_CallNoArgs(hold->state)) &&
                  give(held, N_AUTOCAST, PyDict_New()) && give(held, N_OUTPUTS, PyDict_New()) && give(held, N_GRADIENTS, PyDict_New()) &&
                  give(held, N_UNKEPT, PyList_New(0)) && give(held, N_AT, PyFloat_FromDouble(seconds(CLOCK_MONOTONIC)));
    Py_DecRef(versions);
    Py_DecRef(kept);
    if (!is_made) {
        Py_DecRef(held);
        return NULL;
    }
    return held;
}

/* Let this call's return be seen, and no other call until then. */
static int await_return(const Hold *hold, PyObject *hooks, PyObject *with_keywords)
{
    return give(hold->after, N_TABLES, Py_BuildValue("OO", hooks, with_keywords)) &&
           PyObject_SetItem(hooks, hold->after_number, hold->after) == 0 &&
           PyObject_SetItem(with_keywords, hold->after_number, &_Py_TrueStruct) == 0 &&
           PyObject_DelItem(hold->table, hold->number) == 0;
}

static int hold_call(Hold *hold, PyObject *module, PyObject *args)
{
    if (!is_as_known(hold, module) || !is_attribute(hold->after, N_TABLES, &_Py_NoneStruct))
        return 0;
    PyObject *own = PyObject_GenericGetDict(module, NULL), *held = NULL;
    PyObject *hooks = own == NULL ? NULL : PyDict_GetItemWithError(own, names[N_HOOKS]);
    PyObject *with_keywords = own == NULL ? NULL : PyDict_GetItemWithError(own, names[N_WITH_KEYWORDS]);
    int is_held = hooks != NULL && with_keywords != NULL && PyDict_Contains(hooks, hold->after_number) == 0 &&
                  PyDict_Contains(with_keywords, hold->after_number) == 0 && PyDict_Contains(own, names[N_COMPILED]) == 0;
    if (is_held) { /* the last micro-batch may be freed first */
        is_held = set(hold->kept, N_HELD, &_Py_NoneStruct) && (held = make_held(hold, args)) != NULL && set(hold->kept, N_HELD, held) &&
                  set(hold->holding, N_HOLDS, &_Py_TrueStruct) && give(hold->holding, N_OTHERS, PyLong_FromLongLong(0)) &&
                  await_return(hold, hooks, with_keywords);
    }
    Py_DecRef(held);
    Py_DecRef(own);
    return is_held;
}

/* -- What it returned ---------------------------------------------------------------------------------------------- */

/* Whether an output is plain, computed, without hooks, and small enough to hold. */
static int is_holdable(const Hold *hold, PyObject *output)
{
    int64_t many, bytes;
    if (output->type != (void *)hold->tensor || !is_attribute(output, N_BACKWARD_HOOKS, &_Py_NoneStruct) ||
        !call_integer(output, N_NUMEL, &many) || !read_integer(PyObject_CallMethodObjArgs(output, names[N_ELEMENT_SIZE], NULL), &bytes))
        return 0;
    return many * bytes <= PyLong_AsLongLong(hold->limit);
}

/* What keeps the gradient that arrives at the output. It doesn't keep the call. */
static PyObject *make_arrival(const Hold *hold, PyObject *held)
{
    PyObject *arrival = PyObject_CallMethodObjArgs(hold->arrival, names[N_NEW], hold->arrival, NULL);
    if (arrival != NULL && give(arrival, N_CALL, PyWeakref_NewRef(held, NULL)) && set(arrival, N_PLACE, names[N_WHOLE]))
        return arrival;
    Py_DecRef(arrival);
    return NULL;
}

/* Do what hook_gradient in hookcore/hooks/tensors.py does for a tensor without hooks. */
static int add_gradient_hook(const Hold *hold, PyObject *output, PyObject *node, PyObject *arrival)
{
    PyObject *hooks = PyObject_CallNoArgs(hold->ordered), *number = PyObject_GetAttr(hold->handles, names[N_NEXT_ID]), *done = NULL;
    int64_t next = number == NULL ? -1 : PyLong_AsLongLong(number);
    int is_added = hooks != NULL && next >= 0 && set(output, N_BACKWARD_HOOKS, hooks) &&
                   (done = PyObject_CallMethodObjArgs(node, names[N_REGISTER], output, NULL)) != NULL &&
                   PyObject_SetItem(hooks, number, arrival) == 0 && give(hold->handles, N_NEXT_ID, PyLong_FromLongLong(next + 1));
    Py_DecRef(done);
    Py_DecRef(number);
    Py_DecRef(hooks);
    return is_added;
}

/* See no return of this module any longer, but the next calls of others. */
static int see_next(const Hold *hold)
{
    PyObject *tables = PyObject_GetAttr(hold->after, names[N_TABLES]);
    int is_off = tables != NULL && PyTuple_Size(tables) == 2;
    for (Py_ssize_t i = 0; is_off && i < 2; i++)
        is_off = PyObject_DelItem(PyTuple_GetItem(tables, i), hold->after_number) == 0;
    Py_DecRef(tables);
    return is_off && set(hold->after, N_TABLES, &_Py_NoneStruct) && PyObject_SetItem(hold->table, hold->number, hold->before) == 0;
}

static int hold_return(Hold *hold, PyObject *module, PyObject *kwargs, PyObject *output)
{
    if (!refers_to(hold->model, module) || !is_attribute(hold->holding, N_IS_ON, &_Py_TrueStruct) ||
        !is_attribute(hold->holding, N_HOLDS, &_Py_TrueStruct) || (kwargs != &_Py_NoneStruct && PyObject_Size(kwargs) != 0) ||
        !answer(hold->modes) || !is_holdable(hold, output))
        return 0;
    PyObject *held = PyObject_GetAttr(hold->kept, names[N_HELD]), *node = PyObject_GetAttr(output, names[N_GRAD_FN]);
    PyObject *arrival = NULL, *alias = NULL, *outputs = NULL;
    int is_done = held != NULL && held->type == (void *)hold->held && node != NULL && node != &_Py_NoneStruct &&
                  (arrival = make_arrival(hold, held)) != NULL &&
                  (alias = PyObject_CallMethodObjArgs(output, names[N_DETACH], NULL)) != NULL &&
                  (outputs = PyObject_GetAttr(held, names[N_OUTPUTS])) != NULL && set(held, N_KWARGS, kwargs) &&
                  PyObject_SetItem(outputs, names[N_WHOLE], alias) == 0 && see_next(hold) &&
                  add_gradient_hook(hold, output, node, arrival);
    Py_DecRef(outputs);
    Py_DecRef(alias);
    Py_DecRef(arrival);
    Py_DecRef(node);
    Py_DecRef(held);
    return is_done;
}

/* -- The object ---------------------------------------------------------------------------------------------------- */

/* entered(module, args): hold the call, and return False; else what the host returns, which may be to see its return. */
static PyObject *hold_entered(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    Hold *hold = (Hold *)self;
    if (given != 2 || hold->entered == NULL)
        return PyErr_Format(PyExc_TypeError, "entered takes a module and its arguments, and needs a host");
    PyObject *facts = hold->facts, *entered = hold->entered, *found = &_Py_FalseStruct;
    double began = seconds(CLOCK_MONOTONIC);
    int is_held = 0;
    if (facts != NULL && hold->rest > 0) {
        Hold known = *hold; /* another thread may let go of the facts meanwhile, or replace them */
        Py_IncRef(facts);
        is_held = hold_call(&known, arguments[0], arguments[1]);
        if (!is_held)
            PyErr_Clear();
        hold->rest -= is_held;
        Py_DecRef(facts);
    }
    if (is_held)
        Py_IncRef(found);
    else
        found = PyObject_CallFunctionObjArgs(entered, arguments[0], arguments[1], NULL);
    hold->spent_s += seconds(CLOCK_MONOTONIC) - began;
    return found;
}

/* left(module, kwargs, output): hold what the call returned, or let the host do it. */
static PyObject *hold_left(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    Hold *hold = (Hold *)self;
    if (given != 3 || hold->left == NULL)
        return PyErr_Format(PyExc_TypeError, "left takes a module, keyword arguments, and an output, and needs a host");
    PyObject *facts = hold->facts, *left = hold->left, *found = NULL;
    double began = seconds(CLOCK_MONOTONIC);
    int is_held = 0;
    if (facts != NULL) {
        Hold known = *hold;
        Py_IncRef(facts);
        is_held = hold_return(&known, arguments[0], arguments[1], arguments[2]);
        if (!is_held)
            PyErr_Clear();
        Py_DecRef(facts);
    }
    found = is_held ? none() : PyObject_CallFunctionObjArgs(left, arguments[0], arguments[1], arguments[2], NULL);
    hold->spent_s += seconds(CLOCK_MONOTONIC) - began;
    return found;
}

static void let_go(Hold *hold)
{
    PyObject *facts = hold->facts;
    hold->facts = NULL;
    hold->rest = 0;
    Py_DecRef(facts);
}

/* serve(entered, left): the host's functions, for all that isn't as known. */
static PyObject *hold_serve(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    Hold *hold = (Hold *)self;
    if (given != 2)
        return PyErr_Format(PyExc_TypeError, "serve takes two functions");
    PyObject *entered = hold->entered, *left = hold->left;
    Py_IncRef(hold->entered = arguments[0]);
    Py_IncRef(hold->left = arguments[1]);
    Py_DecRef(entered);
    Py_DecRef(left);
    return none();
}

/* learn(facts, rest): take the facts by which up to `rest` calls are held. */
static PyObject *hold_learn(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    Hold *hold = (Hold *)self;
    if (given != 2 || PyTuple_Size(arguments[0]) != HOLD_FACTS)
        return PyErr_Format(PyExc_TypeError, "learn takes a tuple of %d facts and a number", HOLD_FACTS);
    int64_t rest = PyLong_AsLongLong(arguments[1]);
    if (rest == -1 && PyErr_Occurred())
        return NULL;
    Py_IncRef(arguments[0]);
    let_go(hold);
    PyObject **place = &hold->model;
    for (Py_ssize_t i = 0; i < HOLD_FACTS; i++)
        place[i] = PyTuple_GetItem(arguments[0], i);
    hold->facts = arguments[0];
    hold->rest = rest;
    return none();
}

/* drop(): keep nothing of the training alive. */
static PyObject *hold_drop(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    let_go((Hold *)self);
    return none();
}

static int hold_traverse(PyObject *self, int (*visit)(PyObject *, void *), void *context)
{
    Hold *hold = (Hold *)self;
    PyObject *all[] = {(PyObject *)self->type, hold->facts, hold->entered, hold->left};
    return visit_each(all, 4, visit, context);
}

static int hold_clear(PyObject *self)
{
    Hold *hold = (Hold *)self;
    PyObject *entered = hold->entered, *left = hold->left;
    hold->entered = hold->left = NULL;
    let_go(hold);
    Py_DecRef(entered);
    Py_DecRef(left);
    return 0;
}

static void hold_dealloc(PyObject *self)
{
    free_object(self, hold_clear);
}

static PyMethodDef hold_methods[] = {
    {"entered", hold_entered, METH_FASTCALL, "Hold a call before it runs."},
    {"left", hold_left, METH_FASTCALL, "Hold what it returned."},
    {"serve", hold_serve, METH_FASTCALL, "Leave to a host what isn't as known."},
    {"learn", hold_learn, METH_FASTCALL, "Take the facts by which calls are held."},
    {"drop", hold_drop, METH_FASTCALL, "Keep nothing of the training alive."},
    {0},
};

static PyMemberDef hold_members[] = {
    {"facts", T_OBJECT, offsetof(Hold, facts), 1, "by which calls are held; None without any"},
    {"spent_s", T_DOUBLE, offsetof(Hold, spent_s), 1, "the seconds that all calls took"},
    {"rest", T_LONGLONG, offsetof(Hold, rest), 1, "how many it may still hold"},
    {0},
};

static PyType_Slot hold_slots[] = {
    {TP_NEW, PyType_GenericNew}, {TP_DEALLOC, hold_dealloc}, {TP_TRAVERSE, hold_traverse}, {TP_CLEAR, hold_clear},
    {TP_METHODS, hold_methods}, {TP_MEMBERS, hold_members}, {0},
};

static PyType_Spec hold_spec = {"hookcore.observe._kernel.Hold", sizeof(Hold), 0, HAVE_GC, hold_slots};
