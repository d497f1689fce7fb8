"""The page Tensors: the list of snapshots, a view of one of them, and a form to request another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hookcore.records import TENSOR_KINDS, Snapshot
from hookcore.store import Store

from ..analysis.selection import finder_of
from ..analysis.tiles import statistics_of
from ..api.snapshots import MAX_VALUES
from ..runs import Run
from .page import FindText, RunPage
from .views.span import Span

MAX_SHOWN: Final = 300
MAX_MODULES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Shown:
    """A snapshot without scripts: its first matrix, and its facts."""

    number: int
    label: str
    snapshot: Snapshot
    part: str  # the part to show as an image; "-" if there is none
    statistics: dict[str, float]


def kept_of(run: Run, text: str) -> list[tuple[int, Snapshot]]:
    """Return the snapshots whose module matches the find box, newest step first."""
    finder = finder_of(run, text)
    found = [(number, each) for number, each in run.store.numbered_snapshots() if finder.fits(each.tap.module)]
    return sorted(found, key=lambda pair: -pair[1].step)  # within a step, in the order of the requests


def shown_of(store: Store, number: int | None) -> Shown | None:
    """Return one snapshot to show."""
    for each, snapshot in store.numbered_snapshots():
        if each == number:
            part = ",".join(["0"] * (snapshot.values.ndim - 2))
            cells = snapshot.values[(0,) * max(0, snapshot.values.ndim - 2)] if snapshot.values.size else None
            drawn = cells is not None and 0 < cells.size <= MAX_VALUES
            return Shown(each, snapshot.tap.words, snapshot, part if drawn else "-", statistics_of(snapshot.values))
    return None


def nearest_of(kept: list[tuple[int, Snapshot]], span: Span | None) -> int | None:
    """Return the number of the snapshot nearest to the steps of a page, the newest of several; None without any."""
    if not kept:
        return None
    first, last = (None, None) if span is None else span.values
    if first is None or last is None:
        return kept[0][0]

    def distance(pair: tuple[int, Snapshot]) -> int:
        return max(first - pair[1].step, pair[1].step - last, 0)

    return min(kept, key=distance)[0]  # the newest step comes first


@dataclass(frozen=True, kw_only=True)
class TensorsPage(RunPage):
    """The list of snapshots, and one of them. An invalid number is ignored."""

    name = "tensors"

    snapshot: str = ""
    f: FindText = ""

    def values(self) -> dict[str, Any]:
        """Return the snapshots, the one to show, and what a form for another one needs."""
        run, text = self.run, self.snapshot
        kept = kept_of(run, self.f)
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
        nearest = nearest_of(kept, self.span)
        query = self.request.query_params
        return {
            "kept": [(each, one.tap.words, one) for each, one in kept[:MAX_SHOWN]],
            "kept_total": len(kept),
            "shown": shown_of(run.store, nearest if number is None else number),
            "is_nearest": number is None,
            "asked_for": number,
            "modules": [module.path for module in run.store.modules()[:MAX_MODULES]],
            "wanted": {"module": query.get("module", ""), "kind": query.get("kind", TENSOR_KINDS[0])},
        }
