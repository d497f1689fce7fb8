"""Finds the tensors that became non-finite in a step although their inputs were finite."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hookcore.records import ROOT, Kind, Tap
from hookcore.records.flow import Flow

_OUTPUTS: Final[tuple[Kind, Kind]] = ("output", "input")
_GRADIENTS: Final[tuple[Kind, Kind]] = ("output_grad", "input_grad")
_WEIGHTS: Final[tuple[Kind, Kind]] = ("param_grad", "param_grad")  # they come in the order of the others
_PASSES: Final[Mapping[Kind, tuple[Kind, Kind]]] = {
    **dict.fromkeys(_OUTPUTS, _OUTPUTS),
    **dict.fromkeys(_GRADIENTS, _GRADIENTS),
    **dict.fromkeys(_WEIGHTS, _WEIGHTS),
}
_NAMED: Final = 3  # modules in a sentence


@dataclass(frozen=True, slots=True)
class Source:
    """The tap where the problem started, and the known facts about its inputs, in words."""

    number: int
    known: str


class Feeding:
    """The flow that fits one step best, and the taps of its calls."""

    def __init__(self, flow: Flow, taps: Sequence[Tap]) -> None:
        self._flow, self._taps = flow, taps
        places = _places(flow)
        self._numbers: dict[tuple[int, Kind], list[int]] = {}
        for number, tap in enumerate(taps):
            place = places.get((tap.module, tap.call, tap.phase))
            if place is not None:
                self._numbers.setdefault((place, tap.kind), []).append(number)
        self._fed: list[set[int]] = [set() for _ in flow.calls]
        self._holder: dict[int, int] = {}  # the container that returned a call's output as it was
        for place, call in enumerate(flow.calls):
            for source in call.fed_by:
                self._fed[source].add(place)
            for inside in call.returns:
                self._holder.setdefault(inside, place)

    def first(
        self, bad: Collection[int], present: Collection[int], kind: Kind, masks: Collection[int] = ()
    ) -> Source | None:
        """Return the first tap that went bad by itself, in the order of the pass that the kind belongs to.

        None if the flow doesn't tell. `masks` are taps with infinities that do no harm.
        """
        kinds = _PASSES.get(kind)
        if kinds is None:
            return None
        backward = kinds != _OUTPUTS
        step = _Step(self, set(bad), set(present), kinds)
        suspects = [place for place in range(len(self._flow.calls)) if step.is_bad(place) and not step.is_same(place)]
        before = {place: [each for each in step.nearest(place)[0] if step.is_bad(each)] for place in suspects}
        starts = [place for place in suspects if not before[place]]
        loop = set[int]()
        if not starts:  # the calls after the last one that is measured by itself feed each other
            starts = [place for place in suspects if all((each > place) != backward for each in before[place])]
            loop = {each for place in starts for each in before[place]}
        if not starts:
            return None
        culprit = starts[-1] if backward else starts[0]
        number = step.number_of(culprit)
        known, unseen = step.nearest(culprit)
        if kinds == _WEIGHTS:
            words = ""
        elif loop:
            words = self._looped(culprit, loop)
        else:
            hidden = {place for place in known if any(each in masks for each in self.numbers(place, kinds[0]))}
            known -= hidden
            words = self._backward(known, unseen) if backward else self._forward(culprit, known, unseen, hidden)
        return Source(number, f"{words}{self._apart(starts, culprit)}")

    def numbers(self, place: int, kind: Kind) -> list[int]:
        """Return the taps of a call that are of this kind."""
        return self._numbers.get((place, kind), [])

    def before(self, place: int, backward: bool) -> set[int]:
        """Return the calls whose tensors it was computed from, in the direction of the pass."""
        call = self._flow.calls[place]
        if not backward:
            return {*call.fed_by, *call.returns}
        return self._fed[place].union(*(self._fed[inside] for inside in call.returns))

    def returned(self, place: int) -> tuple[int, ...]:
        """Return the calls inside a container whose outputs are its own."""
        return self._flow.calls[place].returns

    def holder(self, place: int) -> int | None:
        """Return the container whose output is that of this call."""
        return self._holder.get(place)

    def _looped(self, culprit: int, loop: set[int]) -> str:
        first = self._flow.calls[culprit].call + 1
        together = (
            f"Calls from number {first} on are measured together. In them, {self._names(loop)} was non-finite, too"
        )
        return f"{together}, and feeds it, so any module between the two may have been first."

    def _forward(self, culprit: int, known: set[int], unseen: set[int], masks: set[int]) -> str:
        if self._flow.calls[culprit].how == "order":
            return "Its inputs are unknown."
        fine = f"Its input was finite: the activation of {self._names(known)}." if known else ""
        if not known and not unseen and not masks:
            fine = "No other module feeds it."
        mask = f"Its input from {self._names(masks)} has infinities that look like a mask." if masks else ""
        return " ".join(filter(None, [fine, mask, self._unseen(unseen, "feed it")]))

    def _backward(self, known: set[int], unseen: set[int]) -> str:
        fine = ""
        if known:
            names = self._names(known)
            fine = f"It was computed from a finite gradient: the activation gradient of {names}."
        elif not unseen:
            fine = "It came directly from the loss."
        return " ".join(filter(None, [fine, self._unseen(unseen, "it feeds")]))

    def _unseen(self, places: set[int], role: str) -> str:
        return f"Not captured among the modules that {role}: {self._names(places)}." if places else ""

    def _apart(self, starts: Sequence[int], culprit: int) -> str:
        modules = {self._flow.calls[place].module for place in starts} - {self._flow.calls[culprit].module}
        others = [place for place in starts if self._flow.calls[place].module in modules]
        return f" Also affected in the same step, but not through it: {self._names(others)}." if others else ""

    def _names(self, places: Iterable[int]) -> str:
        names = list(dict.fromkeys(self._flow.calls[place].module or ROOT for place in sorted(places)))
        more = len(names) - _NAMED
        return " and ".join(names[:_NAMED] if more <= 0 else [", ".join(names[:_NAMED]), f"{more} more"])


class _Step:
    """The known state of each call in one step, in one direction."""

    def __init__(self, feeding: Feeding, bad: set[int], present: set[int], kinds: tuple[Kind, Kind]) -> None:
        self._feeding, self._bad, self._present = feeding, bad, present
        self._result, self._given = kinds  # the kind that a call passes on, and the other one
        self._is_backward = kinds != _OUTPUTS

    def is_bad(self, place: int) -> bool:
        """Whether a tensor of this call was bad."""
        return any(number in self._bad for kind in (self._result, self._given) for number in self._of(place, kind))

    def is_same(self, place: int) -> bool:
        """Whether its bad tensor is that of a call inside."""
        return any(map(self.is_bad, self._feeding.returned(place)))

    def number_of(self, place: int) -> int:
        """Return the tap to blame: of the forward pass the input, if it was bad already."""
        kinds = (self._result, self._given) if self._is_backward else (self._given, self._result)
        return next(number for kind in kinds for number in self._of(place, kind) if number in self._bad)

    def nearest(self, place: int) -> tuple[set[int], set[int]]:
        """Return the nearest captured calls before it in this direction, and those on the way that were not."""
        found, unseen, seen = set[int](), set[int](), {place}
        waiting = list(self._feeding.before(place, self._is_backward))
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            holder = self._feeding.holder(at)
            if self._is_known(at):
                found.add(at)
            elif holder is not None and holder != place and self._is_known(holder):
                found.add(holder)
            else:
                unseen.add(at)
                waiting += self._feeding.before(at, self._is_backward)
        return found, unseen

    def _is_known(self, place: int) -> bool:
        return any(number in self._present for number in self._of(place, self._result))

    def _of(self, place: int, kind: Kind) -> list[int]:
        return self._feeding.numbers(place, kind)


def fitting(flows: Sequence[Flow], taps: Sequence[Tap], present: Collection[int]) -> Flow | None:
    """Return the newest of the flows whose calls are most like those of a step."""
    if len(flows) < 2:
        return flows[0] if flows else None
    about = {*_OUTPUTS, *_GRADIENTS}
    calls = {(tap.module, tap.call, tap.phase) for tap in map(taps.__getitem__, present) if tap.kind in about}
    tapped = {(tap.module, tap.call, tap.phase) for tap in taps if tap.kind in about}
    return min(reversed(flows), key=lambda flow: len(calls ^ (_places(flow).keys() & tapped)))


def _places(flow: Flow) -> dict[tuple[str, int, str], int]:
    return {(call.module, call.call, call.phase): place for place, call in enumerate(flow.calls)}
