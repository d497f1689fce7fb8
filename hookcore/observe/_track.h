/* The short way through steps, in one object. hookcore/recorder/clock/steady.py says what it means.
 *
 * After a step of the training, nothing of ours is in the processor's caches, so that each object of Python that is
 * touched costs more than what is done with it. A track has what it needs side by side. It is entered when a step was
 * as usual, and notes the next ones. Whatever it doesn't expect, it passes on to its host, which first takes the notes.
 * Nothing here lets go of the interpreter between reading the state and changing it, except where it calls torch.
 */

enum { MOST_BYTES = 1 << 24 }; /* of packed rows in the notes */
enum { NOTES = 128, TURNS = 256, LOSSES = 512, MOST_WITNESSES = 32, MOST_OWNERS = 8, MOST_PARAMETERS = 1024 };
enum { OFF, PASS, IN_PASS, STEP, IN_STEP }; /* what may come next; steady.py has the same list */
enum { RECENT = 256 };                      /* steps; owners.py has the same number */

struct mark {
    int64_t id, version; /* of a gradient; 0 if there is none */
};

struct owner { /* an optimizer; the references belong to the facts */
    PyObject *optimizer, *groups;
    uint64_t witnesses; /* a bit for each */
    int64_t is_scaled, may_end, has_schedule, last_step, gap;
};

struct turn {
    int64_t owner, is_late;
};

struct part { /* of a captured step: what an optimizer has used that joined it */
    int64_t step;
    double time_s, scale;
    PyObject *packed;
};

typedef struct {
    PyObject head;
    int64_t runs, next, step, ended; /* `ended`: how many steps have ended, the newest one at `at` */
    int64_t updates;
    double at;
    int64_t until, looks, reads, compares, longest, looked_at, frame;
    double until_s, due_s, loss, limit, scale, pass_scale, spent_s, own_s; /* in all calls so far; in those that it handled, without Python's part */
    unsigned long thread;
    /* Of the witnesses, of which each has a bit: those with new gradients in this step, and in the steps in the notes; and
     * the marks before the running pass, after the last one, and of the gradients whose step is known. */
    int64_t many, passes, has_compared;
    uint64_t reached, trained;
    struct mark before[MOST_WITNESSES], in_pass[MOST_WITNESSES], in_step[MOST_WITNESSES];
    /* Of the optimizers: the running one, and whether it joins the step that ended last; and, of which each has a bit,
     * those that stepped since that one. */
    int64_t owners, running, is_late;
    uint64_t group;
    struct owner owner[MOST_OWNERS];
    /* The notes, and the losses of the ended steps and of the passes of this one. */
    int64_t noted, turned, read;
    double elapsed_s[NOTES], time_s[NOTES], scales[NOTES], losses[LOSSES];
    int64_t parts[NOTES]; /* how many losses each of them has */
    PyObject *packed[NOTES]; /* their rows, if they were captured */
    struct turn turns[TURNS];
    int64_t joined;
    struct part part[NOTES];
    /* Of captured steps: whether they are handled, and the running one is one, and the one before; the number of steps from one block of them to
     * the next, in blocks; the first row and how many of them are used, whether something is read before an optimizer steps
     * and calls are kept, whether passes bring gradients to hooks, and the bytes in the notes. */
    int64_t follows, captures, has_captured, block, stride, base, used, reads_ahead, keeps, receives, bytes;
    int64_t moved; /* whether a rate has changed since the facts were learned */
    /* Of parameters whose gradients it reads: after which pass of a step, and their marks then. */
    int64_t control, last_pass, parameters_read;
    int64_t readers; /* calls that go by the facts now: nothing is learned meanwhile, since they hold only the tuple of theirs */
    struct mark marks[MOST_PARAMETERS];
    PyObject *rest, *current, *taps, *more_sized, *more_cells; /* which belong to the facts; `rest` does what is left to Python */
    PyObject *parameters;
    /* references, all of them cleared together */
    PyObject *facts; /* the tuple that the following ones belong to */
    PyObject *steppers, *now, *function_modes, *dispatch_modes, *graph_task, *loop, *scalers;
    PyObject *witnesses, *roots, *lookouts, *sized, *cells, *tensor, *float32;
    PyObject *hooks, *number, *hook, *kept, *absent; /* None if no calls are held, but for the last two */
    PyObject *scaler; /* a weak reference, or None */
    PyObject *captured; /* None if they aren't handled */
    PyObject *states; /* its table of optimizers when the last pass of this step had ended */
    PyObject *host;
} Track;

enum { FACTS = 21 }; /* references in `facts`, in the order above */

/* -- Reading ------------------------------------------------------------------------------------------------------- */

static const int64_t LOW = 1LL << 40; /* arena.py has the same: addresses of memory are above it, or need a closer look */

/* Where a tensor's values are. If its memory was freed, the address is its offset in the storage, which has no bytes; that
 * of a tensor without memory only says that it has some. */
static int read_address(PyObject *tensor, int64_t *address)
{
    int64_t bytes = 0, start = 0;
    if (!call_integer(tensor, N_DATA_PTR, address) || *address >= LOW)
        return *address >= LOW;
    PyObject *storage = PyObject_CallMethodObjArgs(tensor, names[N_STORAGE], NULL);
    int is_there = storage != NULL && call_integer(storage, N_NBYTES, &bytes) && bytes > 0 && call_integer(storage, N_DATA_PTR, &start) && start;
    Py_DecRef(storage);
    return is_there;
}

/* A plain float32 tensor in memory. Those of torch.func and of other layouts have no address: asking for it raises. */
static int is_plain(const Track *track, PyObject *tensor)
{
    return tensor->type == (void *)track->tensor && is_attribute(tensor, N_DTYPE, track->float32) &&
           is_attribute(tensor, N_IS_CPU, &_Py_TrueStruct);
}

static int read_number(const Track *track, PyObject *tensor, double *number)
{
    int64_t dims, negative, address = 0;
    if (!is_plain(track, tensor) || !call_integer(tensor, N_DIM, &dims) || dims || !call_integer(tensor, N_IS_NEG, &negative) ||
        negative || !read_address(tensor, &address))
        return 0;
    *number = *(const float *)address;
    return 1;
}

/* The only item of a sequence, as a number. */
static int read_only(const Track *track, PyObject *sequence, double *number)
{
    if (PySequence_Size(sequence) != 1)
        return 0;
    PyObject *item = PySequence_GetItem(sequence, 0);
    int is_read = item != NULL && read_number(track, item, number);
    Py_DecRef(item);
    return is_read;
}

