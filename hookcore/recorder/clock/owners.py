"""The optimizers that own watched parameters, and which of them a backward pass has brought new gradients."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Literal

from torch import Tensor, strided
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from hookcore.hooks.internals import SCALER_STEPS
from hookcore.recorder.known.parameters import Copies, Mark, Parameter, Parameters

# Witnesses: a few parameters of an optimizer at which new gradients are noticed.

READABLE: Final = 4096  # values of a gradient that are read to see whether they are zero

Fate = Literal["kept", "reset", "unknown"]  # of gradients
FindModel = Callable[[Optimizer, bool], bool]  # whether a model has its tensors; and whether one may be found later


class Witnesses:
    """The witnesses of one optimizer, and what their gradients and weights were."""

    __slots__ = ("_explained", "_versions", "keys", "parameters", "tensors", "were_reached")

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []
        self.tensors: list[Tensor] = []  # renewed often enough to keep no replaced one for long
        self.keys: frozenset[int] = frozenset()  # by id
        self.were_reached = False  # whether a pass was ever seen to reach one
        self._explained: tuple[list[Tensor], list[Mark]] = ([], [])  # the gradients whose step is known, and of whom
        self._versions: list[int] = []  # of the weights, before the optimizer steps

    def choose(self, parameters: list[Parameter]) -> None:
        """Take other parameters."""
        self.parameters = parameters
        self.look_up()

    def look_up(self) -> None:
        """Find the tensors as they are now."""
        self.tensors = tensors_of(self.parameters)
        self.keys = frozenset(map(id, self.tensors))

    def release(self, keys: Set[int]) -> None:
        """Let go of the tensors with these ids, because their modules are gone."""
        if not self.keys.isdisjoint(keys):
            self.look_up()
            self._explained = ([], [])

    def note_reached(self, reached: Set[int]) -> None:
        """Note which tensors a pass reached, by id."""
        self.were_reached = self.were_reached or not reached.isdisjoint(self.keys)

    def explain(self, marks: list[Mark] | None = None) -> None:
        """Take the gradients as they are now as those of a known step."""
        self._explained = self.tensors, marks_of(self.tensors) if marks is None else list(marks)

    def have_nothing_new(self, or_edited: bool = False) -> bool:
        """Return whether all gradients belong to a known step, as far as their tensors are still the same ones.

        `or_edited`: also if they were changed in place since, as clipping does.
        """
        (tensors, marks), now = self._explained, marks_of(self.tensors)
        if tensors is self.tensors and marks == now:
            return True
        known = dict(zip(map(id, tensors), marks, strict=True))
        pairs = [(known.get(id(tensor), mark), mark) for tensor, mark in zip(self.tensors, now, strict=True)]
        return all(old == mark or (or_edited and old and mark and old[0] == mark[0]) for old, mark in pairs)

    def note_weights(self) -> None:
        """Remember the weights' versions."""
        self._versions = [tensor._version for tensor in self.tensors]

    def weights_moved(self) -> bool:
        """Return whether a weight was changed since its version was noted."""
        return self._versions != [tensor._version for tensor in self.tensors]


def tensors_of(parameters: list[Parameter]) -> list[Tensor]:
    """Return the tensors that stand in the parameters' places now."""
    return [tensor for parameter in parameters if (tensor := parameter.tensor) is not None]


def marks_of(tensors: list[Tensor]) -> list[Mark]:
    """Return a mark that distinguishes each gradient from a new one."""
    marks: list[Mark] = []
    for tensor in tensors:  # before Python 3.12, a comprehension is a call of its own
        grad = tensor.grad
        marks.append(None if grad is None else (id(grad), grad._version))
    return marks


