/* A call of a model in a step that isn't captured, held by reference. hookcore/recorder/calls/keeping.py says what that
 * means.
 *
 * This does what Python does for the same call of the same model with plain tensors. All else is left to its host, which may be
 * the one for another model. Whatever may fail, or run Python, comes before the first change, or is harmless if the host
 * does it again.
 */

/* Of torch; and what makes the state of a generator from its memory. NULL until somebody has passed them. */
static PyObject *tensor_type, *function_modes, *dispatch_modes, *restore;

static int has_no_functions(void) /* modes that see what is read of a tensor */
{
    return tensor_type != NULL && is_zero(function_modes);
}

static int is_unseen(void) /* by any mode, that is, operators are not seen either */
{
    return has_no_functions() && is_zero(dispatch_modes);
}

/* know(tensor, function_modes, dispatch_modes, restore): take these. */
static PyObject *call_know(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    if (given != 4)
        return PyErr_Format(PyExc_TypeError, "know takes a class and three functions");
    PyObject **place[] = {&tensor_type, &function_modes, &dispatch_modes, &restore};
    for (int i = 0; i < 4; i++) {
        PyObject *before = *place[i];
        Py_IncRef(*place[i] = arguments[i]);
        Py_DecRef(before);
    }
    return none();
}

/* Give a computed tensor without hooks its first one, as hook_gradient in hookcore/hooks/tensors.py does. `node`: which made it. */
static int start_hooks(PyObject *tensor, PyObject *node, PyObject *ordered, PyObject *number, PyObject *hook)
{
    PyObject *hooks = node == &_Py_NoneStruct ? NULL : PyObject_CallNoArgs(ordered), *done = NULL;
    if (hooks != NULL && PyObject_SetItem(hooks, number, hook) == 0 && set(tensor, N_BACKWARD_HOOKS, hooks) &&
        (done = PyObject_CallMethodObjArgs(node, names[N_REGISTER], tensor, NULL)) == NULL) {
        PyErr_Clear();
        set(tensor, N_BACKWARD_HOOKS, &_Py_NoneStruct);
    }
    Py_DecRef(hooks);
    Py_DecRef(done);
    return done != NULL;
}

/* -- The call, and what keeps the gradient of its output ----------------------------------------------------------- */

typedef struct arrival Arrival;

enum { MOST_TENSORS = 8 }; /* among the arguments */
enum { VERSIONS, OUTPUTS, GRADIENTS, NUMBERS, UNKEPT, AUTOCAST, GENERATORS, MADE };

typedef struct {
    PyObject head;
    PyObject *args, *kwargs, *entry;
    PyObject *output, *gradient, *raw; /* what the extension has, with the places and versions below, */
    PyObject *made[MADE];              /* until somebody asks for these */
    Arrival *arrival;                  /* which doesn't keep this object */
    double at;
    int64_t updates, tensors, place[MOST_TENSORS], version[MOST_TENSORS], gradient_version;
} HeldCall;

struct arrival {
    PyObject head;
    PyObject *call, *place; /* a weak reference, and where the output was; or */
    HeldCall *held;         /* the call whose only output it was, which says when it is gone */
};

static void forget_arrival(HeldCall *held)
{
    Arrival *arrival = held->arrival;
    held->arrival = NULL;
    if (arrival != NULL)
        arrival->held = NULL;
    Py_DecRef((PyObject *)arrival);
}

static PyObject *make_versions(const HeldCall *held)
{
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i <= held->tensors; i++) {
        PyObject *one = NULL;
        if (i < held->tensors)
            one = Py_BuildValue("OLOL", names[N_ARGUMENT], (long long)held->place[i], PyTuple_GetItem(held->args, (Py_ssize_t)held->place[i]), (long long)held->version[i]);
        else if (held->gradient == NULL || held->gradient_version < 0)
            break;
        else
            one = Py_BuildValue("OOOL", names[N_GRADIENT], names[N_WHOLE], held->gradient, (long long)held->gradient_version);
        int is_added = one != NULL && PyList_Append(list, one) == 0;
        Py_DecRef(one);
        if (!is_added) {
            Py_DecRef(list);
            list = NULL;
        }
    }
    return list;
}