/* The float32s of a tensor that lie side by side. */
static int read_values(const Track *track, PyObject *tensor, int64_t *address, int64_t *size)
{
    int64_t contiguous, negative;
    return is_attribute(tensor, N_DTYPE, track->float32) && is_attribute(tensor, N_IS_CPU, &_Py_TrueStruct) &&
           call_integer(tensor, N_IS_CONTIGUOUS, &contiguous) && contiguous && call_integer(tensor, N_IS_NEG, &negative) && !negative &&
           call_integer(tensor, N_NUMEL, size) && *size && read_address(tensor, address);
}

/* Whether a gradient's first values are finite. */
static int is_fine(const Track *track, PyObject *gradient)
{
    int64_t contiguous, size, address = 0;
    if (!is_plain(track, gradient) || !call_integer(gradient, N_IS_CONTIGUOUS, &contiguous) || !contiguous ||
        !call_integer(gradient, N_NUMEL, &size) || (size && !read_address(gradient, &address)))
        return 0;
    return is_finite((const uint32_t *)address, size < MAX_VALUES ? size : MAX_VALUES);
}

static int read_mark(PyObject *tensor, struct mark *mark)
{
    PyObject *gradient = PyObject_GetAttr(tensor, names[N_GRAD]);
    int is_read = gradient != NULL;
    *mark = (struct mark){0, 0};
    if (is_read && gradient != &_Py_NoneStruct) {
        mark->id = (int64_t)gradient;
        is_read = read_integer(PyObject_GetAttr(gradient, names[N_VERSION]), &mark->version);
    }
    Py_DecRef(gradient);
    return is_read;
}

static int read_marks(const Track *track, struct mark *marks, uint64_t which)
{
    for (int64_t i = 0; i < track->many; i++) {
        if (which >> i & 1 && !read_mark(PyTuple_GetItem(track->witnesses, i), &marks[i]))
            return 0;
    }
    return 1;
}

static int is_equal(struct mark one, struct mark other)
{
    return one.id == other.id && one.version == other.version;
}

/* Whether the gradients of the step's earlier passes are still as these left them. */
static int are_kept(const Track *track)
{
    for (int64_t i = 0; i < track->many; i++)
        if (track->in_pass[i].id && track->reached >> i & 1 && !is_equal(track->before[i], track->in_pass[i]))
            return 0;
    return 1;
}

/* Whether an optimizer has no gradients but those of a known step, which may be clipped between two optimizers' steps. */
static int has_nothing_new(const Track *track, int64_t which)
{
    const struct owner *owner = &track->owner[which];
    int joins = track->group != 0 && !(track->group >> which & 1);
    struct mark now[MOST_WITNESSES];
    if (!read_marks(track, now, owner->witnesses))
        return 0;
    for (int64_t i = 0; i < track->many; i++)
        if (owner->witnesses >> i & 1 && !is_equal(now[i], track->in_step[i]) && !(joins && now[i].id && now[i].id == track->in_step[i].id))
            return 0;
    return 1;
}

/* Steps from one step of an optimizer to the next, for the one that steps now: the longest of them all. */
static int64_t longest_gap(const Track *track)
{
    int64_t longest = 1;
    for (int64_t i = 0; i < track->owners; i++) {
        int64_t gap = track->owner[i].gap, last = track->owner[i].last_step;
        if (i == track->running) {
            gap = last >= 0 && track->step - last > 1 ? track->step - last : 1;
            last = track->step;
        }
        if (gap > longest && track->step + 1 - last <= RECENT)
            longest = gap;
    }
    return longest;
}

/* The scaler's table of optimizers if it has stepped none since its last update; it belongs to the caller. */
static PyObject *read_states(const Track *track)
{
    PyObject *scaler = referred(track->scaler);
    PyObject *states = scaler == NULL ? NULL : PyObject_GetAttr(scaler, names[N_STATES]);
    Py_DecRef(scaler);
    if (states != NULL && PyObject_Size(states) == 0)
        return states;
    Py_DecRef(states);
    return NULL;
}

static int keep_states(Track *track)
{
    PyObject *before, *now = NULL;
    if (track->scaler != &_Py_NoneStruct && (now = read_states(track)) == NULL)
        return 0;
    before = track->states;
    track->states = now;
    Py_DecRef(before);
    return 1;
}

static void forget_states(Track *track)
{
    PyObject *states = track->states;
    track->states = NULL;
    Py_DecRef(states);
}

/* Whether the scaler did nothing since the last pass. */
static int is_idle(const Track *track)
{
    if (track->scaler == &_Py_NoneStruct)
        return 1;
    PyObject *states = read_states(track);
    Py_DecRef(states);
    return states != NULL && states == track->states;
}

static int read_scale(const Track *track, double *found)
{
    PyObject *scaler = referred(track->scaler);
    PyObject *scale = scaler == NULL ? NULL : PyObject_GetAttr(scaler, names[N_SCALE]);
    int is_read = scale != NULL && read_number(track, scale, found);
    Py_DecRef(scale);
    Py_DecRef(scaler);
    return is_read;
}

/* If the step is skipped, this is noticed only after the scale has changed. */
static int keep_scale(Track *track)
{
    return track->passes || track->scaler == &_Py_NoneStruct || read_scale(track, &track->pass_scale);
}

/* Look at the gradients that a pass reaches last. */
static int look(Track *track)
{
    int looked = track->reads != 0;
    for (Py_ssize_t i = 0, many = PyTuple_Size(track->lookouts); i < many; i++) {
        PyObject *gradient = PyObject_GetAttr(PyTuple_GetItem(track->lookouts, i), names[N_GRAD]);
        int is_seen = gradient != NULL && (gradient == &_Py_NoneStruct || is_fine(track, gradient));
        looked = looked || gradient != &_Py_NoneStruct;
        Py_DecRef(gradient);
        if (!is_seen)
            return 0;
    }
    if (looked)
        track->looked_at = track->step;
    return looked;
}

static int have_modes(Track *track, uint64_t reached)
{
    for (Py_ssize_t i = 0, many = PyTuple_Size(track->roots); i < many; i++) {
        PyObject *pair = PyTuple_GetItem(track->roots, i);
        if (!((uint64_t)PyLong_AsLongLong(PyTuple_GetItem(pair, 2)) & reached))
            continue;
        PyObject *module = referred(PyTuple_GetItem(pair, 0));
        PyObject *own = module == NULL ? NULL : PyObject_GenericGetDict(module, NULL);
        int is_same = own != NULL && PyDict_GetItemWithError(own, names[N_TRAINING]) == PyTuple_GetItem(pair, 1);
        Py_DecRef(own);
        Py_DecRef(module);
        if (!is_same)
            return 0;
    }
    return 1;
}

