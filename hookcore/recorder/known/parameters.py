"""Parameters, their gradients, their updates, and what optimizers keep for them, read around the optimizer's step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from math import inf
from typing import Any, Final, NamedTuple

from torch import Tensor, float32
from torch.optim import Optimizer

from hookcore.hooks.internals import DisableTorchFunction
from hookcore.observe.plain import unseen, why_empty
from hookcore.recorder.calls.plans import Plan, PlanTable
from hookcore.recorder.clock.errors import ErrorLog
from hookcore.recorder.known.roots import Root
from hookcore.recorder.measured.statistics import PLAIN_TYPES, Statistics, is_shard
from hookcore.records import Kind, Tap

SHARED: Final = (
    "several optimizers step some of its weights after the same backward pass: their updates are left out, because the "
    "step's data is complete before the last of them has stepped"
)
CONTESTED: Final = (
    "several threads have called its model, or another one that its optimizer steps, before one step: from then on, "
    "gradients of these weights are left out, because reading one that another thread is setting can crash the process"
)
LOOK_EVERY_S: Final = 1.0  # between two looks at the forms of the parameters
MAX_MEASURED: Final = 2**28  # bytes of weights whose updates are measured in one step without being requested
ROOM: Final = 8  # rows that must be free for each parameter
UNCHANGED: Final = 64  # comparisons without a difference after which gradients are taken as unchanged by the script
TRIAL: Final = 4  # captured steps in which those are measured whose changes leave no trace but in their values
PASSES: Final = 8  # captured steps whose least number of passes says which pass may be the last one
LOOK_REST_S: Final = 0.001  # more for each parameter, at which a look takes about a thousandth of that


class Parameter:
    """A watched parameter and its rows."""

    __slots__ = (
        "_hidden_raw",
        "_hidden_slot",
        "changes",
        "grad_slot",
        "is_shared",
        "joins",
        "name",
        "norm_slot",
        "param_slot",
        "plan",
        "raw_slot",
        "read_in",
        "update_slot",
    )

    def __init__(self, statistics: Statistics, plan: Plan, name: str) -> None:
        self.plan = plan
        self.name = name
        self._hidden_slot = self._hidden_raw = -1
        self.read_in = -1  # the newest step in which it was read before an optimizer's step
        self.is_shared = False  # whether a second optimizer was seen to step it with the same gradient
        self.joins = False  # whether its optimizer steps after another one, with the gradients of the same pass
        self.changes = -UNCHANGED  # above 0: steps for which its gradient counts as one that changes after the pass
        self.choose(statistics)

    @property
    def tensor(self) -> Tensor | None:
        """The tensor that is at its place now.

        Looked up through the module each time. A weak reference to a parameter would make `torch.utils.swap_tensors`
        raise, and so would `model.to()` under `torch.__future__.set_swap_module_params_on_conversion(True)`.
        """
        module = self.plan.ref()
        if module is None:
            return None
        table = module._parameters
        try:
            found: Tensor | None = table[self.name]
        except KeyError:
            return None
        return found

    def choose(self, statistics: Statistics) -> None:
        """Find its rows for the current selection of its module's plan."""
        plan, name = self.plan, self.name
        self.grad_slot = statistics.slot_of(plan, "param_grad", name, 0)
        self.param_slot = statistics.slot_of(plan, "param", name, 0)
        self.update_slot = statistics.slot_of(plan, "update", name, 0)
        self._choose_raw(statistics)
        self._choose_norm(statistics)

    @property
    def is_settled(self) -> bool:
        """Whether a step that is like those before changes nothing of it."""
        return not (self.joins or self.is_shared) and (self.grad_slot < 0 or self.changes in (0, UNCHANGED))

    def note_change(self, statistics: Statistics, changed: bool | None) -> None:
        """Note whether the script has changed the gradient after the last backward pass of a step.

        None if only its values can tell: then it is measured now and then, and the recorder's thread compares them.
        """
        if changed is None:
            self.changes = self.changes - 1 if self.changes > -UNCHANGED else TRIAL
        else:
            self.changes = UNCHANGED if changed else max(0, self.changes - 1)
        self._choose_raw(statistics)

    def _choose_raw(self, statistics: Statistics) -> None:
        self.raw_slot = -1
        if self.changes <= 0 or self.grad_slot < 0:
            return
        tap = Tap(self.plan.path, "raw_grad", self.name)
        if self.changes > TRIAL:
            self.raw_slot = statistics.table.add(tap)
            return
        if self._hidden_raw < 0:
            self._hidden_raw = statistics.table.add(tap, hidden=True)
        self.raw_slot = self._hidden_raw

    def measure_update(self, statistics: Statistics) -> None:
        """Measure its update, although this wasn't requested, until `choose` is called."""
        self.update_slot = statistics.table.add(Tap(self.plan.path, "update", self.name))
        self._choose_norm(statistics)

    def _choose_norm(self, statistics: Statistics) -> None:
        self.norm_slot = self.param_slot
        if self.update_slot >= 0 and self.param_slot < 0:
            # The ratio needs the weight's norm, even if it wasn't requested.
            if self._hidden_slot < 0:
                self._hidden_slot = statistics.table.add(Tap(self.plan.path, "param", self.name), hidden=True)
            self.norm_slot = self._hidden_slot