static PyObject *make_whole(PyObject *tensor) /* by its place */
{
    PyObject *found = PyDict_New();
    if (found != NULL && tensor != NULL && PyObject_SetItem(found, names[N_WHOLE], tensor) != 0) {
        Py_DecRef(found);
        return NULL;
    }
    return found;
}

static PyObject *held_get(PyObject *self, void *which)
{
    HeldCall *held = (HeldCall *)self;
    int64_t what = (int64_t)which;
    if (held->made[what] == NULL) {
        PyObject *made = what == VERSIONS     ? make_versions(held)
                         : what == OUTPUTS    ? make_whole(held->output)
                         : what == GRADIENTS  ? make_whole(held->gradient)
                         : what == AUTOCAST   ? PyDict_New()
                         : what == GENERATORS ? held->raw == NULL ? none() : PyObject_CallFunctionObjArgs(restore, held->raw, NULL)
                                              : PyList_New(0);
        if (held->made[what] != NULL) /* by another thread */
            Py_DecRef(made);
        else
            held->made[what] = made;
    }
    if (held->made[what] != NULL)
        Py_IncRef(held->made[what]);
    return held->made[what];
}

static int held_set(PyObject *self, PyObject *value, void *which)
{
    PyObject **place = &((HeldCall *)self)->made[(int64_t)which], *before = *place;
    if (value != NULL)
        Py_IncRef(value);
    *place = value;
    Py_DecRef(before);
    return 0;
}

static int keep_output(HeldCall *held, PyObject *alias)
{
    PyObject *before = held->output;
    if (held->made[OUTPUTS] != NULL)
        return PyObject_SetItem(held->made[OUTPUTS], names[N_WHOLE], alias) == 0;
    Py_IncRef(held->output = alias);
    Py_DecRef(before);
    return 1;
}

static int keep_gradient(HeldCall *held, PyObject *alias)
{
    int64_t version = -1;
    if (!read_integer(PyObject_GetAttr(alias, names[N_VERSION]), &version)) {
        PyErr_Clear(); /* a tensor of inference mode has none */
        version = -1;
    }
    PyObject *before = held->gradient;
    Py_IncRef(held->gradient = alias);
    held->gradient_version = version;
    Py_DecRef(before);
    if (held->made[GRADIENTS] != NULL && PyObject_SetItem(held->made[GRADIENTS], names[N_WHOLE], alias) != 0)
        return 0;
    if (held->made[VERSIONS] == NULL || version < 0)
        return 1;
    PyObject *one = Py_BuildValue("OOOL", names[N_GRADIENT], names[N_WHOLE], alias, (long long)version);
    int is_added = one != NULL && PyList_Append(held->made[VERSIONS], one) == 0;
    Py_DecRef(one);
    return is_added;
}

static int held_traverse(PyObject *self, int (*visit)(PyObject *, void *), void *context)
{
    HeldCall *held = (HeldCall *)self;
    PyObject *all[] = {(PyObject *)self->type, held->args, held->kwargs, held->entry, held->output, held->gradient, (PyObject *)held->arrival};
    int stopped = visit_each(all, 7, visit, context);
    return stopped ? stopped : visit_each(held->made, MADE, visit, context);
}

static int held_clear(PyObject *self)
{
    HeldCall *held = (HeldCall *)self;
    forget_arrival(held);
    held->tensors = 0;
    return clear_each(&held->args, 6 + MADE);
}

static void held_dealloc(PyObject *self)
{
    free_object(self, held_clear);
}

static PyMemberDef held_members[] = {
    {"args", T_OBJECT, offsetof(HeldCall, args), 0, "its arguments"},
    {"kwargs", T_OBJECT, offsetof(HeldCall, kwargs), 0, "its keyword arguments, when it has returned"},
    {"entry", T_OBJECT, offsetof(HeldCall, entry), 0, "the weights, on a device"},
    {"at", T_DOUBLE, offsetof(HeldCall, at), 0, "when it began"},
    {"updates", T_LONGLONG, offsetof(HeldCall, updates), 0, "of any weights before"},
    {0},
};