static int are_empty(PyObject *sized)
{
    for (Py_ssize_t i = 0, many = PyTuple_Size(sized); i < many; i++)
        if (PyObject_Size(PyTuple_GetItem(sized, i)) != 0)
            return 0;
    return 1;
}

/* Whether nothing waits for the end of a step. `has_more`: the step or the next one is captured. */
static int is_quiet(const Track *track, int has_more)
{
    return are_empty(track->sized) && are_same(track->cells) && are_absent(track->absent) &&
           (!has_more || (are_empty(track->more_sized) && are_same(track->more_cells)));
}

static int is_captured(const Track *track, int64_t step)
{
    return track->follows && step / track->block % track->stride == 0;
}

/* Whether the optimizer steps the same tensors at the same rates. `groups`: for each group, how many tensors, the last
 * one's id, and the rate; NULL if rates don't matter. `moved`: set if only a rate differs; NULL if none may. */
static int has_groups(PyObject *optimizer, PyObject *as_known, int64_t *moved)
{
    PyObject *groups = PyObject_GetAttr(optimizer, names[N_GROUPS]);
    Py_ssize_t many = PyTuple_Size(as_known);
    int is_same = groups != NULL && PyList_Size(groups) == many;
    for (Py_ssize_t i = 0; is_same && i < many; i++) {
        PyObject *known = PyTuple_GetItem(as_known, i), *group = PyList_GetItem(groups, i);
        PyObject *rate = PyTuple_GetItem(known, 2);
        if (rate != &_Py_NoneStruct) {
            PyObject *found = PyDict_GetItemWithError(group, names[N_LR]);
            is_same = found == rate || (found != NULL && found->type == rate->type && PyFloat_AsDouble(found) == PyFloat_AsDouble(rate));
            if (!is_same && moved != NULL && found != NULL && found->type == rate->type)
                *moved = is_same = 1;
        }
        if (is_same && i == many - 1) {
            PyObject *tensors = PyDict_GetItemWithError(group, names[N_PARAMS]);
            Py_ssize_t size = tensors == NULL ? -1 : PyList_Size(tensors);
            is_same = size > 0 && size == PyLong_AsLongLong(PyTuple_GetItem(known, 0)) &&
                      (int64_t)PyList_GetItem(tensors, size - 1) == PyLong_AsLongLong(PyTuple_GetItem(known, 1));
        }
    }
    Py_DecRef(groups);
    if (!is_same)
        return 0;
    PyObject *own = PyObject_GenericGetDict(optimizer, NULL);
    is_same = own != NULL && PyDict_Contains(own, names[N_FOUND_INF]) == 0 && PyDict_Contains(own, names[N_GRAD_SCALE]) == 0;
    Py_DecRef(own);
    return is_same;
}

/* Whether a frame is that of a scaler's step; -1 for a disabled one, which does nothing. */
static int steps_scaler(const Track *track, PyObject *frame, PyObject *code)
{
    int is_scaler = 0;
    for (Py_ssize_t i = 0, many = PyTuple_Size(track->scalers); i < many; i++)
        is_scaler = is_scaler || code == PyTuple_GetItem(track->scalers, i);
    if (!is_scaler)
        return 0;
    PyObject *locals = PyObject_GetAttr(frame, names[N_LOCALS]);
    PyObject *scaler = locals == NULL ? NULL : PyObject_GetItem(locals, names[N_SELF]);
    int is_disabled = scaler != NULL && is_attribute(scaler, N_ENABLED, &_Py_FalseStruct);
    Py_DecRef(scaler);
    Py_DecRef(locals);
    return is_disabled ? -1 : 1;
}

/* Find the frame of the optimizer's step, and no scaler among its nearest callers, unless it has one: a loop may start to
 * use one. */
static int find_frame(Track *track, int is_scaled)
{
    enum { OWN = 4, NEAR = 4 };
    PyObject *frame = PyEval_GetFrame(), *loop = NULL;
    int is_free = 1;
    Py_IncRef(frame);
    for (int i = 0, last = OWN; frame != NULL && frame != &_Py_NoneStruct && is_free && i <= last; i++) {
        PyObject *code = PyFrame_GetCode(frame);
        if (loop == NULL && code == track->loop) {
            loop = frame;
            last = is_scaled ? i : i + NEAR;
        } else if (loop != NULL) {
            int found = steps_scaler(track, frame, code);
            is_free = found <= 0;
            last = found ? i : last;
        }
        Py_DecRef(code);
        PyObject *caller = i == last ? NULL : PyObject_GetAttr(frame, names[N_BACK]);
        Py_DecRef(frame);
        frame = caller;
    }
    Py_DecRef(frame);
    track->frame = (int64_t)loop;
    return is_free && loop != NULL;
}

/* Let the next calls of modules be seen, so that one can be held. See hookcore/recorder/calls/keeping.py, which lets go when
 * a pass repeats one. Those of captured steps are seen anyway. */
static int see_calls(const Track *track)
{
    if (track->hooks == &_Py_NoneStruct || track->captures)
        return 1;
    int is_there = PyDict_Contains(track->hooks, track->number); /* an OrderedDict, which PyDict_SetItem would break */
    return is_there == 1 || (is_there == 0 && PyObject_SetItem(track->hooks, track->number, track->hook) == 0);
}

/* Leave a part of a captured step to Python, which reports its own errors; what it raises, such as Ctrl+C, is for the script. */
static int leave_to(Track *track, int name, PyObject *argument)
{
    PyObject *done = PyObject_CallMethodObjArgs(track->rest, names[name], argument, NULL);
    Py_DecRef(done);
    return done != NULL;
}

/* Let go of the calls of a step that is about to end. */
static int release_calls(Track *track)
{
    if (track->captures)
        return !track->keeps || leave_to(track, N_RELEASE_CALLS, NULL);
    PyObject *kept = track->kept; /* the facts that it is in are held: what is let go of may run Python */
    for (Py_ssize_t i = 0, many = PyTuple_Size(kept); i < many; i++)
        if (PyObject_SetAttr(PyTuple_GetItem(kept, i), names[N_HELD], &_Py_NoneStruct) != 0)
            return 0;
    return 1;
}

static int hold_none(const Track *track)
{
    for (Py_ssize_t i = 0, many = PyTuple_Size(track->kept); i < many; i++)
        if (!is_attribute(PyTuple_GetItem(track->kept, i), N_HELD, &_Py_NoneStruct))
            return 0;
    return 1;
}