class ToRead(NamedTuple):
    """How the extension reads a parameter. It has the same list; rows are addresses, and 0 for none.

    Of a gradient, 0 means that there must be none, and -1 that nobody looks at it.
    """

    ref: Callable[[], Any]  # its module,
    name: str  # and its name there
    tensor: Tensor
    gradient_row: int
    weight_row: int
    raw_row: int
    place: int  # of the optimizer that steps it, -1 for none


Copies = list[tuple[Parameter, Tensor]]
Mark = tuple[int, int] | None  # a gradient's identity and version


class RawGradients:
    """Gradients as the last backward pass of a captured step left them, if the script changes them after it.

    Clipping and edits in place are noticed by the gradients' versions, when an optimizer is about to step.
    From then on, these gradients are also read at the end of the pass. It isn't known which pass is the last one, so
    they are read again, and replaced, after each pass that may be. Torch doesn't count all changes of a DTensor.
    """

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._passes = 0  # of the running step
        self._usual: deque[int] = deque([1], PASSES)
        self._marks: dict[int, Mark] = {}  # by id of the parameter, after the last pass
        self._read: list[Parameter] = []  # those with a row in this step
        self.has_split = False  # whether torch has split any over ranks
        self.is_whole = True  # whether all gradients that optimizers have used in this step are measured, and here

    def begin_step(self) -> None:
        """Begin a step, whose passes are yet to come."""
        self._passes, self._read, self.is_whole = 0, [], True

    def end_pass(self, parameters: Iterable[Parameter]) -> None:
        """Read the gradients of these parameters after a pass."""
        self._passes += 1
        self.forget()
        if self._passes < min(self._usual):
            return
        for each in parameters:
            tensor = each.tensor if each.grad_slot >= 0 else None
            if tensor is None or (grad := tensor.grad) is None:
                continue
            self._marks[id(each)] = id(grad), grad._version
            if each.raw_slot >= 0:
                self._read.append(each)
                self._statistics.add_safely(each.plan, grad, each.raw_slot)

    def compare(self, owned: list[Parameter], many: int, late: bool) -> None:
        """Note whose gradients have changed since the last pass: an optimizer is about to step these parameters.

        `many`: of how many that it has. `late`: after another optimizer, which has ended the step.
        """
        marks, stepped = self._marks if late or self._passes else {}, set(map(id, owned))
        self.is_whole &= len(owned) == many
        for each in owned:
            each.joins = late
            if (tensor := each.tensor) is None or (grad := tensor.grad) is None:
                continue
            split = type(grad) is not Tensor and is_shard(grad)
            self.is_whole &= each.grad_slot >= 0 and not split
            self.has_split |= split
            mark = marks.get(id(each))
            if mark is not None:
                changed = mark != (id(grad), grad._version)
                if changed or split or each.changes:
                    each.note_change(self._statistics, changed or (None if split else False))
        if not late:
            if self._passes:
                self._usual.append(self._passes)
            # Gradients that no optimizer uses in this step, such as those of a discriminator while its generator steps.
            if self._read:
                self._clear([each for each in self._read if id(each) not in stepped and not each.joins])

    @property
    def last_pass(self) -> int:
        """The number of passes of recent steps, if it is always the same, else 0."""
        return self._usual[0] if len(set(self._usual)) == 1 and not self.has_split else 0

    def resume(self, passes: int, steps: int, marks: dict[int, Mark], read: list[Parameter], is_whole: bool) -> None:
        """Take over what the extension has read.

        Passes of the running step; how many steps with usual ones have ended, or have read their gradients; the marks
        after the last pass; and whose gradients have a row from before a change of the script's in this step.
        """
        self._passes, self.is_whole = passes, is_whole
        self._usual.extend([self._usual[-1]] * min(steps, PASSES))
        self._marks, self._read = marks, read

    def forget(self) -> None:
        """Drop what was read in this step."""
        if self._read:
            self._clear(self._read)
        self._marks, self._read = {}, []

    def _clear(self, read: list[Parameter]) -> None:
        slots = [each.raw_slot for each in read if each.raw_slot >= 0]
        if slots:
            self._statistics.arena.clear(slots)
            self._statistics.devices.clear(slots)