static PyGetSetDef held_getters[] = {
    {"versions", held_get, held_set, "what tensors are, their places, and their versions", (void *)VERSIONS},
    {"outputs", held_get, held_set, "by place", (void *)OUTPUTS},
    {"gradients", held_get, held_set, "by place", (void *)GRADIENTS},
    {"numbers", held_get, held_set, "that the model's own code changes", (void *)NUMBERS},
    {"unkept", held_get, held_set, "what was too large", (void *)UNKEPT},
    {"generators", held_get, held_set, "their states", (void *)GENERATORS},
    {"autocast", held_get, held_set, "the type of each device for which it is on", (void *)AUTOCAST},
    {0},
};

static PyType_Slot held_slots[] = {
    {TP_NEW, PyType_GenericNew}, {TP_DEALLOC, held_dealloc}, {TP_TRAVERSE, held_traverse}, {TP_CLEAR, held_clear},
    {TP_MEMBERS, held_members}, {TP_GETSET, held_getters}, {0},
};

static PyType_Spec held_spec = {"hookcore.observe._kernel.HeldCall", sizeof(HeldCall), 0, HAVE_GC | BASE_TYPE, held_slots};

/* Keep the gradient, or leave that to Python. */
static PyObject *arrival_call(PyObject *self, PyObject *given, PyObject *keywords)
{
    Arrival *arrival = (Arrival *)self;
    if (PyTuple_Size(given) != 1 || keywords != NULL)
        return PyErr_Format(PyExc_TypeError, "%zd arguments were given: this takes one gradient", PyTuple_Size(given));
    PyObject *gradient = PyTuple_GetItem(given, 0), *alias = NULL;
    int is_kept = 0;
    if (arrival->held != NULL && gradient->type == (void *)tensor_type && is_unseen() &&
        (alias = PyObject_CallMethodObjArgs(gradient, names[N_DETACH], NULL)) != NULL) {
        HeldCall *held = arrival->held; /* torch may have run Python */
        Py_IncRef((PyObject *)held);
        is_kept = held == NULL || keep_gradient(held, alias);
        Py_DecRef((PyObject *)held);
    }
    Py_DecRef(alias);
    if (is_kept)
        return none();
    PyErr_Clear();
    return PyObject_CallMethodObjArgs(self, names[N_SAW], gradient, NULL);
}

static int arrival_traverse(PyObject *self, int (*visit)(PyObject *, void *), void *context)
{
    Arrival *arrival = (Arrival *)self;
    PyObject *all[] = {(PyObject *)self->type, arrival->call, arrival->place};
    return visit_each(all, 3, visit, context);
}

static int arrival_clear(PyObject *self)
{
    return clear_each(&((Arrival *)self)->call, 2);
}

static void arrival_dealloc(PyObject *self)
{
    free_object(self, arrival_clear);
}

static PyMemberDef arrival_members[] = {
    {"call", T_OBJECT, offsetof(Arrival, call), 0, "a weak reference to the call; None if it is `held`"},
    {"place", T_OBJECT, offsetof(Arrival, place), 0, "where the output was"},
    {"held", T_OBJECT, offsetof(Arrival, held), 1, "the call"},
    {0},
};

static PyType_Slot arrival_slots[] = {
    {TP_NEW, PyType_GenericNew}, {TP_DEALLOC, arrival_dealloc}, {TP_TRAVERSE, arrival_traverse}, {TP_CLEAR, arrival_clear},
    {TP_CALL, arrival_call}, {TP_MEMBERS, arrival_members}, {0},
};

static PyType_Spec arrival_spec = {"hookcore.observe._kernel.Arrival", sizeof(Arrival), 0, HAVE_GC | BASE_TYPE, arrival_slots};

/* -- Before the call ----------------------------------------------------------------------------------------------- */