/* -- Parameters ---------------------------------------------------------------------------------------------------- */

/* A watched parameter: a weak reference to its module, its name there, the tensor, the rows of its gradient (0 if it must
 * have none, -1 if that doesn't matter), of the weight, and of the gradient as the last pass has left it, 0 without one; and
 * which optimizer steps it, -1 for none. */
struct parameter {
    PyObject *tensor;
    int64_t gradient, weight, raw, owner;
};

/* One of them, if it is at its place. */
static int find_parameter(const Track *track, Py_ssize_t place, struct parameter *found)
{
    PyObject *reference, *name, *module, *own, *table;
    long long rows[3], owner;
    if (!PyArg_ParseTuple(PyTuple_GetItem(track->parameters, place), "OOOLLLL", &reference, &name, &found->tensor, &rows[0], &rows[1], &rows[2], &owner) ||
        (module = referred(reference)) == NULL)
        return 0;
    found->gradient = rows[0];
    found->weight = rows[1];
    found->raw = rows[2];
    found->owner = owner;
    own = PyObject_GenericGetDict(module, NULL);
    table = own == NULL ? NULL : PyDict_GetItemWithError(own, names[N_PARAMETERS]);
    int is_there = table != NULL && PyDict_GetItemWithError(table, name) == found->tensor;
    Py_DecRef(own);
    Py_DecRef(module);
    return is_there;
}

static int is_plain_gradient(const Track *track, PyObject *gradient, int64_t *address, int64_t *size)
{
    return gradient != NULL && gradient->type == (void *)track->tensor && read_values(track, gradient, address, size);
}

/* Note the gradients that a pass has left, and measure those that the script changes before they are used. Nothing is
 * measured unless all can be. */
static int note_gradients(Track *track)
{
    struct parameter each;
    int64_t address, size;
    int64_t many = track->parameters_read;
    if (many == 0 || track->passes + 1 < track->last_pass)
        return 1;
    if (track->passes + 1 > track->last_pass || !are_same(track->cells) || !is_zero(track->function_modes)) /* a call may have shown new ones */
        return 0;
    for (int measures = 0; measures < 2; measures++)
        for (Py_ssize_t i = 0; i < many; i++) {
            if (!find_parameter(track, i, &each) || !read_mark(each.tensor, &track->marks[i]))
                return 0;
            if (!each.raw || !track->marks[i].id)
                continue;
            PyObject *gradient = PyObject_GetAttr(each.tensor, names[N_GRAD]);
            int is_read = is_plain_gradient(track, gradient, &address, &size);
            if (is_read && measures)
                observe(address, size, FLOAT32, 0, each.raw, track->control);
            Py_DecRef(gradient); /* not before: another thread may replace it */
            if (!is_read)
                return 0;
        }
    return 1;
}

/* Measure the gradients and weights that an optimizer is about to use. Those are as usual whose gradient is there, and has
 * changed since the last pass if it usually does. Nothing is measured unless all can be. */
static int read_parameters(Track *track, int64_t which)
{
    struct parameter each;
    struct mark now;
    int64_t address, size;
    int64_t many = track->parameters_read;
    if (many != 0 && (track->passes != track->last_pass || !are_same(track->cells) || !is_zero(track->function_modes)))
        return 0;
    for (int measures = 0; measures < 2; measures++)
        for (Py_ssize_t i = 0; i < many; i++) {
            if (!find_parameter(track, i, &each) || !read_mark(each.tensor, &now))
                return 0;
            if (each.owner != which)
                continue;
            if (each.weight && !read_values(track, each.tensor, &address, &size))
                return 0;
            if (each.weight && measures)
                observe(address, size, FLOAT32, 0, each.weight, track->control);
            if (each.gradient == 0 && now.id)
                return 0;
            if (each.gradient <= 0)
                continue;
            PyObject *gradient = PyObject_GetAttr(each.tensor, names[N_GRAD]);
            int is_usual = is_plain_gradient(track, gradient, &address, &size) && track->marks[i].id && is_equal(now, track->marks[i]) != (each.raw != 0);
            if (is_usual && measures)
                observe(address, size, FLOAT32, 0, each.gradient, track->control);
            Py_DecRef(gradient);
            if (!is_usual)
                return 0;
        }
    return 1;
}

/* -- Torch's four calls -------------------------------------------------------------------------------------------- */

static int begin_pass(Track *track, PyObject *const *arguments)
{
    if (arguments[0] != &_Py_TrueStruct || PyThread_get_thread_ident() != track->thread || track->read >= LOSSES ||
        (track->captures && !track->receives && !track->compares)) /* then nothing would show whose pass it is */
        return 0;
    double loss, weight;
    if (track->reads) {
        if (!is_zero(track->function_modes) || !is_zero(track->dispatch_modes) || !read_only(track, arguments[1], &loss) || !read_only(track, arguments[2], &weight))
            return 0;
        track->loss = loss * weight;
        if (track->limit > 0 && track->loss > track->limit)
            return 0;
    }
    if (track->compares || (track->passes && track->reads)) {
        if (!read_marks(track, track->before, ~0ULL) || (track->passes && !(are_kept(track) && is_idle(track))))
            return 0;
    }
    return !track->captures || with_thread(track->current, N_REACHED, PySet_Discard) >= 0;
}

/* Find the witnesses with new gradients. They have to be some, since a pass may belong to another training. */
static int compare_marks(Track *track, uint64_t *reached)
{
    *reached = track->compares ? 0 : ~0ULL;
    if (!track->compares)
        return !track->reads || read_marks(track, track->in_pass, ~0ULL);
    if (!read_marks(track, track->in_pass, ~0ULL))
        return 0;
    for (int64_t i = 0; i < track->many; i++)
        if (!is_equal(track->before[i], track->in_pass[i]))
            *reached |= 1ULL << i;
    return *reached != 0;
}

static int end_pass(Track *track, PyObject *const *arguments)
{
    uint64_t reached;
    if (arguments[0] != &_Py_TrueStruct || arguments[1] != &_Py_FalseStruct || PyThread_get_thread_ident() != track->thread)
        return 0;
    if ((track->looks || track->reads || track->compares) && !is_zero(track->function_modes)) /* it would see what follows */
        return 0;
    if (track->reads && track->loss - track->loss != 0)
        return 0;
    if (track->captures && with_thread(track->current, N_REACHED, PySet_Contains) != track->receives)
        return 0;
    if (!compare_marks(track, &reached) || !have_modes(track, reached) || (track->looks && !look(track)) || !keep_states(track) || !see_calls(track) ||
        (track->captures && !(keep_scale(track) && note_gradients(track))))
        return 0;
    if (track->reads)
        track->losses[track->read++] = track->loss;
    for (int64_t i = 0; track->compares && i < track->many; i++)
        track->in_step[i] = track->in_pass[i];
    track->has_compared = track->compares;
    track->reached |= reached;
    track->passes++;
    return 1;
}

