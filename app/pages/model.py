"""The page Model: the model as boxes with what flows between them, as a picture and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final

from fastapi import Query

from hookcore.reading import Reader
from hookcore.reading.answers import Model, ModelBox
from hookcore.records import KINDS, TENSOR_KINDS
from hookcore.store import STAT_NAMES, checks
from hookcore.store.incidents import Incident

from ..analysis.coverage import why_uncaptured
from ..analysis.selection import finder_of
from .overview import usual_kind
from .page import FindText, RowNumber, RunPage, Short, TablePage
from .views.model import box_id, flops_words, forms_words, incident_of

ROWS: Final = 50  # of the table on one page
SCALES: Final = ("log", "linear", "symlog")


def usual_color(reader: Reader) -> str:
    """Return the kind of the colors if the user chose none."""
    return "output" if any(tap.kind == "output" for tap in reader.taps().taps) else usual_kind(reader)


@dataclass(frozen=True, kw_only=True)
class ModelPage(RunPage):
    """The model as a picture."""

    name = "model"
    parts = ("onset", "why", "boxes")

    f: FindText = ""
    kind: Annotated[str, Query(max_length=50, description="the kind of the colors; empty: the usual one")] = ""
    stat: Short = ""
    row: RowNumber = 0

    @cached_property
    def model(self) -> Model:
        """The boxes, as they were in the steps of the page."""
        return self.run.reader.model(self.values_in[1])

    def values(self) -> dict[str, Any]:
        checks.require_kind(self.kind or None)
        if self.stat:
            checks.require("stat", self.stat, STAT_NAMES)
        known = {tap.kind for tap in self.run.reader.taps().taps}
        return {
            "usual_kind": usual_color(self.run.reader),
            "known_kinds": [each for each in KINDS if each in known],
            "shown_kinds": TENSOR_KINDS,
            "asked_stat": self.stat or "norm",
            "scales": SCALES,
        }

    def part_boxes(self) -> dict[str, Any]:
        fits = finder_of(self.run, self.f).fits
        boxes = [box for box in self._in_order() if fits(box.module)]
        table = TablePage.at(self.row, ROWS, len(boxes))
        return {
            "table": table,
            "boxes": table.cut(boxes),
            "learned": self.model.step,
            "why_unknown": self.model.why,
            "flops_words": flops_words,
            "forms_words": forms_words,
        }

    def part_why(self) -> dict[str, Any]:
        """Return why all boxes are gray, if they are."""
        kind = self.kind or usual_color(self.run.reader)
        return {"why_gray": why_uncaptured(self.run.store, kind, self.run.state == "live", *self.values_in)}

    def part_onset(self) -> dict[str, Any]:
        """Return the first incident of non-finite values, which the picture can show."""
        found: Incident | None = incident_of(self.run)
        is_placed = found is not None and found.culprit_known
        return {"onset": found, "onset_box": box_id(found.culprit.tap) if found is not None and is_placed else ""}

    def _in_order(self) -> list[ModelBox]:
        """Return the boxes but repeats, each before its parts."""
        found: list[ModelBox] = []
        waiting = list(reversed(self.model.parts))
        while waiting:
            box = self.model.boxes[waiting.pop()]
            if box.kind != "repeat":
                found.append(box)
            waiting += reversed(box.parts)
        return found