typedef struct { /* the hook on a module while its call runs, and what is known of the calls of this step */
    PyObject head;
    PyObject *hold, *number, *hooks; /* the one that takes what the call returns; its key; the table in which it is, or None */
    int64_t others;                  /* calls of other modules */
    char is_on, holds;               /* in this step; the running call */
} After;

typedef struct {
    PyObject head;
    int64_t rest;                         /* calls that it may hold before the host sees one again */
    double spent_s;                       /* in all calls so far */
    int64_t limit, imported, most_others; /* bytes of an output; modules of Python; calls of other modules */
    int64_t raw, raw_bytes;               /* where the generator is; 0 if that is unknown */
    PyObject *entered, *left;             /* the host's */
    PyObject *facts;                      /* the tuple that the following ones belong to */
    PyObject *model, *kept, *plans, *plan, *cells, *modules, *answers, *task, *state, *held, *arrival, *ordered;
    PyObject *numbers, *table, *number, *before;
    After *after;
    Track *track;
} Hold;

enum { HOLD_FACTS = 18 }; /* references in `facts`, in the order above; keeping.py has the same list */
static PyObject *held_type, *arrival_type, *after_type, *hold_type, *track_type;

/* A plain tensor as it is held: itself or, if it has a graph, an alias without it. */
static PyObject *alias_of(PyObject *tensor, PyObject *has_graph)
{
    PyObject *alias = NULL, *found = NULL;
    if (has_graph == &_Py_FalseStruct)
        Py_IncRef(found = tensor);
    else if (has_graph == &_Py_TrueStruct && is_unseen() && (alias = PyObject_CallMethodObjArgs(tensor, names[N_DETACH], NULL)) != NULL)
        found = PyObject_CallMethodObjArgs(alias, names[N_NEED_GRAD], NULL);
    Py_DecRef(alias);
    return found;
}

/* Hold a tensor without its graph instead of it. */
static int replace(HeldCall *held, PyObject *args, Py_ssize_t place, PyObject *alias)
{
    if (held->args == args) { /* which is the caller's */
        Py_ssize_t many = PyTuple_Size(args);
        PyObject *own = PyTuple_New(many);
        for (Py_ssize_t i = 0; own != NULL && i < many; i++) {
            PyObject *item = PyTuple_GetItem(args, i);
            Py_IncRef(item);
            PyTuple_SetItem(own, i, item);
        }
        if (own == NULL)
            return 0;
        Py_DecRef(args);
        held->args = own;
    }
    Py_IncRef(alias);
    return PyTuple_SetItem(held->args, place, alias) == 0; /* takes it over */
}

/* Hold the arguments with the versions of the tensors among them; 0 if any is neither a plain tensor nor a number. */
static int hold_args(const Hold *hold, HeldCall *held, PyObject *args)
{
    Py_ssize_t many = PyTuple_Size(args);
    Py_IncRef(held->args = args);
    for (Py_ssize_t i = 0; i < many; i++) {
        PyObject *item = PyTuple_GetItem(args, i);
        if (item->type != (void *)tensor_type) {
            if (PySequence_Contains(hold->numbers, (PyObject *)item->type) != 1)
                return 0;
            continue;
        }
        PyObject *has_graph = held->tensors < MOST_TENSORS ? PyObject_GetAttr(item, names[N_REQUIRES_GRAD]) : NULL;
        PyObject *alias = has_graph == NULL ? NULL : alias_of(item, has_graph);
        /* a tensor of inference mode has no version */
        int is_fine = alias != NULL && read_integer(PyObject_GetAttr(item, names[N_VERSION]), &held->version[held->tensors]) &&
                      (alias == item || replace(held, args, i, alias));
        Py_DecRef(alias);
        Py_DecRef(has_graph);
        if (!is_fine)
            return 0;
        held->place[held->tensors++] = i;
    }
    return many >= 0;
}

static int is_as_known(const Hold *hold, PyObject *module)
{
    return refers_to(hold->model, module) && hold->after->is_on && (hold->after->hooks == NULL || hold->after->hooks == &_Py_NoneStruct) &&
           has_no_functions() && answer(hold->answers) && are_same(hold->cells) && PyObject_Size(hold->modules) == hold->imported;
}

