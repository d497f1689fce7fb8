/* Hooks of torch on the calls of modules, and on the gradients of what they return, without Python for usual tensors.
 *
 * Each class of hooks has a `__call__` in Python, in hookcore/recorder/calls/hooks.py and hookcore/recorder/clock/current.py,
 * which is what Dynamo traces and what does everything unusual. When torch calls a hook, the functions below come first.
 * They check what Python checks, in each call, and change nothing before all of it is as usual.
 */

enum { HOOK_FACTS = 7 };
/* What the hooks know of torch besides, for good: the tuple, and what is in it. */
static PyObject *hook_facts;
static PyObject *dtypes, *graph_task_of, *tracing_of, *compiler, *ordered_type, *handle_type, *hook_type;

typedef struct {
    PyObject head;
    PyObject *current, *add;
    int64_t control, row, grad_row;
} GradientHook;

typedef struct {
    PyObject head;
    int64_t sees_returns, calls_regions;
    PyObject *current, *dispatcher, *models, *plans, *accompanied;
} CallHook;

/* -- Tensors ------------------------------------------------------------------------------------------------------- */

static int is_none(PyObject *function)
{
    PyObject *found = PyObject_CallNoArgs(function);
    Py_DecRef(found);
    return found == &_Py_NoneStruct;
}

struct values {
    int64_t code, size, address;
};

/* Whether a tensor is of torch's own class, and no mode could see what is read of it. */
static int is_bare(PyObject *tensor)
{
    return tensor->type == (void *)tensor_type && has_no_functions();
}

/* Find the values of such a tensor, in memory and without gaps, of a type that the loops take. */
static int find_values(PyObject *tensor, struct values *found)
{
    int64_t is_dense, is_negated;
    if (!is_attribute(tensor, N_IS_CPU, &_Py_TrueStruct))
        return 0;
    PyObject *dtype = PyObject_GetAttr(tensor, names[N_DTYPE]);
    found->code = 0;
    while (found->code < TYPES && PyTuple_GetItem(dtypes, found->code) != dtype)
        found->code++;
    Py_DecRef(dtype);
    if (found->code == TYPES || !call_integer(tensor, N_IS_CONTIGUOUS, &is_dense) || !is_dense ||
        !call_integer(tensor, N_IS_NEG, &is_negated) || is_negated)
        return 0;
    found->address = 0;
    return call_integer(tensor, N_NUMEL, &found->size) && (!found->size || read_address(tensor, &found->address));
}

static void add_values(const struct values *found, int64_t row, int64_t control)
{
    observe(found->address, found->size, found->code, 0, row, control);
}

/* observe_tensor(tensor, row, control): add the values of a tensor of torch's own classes to a row, and return True if it
 * is usual. No other thread of Python can replace its memory between taking the address and reading. */
static PyObject *call_observe_tensor(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    int64_t a[2];
    struct values found;
    if (!read_integers(arguments + 1, given - 1, 2, a))
        return NULL;
    int is_usual = hook_facts != NULL && has_no_functions() && find_values(arguments[0], &found);
    if (is_usual)
        add_values(&found, a[0], a[1]);
    else
        PyErr_Clear();
    PyObject *answer = is_usual ? &_Py_TrueStruct : &_Py_FalseStruct;
    Py_IncRef(answer);
    return answer;
}

