"""Which parameters no optimizer steps, which get no gradient or are never used, and which outputs reach no loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from hookcore.recorder.calls.plans import Plan, PlanTable
from hookcore.recorder.clock.clock import Clock
from hookcore.recorder.clock.owners import Owner
from hookcore.recorder.context import Context
from hookcore.recorder.known.parameters import Parameter
from hookcore.recorder.known.roots import joined
from hookcore.records import ROOT, STATS, Event, Frame, Tap, Value
from hookcore.records.vocabulary import DUPLICATE, ENDED, FROZEN, NEVER_USED, OUTSIDE, OUTSIDE_BEFORE

# Which parameters of the optimizers never got a gradient, in captured steps or not, and the modules that they are of.
#
# An optimizer leaves a trace on each parameter that it steps: the version of the tensor grows, or there is a state for
# it. So two looks, many steps apart, know about all steps in between, and a rarely routed expert isn't called unused.

MIN_IDLE: Final = 64  # steps without a trace
MIN_UNUSED: Final = 4  # captured steps in which no parameter of a module had a gradient
SHOWN_UNUSED: Final = 20  # names of each sort in a message


class Traces:
    """What the optimizers have left on their parameters, as far as it was looked at."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}  # by id of a tensor: its version, and since which step it has it

    def look(self, optimizer: Optimizer, owned: Sequence[tuple[Parameter, Tensor]], step: int) -> list[Parameter]:
        """Return the parameters that have had no trace for long; none if the optimizer leaves none on any of them."""
        idle, leaves_traces = [], False
        for each, tensor in owned:
            version, since = self._known.get(id(tensor), (None, step))
            now, state = _version_of(tensor), optimizer.state.get(tensor)
            if now is None or now != version or state or tensor.grad is not None:
                leaves_traces |= version is not None and (now != version or bool(state))
                self._known[id(tensor)] = now or 0, step
            elif step - since >= MIN_IDLE:
                idle.append(each)
        return idle if leaves_traces else []

    def keep(self, tensors: Collection[int]) -> None:
        """Forget all but these tensors, given by id."""
        for key in self._known.keys() - set(tensors):
            del self._known[key]


def _version_of(tensor: Tensor) -> int | None:
    try:
        return int(tensor._version)
    except RuntimeError:  # an inference tensor has none
        return None


@dataclass(frozen=True, slots=True)
class NeverUsed:
    """What was never used, the outermost modules by path: what is inside them was not used either."""

    parameters: tuple[Parameter, ...]
    never_ran: tuple[str, ...]
    no_loss: tuple[str, ...]  # they ran, but got no gradient
    single: tuple[str, ...]  # parameters of modules that get gradients
    alike: int  # the number of these modules that are in a list with others that are trained, such as experts

    @classmethod
    def of(cls, idle: Sequence[Parameter], everyone: Sequence[Parameter]) -> NeverUsed:
        """Sort idle parameters by what the captured steps showed of their modules."""
        holders, rests = holders_of(everyone), {id(each) for each in idle}
        trained = {each.plan.path for each in everyone if each.plan.history.got_gradients and id(each) not in rests}
        unused = {each.plan.path for each in idle if _is_unused(each.plan)} - holders
        # A module of which nothing is trained any more has been used, as a rarely routed expert.
        lone = [
            each for each in idle if each.plan.path in trained or (each.plan.path in holders and _is_unused(each.plan))
        ]
        every, idle_of, ran = Counter[str](), Counter[str](), set[str]()
        for path, plan in {each.plan.path: each.plan for each in everyone}.items():
            above = list(_upward(plan))
            every.update(above)
            idle_of.update(above if path in unused else ())
            ran.update(above if plan.history.seen else ())
        outermost = dict.fromkeys(
            [each for each in _upward(plan) if idle_of[each] == every[each]][-1]
            for plan in (each.plan for each in idle if each.plan.path in unused)
        )
        chosen = {id(each) for each in lone}
        parameters = tuple(each for each in idle if each.plan.path in unused or id(each) in chosen)
        single = tuple(f"{each.plan.path or ROOT} {each.name}" for each in lone)
        never_ran, no_loss = (
            tuple(each for each in outermost if (each in ran) == has_run) for has_run in (False, True)
        )
        lists = {_list_of(each) for each in holders | trained} - {""}
        return cls(parameters, never_ran, no_loss, single, sum(_list_of(each) in lists for each in outermost))

    @property
    def about(self) -> dict[str, Value]:
        """Return the facts that decide how serious it is."""
        numbers = {"never_ran": len(self.never_ran), "no_loss": len(self.no_loss), "single": len(self.single)}
        return {**numbers, "alike": self.alike}

    @property
    def sentence(self) -> str:
        """Name all of it, as far as there is room."""
        parts = (
            ("these modules never ran, so they don't learn", self.never_ran),
            ("no loss depends on the outputs of these modules, so they don't learn", self.no_loss),
            ("these parameters never get a gradient, although others of their modules do", self.single),
        )
        return "; ".join(f"{what}: {_listed_names(names)}" for what, names in parts if names)