/* Copy the generator's memory, unless another thread draws from it meanwhile, or ask torch for its state. */
static int hold_generator(const Hold *hold, HeldCall *held)
{
    enum { HEAD = 20 }; /* which every draw changes */
    char before[HEAD];
    if (hold->raw != 0) {
        memcpy(before, (const char *)hold->raw, HEAD);
        held->raw = PyBytes_FromStringAndSize((const char *)hold->raw, (Py_ssize_t)hold->raw_bytes);
        if (held->raw == NULL || memcmp(before, (const char *)hold->raw, HEAD) == 0)
            return held->raw != NULL;
    }
    return (held->made[GENERATORS] = PyObject_CallNoArgs(hold->state)) != NULL;
}

/* Make the object that holds the call. */
static HeldCall *make_held(const Hold *hold, PyObject *args, double at)
{
    HeldCall *held = (HeldCall *)PyType_GenericAlloc(hold->held, 0);
    if (held != NULL && hold_args(hold, held, args) && hold_generator(hold, held)) {
        held->updates = hold->track->updates;
        held->at = at;
        return held;
    }
    Py_DecRef((PyObject *)held);
    return NULL;
}

static int hold_call(Hold *hold, PyObject *module, PyObject *args, double at)
{
    if (!is_as_known(hold, module))
        return 0;
    PyObject *own = PyObject_GenericGetDict(module, NULL);
    PyObject *hooks = own == NULL ? NULL : PyDict_GetItemWithError(own, names[N_HOOKS]);
    HeldCall *held = NULL;
    Py_IncRef(hooks); /* freeing what is held may run any code */
    int is_held = hooks != NULL && PyDict_Contains(hooks, hold->after->number) == 0 && PyDict_Contains(own, names[N_COMPILED]) == 0;
    if (is_held && set(hold->kept, N_HELD, &_Py_NoneStruct)) /* the last micro-batch may be freed first */
        held = make_held(hold, args, at);
    is_held = held != NULL && set(hold->kept, N_HELD, (PyObject *)held) && PyObject_DelItem(hold->table, hold->number) == 0 &&
              PyObject_SetItem(hooks, hold->after->number, (PyObject *)hold->after) == 0;
    if (is_held) { /* its return is seen, and no other call until then */
        PyObject *before = hold->after->hooks;
        Py_IncRef(hold->after->hooks = hooks);
        Py_DecRef(before);
        hold->after->holds = 1;
        hold->after->others = 0;
    }
    Py_DecRef((PyObject *)held);
    Py_DecRef(hooks);
    Py_DecRef(own);
    return is_held;
}

/* Whether a module isn't watched, nor compiled: one of the few others whose calls may be seen. Count the call. */
static int is_other(const Hold *hold, PyObject *module)
{
    int64_t task;
    if (!read_integer(PyObject_CallNoArgs(hold->task), &task) || task != -1)
        return 0;
    PyObject *key = PyLong_FromLongLong((int64_t)module), *own = NULL, *parts = NULL;
    int is_new = key != NULL && hold->after->is_on && hold->after->others < hold->most_others && PyDict_Contains(hold->plans, key) == 0 &&
                 (own = PyObject_GenericGetDict(module, NULL)) != NULL && PyDict_Contains(own, names[N_COMPILED]) == 0 &&
                 (parts = PyDict_GetItemWithError(own, names[N_MODULES])) != NULL && PyDict_Contains(parts, names[N_ORIGINAL]) == 0;
    Py_DecRef(own);
    Py_DecRef(key);
    hold->after->others += is_new;
    return is_new;
}

/* -- What it returned ---------------------------------------------------------------------------------------------- */

/* Whether an output is plain, without hooks, and small enough to hold. */
static int is_holdable(const Hold *hold, PyObject *output)
{
    int64_t bytes;
    return output->type == (void *)tensor_type && is_attribute(output, N_BACKWARD_HOOKS, &_Py_NoneStruct) &&
           read_integer(PyObject_GetAttr(output, names[N_NBYTES]), &bytes) && bytes <= hold->limit;
}