/* Let a hook receive the gradient of a computed tensor, as hook_gradient in hookcore/hooks/tensors.py does. */
static int hook_gradient(PyObject *tensor, PyObject *hook)
{
    PyObject *hooks = PyObject_GetAttr(tensor, names[N_BACKWARD_HOOKS]), *node = NULL, *key, *each;
    int is_fresh = hooks == &_Py_NoneStruct, is_added = is_fresh || (hooks != NULL && hooks->type == (void *)ordered_type);
    for (Py_ssize_t at = 0; is_added && !is_fresh && PyDict_Next(hooks, &at, &key, &each);)
        if (each == hook) { /* a tensor that is returned again keeps a single hook */
            Py_DecRef(hooks);
            return 1;
        }
    PyObject *number = is_added ? PyObject_GetAttr(handle_type, names[N_NEXT_ID]) : NULL;
    int64_t next = number == NULL ? -1 : PyLong_AsLongLong(number);
    /* Taken at once: what follows may run Python's collector, and code that registers hooks. */
    is_added = next >= 0 && give(handle_type, N_NEXT_ID, PyLong_FromLongLong(next + 1));
    if (is_added && is_fresh)
        is_added = (node = PyObject_GetAttr(tensor, names[N_GRAD_FN])) != NULL && start_hooks(tensor, node, ordered_type, number, hook);
    else if (is_added)
        is_added = PyObject_SetItem(hooks, number, hook) == 0;
    Py_DecRef(number);
    Py_DecRef(node);
    Py_DecRef(hooks);
    return is_added;
}

/* -- Calls --------------------------------------------------------------------------------------------------------- */

/* Each of these returns 1 if all is done, and 0 if Python has to do it, with an exception set or not. */

static int is_empty(PyObject *owner, int name)
{
    PyObject *found = PyObject_GetAttr(owner, names[name]);
    Py_ssize_t size = found == NULL ? -1 : PyObject_Size(found);
    Py_DecRef(found);
    return size == 0;
}

/* The plan of a module, which belongs to the caller; NULL if there is none. */
static PyObject *plan_of(const CallHook *hook, PyObject *module)
{
    PyObject *key = PyLong_FromLongLong((long long)module);
    PyObject *plan = key == NULL ? NULL : PyDict_GetItemWithError(hook->plans, key);
    if (plan != NULL)
        Py_IncRef(plan);
    Py_DecRef(key);
    return plan;
}

static int saw_call(PyObject *self, PyObject *args)
{
    const CallHook *hook = (const CallHook *)self;
    PyObject *module = PyTuple_GetItem(args, 0);
    if (hook->calls_regions || !is_attribute(hook->models, N_UNSURE, &_Py_FalseStruct) ||
        !is_attribute(hook->current, N_PENDING, &_Py_FalseStruct) || !is_empty(hook->dispatcher, N_OBSERVERS))
        return 0;
    PyObject *plan = plan_of(hook, module), *own = plan == NULL ? NULL : PyObject_GenericGetDict(module, NULL);
    PyObject *hooks = own == NULL ? NULL : PyDict_GetItemWithError(own, names[N_HOOKS]);
    int is_done = hooks != NULL && PyObject_Size(hooks) == 0 && PyDict_Contains(own, names[N_COMPILED]) == 0 &&
                  is_attribute(plan, N_IS_MODEL, &_Py_FalseStruct) && is_attribute(plan, N_ACTS_BEFORE, &_Py_FalseStruct);
    Py_DecRef(own);
    Py_DecRef(plan);
    return is_done;
}

/* Whether a call belongs to a training, as far as its model says. */
static int is_training(PyObject *root)
{
    PyObject *reference = PyObject_GetAttr(root, names[N_REF]), *model = reference == NULL ? NULL : referred(reference);
    PyObject *own = model == NULL ? NULL : PyObject_GenericGetDict(model, NULL);
    int is_in = own != NULL && PyDict_GetItemWithError(own, names[N_TRAINING]) == &_Py_TrueStruct &&
                is_attribute(root, N_REHEARSES, &_Py_FalseStruct);
    Py_DecRef(own);
    Py_DecRef(model);
    Py_DecRef(reference);
    return is_in;
}

/* Measure an output of a module, and let its gradient be measured. `hook`: that of this call. */
static int add_output(PyObject *output, GradientHook *hook, PyObject *root, PyObject *counts, int64_t call)
{
    struct values found;
    if (!find_values(output, &found) || (hook->grad_row && !hook_gradient(output, (PyObject *)hook)) ||
        !set(root, N_TRAINED, &_Py_TrueStruct) || !give(counts, N_TRAINING, PyLong_FromLongLong(call + 1)))
        return 0;
    if (hook->row)
        add_values(&found, hook->row, hook->control);
    return 1;
}

