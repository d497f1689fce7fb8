"""The page Tensors: the list of snapshots, a view of one of them, and a form to request another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hookcore.reading import Reader
from hookcore.reading.answers import Snapshot
from hookcore.records import TENSOR_KINDS

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


def kept_of(run: Run, text: str) -> list[Snapshot]:
    """Return the snapshots whose module matches the find box, newest step first."""
    finder = finder_of(run, text)
    found = [each for each in run.reader.snapshots() if finder.fits(each.tap.module)]
    return sorted(found, key=lambda each: -each.step)  # within a step, in the order of the requests


def shown_of(reader: Reader, number: int | None) -> Shown | None:
    """Return one snapshot to show."""
    found = next((each for each in reader.snapshots() if each.number == number), None)
    if found is None:
        return None
    values = reader.tensor(found.number)
    part = ",".join(["0"] * (values.ndim - 2))
    cells = values[(0,) * max(0, values.ndim - 2)] if values.size else None
    drawn = cells is not None and 0 < cells.size <= MAX_VALUES
    return Shown(found.number, found.tap.record.words, found, part if drawn else "-", statistics_of(values))


def nearest_of(kept: list[Snapshot], span: Span | None) -> Snapshot | None:
    """Return the snapshot nearest to the steps of a page, the newest of several; None without any."""
    first, last = (None, None) if span is None else span.values
    if not kept or first is None or last is None:
        return next(iter(kept), None)
    return min(kept, key=lambda each: max(first - each.step, each.step - last, 0))  # the newest step comes first


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
            "kept": [(each.tap.record.words, each) for each in kept[:MAX_SHOWN]],
            "kept_total": len(kept),
            "shown": shown_of(run.reader, nearest.number if number is None and nearest is not None else number),
            "is_nearest": number is None,
            "asked_for": number,
            "modules": [each.path for each in run.reader.coverage()[:MAX_MODULES]],
            "wanted": {"module": query.get("module", ""), "kind": query.get("kind", TENSOR_KINDS[0])},
        }