/* See no return of this module any longer, but the next calls of others. */
static int see_next(const Hold *hold)
{
    PyObject *hooks = hold->after->hooks;
    hold->after->hooks = NULL; /* first: taking it out may run Python */
    int is_out = hooks != NULL && PyObject_DelItem(hooks, hold->after->number) == 0;
    Py_DecRef(hooks);
    return is_out && PyObject_SetItem(hold->table, hold->number, hold->before) == 0;
}

static int hold_return(Hold *hold, PyObject *module, PyObject *kwargs, PyObject *output)
{
    if (!refers_to(hold->model, module) || !hold->after->is_on || !hold->after->holds ||
        (kwargs != &_Py_NoneStruct && PyObject_Size(kwargs) != 0) || !has_no_functions() || !is_holdable(hold, output))
        return 0;
    HeldCall *held = (HeldCall *)PyObject_GetAttr(hold->kept, names[N_HELD]);
    PyObject *node = PyObject_GetAttr(output, names[N_GRAD_FN]), *alias = NULL;
    Arrival *arrival = NULL;
    int is_done = held != NULL && held->head.type == (void *)hold->held && held->arrival == NULL && node != NULL && node != &_Py_NoneStruct &&
                  (arrival = (Arrival *)PyType_GenericAlloc(hold->arrival, 0)) != NULL &&
                  (alias = PyObject_GetAttr(output, names[N_DATA])) != NULL && keep_output(held, alias) && see_next(hold);
    if (is_done) {
        PyObject *before = held->kwargs;
        Py_IncRef(held->kwargs = kwargs);
        Py_DecRef(before);
        Py_IncRef((PyObject *)(held->arrival = arrival));
        arrival->held = held;
        is_done = start_hooks(output, node, hold->ordered, hold->after->number, (PyObject *)arrival); /* with a number that none of torch's has */
    }
    Py_DecRef(alias);
    Py_DecRef((PyObject *)arrival);
    Py_DecRef(node);
    Py_DecRef((PyObject *)held);
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
        is_held = hold_call(&known, arguments[0], arguments[1], began);
        hold->rest -= is_held;
        is_held = is_held || is_other(&known, arguments[0]);
        if (!is_held)
            PyErr_Clear();
        Py_DecRef(facts);
    }
    if (is_held)
        Py_IncRef(found);
    else
        found = PyObject_CallFunctionObjArgs(entered, arguments[0], arguments[1], NULL);
    hold->spent_s += seconds(CLOCK_MONOTONIC) - began;
    return found;
}

static PyObject *leave(Hold *hold, PyObject *module, PyObject *kwargs, PyObject *output)
{
    if (hold->left == NULL)
        return PyErr_Format(PyExc_TypeError, "left needs a host");
    PyObject *facts = hold->facts, *left = hold->left, *found = NULL;
    double began = seconds(CLOCK_MONOTONIC);
    int is_held = 0;
    if (facts != NULL) {
        Hold known = *hold;
        Py_IncRef(facts);
        is_held = hold_return(&known, module, kwargs, output);
        if (!is_held)
            PyErr_Clear();
        Py_DecRef(facts);
    }
    found = is_held ? none() : PyObject_CallFunctionObjArgs(left, module, kwargs, output, NULL);
    hold->spent_s += seconds(CLOCK_MONOTONIC) - began;
    return found;
}