/* Find what this call of a module fills; the first such call is made known by Python. */
static int saw_output(PyObject *plan, PyObject *output)
{
    int64_t task, call;
    if (!is_bare(output) || !is_attribute(output, N_REQUIRES_GRAD, &_Py_TrueStruct) || !is_attribute(output, N_IS_LEAF, &_Py_FalseStruct) ||
        !read_integer(PyObject_CallNoArgs(graph_task_of), &task) || task != -1 || !is_none(tracing_of))
        return 0;
    PyObject *root = PyObject_GetAttr(plan, names[N_ROOT]), *counts = PyObject_GetAttr(plan, names[N_COUNTS]);
    PyObject *rows = PyObject_GetAttr(plan, names[N_ROWS]), *lone = rows == NULL ? NULL : PyObject_GetAttr(rows, names[N_LONE]);
    int is_done = 0;
    if (root != NULL && counts != NULL && lone != NULL && is_training(root) &&
        read_integer(PyObject_GetAttr(counts, names[N_TRAINING]), &call) && call >= 0 && call < PyList_Size(lone)) {
        PyObject *hook = PyList_GetItem(lone, call);
        if (hook != NULL && hook->type == (void *)hook_type) {
            Py_IncRef(hook);
            is_done = add_output(output, (GradientHook *)hook, root, counts, call);
            Py_DecRef(hook);
        }
    }
    Py_DecRef(lone);
    Py_DecRef(rows);
    Py_DecRef(counts);
    Py_DecRef(root);
    return is_done;
}

static int saw_return(PyObject *self, PyObject *args)
{
    const CallHook *hook = (const CallHook *)self;
    if (PyObject_Size(hook->accompanied) != 0 || !is_empty(hook->dispatcher, N_OBSERVERS))
        return 0;
    PyObject *plan = plan_of(hook, PyTuple_GetItem(args, 0)), *wants = NULL;
    int is_done = 0;
    if (plan == NULL)
        return !PyErr_Occurred();
    if (is_attribute(plan, N_IS_MODEL, &_Py_FalseStruct)) {
        wants = PyObject_GetAttr(plan, names[N_WANTS_OUTPUT]);
        is_done = wants == &_Py_FalseStruct || (wants == &_Py_TrueStruct && saw_output(plan, PyTuple_GetItem(args, 2)));
    }
    Py_DecRef(wants);
    Py_DecRef(plan);
    return is_done;
}

static int saw_gradient(PyObject *self, PyObject *args)
{
    const GradientHook *hook = (const GradientHook *)self;
    PyObject *gradient = PyTuple_GetItem(args, 0);
    struct values found;
    if (gradient == &_Py_NoneStruct)
        return 1;
    if (!hook->grad_row || !is_empty(hook->current, N_IGNORING) || !is_attribute(hook->current, N_CLOCK, &_Py_NoneStruct) ||
        !is_bare(gradient) || !find_values(gradient, &found) || with_thread(hook->current, N_REACHED, PySet_Add) != 0)
        return 0;
    add_values(&found, hook->grad_row, hook->control);
    return 1;
}

/* -- The objects --------------------------------------------------------------------------------------------------- */

static PyObject *leave_to_python(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *call = PyObject_GetAttr(self, names[N_CALLED]);
    PyObject *found = call == NULL ? NULL : PyObject_Call(call, args, kwargs);
    Py_DecRef(call);
    return found;
}

/* Report the time of a call, without losing the exception that it may have raised. */
static PyObject *leave_meter(PyObject *meter, PyObject *found)
{
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    if (found == NULL)
        PyErr_Fetch(&type, &value, &trace);
    PyObject *left = PyObject_CallMethodObjArgs(meter, names[N_LEAVE], NULL);
    if (left != NULL && type != NULL)
        PyErr_Restore(type, value, trace);
    else if (left == NULL) {
        Py_DecRef(found);
        found = NULL;
        Py_DecRef(type);
        Py_DecRef(value);
        Py_DecRef(trace);
    }
    Py_DecRef(left);
    return found;
}

static unsigned long left_to_python, leaves_each; /* for tests: leave each n-th call to Python */

