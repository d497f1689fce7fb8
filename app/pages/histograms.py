"""The page Histograms: a wall of layers, each with its histograms over steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hookcore.records import KINDS, Kind, Tap

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

    tap: Tap
    type: str
    first_step: int  # another one than `step` if the values are means of merged steps
    step: int
    values: dict[str, float]  # by the names in SHOWN
    nonfinite: int


def tiles_of(run: Run, kind: Kind, text: str, first: int | None = None, last: int | None = None) -> list[Tile]:
    """Return the layers that match the find box, with their newest values in these steps, in the model's order."""
    fits = finder_of(run, text).fits
    types = run.store.module_types()
    order = {path: place for place, path in enumerate(types)}
    latest = run.store.newest(kind, first=first, last=last)
    column = {name: place for place, name in enumerate(latest.stats)}
    bad = column["nonfinite"]
    tiles = [
        Tile(
            tap,
            types.get(tap.module, ""),
            int(since),
            int(step),
            {name: float(values[column[name]]) for name in SHOWN},
            int(values[bad]),
        )
        for tap, since, step, values in zip(latest.taps, latest.first_steps, latest.steps, latest.values, strict=True)
        if fits(tap.module)
    ]
    return sorted(tiles, key=lambda tile: order.get(tile.tap.module, len(order)))


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
        tiles = tiles_of(self.run, chosen, self.f, *self.values_in)
        return {
            "kind": chosen,
            "choices": CHOICES,
            "asked": {name: given[name] if given.get(name) in of else next(iter(of)) for name, of in CHOICES.items()},
            "tiles": tiles[:MAX_TILES],
            "total": len(tiles),
        }