def holders_of(everyone: Sequence[Parameter]) -> set[str]:
    """Return the paths of the modules that contain one whose parameters get gradients."""
    trained = [each.plan for each in everyone if each.plan.history.got_gradients]
    return {path for plan in trained for path in (*list(_upward(plan))[1:], plan.root.name)}


def _is_unused(plan: Plan) -> bool:
    return not plan.history.got_gradients and plan.history.without_gradient >= MIN_UNUSED


def _upward(plan: Plan) -> Iterator[str]:
    """Yield the path of a module and of those that contain it, except the root."""
    root = plan.root.name
    names = (plan.path.removeprefix(f"{root}/") if root else plan.path).split(".")
    for many in range(len(names), 0, -1):
        yield joined(root, ".".join(names[:many]))


def _list_of(path: str) -> str:
    """Return the list that a module is an element of, by its path, or ""."""
    above, _, name = path.rpartition(".")
    return above if name.isdecimal() else ""


def _listed_names(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_UNUSED
    return ", ".join(name or ROOT for name in names[:SHOWN_UNUSED]) + (f", and {more:,} more" if more > 0 else "")


FIRST: Final = 24  # the step of the first check; the next ones are at twice the step of the one before
EVERY: Final = 128  # steps between two checks later
MIN_STEPS: Final = 12  # of an optimizer
ACTIVE: Final = 32  # steps after which an optimizer that stopped stepping isn't at work
MIN_READ: Final = 16  # captured steps without a gradient
SHOWN: Final = 3  # names in a message


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that is true of some parameters, in words and as values."""

    parameters: tuple[Parameter, ...]
    message: str
    about: Mapping[str, Value] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """The module of the first one."""
        return self.parameters[0].plan.path


class Ownership:
    """Compares the parameters with the optimizers, rarely, on the training thread: no other may look at gradients.

    A fact is reported if two checks in a row find it, because an optimizer may start late.
    """

    def __init__(self, context: Context, clock: Clock) -> None:
        self._parameters, self._emit, self._clock = context.parameters, context.emit, clock
        self.next = FIRST
        self._traces = Traces()
        self._before: dict[str, Fact] = {}  # what the last check found
        self._reported: dict[str, Fact] = {}

    def check(self, step: int) -> None:
        """Report what has changed, if a check is due at the end of this step."""
        if step < self.next or self._clock.reach.many_threads:
            return
        self.next = step + min(step, EVERY)
        owners = [owner for owner in self._clock.owners if owner.owns and owner.steps]
        found = self._facts(owners, step) if owners else {}
        for name, fact in found.items():
            if name in self._before and (name not in self._reported or self._reported[name].message != fact.message):
                self._reported[name] = fact
                self._emit(name, fact.message, "info", fact.module, fact.about)
        for name in set(self._reported) - set(found):
            self._emit(ENDED[name], f"no longer found: {name}", "info", self._reported.pop(name).module)
        self._before = found

    def _facts(self, owners: Sequence[Owner], step: int) -> dict[str, Fact]:
        """Return the facts about parameters, each in the order of the model; those about none are left out."""
        stepped = [(owner, _parameters_of(owner)) for owner in owners]
        inside = {key for _, keys in stepped for key in keys}
        known = [
            (parameter, tensor) for parameter in self._parameters.all() if (tensor := parameter.tensor) is not None
        ]
        trained = {id(each.plan.root) for each, tensor in known if id(tensor) in inside}
        mine = [pair for pair in known if id(pair[0].plan.root) in trained and pair[1].requires_grad]
        first_inside = next((place for place, (_, tensor) in enumerate(mine) if id(tensor) in inside), 0)
        active = [keys for owner, keys in stepped if owner.steps >= MIN_STEPS and step - owner.last_step <= ACTIVE]
        twice = [each for each, tensor in mine if sum(id(tensor) in keys for keys in active) > 1]
        everyone = [each for each, _ in mine]
        cut_off = _cut_off([pair for pair in mine if id(pair[1]) in inside], everyone)
        among = {
            OUTSIDE: _left_out(mine[first_inside:], inside),
            OUTSIDE_BEFORE: _left_out(mine[:first_inside], inside),
            FROZEN: cut_off,
            DUPLICATE: twice,
        }
        facts = {name: Fact(tuple(some), _MESSAGES[name].format(_listed(some))) for name, some in among.items() if some}
        idle = self._idle(stepped, mine, step, {id(each) for each in cut_off})
        if idle and (unused := NeverUsed.of(idle, everyone)).parameters:
            facts[NEVER_USED] = Fact(unused.parameters, unused.sentence, unused.about)
        return facts

    def _idle(
        self,
        stepped: Sequence[tuple[Owner, set[int]]],
        mine: Sequence[tuple[Parameter, Tensor]],
        step: int,
        explained: Set[int],
    ) -> list[Parameter]:
        """Return the parameters that no optimizer has changed for long, except those that another fact explains."""
        self._traces.keep({id(tensor) for _, tensor in mine})
        idle = list[Parameter]()
        for owner, keys in stepped:
            optimizer = owner.ref()
            if optimizer is not None:
                idle += self._traces.look(optimizer, [pair for pair in mine if id(pair[1]) in keys], step)
        return [each for each in idle if id(each) not in explained]


def _parameters_of(owner: Owner) -> set[int]:
    optimizer = owner.ref()
    return set() if optimizer is None else {id(each) for group in optimizer.param_groups for each in group["params"]}


def _left_out(mine: Sequence[tuple[Parameter, Tensor]], inside: set[int]) -> list[Parameter]:
    return [each for each, tensor in mine if id(tensor) not in inside and tensor.grad is not None]


def _cut_off(owned: Sequence[tuple[Parameter, Tensor]], everyone: Sequence[Parameter]) -> list[Parameter]:
    """Return the parameters before the first one with a gradient, if their modules run, from the last module on.

    Those after it may belong to a branch that is not used, which many models have and which does no harm.
    """
    found: list[Parameter] = []
    for each, tensor in owned:
        history = each.plan.history
        if tensor.grad is not None or (history.got_gradients and history.without_gradient < MIN_READ):
            break
        if history.seen and history.without_gradient >= MIN_READ:
            found.append(each)
    else:
        return []  # nothing gets a gradient here: there is no place at which it is cut
    # The graph isn't cut after a module that contains one with gradients: only its own parameter is unused.
    holders = holders_of(everyone) if found else set[str]()
    found = [each for each in found if each.plan.path not in holders]
    return [each for each in found if each.plan is found[-1].plan] + [
        each for each in found if each.plan is not found[-1].plan
    ]


def _listed(among: Sequence[Parameter]) -> str:
    names = [f"{each.plan.path or ROOT} {each.name}" for each in among[:SHOWN]]
    more = len(among) - len(names)
    return ", ".join(names) + (f", and {more:,} more" if more else "")


_MESSAGES: Final = {
    OUTSIDE: "these parameters get gradients, but aren't in any optimizer that takes steps: {}",
    OUTSIDE_BEFORE: "no optimizer uses the gradients of these parameters; if that is intended, freeze them to save "
    "time: {}",
    FROZEN: "these parameters are in an optimizer and require gradients, but get none: {}",
    DUPLICATE: "these parameters are in more than one optimizer that takes steps: {}",
}


# Forward passes that no backward() reaches, such as that of a skipped loss: noticed by the gradients a frame lacks.
#
# Nothing distinguishes such a pass from one whose output the script detached on purpose. Its values and the numbers of
# the calls therefore stay as they are, and an event says so. Runs on the recorder's thread.

MAX_KNOWN: Final = 16  # sets of taps
MAX_REPORTED: Final = 16  # events of one model
UNUSED: Final = "in some steps, backward() did not reach one of its calls: see the event unused-forward"
_PARTS: Final = STATS.index("parts")

_Rows = dict[tuple[str, str], list[int]]  # by path and place in the output, those of all calls


class _Outputs:
    """The outputs that get gradients in a frame: each place in what a module returns, with all of its calls."""

    def __init__(self, numbers: Sequence[int], taps: Sequence[Tap], plans: dict[str, Plan]) -> None:
        outputs, gradients = _Rows(), _Rows()
        for row, number in enumerate(numbers):
            tap = taps[number]
            if tap.phase == "train" and tap.kind in ("output", "output_grad") and tap.module in plans:
                rows = outputs if tap.kind == "output" else gradients
                rows.setdefault((tap.module, tap.index), []).append(row)
        both = [key for key in outputs if key in gradients]
        self.plans = [plans[path] for path, _ in both]
        places = [[(row, 1.0) for row in outputs[key]] + [(row, -1.0) for row in gradients[key]] for key in both]
        pairs = np.array([pair for place in places for pair in place]).reshape(-1, 2)
        self._rows, self._signs = pairs[:, 0].astype(np.intp), pairs[:, 1].copy()
        self._first = np.cumsum([0, *map(len, places)])[:-1]  # of each place

    def lacking(self, parts: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return at which places fewer gradients arrived than tensors were returned, by frame."""
        lacks: NDArray[np.bool_] = np.add.reduceat(parts[:, self._rows] * self._signs, self._first, axis=1) > 0
        return lacks


@dataclass(slots=True, eq=False)
class UnusedForwards:
    """Compares how many outputs and how many gradients of each module a frame has."""

    _plans: PlanTable
    _known: dict[int, tuple[object, _Outputs]] = field(default_factory=dict, init=False)  # by id of an array of taps
    _before: set[str] = field(default_factory=set, init=False)  # names of models with such a pass in the last frame
    _reported: Counter[str] = field(default_factory=Counter, init=False)  # by name of a model

    def find(self, frames: Sequence[Frame], stats: NDArray[np.float64], taps: Sequence[Tap]) -> list[tuple[Event, ...]]:
        """Return the events of each frame: one for each model with such a pass that had none in the frame before.

        The frames have the same taps; `stats` are theirs [frame, tap, stat].
        """
        outputs = self._outputs_of(frames[0], taps)
        if not outputs.plans:
            return [()] * len(frames)
        lacking = outputs.lacking(stats[:, :, _PARTS])
        if not np.count_nonzero(lacking):  # which takes a fraction of what `any` takes for so few
            self._before.clear()
            return [()] * len(frames)
        return [self._find_each(*each, outputs.plans) for each in zip(frames, lacking, strict=True)]

    def _find_each(self, frame: Frame, lacking: NDArray[np.bool_], plans: Sequence[Plan]) -> tuple[Event, ...]:
        if lacking.any():
            return tuple(self._report(frame, plans, lacking.tolist()))
        self._before.clear()
        return ()

    def _outputs_of(self, frame: Frame, taps: Sequence[Tap]) -> _Outputs:
        known = self._known.get(id(frame.taps))  # which many frames share
        if known is None:
            if len(self._known) == MAX_KNOWN:
                self._known.clear()
            plans = {plan.path: plan for plan in self._plans.live()}
            known = self._known[id(frame.taps)] = frame.taps, _Outputs(frame.taps.tolist(), taps, plans)
        return known[1]

    def _report(self, frame: Frame, plans: Sequence[Plan], lacking: Sequence[bool]) -> Iterator[Event]:
        # One module may have an output that nothing uses. A pass wasn't reached if all modules lack a gradient.
        fine = {plan.root.name for plan, lacks in zip(plans, lacking, strict=True) if not lacks}
        known, self._before = self._before, {plan.root.name for plan in plans} - fine
        for plan in plans:
            model = plan.root.name
            if model in fine:
                continue
            plan.note_reason(UNUSED)
            if model not in known and self._reported[model] < MAX_REPORTED:
                known = known | {model}
                self._reported[model] += 1
                text = (
                    f"backward() did not reach a forward pass of {model or 'the model'} in step {frame.step}, as if a "
                    "loss was skipped, an output detached, or autograd.grad used. The values of that pass are part of "
                    "the step, without gradients, and later calls have the next number."
                )
                yield Event(frame.step, frame.time_s, "unused-forward", text, "info", plan.path)