/* left(module, kwargs, output): hold what the call returned, or let the host do it. */
static PyObject *hold_left(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    if (given != 3)
        return PyErr_Format(PyExc_TypeError, "left takes a module, keyword arguments, and an output");
    return leave((Hold *)self, arguments[0], arguments[1], arguments[2]);
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

static int is_kind(PyObject *object, PyObject *type)
{
    return object != NULL && PyType_IsSubtype(object->type, type);
}

/* learn(facts, rest, limit, imported, most_others, raw, raw_bytes): take the facts by which up to `rest` calls are held. */
static PyObject *hold_learn(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    Hold *hold = (Hold *)self;
    int64_t numbers[6];
    if (!read_integers(arguments + 1, given - 1, 6, numbers))
        return NULL;
    PyObject *facts = arguments[0], *found[HOLD_FACTS];
    int is_fine = PyTuple_Size(facts) == HOLD_FACTS;
    for (Py_ssize_t i = 0; is_fine && i < HOLD_FACTS; i++)
        found[i] = PyTuple_GetItem(facts, i);
    if (!is_fine || !PyType_IsSubtype(found[9], held_type) || !PyType_IsSubtype(found[10], arrival_type) ||
        !is_kind(found[16], after_type) || !is_kind(found[17], track_type))
        return PyErr_Format(PyExc_TypeError, "learn takes a tuple of %d facts and six numbers", HOLD_FACTS);
    Py_IncRef(facts);
    let_go(hold);
    memcpy(&hold->model, found, sizeof found);
    hold->facts = facts;
    hold->rest = numbers[0];
    hold->limit = numbers[1];
    hold->imported = numbers[2];
    hold->most_others = numbers[3];
    hold->raw = numbers[4];
    hold->raw_bytes = numbers[5];
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
    let_go(hold);
    return clear_each(&hold->entered, 2);
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

/* -- The hook on a module whose call runs -------------------------------------------------------------------------- */

/* left(module, kwargs, output): pass on what the call returned. */
static PyObject *after_left(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    PyObject *hold = ((After *)self)->hold;
    if (given != 3 || hold == NULL)
        return PyErr_Format(PyExc_TypeError, "left takes a module, keyword arguments, and an output, and needs a Hold");
    Py_IncRef(hold);
    PyObject *found = leave((Hold *)hold, arguments[0], arguments[1], arguments[2]);
    Py_DecRef(hold);
    return found;
}

/* serve(hold): who takes what a call returns. */
static PyObject *after_serve(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    if (given != 1 || !is_kind(arguments[0], hold_type))
        return PyErr_Format(PyExc_TypeError, "serve takes a Hold");
    PyObject **place = &((After *)self)->hold, *before = *place;
    Py_IncRef(*place = arguments[0]);
    Py_DecRef(before);
    return none();
}

static int after_traverse(PyObject *self, int (*visit)(PyObject *, void *), void *context)
{
    After *after = (After *)self;
    PyObject *all[] = {(PyObject *)self->type, after->hold, after->number, after->hooks};
    return visit_each(all, 4, visit, context);
}

static int after_clear(PyObject *self)
{
    return clear_each(&((After *)self)->hold, 3);
}

static void after_dealloc(PyObject *self)
{
    free_object(self, after_clear);
}

static PyMethodDef after_methods[] = {
    {"left", after_left, METH_FASTCALL, "Pass on what the call returned."},
    {"serve", after_serve, METH_FASTCALL, "Leave to a Hold what a call returns."},
    {0},
};

static PyMemberDef after_members[] = {
    {"number", T_OBJECT, offsetof(After, number), 0, "its key in tables of hooks"},
    {"hooks", T_OBJECT, offsetof(After, hooks), 0, "the table in which it is, or None"},
    {"others", T_LONGLONG, offsetof(After, others), 0, "calls of other modules"},
    {"is_on", T_BOOL, offsetof(After, is_on), 0, "whether calls are held in this step"},
    {"holds", T_BOOL, offsetof(After, holds), 0, "whether the running call is"},
    {0},
};

static PyType_Slot after_slots[] = {
    {TP_NEW, PyType_GenericNew}, {TP_DEALLOC, after_dealloc}, {TP_TRAVERSE, after_traverse}, {TP_CLEAR, after_clear},
    {TP_METHODS, after_methods}, {TP_MEMBERS, after_members}, {0},
};

static PyType_Spec after_spec = {"hookcore.observe._kernel.After", sizeof(After), 0, HAVE_GC | BASE_TYPE, after_slots};