def fate_of(tensor: Tensor, after: Mark) -> Fate:
    """Return whether a gradient has since been set to None or to zero."""
    grad = tensor.grad
    if grad is None:
        return "reset"
    if (id(grad), grad._version) == after:
        return "kept"
    if not grad.is_cpu or type(grad) is not Tensor or grad.layout is not strided:
        return "unknown"
    if bool(grad.detach().flatten()[:READABLE].any()):
        return "kept"
    return "reset" if grad.numel() <= READABLE else "unknown"


def was_reset(tensor: Tensor, after: Mark) -> bool:
    """Return whether a gradient was set to None or to zero since."""
    return after is not None and fate_of(tensor, after) == "reset"


def spread(items: list[Any], many: int) -> list[Any]:
    """Return up to `many` items, evenly spread, including the first and the last."""
    if len(items) <= many:
        return list(items)
    if many <= 1:
        return items[:many]
    return [items[round(number * (len(items) - 1) / (many - 1))] for number in range(many)]


class Comparison:
    """The newest pass. It keeps tensors only while the pass runs."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []  # of the running pass
        self.marks: list[Mark] = []  # before the running pass or after the last one
        self._versions: list[int] = []  # of the weights, after the last pass
        self._compared: frozenset[int] = frozenset()  # at the last pass, by id

    def begin(self, tensors: list[Tensor]) -> None:
        """Look at the witnesses before a pass."""
        self._tensors, self.marks = tensors, marks_of(tensors)

    @property
    def differs(self) -> bool:
        """Whether any of them has another gradient than before the running pass."""
        return marks_of(self._tensors) != self.marks

    def end(self, with_weights: bool) -> tuple[list[Tensor], list[Mark], set[int]]:
        """Look at them after it. Return them, their marks, and by id those that it reached."""
        tensors, before, now = self._tensors, self.marks, marks_of(self._tensors)
        self._tensors, self._compared, self.marks = [], frozenset(map(id, tensors)), now
        if with_weights:
            self._versions = [tensor._version for tensor in tensors]
        if now == before:
            return tensors, now, set()
        return tensors, now, {id(t) for t, old, new in zip(tensors, before, now, strict=True) if old != new}

    def mark(self, tensors: list[Tensor]) -> None:
        """Assume that the last pass reached these tensors, without comparing them with their earlier state."""
        self.marks = marks_of(tensors)

    def skip(self) -> None:
        """Compare nothing in the pass that begins."""
        self._tensors, self.marks, self._compared = [], [], frozenset()

    def resume(self, tensors: list[Tensor], marks: list[Mark], runs: bool, has_ended: bool) -> None:
        """Take the marks before the pass that runs, or after the last one; `has_ended`: one has, since it was asked."""
        self._tensors, self.marks = tensors if runs else [], marks
        if has_ended:
            self._compared = frozenset(map(id, tensors))

    @property
    def is_on(self) -> bool:
        """Whether the last pass was compared."""
        return bool(self._tensors or self._compared)

    def forget_marks(self) -> None:
        """Forget what the gradients and the weights were."""
        self.marks, self._versions = [], []

    def let_go(self) -> None:
        """Keep no tensor."""
        self._tensors, self.marks = [], []

    @property
    def has_marks(self) -> bool:
        """Whether it is known what the gradients were."""
        return bool(self.marks)

    def was_at(self, keys: Set[int]) -> bool:
        """Return whether the last pass was compared at any of these witnesses, given by id."""
        return not self._compared.isdisjoint(keys)

    def fate_of(self, tensors: list[Tensor], reached: Set[int] | None = None) -> Fate:
        """Return the state of the gradients since the last pass; only of the reached ones, if given."""
        if len(tensors) != len(self.marks):
            return "unknown"
        marked = zip(tensors, self.marks, strict=True)
        of_pass = [(t, mark) for t, mark in marked if mark is not None and (reached is None or id(t) in reached)]
        fates = {fate_of(tensor, mark) for tensor, mark in of_pass}
        return "unknown" if len(fates) > 1 else next(iter(fates), "kept")

    def weights_changed(self, tensors: list[Tensor]) -> bool:
        """Return whether a weight was changed since the last pass."""
        return len(tensors) == len(self.marks) and self._versions != [tensor._version for tensor in tensors]

    def were_reset(self, tensors: list[Tensor]) -> bool:
        """Return whether any gradient was reset since the last pass."""
        return len(tensors) == len(self.marks) and any(map(was_reset, tensors, self.marks))


# Gradient scalers: which one steps an optimizer, and whether it left a step out.

_STEPS: Final = frozenset(code.co_name for code in SCALER_STEPS)  # code is hashed with all its constants


class Attempt(IntEnum):
    """A scaler's actions since the last pass."""

    NONE = 0
    ANY = 1  # it was updated, so it tried to step some optimizer
    OWN = 2  # it tried to step this optimizer


