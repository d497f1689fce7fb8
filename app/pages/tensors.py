"""The pages Tensors, Media, and Histograms: what was kept of a run besides numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from hookcore.delivery.dashboard.private import parsed
from hookcore.reading import Reader, answers
from hookcore.reading.answers import Media, Snapshot
from hookcore.records import KINDS, TENSOR_KINDS
from hookcore.records.vocabulary import FIGURE_TYPE, IMAGE_TYPES, MAX_MEDIA_BYTES, TABLE_TYPE, TEXT_TYPE
from hookcore.store import STAT_NAMES

from ..analysis.modules import finder_of, types_of, why_uncaptured
from ..analysis.tiles import MAX_VALUES, statistics_of
from ..runs import Run
from ..runs.answering import taps_of_all_values
from .page import FindText, RowNumber, RunPage, TablePage
from .views.span import ALL, Shared, Span

# The page Tensors: the list of snapshots, a view of one of them, and a form to request another.

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
    found = [snapshot for snapshot in run.reader.snapshots() if finder.fits(snapshot.tap.module)]
    return sorted(found, key=lambda each: -each.step)  # within a step, in the order of the requests


def shown_of(reader: Reader, number: int | None) -> Shown | None:
    """Return one snapshot to show."""
    found = next((snapshot for snapshot in reader.snapshots() if snapshot.number == number), None)
    if found is None:
        return None
    values = reader.tensor(found.number)
    part = ",".join(["0"] * (values.ndim - 2))
    cells = values[(0,) * max(0, values.ndim - 2)] if values.size else None
    drawn = cells is not None and 0 < cells.size <= MAX_VALUES
    return Shown(found.number, found.tap.record.words, found, part if drawn else "-", statistics_of(values))


def are_alike(one: Snapshot | None, other: Snapshot) -> bool:
    """Return whether the same view fits both."""
    if one is None or len(one.kept_shape) != len(other.kept_shape):
        return False
    return one.kept_shape[-2:] == other.kept_shape[-2:]


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
    parts = ("kept",)

    snapshot: str = ""
    beside: str = ""  # the snapshot that it is compared with
    f: FindText = ""
    row: RowNumber = 0

    @cached_property
    def kept(self) -> list[Snapshot]:
        """The snapshots that match the find box."""
        return kept_of(self.run, self.f)

    @property
    def number(self) -> int | None:
        """The number in the address."""
        text = self.snapshot
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None

    @property
    def chosen(self) -> int | None:
        """The number of the snapshot to show."""
        nearest = nearest_of(self.kept, self.span) if self.number is None else None
        return self.number if nearest is None else nearest.number

    def values(self) -> dict[str, Any]:
        """Return the snapshot to show, and what a form for another one needs."""
        if self.part:
            return {}
        query = self.request.query_params
        return {
            "shown": shown_of(self.run.reader, self.chosen),
            "modules": [each.path for each in self.run.reader.coverage()[:MAX_MODULES]],
            "wanted": {"module": query.get("module", ""), "kind": query.get("kind", TENSOR_KINDS[0])},
        }

    def part_kept(self) -> dict[str, Any]:
        """Return the snapshots on this page of their list."""
        every = self.run.reader.snapshots()
        table = TablePage.at(self.row, MAX_SHOWN, len(self.kept))
        chosen = next((each for each in every if each.number == self.chosen), None)
        return {
            "kept": [(each.tap.record.words, each, are_alike(chosen, each)) for each in table.cut(self.kept)],
            "kept_total": len(every),
            "table": table,
            "chosen": None if chosen is None else chosen.number,
        }


# The page Media: images, texts, tables, and figures that the script logged, next to their steps.

NAMES_A_PAGE: Final = 50
MAX_STEPS: Final = 12  # of a name, to choose from
MAX_LETTERS: Final = 20_000
MAX_ROWS: Final = 100
MEDIA_KINDS: Final = {
    **dict.fromkeys(IMAGE_TYPES, "image"),
    TEXT_TYPE: "text",
    TABLE_TYPE: "table",
    FIGURE_TYPE: "figure",
}


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table as far as it is shown."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    total: int | None  # of the rows that were logged; None if the trainer doesn't say it


@dataclass(frozen=True, slots=True)
class Item:
    """The item of a name that is shown, and its neighbors."""

    name: str
    number: int
    step: int
    kind: str
    cut: bool
    text: str = ""
    whole: bool = True  # whether all of a text is shown
    table: ShownTable | None = None
    steps: tuple[int, ...] = ()  # of this name, the newest ones, ascending
    count: int = 0  # of this name


Named = dict[str, list[Media]]


def items_of(reader: Reader, first: int | None, last: int | None) -> tuple[Named, Named]:
    """Return the items of each name in these steps, and in all steps."""
    inside: Named = {}
    named: Named = {}
    for medium in reader.media():
        named.setdefault(medium.name, []).append(medium)
        if (first is None or medium.step >= first) and (last is None or medium.step <= last):
            inside.setdefault(medium.name, []).append(medium)
    return inside, named


def _item(reader: Reader, found: Media, every: Sequence[Media]) -> Item:
    steps = tuple(each.step for each in every)
    kind = MEDIA_KINDS.get(found.type, "")
    text, whole, table = "", True, None
    if kind == "text":
        text = reader.media_content(found.number).decode("utf-8", "replace")
        whole = len(text) <= MAX_LETTERS
        text = text[:MAX_LETTERS]
    elif kind == "table":
        table = _table(reader.media_content(found.number))
    near = tuple(dict.fromkeys(steps))[-MAX_STEPS:]
    return Item(
        found.name,
        found.number,
        found.step,
        kind if kind != "table" or table else "",
        found.cut,
        text,
        whole,
        table,
        near,
        len(steps),
    )


def _table(data: bytes) -> ShownTable | None:
    """Return a table; None if a trainer sent something else, or more than `watcher.log_table` does."""
    if len(data) > MAX_MEDIA_BYTES:
        return None
    try:
        said = parsed(data)
        rows = tuple(tuple("" if cell is None else str(cell) for cell in row) for row in said["rows"][:MAX_ROWS])
        total = said.get("total")
        return ShownTable(tuple(map(str, said["columns"])), rows, total if isinstance(total, int) else None)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True, kw_only=True)
class MediaPage(RunPage):
    """The newest item of each name in the steps that the page is about."""

    name = "media"
    parts = ("items",)

    row: RowNumber = 0

    @property
    def usual(self) -> Shared:
        """All steps, because media are seldom."""
        return Shared(ALL)

    def part_items(self) -> dict[str, Any]:
        """Return the newest item of each name on this page of names, and how many were lost."""
        reader = self.run.reader
        inside, named = items_of(reader, *self.values_in)
        table = TablePage.at(self.row, NAMES_A_PAGE, len(inside))
        items = [_item(reader, inside[name][-1], named[name]) for name in table.cut([*inside])]
        dropped = self.run.store.usage().dropped
        lost = dropped.get("media_dropped", 0) + dropped.get("media_refused", 0)
        return {
            "items": items,
            "table": table,
            "names_total": len(named),
            "media_lost": lost,
        }


# The page Histograms: a wall of layers.

TILES: Final = 200  # on one page
LETTERS: Final = {"s": 20, "m": 34, "l": 60}  # of a name that a tile has room for
SORTS: Final = {"model": "model order", "zero": "zero share", "spread": "spread", "bad": "NaN/Inf"}
SORTED_BY: Final = {"zero": "zero_fraction", "spread": "std", "bad": "nonfinite"}
RANGES: Final = {"own": "per layer", "shared": "shared"}
SIZES: Final = {"s": "small", "m": "medium", "l": "large"}
VIEWS: Final = {"map": "over steps", "bars": "one step"}
CHOICES: Final = {"sort": SORTS, "range": RANGES, "size": SIZES, "view": VIEWS}


@dataclass(frozen=True, kw_only=True)
class HistogramsPage(RunPage):
    """A wall of layers. Invalid query parameters fall back to defaults."""

    name = "histograms"
    parts = ("total", "title", "tiles")

    kind: str = "output"
    f: FindText = ""
    row: RowNumber = 0

    def values(self) -> dict[str, Any]:
        """Return the layers, and how they are shown."""
        given = {"size": "m", **self.request.query_params}
        asked = {name: given[name] if given.get(name) in of else next(iter(of)) for name, of in CHOICES.items()}
        kind = next((kind for kind in KINDS if kind == self.kind), KINDS[0])
        reader, fits, (first, last) = self.run.reader, finder_of(self.run, self.f).fits, self.values_in
        most = max(1, len(reader.taps().taps))
        newest = taps_of_all_values(reader.latest(kind=kind, limit=most))
        latest = reader.latest(kind=kind, first=first, last=last, limit=most)
        shown = newest if last is None else taps_of_all_values(latest)
        values, types = {tap.number: tap for tap in shown}, types_of(reader)
        places = {path: place for place, path in enumerate(types)}
        layers = sorted(
            (tap for tap in newest if fits(tap.module)), key=lambda tap: places.get(tap.module, len(places))
        )
        if asked["sort"] in SORTED_BY:
            layers.sort(key=lambda tap: _least_last(values.get(tap.number), SORTED_BY[asked["sort"]]))
        table = TablePage.at(self.row, TILES, len(layers))
        return {
            "kind": kind,
            "choices": CHOICES,
            "asked": asked,
            "letters": LETTERS[asked["size"]],
            "table": table,
            "tiles": table.cut(layers),
            "many": len(newest),
            "values_of": values,
            "types": types,
            "column": {name: place for place, name in enumerate(STAT_NAMES)},
            "why": why_uncaptured(self.run.store, kind, self.run.state == "live", first, last),
        }


def _least_last(tap: answers.LatestTap | None, stat: str) -> float:
    """Return a key by which the largest value comes first, and one that is unknown last."""
    value = float("nan") if tap is None else float(tap.values[STAT_NAMES.index(stat)])
    return math.inf if math.isnan(value) else -value