class Parameters:
    """The watched parameters, found by identity in an optimizer's groups."""

    def __init__(self, plans: PlanTable, statistics: Statistics, kinds: frozenset[Kind], errors: ErrorLog) -> None:
        self._errors = errors
        self.raw = RawGradients(statistics)
        self._plans = plans
        self._statistics = statistics
        self._wanted = _reads_parameters(kinds)
        self.requests_updates = "update" in kinds
        self._measured: list[Parameter] = []  # those whose update is measured in this step although no one requested it
        self._noted: list[Parameter] = []  # those whose gradient is shown before clipping, too, from the next pass on
        self._next_measured = 0  # where the next ones begin
        self._known: dict[int, Parameter] = {}  # by id(tensor); an entry is valid while the tensor is at its place
        self._keys: dict[int, dict[str, int]] = {}  # by id(plan) and name, the keys of its entries
        self.adopted = 0  # grows with every new parameter
        self.version = 0  # grows whenever something new may have to be read of any of them
        self.forms = 0  # grows when parameters were seen to be frozen, unfrozen, cast, or moved
        self._seen_forms = hash(())
        self.look_at = -inf  # seconds
        self.when_gone: Callable[[Set[int]], None] = lambda _: None  # is called with the ids of a dead module's
        self.read = False  # whether this step's gradients have been read

    @property
    def measures_updates(self) -> bool:
        """Whether any update is measured in the running step."""
        return self.requests_updates or bool(self._measured)

    def begin_step(self) -> None:
        """Forget that gradients were read, and whose updates were measured."""
        self.read = False
        self.raw.begin_step()
        for each in self._measured:
            each.choose(self._statistics)
        self._measured = []

    def end_pass(self) -> None:
        """Read the gradients after a pass, if they are measured before the script changes them."""
        noted, self._noted = self._noted, []
        for each in noted:
            each.choose(self._statistics)
        if self._wanted:
            with self._statistics.devices.together():
                self.raw.end_pass(self.all())

    def measure_updates(self) -> None:
        """Measure the updates of weights in this step, although they weren't requested: of as many as may be copied.

        In a large model, the next such step goes on where this one ended.
        """
        # Without a gradient, no optimizer changes a weight.
        every = [each for each in self.all() if "param_grad" in each.plan.kinds and each.plan.history.got_gradients]
        if self.requests_updates or self._statistics.table.room < ROOM * len(every):  # other tensors come first
            return
        every = every[self._next_measured :] + every[: self._next_measured]
        left = MAX_MEASURED
        for each in every:
            tensor = each.tensor
            left -= 0 if tensor is None else tensor.nbytes
            if left < 0 and self._measured:
                break
            if tensor is not None and tensor.requires_grad:
                each.measure_update(self._statistics)
                self._measured.append(each)
            self._next_measured = (self._next_measured + 1) % len(every)

    def find(self, parameter: Tensor) -> Parameter | None:
        """Return the watched parameter for this tensor."""
        found = self._known.get(id(parameter))
        return found if found is not None and found.tensor is parameter else None

    def note_pass(self, reached: Iterable[int]) -> None:
        """Tell their models that a backward pass reached these parameters, given by id."""
        noted, known = None, self._known
        for key in reached:
            if key in known and (root := known[key].plan.root) is not noted:
                noted = root
                root.note_pass()

    def roots_of(self, keys: Iterable[int]) -> list[Root]:
        """Return the models that these parameters belong to, given by id."""
        roots = {id(root := self._known[key].plan.root): root for key in keys if key in self._known}
        return list(roots.values())

    def is_of(self, tensor: Tensor, root: Root) -> bool:
        """Return whether a parameter belongs to this model."""
        return id(tensor) in self._known and self._known[id(tensor)].plan.root is root

    def adopt(self, plan: Plan) -> None:
        """Add a module's own parameters. A tied one belongs to the first module that has it.

        Unselected ones too: an optimizer that steps them ends the steps of this model.
        """
        module = plan.ref()
        for name, parameter in dict(module._parameters.items()).items() if module is not None else ():
            if parameter is not None and self.find(parameter) is None:
                keys = self._keys.setdefault(id(plan), {})
                self._drop(plan, keys.get(name))  # of the previous tensor at this place
                keys[name] = id(parameter)
                self._known[id(parameter)] = Parameter(self._statistics, plan, name)
                self.adopted += 1
                self.version += 1

    def forget(self, plan: Plan) -> None:
        """Forget a removed module and its parameters."""
        keys = self._keys.pop(id(plan), {}).values()
        for key in keys:
            self._drop(plan, key)
        if keys and plan.ref() is None:
            self.when_gone(set(keys))

    def _drop(self, plan: Plan, key: int | None) -> None:
        if key is not None and key in self._known and self._known[key].plan is plan:
            del self._known[key]

    def choose(self, kinds: frozenset[Kind]) -> None:
        """Update the rows to the new plans."""
        self._wanted = _reads_parameters(kinds)
        self.requests_updates = "update" in kinds
        self._measured = []
        self.version += 1
        for parameter in self.all():
            parameter.choose(self._statistics)

    def rename(self, plan: Plan) -> None:
        """Rename the rows of this plan's parameters to the module's new path."""
        self.version += 1
        for parameter in self.all():
            if parameter.plan is plan:
                parameter.choose(self._statistics)

    def all(self) -> list[Parameter]:
        """Return every watched parameter."""
        return list(self._known.values())

    def look(self, now: float = inf) -> None:
        """Look whether parameters were frozen, unfrozen, cast, or moved, unless this was done just before.

        Between two steps, on the training thread: meanwhile, torch may put other tensors in their places.
        """
        if now < self.look_at:
            return
        tensors = [tensor for each in self.all() if (tensor := each.tensor) is not None]
        with DisableTorchFunction():
            seen = hash(tuple((tensor.requires_grad, tensor.dtype, tensor.device) for tensor in tensors))
        self.forms += seen != self._seen_forms
        self._seen_forms = seen
        self.look_at = now + LOOK_EVERY_S + LOOK_REST_S * len(tensors)

    def owned(self, optimizer: Optimizer) -> list[Parameter]:
        """Return the watched parameters that this optimizer steps."""
        tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        owned = self._find_all(tensors)
        if len(owned) < len(tensors):
            # Another model's, or one that was replaced or added: look again.
            for plan in self._plans.live():
                self.adopt(plan)
            owned = self._find_all(tensors)
        return owned

    def are_settled(self, owned: list[Parameter]) -> bool:
        """Return whether no value of these is read, and all their modules are known to get gradients."""
        return not self._wanted and all(each.plan.history.got_gradients for each in owned)

    def _find_all(self, tensors: list[Tensor]) -> list[Parameter]:
        known = self._known
        return [found for tensor in tensors if (found := known.get(id(tensor))) is not None and found.tensor is tensor]

    def unread(self, owned: list[Parameter], step: int) -> list[Parameter]:
        """Return those that no other optimizer has stepped in this step, whose numbers would otherwise count twice."""
        for each in owned:
            if each.read_in == step:
                each.is_shared = True
                each.plan.note_reason(SHARED)
        return [each for each in owned if each.read_in != step]

    def may_read(self, owned: list[Parameter]) -> bool:
        """Return whether no other of several threads trains the models of these, which this one is about to step."""
        if not any([root.meets_others() for root in {each.plan.root for each in owned}]):
            return True
        for each in owned:
            each.plan.note_reason(CONTESTED)
        self.read = True  # as far as they may be
        return False

    def before_step(self, owned: list[Parameter], with_gradients: bool, step: int) -> Copies:
        """Read weights, and gradients unless the step computes them, as the optimizer is about to use them.

        Return copies of the weights whose updates are measured.
        """
        self.read = self.read or with_gradients
        if not owned:
            return []
        for each in owned:
            each.read_in = step
        with self._statistics.devices.together():
            self._read_weights(owned)
            copies = self._copies(owned) if self.measures_updates else []
            if with_gradients:
                self.read_gradients(owned)
        return copies

    def forget_attempt(self, owned: list[Parameter]) -> None:
        """Drop what was read before a step that raised: these weights and gradients weren't used."""
        self._clear([slot for each in owned for slot in (each.norm_slot, each.grad_slot) if slot >= 0])

    def forget_gradients(self, owned: list[Parameter]) -> None:
        """Drop the gradients that were read of these parameters in this step."""
        self._clear([each.grad_slot for each in owned if each.grad_slot >= 0])

    def _clear(self, slots: list[int]) -> None:
        self._statistics.arena.clear(slots)
        self._statistics.devices.clear(slots)

    def _read_weights(self, owned: list[Parameter]) -> None:
        for parameter in owned if self._wanted else ():
            if parameter.norm_slot >= 0 and (tensor := parameter.tensor) is not None:
                self._statistics.add_safely(parameter.plan, tensor, parameter.norm_slot)

    def _copies(self, owned: list[Parameter]) -> Copies:
        copies: Copies = []
        with unseen():
            for parameter in owned:
                if parameter.update_slot >= 0 and not parameter.is_shared and (tensor := parameter.tensor) is not None:
                    try:
                        if why_empty(tensor):
                            continue
                        copies.append((parameter, tensor.detach().clone()))
                    except Exception as error:
                        self._errors.record("copy of a weight", error, parameter.plan)
        return copies

    def read_gradients(self, owned: list[Parameter]) -> None:
        """Read the current gradients, and record which modules got any.

        Only the training thread may call this: reading `.grad` while another thread runs a backward pass can crash.
        """
        self.read = True
        for parameter in owned:
            if parameter.grad_slot < 0 and parameter.plan.history.got_gradients:
                continue
            tensor = parameter.tensor
            if tensor is None or tensor.grad is None:
                parameter.plan.history.without_gradient += tensor is not None and tensor.requires_grad
                continue
            parameter.plan.history.got_gradients = True
            parameter.plan.history.without_gradient = 0
            if parameter.grad_slot >= 0:
                self._statistics.add_safely(parameter.plan, tensor.grad, parameter.grad_slot)

    def after_step(self, before: Copies) -> None:
        """Observe the changes made by the step."""
        if not before:
            return
        with unseen():
            for parameter, old in before:
                now, slot = parameter.tensor, parameter.update_slot
                if slot >= 0 and now is not None and now.shape == old.shape:  # another thread may have ended the step
                    try:
                        self._statistics.add(parameter.plan, now.detach() - old, slot)
                    except Exception as error:
                        self._errors.record("update", error, parameter.plan)

    def read_all(self, with_gradients: bool) -> None:
        """Read everything, if no torch optimizer steps."""
        owned = self.all()
        with self._statistics.devices.together():
            self._read_weights(owned)
            if with_gradients:
                self.read_gradients(owned)

    def readings(self, stepped: Sequence[Sequence[Parameter]]) -> list[tuple[Parameter, ToRead]] | None:
        """Return how the extension reads all parameters, of which optimizers step these.

        None if something of them isn't as in the steps before.
        """
        places = {id(each): place for place, owned in enumerate(stepped) for each in owned}
        found = list[tuple[Parameter, ToRead]]()
        for each in self.all():
            tensor, place, history = each.tensor, places.get(id(each), -1), each.plan.history
            if tensor is None or not each.is_settled or (place < 0 and each.raw_slot >= 0):
                return None
            if tensor.requires_grad and place >= 0 and (not history.got_gradients or history.without_gradient):
                return None
            if (each.grad_slot < 0 and each.norm_slot < 0) or (place < 0 and not tensor.requires_grad):
                continue
            if not (type(tensor) in PLAIN_TYPES and tensor.dtype is float32 and tensor.is_cpu and tensor.numel() > 0):
                return None
            of_gradient = (self._row(each.grad_slot) or -1) if tensor.requires_grad else 0
            rows = of_gradient, self._row(each.norm_slot), self._row(each.raw_slot)
            found.append((each, ToRead(each.plan.ref, each.name, tensor, *rows, place)))
        return found

    def _row(self, slot: int) -> int:
        return self._statistics.arena.row(slot) if slot >= 0 else 0

    def ratios(self) -> tuple[tuple[int, int], ...]:
        """Return the rows of each update and of the weights it changed."""
        if not self.measures_updates:
            return ()
        return tuple((p.update_slot, p.norm_slot) for p in self.all() if p.update_slot >= 0)

    def note_changed(self, slots: Set[int]) -> None:
        """Note the rows of gradients that have other values than after the last pass, from the recorder's thread."""
        for each in self.all() if slots and self.raw.has_split else ():
            if each.grad_slot in slots and each.changes != UNCHANGED:
                each.changes = UNCHANGED
                self._noted.append(each)

    def raws(self) -> tuple[tuple[int, int], ...]:
        """Return the rows of each gradient that the script changes after the backward pass: after it, and before."""
        known = self.all() if self._wanted else ()
        return tuple((p.grad_slot, p.raw_slot) for p in known if p.raw_slot >= 0) if known else ()


MAX_LISTED: Final = 4  # tensors of a list in a state, such as the factors of a preconditioner


class StepOfWeight(NamedTuple):
    """The rows of one weight's step, from whose norms the recorder's thread computes numbers."""

    gradient: int
    update: int
    before: int
    after: int
    decay: float  # the share of the weight that weight decay takes; NaN if that is unknown
    numbers: tuple[int, ...]  # where they go, in the order of `STEP_NUMBERS`


def parts_of(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an optimizer keeps for a parameter, by name."""
    for name, value in state.items() if isinstance(state, Mapping) else ():
        several = value[:MAX_LISTED] if isinstance(value, (list, tuple)) else ()
        yield from (
            ((f"{name}.{place}", each) for place, each in enumerate(several)) if several else ((str(name), value),)
        )


def _reads_parameters(kinds: frozenset[Kind]) -> bool:
    return not kinds.isdisjoint(("param", "param_grad", "update"))