class ScalerLink:
    """The scaler that steps one optimizer, once it is found."""

    __slots__ = ("_ref", "_stage", "_states")

    def __init__(self) -> None:
        self._ref: weakref.ref[GradScaler] | None = None
        self._states: Any = None  # the scaler's table of optimizers when the last pass ended, which an update replaces
        self._stage: OptState | None = None  # that of the optimizer in it

    @property
    def found(self) -> bool:
        """Whether a scaler was ever seen to step the optimizer."""
        return self._ref is not None

    def live(self) -> GradScaler | None:
        """Return the scaler if there is one and it is enabled."""
        scaler = self._ref() if self._ref is not None else None
        return scaler if scaler is not None and scaler.is_enabled() else None

    def find(self, depth: int) -> None:
        """Find the scaler among the callers, because it has no hook of its own. A disabled one does nothing."""
        if self._ref is not None and self._ref() is not None:
            return
        frame: Any = sys._getframe(3)  # 2 is the clock's caller, which is wrapped
        for _ in range(depth):
            if frame is None:
                return
            if frame.f_code.co_name in _STEPS and frame.f_code in SCALER_STEPS:
                scaler = frame.f_locals.get("self")
                if isinstance(scaler, GradScaler) and scaler.is_enabled():
                    self._ref = weakref.ref(scaler)
                return
            frame = frame.f_back

    def note_pass(self, optimizer: Optimizer | None) -> None:
        """Remember what the scaler has done with the optimizer when a pass has ended."""
        if self._ref is not None and (scaler := self._ref()) is not None:
            self._states = scaler._per_optimizer_states
            self._stage = _stage_in(self._states, optimizer)

    def forget_pass(self) -> None:
        """Forget the last pass, because its step has ended: the table would keep the scaler's tensors alive."""
        self._states = None

    def resume(self, states: Any) -> None:
        """Take the scaler's table of optimizers, which was empty when this step's last pass ended; None without one."""
        if self._ref is not None:
            self._states, self._stage = states, None

    def attempts(self, optimizer: Optimizer | None) -> Attempt:
        """Return whether the scaler tried to step since the last pass, by traces that need no look at a device."""
        scaler = self.live()
        if scaler is None or self._states is None:
            return Attempt.NONE
        states = scaler._per_optimizer_states
        is_new = states is not self._states
        stepped_before = _stage_in(self._states, optimizer) is OptState.STEPPED and self._stage is not OptState.STEPPED
        if stepped_before or (is_new and _stage_in(states, optimizer) is OptState.STEPPED):
            return Attempt.OWN
        return Attempt.ANY if is_new else Attempt.NONE


def _stage_in(states: Any, optimizer: Optimizer | None) -> OptState | None:
    stage: OptState | None = None if states is None else states.get(id(optimizer), {}).get("stage")
    return stage


def scales_until_now(scaler: GradScaler, attempts: int) -> list[float]:
    """Return the loss scale in each of a scaler's first steps, which it all skipped; none if it skipped nothing."""
    first, factor = scaler._init_scale, scaler.get_backoff_factor()
    now = scaler._scale
    if isinstance(now, Tensor) and now.is_cpu:
        if float(now) == first:
            return []
        if not math.isclose(float(now), first * factor**attempts, rel_tol=1e-6):
            return [math.nan] * attempts
    return [first * factor**number for number in range(attempts)]