static int is_left(void)
{
    return leaves_each && left_to_python++ % leaves_each == 0;
}

/* Do what a hook has to do in a captured step: `saw` does it if it is usual. A step that is timed counts this, too. */
static PyObject *see(PyObject *self, PyObject *current, int (*saw)(PyObject *, PyObject *), PyObject *args)
{
    PyObject *meter = PyObject_GetAttr(current, names[N_METER]), *entered = NULL, *found = NULL;
    int is_timed = meter != NULL && meter != &_Py_NoneStruct;
    if (is_timed && (entered = PyObject_CallMethodObjArgs(meter, names[N_ENTER], NULL)) == NULL) {
        Py_DecRef(meter);
        return NULL; /* such as Ctrl+C, which is for the script */
    }
    int is_done = meter != NULL && !is_left() && saw(self, args), is_raised = !is_done && PyErr_Occurred() != NULL;
    if (is_raised && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        is_raised = 0;
    }
    if (!is_raised)
        found = is_done ? none() : leave_to_python(self, args, NULL);
    if (is_timed)
        found = leave_meter(meter, found);
    Py_DecRef(entered);
    Py_DecRef(meter);
    return found;
}

/* Whether the step is captured: 1 or 0, or -1 if Python has to say. */
static int reads_captured(PyObject *current)
{
    PyObject *captured = current == NULL ? NULL : PyObject_GetAttr(current, names[N_CAPTURED]);
    Py_DecRef(captured);
    if (captured == NULL)
        PyErr_Clear();
    return captured == &_Py_TrueStruct ? 1 : captured == &_Py_FalseStruct ? 0 : -1;
}

static PyObject *call_hook_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    const CallHook *hook = (const CallHook *)self;
    int is_after = hook->sees_returns != 0;
    if (kwargs != NULL || hook_facts == NULL || hook->accompanied == NULL || PyTuple_Size(args) != 2 + is_after ||
        PyDict_GetItemWithError(compiler, names[N_IS_COMPILING]) != &_Py_FalseStruct)
        return leave_to_python(self, args, kwargs);
    int captured = reads_captured(hook->current);
    return captured < 0 ? leave_to_python(self, args, NULL) : captured ? see(self, hook->current, is_after ? saw_return : saw_call, args) : none();
}

static PyObject *gradient_hook_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    const GradientHook *hook = (const GradientHook *)self;
    if (kwargs != NULL || hook_facts == NULL || PyTuple_Size(args) != 1)
        return leave_to_python(self, args, kwargs);
    int captured = reads_captured(hook->current);
    return captured < 0 ? leave_to_python(self, args, NULL) : captured ? see(self, hook->current, saw_gradient, args) : none();
}

static int call_hook_traverse(PyObject *self, int (*visit)(PyObject *, void *), void *context)
{
    const CallHook *hook = (const CallHook *)self;
    PyObject *all[] = {(PyObject *)self->type, hook->current, hook->dispatcher, hook->models, hook->plans, hook->accompanied};
    return visit_each(all, 6, visit, context);
}

static int call_hook_clear(PyObject *self)
{
    return clear_each(&((CallHook *)self)->current, 5);
}

static void call_hook_dealloc(PyObject *self)
{
    free_object(self, call_hook_clear);
}

static int gradient_hook_traverse(PyObject *self, int (*visit)(PyObject *, void *), void *context)
{
    const GradientHook *hook = (const GradientHook *)self;
    PyObject *all[] = {(PyObject *)self->type, hook->current, hook->add};
    return visit_each(all, 3, visit, context);
}

static int gradient_hook_clear(PyObject *self)
{
    return clear_each(&((GradientHook *)self)->current, 2);
}

static void gradient_hook_dealloc(PyObject *self)
{
    free_object(self, gradient_hook_clear);
}

