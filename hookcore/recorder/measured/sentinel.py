"""A look at every step, captured or not: whether the loss is finite, and the gradients that a pass reaches last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from hookcore.observe.copies import apart_from_captures, is_capturing
from hookcore.observe.finite import (
    MAX_VALUES,
    NonFinite,
    SumsUnderway,
    Tally,
    all_finite,
    is_elsewhere,
    is_finite,
    local_part,
    start_reading,
    word_of,
)
from hookcore.recorder.calls.keeping import Keeping
from hookcore.recorder.calls.plans import LateStep
from hookcore.recorder.clock.clock import Clock
from hookcore.recorder.clock.owners import instances_of, spread
from hookcore.recorder.context import Context
from hookcore.recorder.known.parameters import Parameter
from hookcore.recorder.measured.scalars import is_known, number_of
from hookcore.records import ROOT, Value
from hookcore.records.flow import Flow, FlowCall
from hookcore.records.vocabulary import FOUND_LOSS, NONFINITE_STEP

# The parameters whose gradients say whether a backward pass was finite: the last ones that it reaches.
#
# A non-finite gradient makes those of the layers before it non-finite. So the sentinel looks at one small parameter of
# each layer where the data flow begins. Two kinds of gradients reach none of them: those that a branch without
# parameters stops, and those that are computed for a single parameter.

MAX_LOOKOUTS: Final = 4


def choose_lookouts(parameters: Iterable[Parameter], flows: Iterable[Sequence[FlowCall]]) -> list[Parameter]:
    """Return the parameters to look at: from the data flow, or before it is known, in the order of registration."""
    sized: dict[str, tuple[int, Parameter]] = {}  # the smallest one of each module
    for each in parameters:
        if (tensor := each.tensor) is not None and _is_trained(tensor):
            size, path = tensor.numel(), each.plan.path
            if path not in sized or size < sized[path][0]:
                sized[path] = size, each
    # A batch reaches only some rows of an embedding, so a part of a large gradient says little.
    small = {path: each for path, (size, each) in sized.items() if size <= MAX_VALUES}
    known = small or {path: each for path, (_, each) in sized.items()}
    sources = {path: known[path] for calls in flows for path in first_of_flow(calls, known.keys())}
    return spread(list(sources.values()) or _first_of_branches(known), MAX_LOOKOUTS)


def first_of_flow(calls: Sequence[FlowCall], modules: Iterable[str]) -> list[str]:
    """Return those of the modules that some call feeds with nothing that another one of them has made."""
    modules = frozenset(modules)
    after: list[bool] = []  # for each call, whether one of the modules is before it
    found: dict[str, None] = {}
    for call in calls:
        feeding = [each for each in (*call.fed_by, *call.returns) if each < len(after)]
        is_after = any(after[each] for each in feeding)
        after.append(
            is_after or any(calls[each].module in modules and calls[each].module != call.module for each in feeding)
        )
        if call.module in modules and not after[-1]:
            found[call.module] = None
    return list(found)


def _first_of_branches(known: dict[str, Parameter]) -> list[Parameter]:
    """Return the first parameter of each model and of each of its children."""
    firsts: dict[tuple[int, str], Parameter] = {}
    for path, each in known.items():
        root = each.plan.root
        child = path.removeprefix(root.name).lstrip("/").partition(".")[0]
        firsts.setdefault((id(root), child), each)
    return list(firsts.values())


def _is_trained(tensor: Tensor) -> bool:
    return tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())


# It fires while the step's inputs and weights are still there: at the end of the pass, before an optimizer steps. On a
# device it never waits: what it looks at travels to the host, and the recorder's thread reads it a moment later.

MAX_REPORTED: Final = 100  # steps of one run
MAX_WAITING: Final = 256  # looks at a device that aren't read yet
_PLAIN: Final = frozenset((Tensor, nn.Parameter))
_WORDS: Final[dict[NonFinite, str]] = {"nan": "NaN", "inf": "infinite", "-inf": "infinite"}


@dataclass(frozen=True, slots=True)
class Found:
    """A non-finite value, and where it was: `name` is the loss's, or a parameter's."""

    found: Literal["loss", "gradient", "weights"]
    name: str
    value: NonFinite
    module: str = ""

    @property
    def where(self) -> str:
        """Where it was, in words."""
        if self.found == "loss":
            return "the loss"
        return f"{'the gradient of ' if self.found == 'gradient' else ''}{self.name} of {self.module or ROOT}"

    @property
    def message(self) -> str:
        """What was found, in words."""
        value = _WORDS[self.value]
        is_older = self.found == "weights"
        return f"{self.where} was {value} before the step began" if is_older else f"{self.where} became {value}"


@dataclass(slots=True)
class Onset:
    """Notices the change from finite to non-finite, step by step."""

    step: int = -1
    is_bad: bool = False
    looked: bool = False  # at anything in this step
    was_bad: bool = False  # in the last step that was looked at
    previous: int | None = None  # the newest earlier step that was finite

    def enter(self, step: int) -> None:
        """Go on to this step, if it is another one."""
        if step != self.step:
            if self.looked:
                self.was_bad = self.is_bad
                self.previous = self.previous if self.is_bad else self.step
            self.step, self.is_bad, self.looked = step, False, False

    def saw(self, is_bad: bool) -> bool:
        """Note a look at the step. Return whether it is the first bad one after finite ones."""
        self.looked = True
        is_first = is_bad and not self.is_bad
        self.is_bad = self.is_bad or is_bad
        return is_first and not self.was_bad


@dataclass(frozen=True, slots=True)
class _Later:
    """What a device has yet to compute of a step."""

    step: int
    captured: bool
    losses: tuple[Any, ...]
    lookouts: tuple[tuple[str, str], ...]  # module and name of each gradient that is read
    reading: SumsUnderway | None
    kept: LateStep | None  # what makes the step repeatable

    @property
    def is_finite(self) -> bool:
        """Whether it is known by now that all of it is finite. Waits for nothing."""
        reading = self.reading
        if not all(map(is_known, self.losses)) or not (reading is None or reading.is_done):
            return False
        return all_finite([*map(number_of, self.losses), *(reading.finish() if reading is not None else ())])


class Sentinel:
    """Looks at the loss and the lookouts, and reports the first step in which one of them isn't finite."""

    def __init__(self, context: Context, keeping: Keeping) -> None:
        self._context, self._parameters, self._keeping = context, context.parameters, keeping
        self._on = True  # in this step
        self._lookouts: list[Parameter] = []
        self._flows: list[tuple[FlowCall, ...]] = []
        self._chosen_for: tuple[int, ...] = ()
        self._tally, self._now, self._late = Tally(), Onset(), Onset()
        self._waiting: deque[_Later] = deque()
        self._versions = 0  # of the lookouts' weights, at the first look at the step
        self._reported = 0
        self._is_done = False  # whether it has reported all that it may
        self._has_scaler = False
        self._places: list[tuple[Callable[[], nn.Module | None], str]] = []  # of lookouts

    def learn(self, flow: Flow) -> None:
        """Choose the lookouts by this data flow, too."""
        self._flows.append(flow.calls)
        self._chosen_for = ()

    def begin_step(self, paused: bool) -> None:
        """Decide whether to look at the step that begins."""
        self._on = not (paused or self._is_done)

    @property
    def is_on(self) -> bool:
        """Whether it looks at the running step."""
        return self._on

    def prepare(self) -> bool:
        """Prepare for `glance`. Return False if it would see nothing as expected."""
        self._choose()
        types = (type(tensor) for each in self._lookouts if (tensor := each.tensor) is not None)
        return not (self._now.is_bad or self._now.was_bad) and all(map(_PLAIN.__contains__, types))

    def glance(self, step: int, losses: Iterable[Any] | None) -> bool:
        """Look at the step as `look` does, if all is as expected; else, do nothing and return False.

        Without a mode only: nothing here is protected against them.
        """
        known, onset = self._parameters, self._now
        if onset.is_bad or onset.was_bad or self._chosen_for != (known.version, known.forms):
            return False
        version, looked = 0, bool(losses)
        if losses and not all_finite(losses):
            return False
        for ref, name in self._places:
            module = ref()
            tensor = None if module is None else module._parameters.get(name)
            if tensor is None or type(tensor) not in _PLAIN:
                return False
            version += tensor._version
            if (grad := tensor.grad) is not None:
                if not is_finite(grad):
                    return False
                looked = True
        if onset.step != step:
            self._versions = version
            if onset.looked:
                onset.previous = onset.step
            onset.step, onset.looked = step, looked
        elif looked:
            onset.looked = True
        return True

    @property
    def lookouts(self) -> list[Tensor]:
        """The tensors whose gradients it looks at."""
        return [tensor for each in self._lookouts if (tensor := each.tensor) is not None]

    def looked(self, step: int) -> None:
        """Note that this step, and each one since the last look, was looked at, and was fine."""
        onset = self._now
        if onset.step != step:
            if step - 1 > onset.step or onset.looked:
                onset.previous = max(step - 1, onset.step)
            self._versions = self._version()
        onset.step, onset.looked = step, True

    def look(self, clock: Clock, losses: Iterable[Any] | None = (), is_own: Callable[[], bool] = lambda: True) -> bool:
        """Look at the step: at what a pass has started from, if it is known, and at the lookouts' gradients.

        `is_own` returns whether the pass is one of this training, which has a cost. Return whether a glance was enough.
        """
        if self._on:
            try:
                # Another thread may set a gradient.
                if not clock.reach.many_threads and self.glance(clock.step, losses):
                    return True
                self._look(clock, losses or (), is_own)
            except Exception as error:  # the clock must see the pass in any case
                self._context.errors.record("look at the step", error)
        return False

    def _look(self, clock: Clock, losses: Iterable[Any], is_own: Callable[[], bool]) -> None:
        onset, later, found = self._now, list[Any](), None
        is_first = clock.step != onset.step
        if is_first:
            onset.enter(clock.step)
            self._choose()
        for loss in losses:
            if not isinstance(loss, float):
                later += [loss] if is_own() else []
                continue
            onset.looked = True
            if found is None and loss - loss != 0 and is_own() and (word := word_of(loss)) is not None:
                found = Found("loss", FOUND_LOSS, word)
        # A gradient that another thread sets can't be read.
        version, elsewhere = (0, None) if clock.reach.many_threads else self._look_at_gradients()
        if is_first:
            self._versions = version
        if later or elsewhere:
            self._look_later(clock, later, elsewhere or ())
        if self._tally.has_any:
            word = self._tally.take()
            found = found or self._find_gradient(clock, word)
        if found is not None and onset.saw(is_bad=True):
            self._fire(found)

    def look_before_step(self, clock: Clock) -> None:
        """Look at the gradients that an optimizer is about to use, if no pass of the step has shown them."""
        if self._now.step != clock.step:
            self.look(clock)

    def _choose(self) -> None:
        """Choose other lookouts if the model has changed, or more is known of its data flow."""
        known = self._parameters
        if self._chosen_for != (state := (known.version, known.forms)):
            self._chosen_for = state
            self._lookouts = choose_lookouts(known.all(), self._flows)
            self._places = [(each.plan.ref, each.name) for each in self._lookouts]

    def _look_at_gradients(self) -> tuple[int, list[tuple[Parameter, Tensor]] | None]:
        """Count non-finite values of gradients in memory. Return the weights' version, and gradients on devices."""
        tally, version, elsewhere = self._tally, 0, None
        for each in self._lookouts:
            if (tensor := each.tensor) is None:
                continue
            version += tensor._version
            if (grad := tensor.grad) is None:
                continue
            if tally.sees(grad):
                self._now.looked = True
            elif (part := local_part(grad)) is None:
                continue
            elif is_elsewhere(part):
                elsewhere = [*(elsewhere or ()), (each, part)]
            elif part.is_cpu:
                self._now.looked |= tally.sees(part.detach().contiguous())
        return version, elsewhere

    def _find_gradient(self, clock: Clock, word: NonFinite | None) -> Found | None:
        """Return which of the counted gradients isn't finite, unless that is normal."""
        if word is None or self._has_scaler:
            return None
        if self._now.was_bad or self._now.is_bad:
            return Found("gradient", "", word)  # which one doesn't matter any more
        if self._is_scaled(clock):
            return None
        for each in self._lookouts:
            tensor = each.tensor
            if tensor is not None and tensor.grad is not None and (own := self._tally.look(tensor.grad)) is not None:
                return Found("gradient", each.name, own, each.plan.path)
        return None

    def _is_scaled(self, clock: Clock) -> bool:
        """Return whether a scaler scales the loss: gradients that are too large are then normal.

        The first scaled pass comes before a scaler has stepped any optimizer.
        """
        if not self._has_scaler:
            in_use = (each for each in instances_of(GradScaler) if each.is_enabled() and each._scale is not None)
            self._has_scaler = bool(clock.owners.scalers()) or any(in_use)
        return self._has_scaler

    def _version(self) -> int:
        return sum(tensor._version for each in self._lookouts if (tensor := each.tensor) is not None)

    def _first_bad_weight(self) -> Found | None:
        """Return the first parameter that isn't finite."""
        for each in self._parameters.all():
            if (tensor := each.tensor) is not None and (word := self._tally.look(tensor)) is not None:
                return Found("weights", each.name, word, each.plan.path)
        return None

    def _fire(self, found: Found) -> None:
        """Report the running step, and let it be saved."""
        if self._versions == self._version():  # no optimizer has stepped in it
            found = self._first_bad_weight() or found
        self._report(found, self._now, self._context.current.captured, late=False)
        self._keeping.fire(f"non-finite values in {found.where}", found.module or None)

    def _report(self, found: Found, onset: Onset, captured: bool, late: bool) -> None:
        self._reported += 1
        self._is_done = self._reported >= MAX_REPORTED
        rest = "; later steps of this run aren't reported" if self._is_done else ""
        finite = "" if onset.previous is None else f"; step {onset.previous:,} was still finite"
        message = f"step {onset.step:,}: {found.message}{finite}{rest}"
        about: dict[str, Value] = {
            "found": found.found,
            "name": found.name,
            "value": found.value,
            "previous": onset.previous,
            "captured": captured,
            "late": late,
        }
        self._context.emit(NONFINITE_STEP, message, "error", found.module, about, at=onset.step)
        self._context.cadence.alarm(f"step {onset.step} had non-finite values")

    # Devices

    def _look_later(self, clock: Clock, losses: list[Any], grads: Sequence[tuple[Parameter, Tensor]]) -> None:
        """Let the recorder's thread look at what a device has yet to compute."""
        self._release()
        if len(self._waiting) >= MAX_WAITING:
            return
        kept = self._keeping.defer()
        for pairs in _alike(grads) or ([],):
            reading = start_reading([grad for _, grad in pairs]) if pairs else None
            names = tuple((each.plan.path, each.name) for each, _ in pairs)
            captured = self._context.current.captured
            self._waiting.append(_Later(clock.step, captured, tuple(losses), names, reading, kept))
            losses = []

    def _release(self) -> None:
        """Let go of what was held for steps that are known to be finite by now, before the next step needs memory."""
        if is_capturing():
            return
        held = [each for each in list(self._waiting) if each.kept is not None and each.kept.is_held]
        unknown = {id(each.kept) for each in held if not each.is_finite}
        for each in held:
            if each.kept is not None and id(each.kept) not in unknown:
                each.kept.release()

    @property
    def waits(self) -> bool:
        """Whether a device has yet to compute something."""
        return bool(self._waiting)

    def read_late(self, clock: Clock, is_last: bool = False) -> None:
        """Look at what devices have computed in the meantime. Called on the recorder's thread, which may wait."""
        while self._waiting and (is_last or (reading := self._waiting[0].reading) is None or reading.is_done):
            later, onset = self._waiting.popleft(), self._late
            onset.enter(later.step)
            found = self._find_late(later, clock)
            if onset.saw(found is not None) and found is not None:
                found = self._first_bad_at_entry(later.kept) or found
                with self._context.lock:
                    is_known = self._now.is_bad or self._now.was_bad or self._is_done
                    if not is_known:
                        self._report(found, onset, later.captured, late=True)
                        if later.kept is not None:
                            what = f"non-finite values in {found.where}"
                            self._keeping.fire_late(later.kept, what, found.module or None)
        if is_last:
            self._keeping.settle_late()

    def _first_bad_at_entry(self, kept: LateStep | None) -> Found | None:
        """Return the first parameter that wasn't finite when the step's call of its model began."""
        if kept is None or not kept.is_held:
            return None
        pairs = []
        for each in self._parameters.all():
            if (tensor := each.tensor) is not None and (copy := kept.weight_at_entry(tensor)) is not None:
                pairs.append((each, copy))
        words: dict[int, NonFinite] = {}
        with apart_from_captures():
            for group in _alike([pair for pair in pairs if is_elsewhere(pair[1])]):
                reading = start_reading([copy for _, copy in group])
                for (each, _), number in zip(group, reading.finish() if reading is not None else (), strict=False):
                    if (word := word_of(number)) is not None:
                        words[id(each)] = word
        first = next((each for each, _ in pairs if id(each) in words), None)
        return None if first is None else Found("weights", first.name, words[id(first)], first.plan.path)

    def _find_late(self, later: _Later, clock: Clock) -> Found | None:
        for loss in later.losses:
            if (word := word_of(number_of(loss))) is not None:
                return Found("loss", FOUND_LOSS, word)
        is_bad = self._late.is_bad or self._late.was_bad
        sums = later.reading.finish() if later.reading is not None else ()
        for (module, name), number in zip(later.lookouts, sums, strict=False):
            if (word := word_of(number)) is not None and (is_bad or not self._is_scaled(clock)):
                return Found("gradient", name, word, module)
        return None


def _alike(pairs: Iterable[tuple[Parameter, Tensor]]) -> list[list[tuple[Parameter, Tensor]]]:
    """Group tensors by what can be read together: one device and one type."""
    groups: dict[Any, list[tuple[Parameter, Tensor]]] = {}
    for pair in pairs:
        groups.setdefault((pair[1].device, pair[1].dtype), []).append(pair)
    return list(groups.values())