static int begin_update(Track *track, PyObject *const *arguments)
{
    int64_t task, which = 0;
    while (which < track->owners && !refers_to(track->owner[which].optimizer, arguments[0]))
        which++;
    if (which == track->owners || PyObject_Size(arguments[1]) > 1 || PyObject_Size(arguments[2]) != 0 ||
        PyThread_get_thread_ident() != track->thread || !read_integer(PyObject_CallNoArgs(track->graph_task), &task) || task != -1)
        return 0;
    const struct owner *owner = &track->owner[which];
    int is_late = track->compares && !(owner->witnesses & track->reached);
    if (is_late ? (track->has_captured && (!track->follows || track->parameters_read)) || track->passes != 0 || !has_nothing_new(track, which) || !hold_none(track) : track->passes == 0 || !owner->may_end)
        return 0;
    if (!has_groups(arguments[0], owner->groups, track->follows && !is_late && owner->has_schedule ? &track->moved : NULL) || !find_frame(track, owner->is_scaled != 0))
        return 0;
    track->scale = NAN;
    track->running = which;
    track->is_late = is_late;
    return (!owner->is_scaled || read_scale(track, &track->scale)) && (!track->captures || is_late || read_parameters(track, which));
}

/* The recorder's clock; None stands for `time.perf_counter`, to which a call through Python takes twenty times as long. */
static double read_clock(const Track *track)
{
    if (track->now == &_Py_NoneStruct)
        return seconds(CLOCK_MONOTONIC);
    PyObject *found = PyObject_CallNoArgs(track->now);
    double now = found == NULL ? NAN : PyFloat_AsDouble(found);
    Py_DecRef(found);
    return now;
}

static void count_step(Track *track, int64_t step)
{
    struct owner *owner = &track->owner[track->running];
    owner->gap = owner->last_step >= 0 && step - owner->last_step > 1 ? step - owner->last_step : 1;
    owner->last_step = step;
    track->turns[track->turned++] = (struct turn){track->running, track->is_late};
    track->group = (track->is_late ? track->group : 0) | 1ULL << track->running;
    track->updates++;
}

/* Whether no tap is new, and there is room for the rows of a captured step. */
static int has_room(const Track *track)
{
    return PyList_Size(track->taps) == track->used && track->bytes < MOST_BYTES;
}

/* Take the rows that have been filled. */
static int take_rows(Track *track, PyObject **packed)
{
    *packed = pack_bytes(track->base, track->used);
    if (*packed == NULL)
        return 0;
    track->bytes += PyBytes_Size(*packed);
    return 1;
}

/* End an optimizer's step that belongs to the step that ended last. */
static int join_step(Track *track)
{
    if (!is_zero(track->function_modes) || !read_marks(track, track->in_step, track->owner[track->running].witnesses) ||
        (track->has_captured && !(has_room(track) && is_quiet(track, 1) && track->joined < NOTES)) || !track->runs || track->next != IN_STEP)
        return 0;
    if (track->has_captured) {
        struct part *part = &track->part[track->joined];
        *part = (struct part){track->step - 1, seconds(CLOCK_REALTIME), track->scale, NULL};
        if (!take_rows(track, &part->packed))
            return 0;
        track->joined++;
        track->scale = NAN;
    }
    count_step(track, track->step - 1);
    return 1;
}

static int end_update(Track *track, PyObject *const *arguments)
{
    const struct owner *owner = &track->owner[track->running];
    if (!refers_to(owner->optimizer, arguments[0]) || PyThread_get_thread_ident() != track->thread || track->turned >= TURNS)
        return 0;
    if (track->is_late)
        return join_step(track);
    if (track->captures && !has_room(track))
        return 0;
    int captures = is_captured(track, track->step + 1);
    if (track->step >= track->until || track->noted >= NOTES || longest_gap(track) != track->longest || !is_zero(track->function_modes) ||
        !is_quiet(track, track->captures || captures) || !read_marks(track, track->in_step, ~0ULL) || !see_calls(track) || !release_calls(track))
        return 0;
    double now = read_clock(track);
    /* Any of the above may have run Python, and let another thread take the notes and end the run. */
    if (!(now < track->until_s) || (captures && !(now < track->due_s)) || !track->runs || track->next != IN_STEP ||
        track->step >= track->until || track->noted >= NOTES)
        return 0;
    track->packed[track->noted] = NULL;
    if (track->captures && !take_rows(track, &track->packed[track->noted]))
        return 0;
    if (track->captures && track->now == &_Py_NoneStruct) /* taking rows is a part of the step */
        now = seconds(CLOCK_MONOTONIC);
    int64_t before = 0;
    for (int64_t i = 0; i < track->noted; i++)
        before += track->parts[i];
    track->elapsed_s[track->noted] = now - track->at;
    track->time_s[track->noted] = seconds(CLOCK_REALTIME);
    track->scales[track->noted] = track->scale;
    track->parts[track->noted++] = track->read - before;
    count_step(track, track->step);
    track->trained |= track->reached;
    track->reached = 0;
    track->passes = 0;
    track->at = now;
    track->ended = ++track->step;
    track->has_captured = track->captures;
    track->captures = captures;
    track->scale = track->pass_scale = NAN;
    forget_states(track);
    return 1;
}

/* -- The object ---------------------------------------------------------------------------------------------------- */

static PyObject *pass_on(Track *track, int name, PyObject *const *a, Py_ssize_t given)
{
    PyObject *host = track->host, *settled = NULL;
    if (host == NULL)
        return none();
    Py_IncRef(host);
    if (track->next != OFF && (settled = PyObject_CallMethodObjArgs(host, names[N_SETTLE], NULL)) == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) { /* such as Ctrl+C, which is for the script */
            Py_DecRef(host);
            return NULL;
        }
        PyErr_Clear(); /* it reports its own errors */
    }
    Py_DecRef(settled);
    PyObject *found = given == 3 ? PyObject_CallMethodObjArgs(host, names[name], a[0], a[1], a[2], NULL)
                    : given == 2 ? PyObject_CallMethodObjArgs(host, names[name], a[0], a[1], NULL)
                    : given == 1 ? PyObject_CallMethodObjArgs(host, names[name], a[0], NULL)
                                 : PyObject_CallMethodObjArgs(host, names[name], NULL);
    Py_DecRef(host);
    return found;
}

