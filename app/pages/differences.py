"""The page Differences: which layers and logged values differ most in the steps that are shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final

import numpy as np
from fastapi import Query
from numpy.typing import NDArray

from hookcore.reading.answers import DifferentLayer
from hookcore.records import KINDS
from hookcore.records.vocabulary import ELAPSED
from hookcore.store.unlike import Sample

from ..analysis.different import Side, what_differs
from ..analysis.selection import finder_of
from ..runs import JointRun, Run
from .frame import address_of, ranks_to_pick
from .page import FindText, RunPage, Short
from .views.overview import layer_address
from .views.span import range_in

MAX_LAYERS: Final = 30
MAX_BINS: Final = 60
WIDTH: Final = 240.0  # of a drawing, in its own units
HEIGHT: Final = 80.0


@dataclass(frozen=True, slots=True)
class Drawn:
    """A layer, with its two histograms as outlines of the same total area."""

    layer: DifferentLayer
    address: str
    inside: str
    outside: str
    zero: float | None  # where zero is between the ends; None if it isn't


@dataclass(frozen=True, kw_only=True)
class DifferencesPage(RunPage):
    """The steps in the address, as on the other pages, against others. Invalid parameters fall back to defaults."""

    name = "differences"
    parts = ("result",)

    kind: Short = ""
    f: FindText = ""
    other: Annotated[str, Query(max_length=200, description="another run; empty: the same")] = ""
    beside: Annotated[str, Query(max_length=50, description='the other steps, such as "0-99"; empty: all others')] = ""

    def values(self) -> dict[str, Any]:
        """Return the choices, and problems with them."""
        ranks = ranks_to_pick(self.run, self.name)
        own = {self.run.id, *(link.run for link in ranks.links)} if ranks else {self.run.id}
        candidates = [each for each in self.runs.all() if each.id not in own]
        return {
            "candidates": candidates,
            "listed": own | {each.id for each in candidates},
            "chosen": self.compared,
            "chosen_name": name_of(self.compared) if self.compared is not None else "",
            "missing": self.other if self.other and self.compared is None and self.other != self.run.id else "",
            "unread": self.beside if self.beside and range_in(self.beside) is None else "",
        }

    @cached_property
    def compared(self) -> Run | None:
        """The other run; None if this one is compared with itself."""
        return self.runs.find(self.other) if self.other and self.other != self.run.id else None

    def part_result(self) -> dict[str, Any]:
        other = self.compared
        name = name_of(other) if other is not None else ""
        return {"chosen_name": name, "result": self._result(other), "elapsed": ELAPSED, "split": self._split()}

    def _split(self) -> tuple[int, str] | None:
        """Return the held step, and the address that compares the steps from it on with those before it."""
        span, known = self.span, self.run.reader.steps()
        if span is None or span.step is None or known.first is None or known.newest is None or span.step <= known.first:
            return None
        steps, beside = f"{span.step}-{known.newest}", f"{known.first}-{span.step - 1}"
        address = address_of(self.run, self.name, steps=steps, beside=beside, kind=self.kind, f=self.f)
        return span.step, f"{address}&step="  # no longer held

    def _result(self, other: Run | None) -> dict[str, Any] | None:
        span, known = self.span, self.run.reader.steps()
        if span is None or known.first is None or known.newest is None:
            return None
        first, last = (span.first, span.last) if span.step is None else (span.step, span.step)
        beside = range_in(self.beside)
        is_all = first <= known.first and last >= known.newest and other is None and beside is None
        if is_all:  # there would be nothing to compare with
            first = known.newest - (known.newest - known.first) // 10
        inside = self.run.store.sample(first, last)
        elsewhere = (other or self.run).store
        begin, end = beside or (None, None)
        rest = elsewhere.sample(begin, end, inside if elsewhere is self.run.store else None)
        kind = next((each for each in KINDS if each == self.kind), None)
        fits = finder_of(self.run, self.f).fits
        found = what_differs(Side(self.run.store, inside), Side(elsewhere, rest), fits, kind, MAX_LAYERS, MAX_BINS)
        return {
            "asked": (first, last),
            "is_tail": is_all,
            "reaches_further": _reaches_further(inside, first, last),
            "found": found,
            "drawn": [self._drawn(layer) for layer in found.layers if not layer.is_usual],
            "usual": sum(layer.is_usual for layer in found.layers),
            "most": MAX_LAYERS,
        }

    def _drawn(self, layer: DifferentLayer) -> Drawn:
        both = layer.inside, layer.outside
        top = max((float(each.max(initial=0) / max(1.0, each.sum())) for each in both), default=1.0)
        inside, outside = (outline(each, top) for each in both)
        negative = int(np.count_nonzero(layer.edges < 0))
        zero = WIDTH * (negative - 0.5) / len(layer.inside) if 0 < negative < len(layer.edges) else None
        return Drawn(layer, layer_address(self.run, layer.tap), inside, outside, zero)


def name_of(run: Run) -> str:
    """Return the name of a run among others. Ranks of one training may share a name, so theirs says the rank."""
    name, joint = run.name or run.id, run.joint
    if not isinstance(joint, JointRun):
        return name
    rank = next((each.place.rank for each in joint.members.values() if each.run is run), None)
    words = f"rank {rank:,}"
    return name if rank is None or name.endswith(words) else f"{name}, {words}"


def outline(counts: NDArray[np.float64], top: float) -> str:
    """Return the outline of a histogram as the path of a drawing. A bin as high as `top` fills it."""
    if not len(counts) or not counts.sum():
        return ""
    wide = WIDTH / len(counts)
    heights = HEIGHT - (HEIGHT - 2) * counts / counts.sum() / top
    steps = "".join(f"V{height:.2f}H{(place + 1) * wide:.2f}" for place, height in enumerate(heights.tolist()))
    return f"M0 {HEIGHT:g}{steps}V{HEIGHT:g}Z"


def _reaches_further(sample: Sample, first: int, last: int) -> bool:
    return sample.first is not None and sample.last is not None and (sample.first < first or sample.last > last)
