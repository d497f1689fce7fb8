"""The page Histograms: a wall of layers, each with its histograms over steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hookcore.reading import answers
from hookcore.records import KINDS, Kind

from ..analysis.modulerows import types_of
from ..analysis.selection import finder_of
from ..runs import Run
from .page import FindText, RunPage

MAX_TILES: Final = 200  # shown until the page's script runs
SHOWN: Final = ("mean", "std", "min", "max", "zero_fraction")
SORTS: Final = {"model": "model order", "zero": "zero share", "spread": "spread", "drift": "drift", "bad": "non-finite"}
RANGES: Final = {"own": "per layer", "shared": "shared"}
SIZES: Final = {"s": "small", "m": "medium", "l": "large"}
VIEWS: Final = {"map": "over steps", "ridges": "ridges", "bars": "one step"}
CHOICES: Final = {"sort": SORTS, "range": RANGES, "size": SIZES, "view": VIEWS}


@dataclass(frozen=True, slots=True)
class Tile:
    """A layer: its newest values, until the script draws its histograms."""

    tap: answers.Tap
    type: str
    first_step: int  # another one than `step` if the values are means of merged steps
    step: int
    values: dict[str, float]  # by the names in SHOWN
    nonfinite: int


def tiles_of(
    run: Run, kind: Kind, text: str, first: int | None = None, last: int | None = None
) -> tuple[list[Tile], int]:
    """Return the first layers that match the find box, in the model's order, and the number of all that match.

    They have their newest values in these steps.
    """
    reader, fits = run.reader, finder_of(run, text).fits
    latest = reader.latest(kind=kind, first=first, last=last, limit=max(1, len(reader.taps().taps)))
    types, column = types_of(reader), {name: place for place, name in enumerate(latest.stats)}
    order = {path: place for place, path in enumerate(types)}
    fitting = [tap for tap in latest.taps if fits(tap.module)]
    tiles = [
        Tile(
            tap,
            types.get(tap.module, ""),
            tap.first_step,
            tap.step,
            {name: float(tap.values[column[name]]) for name in SHOWN},
            int(tap.values[column["nonfinite"]]),
        )
        for tap in sorted(fitting, key=lambda tap: order.get(tap.module, len(order)))[:MAX_TILES]
    ]
    return tiles, len(fitting)


@dataclass(frozen=True, kw_only=True)
class HistogramsPage(RunPage):
    """A wall of layers. Invalid query parameters fall back to defaults."""

    name = "histograms"

    kind: str = "output"
    f: FindText = ""

    def values(self) -> dict[str, Any]:
        """Return the layers, and how they are shown."""
        given = {"size": "m", **self.request.query_params}
        chosen = next((each for each in KINDS if each == self.kind), KINDS[0])
        tiles, total = tiles_of(self.run, chosen, self.f, *self.values_in)
        return {
            "kind": chosen,
            "choices": CHOICES,
            "asked": {name: given[name] if given.get(name) in of else next(iter(of)) for name, of in CHOICES.items()},
            "tiles": tiles,
            "total": total,
        }