/* Whether Python reads what an optimizer is about to use, or rates that have moved. */
static int reads_update(const Track *track, int64_t captured)
{
    return track->is_late ? track->has_captured && track->reads_ahead : (captured && track->reads_ahead) || track->moved;
}

/* Do what a captured step needs besides, after a call that was handled: nothing here depends on the notes. `captured`: the
 * step that was running then. `has_ended`: it has ended. */
static int follow_up(Track *track, int64_t then, int64_t captured, int has_ended, PyObject *optimizer)
{
    return then == STEP      ? !captured || leave_to(track, N_END_PASS, NULL)
           : then == PASS    ? !has_ended || !(captured || track->captures) || leave_to(track, N_BEGIN_STEP, NULL)
           : then == IN_STEP ? !reads_update(track, captured) || leave_to(track, N_BEGIN_UPDATE, optimizer)
                             : 1;
}

/* Handle a call if it is an expected one. While torch is asked, another thread may take the notes, and end the run. */
static PyObject *handle(Track *track, int64_t expected, int64_t or_this, int64_t then, int (*saw)(Track *, PyObject *const *), int name,
                        PyObject *const *arguments, Py_ssize_t given, Py_ssize_t wanted)
{
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "%zd arguments were given: this function takes %zd", given, wanted);
        return NULL;
    }
    double began = seconds(CLOCK_MONOTONIC), handled = began;
    PyObject *found = NULL;
    int is_done = 0, is_raised = 0;
    int64_t known = track->next, captured = track->runs && track->captures, step = track->step;
    if (track->runs && (known == expected || known == or_this)) {
        PyObject *facts = track->facts;
        Py_IncRef(facts);
        track->readers++;
        is_done = saw(track, arguments);
        track->readers--;
        is_done = is_done && track->runs && track->next == known && track->facts == facts;
        if (is_done) {
            track->next = then;
            handled = seconds(CLOCK_MONOTONIC);
            track->own_s += handled - began;
        }
        if (is_done && track->follows)
            is_raised = !follow_up(track, then, captured, track->step != step, arguments[0]);
        else if (!is_done && PyErr_Occurred() && !(is_raised = !PyErr_ExceptionMatches(PyExc_Exception)))
            PyErr_Clear();
        Py_DecRef(facts);
    }
    found = is_raised ? NULL : is_done ? none() : pass_on(track, name, arguments, given);
    if (!captured)
        track->spent_s += handled - began;
    if (!(track->runs && track->captures))
        track->spent_s += seconds(CLOCK_MONOTONIC) - handled;
    return found;
}

static PyObject *track_backward_begins(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    return handle((Track *)self, PASS, STEP, IN_PASS, begin_pass, N_BEGINS, arguments, given, 3);
}

static PyObject *track_backward_ended(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    return handle((Track *)self, IN_PASS, IN_PASS, STEP, end_pass, N_ENDED, arguments, given, 2);
}

static PyObject *track_saw_step_begin(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    return handle((Track *)self, STEP, PASS, IN_STEP, begin_update, N_SAW_BEGIN, arguments, given, 3);
}

static PyObject *track_saw_step_end(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    return handle((Track *)self, IN_STEP, IN_STEP, PASS, end_update, N_SAW_END, arguments, given, 3);
}

static PyObject *track_inner_begins(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    return pass_on((Track *)self, N_INNER_BEGINS, arguments, given);
}

static PyObject *track_inner_ended(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    return pass_on((Track *)self, N_INNER_ENDED, arguments, given);
}

static void forget(Track *track)
{
    PyObject *facts = track->facts;
    track->runs = 0;
    track->facts = NULL;
    Py_DecRef(facts);
}

/* serve(host): pass on to it what isn't expected. */
static PyObject *track_serve(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    if (given != 1)
        return PyErr_Format(PyExc_TypeError, "serve takes a host");
    PyObject *before = ((Track *)self)->host;
    Py_IncRef(arguments[0]);
    ((Track *)self)->host = arguments[0];
    Py_DecRef(before);
    return none();
}

/* drop(): keep nothing of the training alive. The notes stay. */
static PyObject *track_drop(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    forget((Track *)self);
    return none();
}

/* An optimizer: a weak reference, its groups, the first of its witnesses and the one after the last, whether a scaler
 * steps it, whether it may end a step, and whether its rates were seen to change. */
static int read_owner(struct owner *owner, PyObject *facts)
{
    long long first, last, is_scaled, may_end, has_schedule;
    if (!PyArg_ParseTuple(facts, "OOLLLLL", &owner->optimizer, &owner->groups, &first, &last, &is_scaled, &may_end, &has_schedule))
        return 0;
    owner->witnesses = 0;
    for (long long i = first; i < last; i++)
        owner->witnesses |= 1ULL << i;
    owner->is_scaled = is_scaled;
    owner->may_end = may_end;
    owner->has_schedule = has_schedule;
    return 1;
}

/* What captured steps have besides: what does the rest, the running step, the address of the first row, the taps, how many rows are used,
 * whether something is read before an optimizer steps, whether calls are kept, which steps they are, what else must be
 * empty and the same, how to measure which parameters, after which pass, and whether passes bring gradients to hooks. */
static int read_captured(Track *track)
{
    long long base, used, reads_ahead, keeps, block, stride, control, last_pass, receives;
    track->follows = track->captured != &_Py_NoneStruct;
    if (!track->follows)
        return 1;
    if (!PyArg_ParseTuple(track->captured, "OOLOLLLLLOOLLOL", &track->rest, &track->current, &base, &track->taps, &used, &reads_ahead, &keeps, &block,
                          &stride, &track->more_sized, &track->more_cells, &control, &last_pass, &track->parameters, &receives))
        return 0;
    track->parameters_read = PyTuple_Size(track->parameters);
    if (track->parameters_read > MOST_PARAMETERS) {
        PyErr_Format(PyExc_TypeError, "at most %d parameters are measured", MOST_PARAMETERS);
        return 0;
    }
    track->control = control;
    track->last_pass = last_pass;
    track->block = block > 0 ? block : 1;
    track->stride = stride > 0 ? stride : 1;
    track->base = base;
    track->used = used;
    track->reads_ahead = reads_ahead;
    track->receives = receives;
    track->keeps = keeps;
    return 1;
}