static PyMemberDef call_hook_members[] = {
    {"sees_returns", T_LONGLONG, offsetof(CallHook, sees_returns), 0, "whether it is called after modules, not before"},
    {"calls_regions", T_LONGLONG, offsetof(CallHook, calls_regions), 0, "whether a module that runs uncompiled calls compiled ones"},
    {"current", T_OBJECT, offsetof(CallHook, current), 0, "the running step"},
    {"dispatcher", T_OBJECT, offsetof(CallHook, dispatcher), 0, "what passes calls to observers"},
    {"models", T_OBJECT, offsetof(CallHook, models), 0, "the watched models"},
    {"plans", T_OBJECT, offsetof(CallHook, plans), 0, "the plan of each module, by its identity"},
    {"accompanied", T_OBJECT, offsetof(CallHook, accompanied), 0, "the modules that are seen after their own hooks"},
    {0},
};

static PyMemberDef gradient_hook_members[] = {
    {"current", T_OBJECT, offsetof(GradientHook, current), 0, "the running step"},
    {"add", T_OBJECT, offsetof(GradientHook, add), 0, "what handles gradients of any kind"},
    {"control", T_LONGLONG, offsetof(GradientHook, control), 0, "the address of the control block"},
    {"row", T_LONGLONG, offsetof(GradientHook, row), 0, "the address of the row of the tensor; 0 if it has none"},
    {"grad_row", T_LONGLONG, offsetof(GradientHook, grad_row), 0, "that of its gradient; 0 if it has none"},
    {0},
};

static PyType_Slot call_hook_slots[] = {
    {TP_NEW, PyType_GenericNew}, {TP_DEALLOC, call_hook_dealloc}, {TP_TRAVERSE, call_hook_traverse}, {TP_CLEAR, call_hook_clear},
    {TP_CALL, call_hook_call}, {TP_MEMBERS, call_hook_members}, {0},
};

static PyType_Slot gradient_hook_slots[] = {
    {TP_NEW, PyType_GenericNew}, {TP_DEALLOC, gradient_hook_dealloc}, {TP_TRAVERSE, gradient_hook_traverse}, {TP_CLEAR, gradient_hook_clear},
    {TP_CALL, gradient_hook_call}, {TP_MEMBERS, gradient_hook_members}, {0},
};

static PyObject *call_hook_type, *gradient_hook_type;
static PyType_Spec call_hook_spec = {"hookcore.observe._kernel.CallHook", sizeof(CallHook), 0, HAVE_GC | BASE_TYPE, call_hook_slots};
static PyType_Spec gradient_hook_spec = {"hookcore.observe._kernel.GradientHook", sizeof(GradientHook), 0, HAVE_GC | BASE_TYPE, gradient_hook_slots};

/* know_torch(facts): what hooks know of torch. Before that, they leave all to Python. */
static PyObject *call_know_torch(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    if (given != 1 || PyTuple_Size(arguments[0]) != HOOK_FACTS || PyTuple_Size(PyTuple_GetItem(arguments[0], 0)) != TYPES)
        return PyErr_Format(PyExc_TypeError, "know_torch takes a tuple of %d facts, the first of which has %d types", HOOK_FACTS, TYPES);
    PyObject **places[HOOK_FACTS] = {&dtypes, &graph_task_of, &tracing_of, &compiler, &ordered_type, &handle_type, &hook_type};
    PyObject *before = hook_facts;
    Py_IncRef(hook_facts = arguments[0]);
    for (Py_ssize_t i = 0; i < HOOK_FACTS; i++)
        *places[i] = PyTuple_GetItem(hook_facts, i);
    Py_DecRef(before);
    return none();
}

/* name_call(class, function): let a class have a `__call__` for those who ask, and keep what is called. */
static PyObject *call_name_call(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    if (given != 2)
        return PyErr_Format(PyExc_TypeError, "name_call takes a class and a function");
    if (PyObject_GenericSetAttr(arguments[0], names[N_CALLED], arguments[1]) != 0)
        return NULL;
    PyType_Modified(arguments[0]);
    return none();
}

/* For tests: leave each n-th call of a hook to Python; 0: none that is usual. */
static PyObject *call_leave_each(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    int64_t a[1];
    if (!read_integers(arguments, given, 1, a))
        return NULL;
    leaves_each = (unsigned long)a[0];
    return none();
}