def instances_of(*bases: type) -> list[Any]:
    """Return all live objects of these classes and those derived from them. Holds the interpreter for a while.

    An object refers to its class, so the garbage collector finds it among the referrers of the class. That takes about
    a fifth of the time of a full collection, changes nothing, and holds no other object longer than it would live.
    """
    classes = set(_with_derived(bases))
    return [referrer for referrer in gc.get_referrers(*classes) if type(referrer) in classes] if classes else []


def _with_derived(bases: tuple[type, ...]) -> Iterator[type]:
    for base in bases:
        yield base
        yield from _with_derived(tuple(type.__subclasses__(base)))


def groups_of(groups: list[dict[str, Any]], rates: list[Any] | None) -> tuple[Any, ...]:
    """Return how many tensors each group has, the last one's id, and its rate; nothing if some can't be compared."""
    rates = [None] * len(groups) if rates is None else rates
    if len(rates) != len(groups) or any(type(rate) not in (float, type(None)) for rate in rates):
        return ()
    pairs = [(group["params"], rate) for group, rate in zip(groups, rates, strict=True)]
    if not all(type(tensors) is list and tensors for tensors, _ in pairs):
        return ()
    return tuple((len(tensors), id(tensors[-1]), rate) for tensors, rate in pairs)


WITNESSES: Final = 4  # of one optimizer
FIRST_WITNESSES: Final = 16  # of all watched parameters, while optimizers are still met
MANY_WITNESSES: Final = 512  # of an optimizer that a pass once reached past its witnesses
ALL_WITNESSES: Final = 128  # of all optimizers together, unless one needs more
RECENT: Final = 256  # steps after which an optimizer that stopped stepping counts no more


@dataclass(slots=True, eq=False)
class Owner:
    """An optimizer and its steps."""

    ref: weakref.ref[Optimizer]
    owns: bool = False  # whether any of its parameters is watched
    was_sought: bool = False  # whether a model that it steps was looked for after the closure of its first step
    owned: list[Parameter] | None = None  # these, while it makes a step whose values are read
    copies: Copies = field(default_factory=list)  # of its weights, during such a step or since one raised
    settled: int = -1  # the version of the parameters that has been read completely
    witnesses: Witnesses = field(default_factory=Witnesses)
    scaler: ScalerLink = field(default_factory=ScalerLink)
    late: bool = False  # whether it steps with the gradients of the step that ended last
    inner_passes: bool = False  # whether its step computes the gradients, with a closure or by itself
    was_read: bool = False  # whether the gradients of this step were read inside it
    runs_passes: bool = False  # whether it runs backward passes without having been given a closure
    inside: bool = False  # whether it steps inside the backward pass
    is_noted: bool = False  # whether its state before its first step was noted
    steps: int = 0
    ended: int = 0  # steps of the run that it ended; it joined another one's in the rest of its own
    rates: list[Any] | None = None  # of its groups in its last step: numbers, or of which version of which tensor
    rated: set[int] = field(default_factory=set)  # the groups whose rate was seen to change
    loss_name: str = ""  # of the loss that it is stepped for, once that was found
    last_step: int = -1  # the step of the run to which its last step belongs
    state: tuple[Any, ...] = ()  # of its parameters, when it was last looked up what it owns
    _gap: int = 1  # steps from one of its steps to the next

    def count(self, step: int) -> None:
        """Count a step of its own, which belongs to this step of the run."""
        gap = step - self.last_step
        self._gap = gap if gap > 1 and self.last_step >= 0 else 1
        self.last_step = step
        self.steps += 1

    def count_many(self, step: int, many: int) -> None:
        """Count so many steps of its own, which ended the steps of the run from this one on."""
        self.count(step)
        if many > 1:
            self._gap, self.last_step, self.steps = 1, step + many - 1, self.steps + many - 1
        self.ended += many

    def gap(self, step: int) -> int:
        """Return the steps from one of its steps to the next, 1 if it is no longer at work."""
        return self._gap if self.steps and step - self.last_step <= RECENT else 1

    @property
    def counts(self) -> tuple[int, int]:
        """The last step of the run that it made, and the steps from one of its own to the next."""
        return self.last_step, self._gap

    @property
    def is_expected(self) -> bool:
        """Whether it steps after its passes, which its witnesses show, and its scaler is there if it has one."""
        link = self.scaler
        return (
            bool(self.steps)
            and not (self.inside or self.runs_passes)
            and self.witnesses.were_reached
            and (not link.found or link.live() is not None)
        )