/* learn(facts): take the facts by which steps are handled; none of them may differ while they are. */
static PyObject *track_learn(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    Track *track = (Track *)self;
    if (given != 1 || PyTuple_Size(arguments[0]) != FACTS || PyTuple_Size(PyTuple_GetItem(arguments[0], 7)) > MOST_WITNESSES ||
        PyTuple_Size(PyTuple_GetItem(arguments[0], 0)) > MOST_OWNERS)
        return PyErr_Format(PyExc_TypeError, "learn takes a tuple of %d facts with at most %d witnesses and %d optimizers", FACTS, MOST_WITNESSES, MOST_OWNERS);
    forget(track);
    if (track->readers)
        return none();
    Py_IncRef(arguments[0]);
    PyObject **place = &track->steppers;
    for (Py_ssize_t i = 0; i < FACTS; i++)
        place[i] = PyTuple_GetItem(arguments[0], i);
    track->many = PyTuple_Size(track->witnesses);
    track->owners = PyTuple_Size(track->steppers);
    for (int64_t i = 0; i < track->owners; i++)
        if (!read_owner(&track->owner[i], PyTuple_GetItem(track->steppers, i))) {
            Py_DecRef(arguments[0]);
            return NULL;
        }
    track->moved = 0;
    if (!read_captured(track)) {
        Py_DecRef(arguments[0]);
        return NULL;
    }
    track->facts = arguments[0];
    return none();
}

/* enter(until, until_s, due_s, looks, reads, compares, captures, has_captured, longest, last, counts): handle the next steps, from the end of
 * one that this optimizer ended, if the facts are there. `due_s`: when a captured step is to begin otherwise. `captures`: whether
 * the first one is captured, and `has_captured`, the one before. `counts`: the last step of each optimizer, and its gap. */
static PyObject *track_enter(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    Track *track = (Track *)self;
    if (given != 11)
        return PyErr_Format(PyExc_TypeError, "enter takes 10 numbers and the counts of each optimizer");
    forget_states(track); /* which may run Python, so it is first */
    if (track->facts == NULL)
        return none();
    int64_t until = PyLong_AsLongLong(arguments[0]);
    double until_s = PyFloat_AsDouble(arguments[1]), due_s = PyFloat_AsDouble(arguments[2]);
    int64_t looks = PyLong_AsLongLong(arguments[3]), reads = PyLong_AsLongLong(arguments[4]), compares = PyLong_AsLongLong(arguments[5]);
    int64_t captures = PyLong_AsLongLong(arguments[6]), has_captured = PyLong_AsLongLong(arguments[7]);
    int64_t longest = PyLong_AsLongLong(arguments[8]), last = PyLong_AsLongLong(arguments[9]);
    for (int64_t i = 0; i < track->owners; i++) {
        long long step, gap;
        PyObject *counts = PyTuple_GetItem(arguments[10], i);
        if (counts == NULL || !PyArg_ParseTuple(counts, "LL", &step, &gap))
            return NULL;
        track->owner[i].last_step = step;
        track->owner[i].gap = gap;
    }
    if (PyErr_Occurred())
        return NULL;
    track->until = until;
    track->until_s = until_s;
    track->due_s = due_s;
    track->captures = captures && track->follows;
    track->has_captured = has_captured;
    track->looks = looks;
    track->reads = reads;
    track->compares = compares;
    track->longest = longest;
    track->thread = PyThread_get_thread_ident();
    track->noted = track->turned = track->read = track->passes = track->has_compared = 0;
    track->reached = track->trained = 0;
    track->group = 1ULL << last;
    track->looked_at = -1;
    track->scale = track->pass_scale = NAN;
    track->joined = 0;
    PyObject *facts = track->facts;
    Py_IncRef(facts);
    track->readers++;
    int is_read = !compares || read_marks(track, track->in_step, ~0ULL), is_same = track->facts == facts;
    track->readers--;
    Py_DecRef(facts);
    if (!is_read || !is_same) { /* a module may die at any time, and drop them */
        PyErr_Clear();
        return none();
    }
    track->next = PASS;
    track->runs = 1;
    return none();
}

static PyObject *list_of(const double *numbers, int64_t many)
{
    PyObject *list = PyList_New(many);
    for (int64_t i = 0; list != NULL && i < many; i++)
        PyList_SetItem(list, i, PyFloat_FromDouble(numbers[i]));
    return list;
}

/* The same, with None for NaN. */
static PyObject *list_of_known(const double *numbers, int64_t many)
{
    PyObject *list = PyList_New(many);
    for (int64_t i = 0; list != NULL && i < many; i++)
        PyList_SetItem(list, i, numbers[i] == numbers[i] ? PyFloat_FromDouble(numbers[i]) : none());
    return list;
}

static PyObject *list_of_numbers(const int64_t *numbers, int64_t many)
{
    PyObject *list = PyList_New(many);
    for (int64_t i = 0; list != NULL && i < many; i++)
        PyList_SetItem(list, i, PyLong_FromLongLong(numbers[i]));
    return list;
}

static PyObject *list_of_turns(const struct turn *turns, int64_t many)
{
    PyObject *list = PyList_New(many);
    for (int64_t i = 0; list != NULL && i < many; i++)
        PyList_SetItem(list, i, Py_BuildValue("LL", (long long)turns[i].owner, (long long)turns[i].is_late));
    return list;
}

/* The rows of captured steps, which the list takes over, and None for each other step. */
static PyObject *list_of_packed(PyObject *const *packed, int64_t many)
{
    PyObject *list = PyList_New(many);
    for (int64_t i = 0; list != NULL && i < many; i++)
        PyList_SetItem(list, i, packed[i] != NULL ? packed[i] : none());
    return list;
}

/* The parts of captured steps, whose rows the list takes over. */
static PyObject *list_of_parts(const struct part *parts, int64_t many)
{
    PyObject *list = PyList_New(many);
    for (int64_t i = 0; list != NULL && i < many; i++)
        PyList_SetItem(list, i, Py_BuildValue("LddN", (long long)parts[i].step, parts[i].time_s, parts[i].scale, parts[i].packed));
    return list;
}

static PyObject *list_of_marks(const struct mark *marks, int64_t many)
{
    PyObject *list = PyList_New(many);
    for (int64_t i = 0; list != NULL && i < many; i++)
        PyList_SetItem(list, i, marks[i].id ? Py_BuildValue("LL", (long long)marks[i].id, (long long)marks[i].version) : none());
    return list;
}

/* take(stops): return the notes since the last call, and forget them; None if there is no run. They are copied before
 * anything is created, because that may run Python's collector, and the training meanwhile. */
