"""The page Histograms: a wall of layers, each with its histograms over steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hookcore.records import KINDS

from ..analysis.modulerows import types_of
from ..analysis.selection import finder_of
from .page import FindText, RunPage

MAX_TILES: Final = 200  # shown until the page's script runs
SORTS: Final = {"model": "model order", "zero": "zero share", "spread": "spread", "drift": "drift", "bad": "non-finite"}
RANGES: Final = {"own": "per layer", "shared": "shared"}
SIZES: Final = {"s": "small", "m": "medium", "l": "large"}
VIEWS: Final = {"map": "over steps", "ridges": "ridges", "bars": "one step"}
CHOICES: Final = {"sort": SORTS, "range": RANGES, "size": SIZES, "view": VIEWS}


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
        reader, fits = self.run.reader, finder_of(self.run, self.f).fits
        first, last = self.values_in
        latest = reader.latest(kind=chosen, first=first, last=last, limit=max(1, len(reader.taps().taps)))
        types, fitting = types_of(reader), [tap for tap in latest.taps if fits(tap.module)]
        order = {path: place for place, path in enumerate(types)}
        return {
            "kind": chosen,
            "choices": CHOICES,
            "asked": {name: given[name] if given.get(name) in of else next(iter(of)) for name, of in CHOICES.items()},
            "tiles": sorted(fitting, key=lambda tap: order.get(tap.module, len(order)))[:MAX_TILES],
            "total": len(fitting),
            "types": types,
            "column": {name: place for place, name in enumerate(latest.stats)},
        }