class Owners:
    """Every optimizer that was seen to step, and the witnesses of them all."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._owners: dict[int, Owner] = {}
        self.met = 0  # optimizers so far, those included that are gone
        self._witnesses: list[Parameter] = []
        self._known = (-1, False)  # how many parameters there were when the witnesses were chosen, and whether early

    def __iter__(self) -> Iterator[Owner]:
        return iter(list(self._owners.values()))

    def let_go(self) -> None:
        """Forget every optimizer."""
        self._owners.clear()

    def get(self, optimizer: Optimizer) -> Owner | None:
        """Return the known facts about an optimizer."""
        return self._owners.get(id(optimizer))

    def with_id(self, key: int) -> Owner | None:
        """Return the known facts about the optimizer with this id."""
        return self._owners.get(key)

    def are_waiting(self) -> bool:
        """Return whether there is an optimizer with watched parameters, though none has stepped. It takes a while."""
        return bool(self.find_waiting())

    def find_waiting(self) -> list[list[Parameter]]:
        """Return the watched parameters of each optimizer that hasn't stepped any yet. It takes a while."""
        unmet = (instance for instance in instances_of(Optimizer) if self.get(instance) is None)
        made = (each for each in unmet if hasattr(each, "param_groups"))  # another thread may still be making one
        return [owned for each in made if (owned := self._parameters.owned(each))]

    def place_of(self, owner: Owner) -> int:
        """Return the place of an optimizer among those that step watched parameters."""
        return next((place for place, each in enumerate(each for each in self if each.owns) if each is owner), 0)

    def meet(self, optimizer: Optimizer, find_model: FindModel, compares: bool, has_closure: bool = False) -> Owner:
        """Return the known facts about an optimizer that steps. `compares`: whether witnesses compare gradients.

        `has_closure`: it begins a step with a closure, which may run its model for the first time.
        """
        groups = optimizer.param_groups
        # Enough to notice that parameters were added or replaced.
        newest = groups[-1]["params"] if groups else []
        state = (len(groups), len(newest), id(newest[-1]) if newest else 0)
        key = id(optimizer)
        owner = self._owners.get(key)
        if owner is None or owner.ref() is not optimizer:
            owners = self._owners
            owner = owners[key] = Owner(weakref.ref(optimizer, lambda _: owners.pop(key, None)))
            self.met += 1
        if owner.state != (*state, self._parameters.adopted):
            owned = self._parameters.owned(optimizer)  # which may adopt some
            may_run = has_closure and not owner.was_sought
            if not owned and find_model(optimizer, may_run):
                owned = self._parameters.owned(optimizer)
            owner.was_sought = not may_run
            owner.owns, owner.settled = bool(owned), -1
            owner.state = (*state, self._parameters.adopted) if owned or not may_run else ()
            watched = {id(witness) for witness in self._witnesses}
            seen = [each for each in owned if id(each) in watched]
            owner.witnesses.were_reached = bool(seen) and compares
            owner.witnesses.choose(seen)
            if len(seen) < WITNESSES:
                self.add_witnesses(owner, self._share())
        return owner

    def _share(self) -> int:
        owners = sum(owner.owns for owner in self)
        return max(1, min(WITNESSES, ALL_WITNESSES // max(1, owners)))

    def add_witnesses(self, owner: Owner, many: int = MANY_WITNESSES) -> None:
        """Add up to `many` of an optimizer's parameters, from the next pass on."""
        optimizer = owner.ref()
        owned = self._parameters.owned(optimizer) if optimizer is not None else []
        trainable = [each for each in owned if (tensor := each.tensor) is not None and tensor.requires_grad]
        known = owner.witnesses.parameters
        self._known = (-1, False)
        if owner.steps or not known:
            owner.witnesses.choose(list({id(each): each for each in (*known, *spread(trainable, many))}.values()))

    def choose_witnesses(self, early: bool) -> None:
        """Choose the witnesses of all optimizers and, while not every optimizer was met, some of all parameters."""
        if self._known == (self._parameters.adopted, early):
            return
        if self._known[1] and not early:
            for owner in self:
                if len(owner.witnesses.parameters) <= FIRST_WITNESSES:
                    owner.witnesses.choose(spread(owner.witnesses.parameters, self._share()))
        self._known = (self._parameters.adopted, early)
        inside = {id(parameter) for owner in self if owner.inside for parameter in owner.witnesses.parameters}
        chosen = [parameter for owner in self if owner.owns for parameter in owner.witnesses.parameters]
        if early:
            trainable = [
                parameter
                for parameter in self._parameters.all()
                if (t := parameter.tensor) is not None and t.requires_grad
            ]
            chosen += spread(trainable, FIRST_WITNESSES)
        self._witnesses = [each for key, each in {id(each): each for each in chosen}.items() if key not in inside]
        for owner in self:
            if owner.owns and not owner.witnesses.parameters:
                owner.state = ()

    def tensors_to_compare(self) -> list[Tensor]:
        """Return the witnesses' tensors: their own list if only one optimizer is at work."""
        if self._known[1]:
            return self.tensors()
        at_work = self.find_compared()
        if len(at_work) == 1:
            return at_work[0].witnesses.tensors
        return [tensor for owner in at_work for tensor in owner.witnesses.tensors]

    def find_compared(self) -> list[Owner]:
        """Return the optimizers whose witnesses are compared; none while not every optimizer was met."""
        return [] if self._known[1] else [owner for owner in self if owner.owns and not owner.inside]

    def tensors(self) -> list[Tensor]:
        """Return the tensors of all witnesses as they are now."""
        return tensors_of(self._witnesses)

    def only_one(self) -> Owner | None:
        """Return the optimizer that alone steps watched parameters, after a pass and without a scaler."""
        at_work = [owner for owner in self if owner.owns and owner.steps]
        if len(at_work) != 1 or at_work[0].inside or at_work[0].scaler.found:
            return None
        return at_work[0]

    def optimizers(self) -> list[Optimizer]:
        """Return every optimizer that is still there."""
        return [found for owner in self if (found := owner.ref()) is not None]

    def scalers(self) -> list[GradScaler]:
        """Return the enabled scalers that step an optimizer."""
        found = {id(scaler): scaler for owner in list(self._owners.values()) if (scaler := owner.scaler.live())}
        return list(found.values())

    def known_scale(self) -> float | None:
        """Return the loss scale in force, if there is one scaler and its scale isn't on another device."""
        scalers = self.scalers()
        scale = scalers[0]._scale if len(scalers) == 1 else None
        return float(scale) if isinstance(scale, Tensor) and scale.is_cpu else None

    def longest_gap(self, step: int) -> int:
        """Return the length of a block of steps in which every active optimizer steps."""
        longest = 1
        for owner in list(self._owners.values()):
            if (gap := owner.gap(step)) > longest:
                longest = gap
        return longest