static PyObject *track_take(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    Track *track = (Track *)self;
    if (track->next == OFF || given != 1)
        return none();
    const Track noted = *track;
    int64_t marked = track->follows && (arguments[0] == &_Py_TrueStruct || !track->runs) ? track->parameters_read : 0;
    PyObject *states = track->states == NULL ? none() : track->states;
    int64_t ended = 0;
    for (int64_t i = 0; i < track->noted; i++)
        ended += track->parts[i];
    if (track->states != NULL)
        Py_IncRef(states);
    track->read -= ended;
    for (int64_t i = 0; i < track->read; i++)
        track->losses[i] = noted.losses[ended + i];
    track->noted = track->turned = track->joined = 0;
    track->trained = 0;
    track->bytes = 0;
    track->looked_at = -1;
    if (arguments[0] == &_Py_TrueStruct || !track->runs) {
        track->runs = 0;
        track->next = OFF;
        forget_states(track);
    }
    int64_t compared = noted.compares ? noted.many : 0;
    return Py_BuildValue(
        "LLLNNNNNNdddLNNNKKNLLLLNLNN", (long long)noted.next, (long long)noted.step, (long long)noted.passes,
        list_of(noted.elapsed_s, noted.noted), list_of(noted.time_s, noted.noted), list_of_known(noted.scales, noted.noted),
        list_of_numbers(noted.parts, noted.noted), list_of(noted.losses, noted.read), list_of_turns(noted.turns, noted.turned), noted.loss,
        noted.scale, noted.pass_scale, (long long)noted.looked_at, list_of_marks(noted.before, compared),
        list_of_marks(noted.in_pass, noted.reads || noted.compares ? noted.many : 0), list_of_marks(noted.in_step, noted.many),
        (unsigned long long)noted.reached, (unsigned long long)noted.trained, states, (long long)noted.has_compared, (long long)noted.running,
        (long long)noted.is_late, (long long)noted.frame, list_of_packed(noted.packed, noted.noted), (long long)noted.captures,
        list_of_marks(noted.marks, marked), list_of_parts(noted.part, noted.joined));
}

/* when(): how many steps have ended, and when the newest one did. */
static PyObject *track_when(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    const Track *track = (const Track *)self;
    return Py_BuildValue("Ld", (long long)track->ended, track->at);
}

static int track_traverse(PyObject *self, int (*visit)(PyObject *, void *), void *context)
{
    Track *track = (Track *)self;
    PyObject *all[] = {(PyObject *)self->type, track->facts, track->states, track->host};
    return visit_each(all, 4, visit, context);
}

static int track_clear(PyObject *self)
{
    Track *track = (Track *)self;
    PyObject *host = track->host;
    track->host = NULL;
    forget(track);
    forget_states(track);
    while (track->noted)
        Py_DecRef(track->packed[--track->noted]);
    while (track->joined)
        Py_DecRef(track->part[--track->joined].packed);
    Py_DecRef(host);
    return 0;
}

static void track_dealloc(PyObject *self)
{
    free_object(self, track_clear);
}

static PyObject *track_count_update(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    ((Track *)self)->updates++;
    return none();
}

static PyMethodDef track_methods[] = {
    {"backward_begins", track_backward_begins, METH_FASTCALL, "Note that a pass starts."},
    {"backward_ended", track_backward_ended, METH_FASTCALL, "Note the end of the pass."},
    {"inner_begins", track_inner_begins, METH_FASTCALL, "Note that a pass starts inside a pass."},
    {"inner_ended", track_inner_ended, METH_FASTCALL, "Note the end of such a pass."},
    {"saw_step_begin", track_saw_step_begin, METH_FASTCALL, "Note that an optimizer is about to step."},
    {"saw_step_end", track_saw_step_end, METH_FASTCALL, "Note that an optimizer has stepped."},
    {"count_update", track_count_update, METH_FASTCALL, "Count an update of weights that it didn't see."},
    {"serve", track_serve, METH_FASTCALL, "Pass on to a host what isn't expected."},
    {"learn", track_learn, METH_FASTCALL, "Take the facts by which steps are handled."},
    {"enter", track_enter, METH_FASTCALL, "Handle the next steps by these facts."},
    {"drop", track_drop, METH_FASTCALL, "Keep nothing of the training alive."},
    {"take", track_take, METH_FASTCALL, "Return the notes, and forget them; stop if asked to."},
    {"when", track_when, METH_FASTCALL, "Return how many steps have ended, and when the newest one did."},
    {0},
};

static PyMemberDef track_members[] = {
    {"step", T_LONGLONG, offsetof(Track, step), 0, "the number of the running step"},
    {"ended", T_LONGLONG, offsetof(Track, ended), 0, "how many steps have ended"},
    {"captures", T_LONGLONG, offsetof(Track, captures), 1, "whether the running step is captured, if it handles it"},
    {"is_late", T_LONGLONG, offsetof(Track, is_late), 1, "whether the optimizer that has begun its step joins the step before"},
    {"updates", T_LONGLONG, offsetof(Track, updates), 1, "how often optimizers have updated any weights"},
    {"at", T_DOUBLE, offsetof(Track, at), 0, "when the newest of them did"},
    {"limit", T_DOUBLE, offsetof(Track, limit), 0, "above which a loss is a jump; 0: none is"},
    {"spent_s", T_DOUBLE, offsetof(Track, spent_s), 1, "the seconds that all calls took"},
    {"own_s", T_DOUBLE, offsetof(Track, own_s), 1, "the seconds that it took for calls that it handled"},
    {"noted", T_LONGLONG, offsetof(Track, noted), 1, "the steps whose notes weren't taken yet"},
    {"joined", T_LONGLONG, offsetof(Track, joined), 1, "the rows that optimizers added to captured steps, which weren't taken yet"},
    {"runs", T_LONGLONG, offsetof(Track, runs), 1, "whether it handles steps now"},
    {"next", T_LONGLONG, offsetof(Track, next), 1, "what may come next"},
    {"facts", T_OBJECT, offsetof(Track, facts), 1, "by which it does; None without any"},
    {0},
};

static PyType_Slot track_slots[] = {
    {TP_NEW, PyType_GenericNew}, {TP_DEALLOC, track_dealloc}, {TP_TRAVERSE, track_traverse}, {TP_CLEAR, track_clear},
    {TP_METHODS, track_methods}, {TP_MEMBERS, track_members}, {0},
};

static PyType_Spec track_spec = {"hookcore.observe._kernel.Track", sizeof(Track), 0, HAVE_GC, track_slots};
