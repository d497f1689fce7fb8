"""The page Media: images, texts, tables, and figures that the script logged, next to their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from hookcore.delivery.dashboard.foreign import parsed
from hookcore.reading import Reader
from hookcore.reading.answers import Media
from hookcore.records.vocabulary import FIGURE_TYPE, IMAGE_TYPE, MAX_MEDIA_BYTES, TABLE_TYPE, TEXT_TYPE

from .page import RowNumber, RunPage, TablePage
from .views.span import ALL, Shared

NAMES_A_PAGE: Final = 50
MAX_STEPS: Final = 12  # of a name, to choose from
MAX_LETTERS: Final = 20_000
MAX_ROWS: Final = 100
KINDS: Final = {IMAGE_TYPE: "image", TEXT_TYPE: "text", TABLE_TYPE: "table", FIGURE_TYPE: "figure"}


@dataclass(frozen=True, slots=True)
class Table:
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
    table: Table | None = None
    steps: tuple[int, ...] = ()  # of this name, the newest ones, ascending
    count: int = 0  # of this name


Named = dict[str, list[Media]]


def items_of(reader: Reader, first: int | None, last: int | None) -> tuple[Named, Named]:
    """Return the items of each name in these steps, and in all steps."""
    inside: Named = {}
    named: Named = {}
    for each in reader.media():
        named.setdefault(each.name, []).append(each)
        if (first is None or each.step >= first) and (last is None or each.step <= last):
            inside.setdefault(each.name, []).append(each)
    return inside, named


def _item(reader: Reader, found: Media, every: Sequence[Media]) -> Item:
    steps = tuple(each.step for each in every)
    kind = KINDS.get(found.type, "")
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


def _table(data: bytes) -> Table | None:
    """Return a table; None if a trainer sent something else, or more than `watcher.log_table` does."""
    if len(data) > MAX_MEDIA_BYTES:
        return None
    try:
        said = parsed(data)
        rows = tuple(tuple("" if cell is None else str(cell) for cell in row) for row in said["rows"][:MAX_ROWS])
        total = said.get("total")
        return Table(tuple(map(str, said["columns"])), rows, total if isinstance(total, int) else None)
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
