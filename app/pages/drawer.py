"""The drawer: one layer next to what the reader looks at. Only parts, which any page can show in its drawer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from fastapi import Query
from starlette.exceptions import HTTPException

from hookcore.records import KINDS, Phase

from ..analysis.modulerows import calls_of
from .page import PartsPage
from .tensors import nearest_of
from .views.layer import LayerView, box_of, call_of, layer_of, lines_of, placement_note, snapshots_of, values_of
from .views.model import flops_words, forms_words


@dataclass(frozen=True, kw_only=True)
class DrawerPage(PartsPage):
    """A module, or one of its calls."""

    name = "drawer"
    instead = "layer"
    parts = ("about", "numbers", "kept", "happened")

    module: Annotated[str, Query(max_length=1000)] = ""
    call: Annotated[int, Query(ge=0, le=2**31)] = 0
    phase: Annotated[Phase, Query()] = "train"

    def kept(self) -> dict[str, Any]:
        return {"module": self.module}

    @cached_property
    def layer(self) -> LayerView:
        """The module's facts."""
        found = layer_of(self.run.reader, self.module)
        if found is None:
            raise HTTPException(404, f"this run has no module {self.module[:200]!r}: reload the page")
        return found

    def values(self) -> dict[str, Any]:
        is_one_of_several = any(tap.call or tap.phase == "eval" for tap in self.layer.taps.taps)
        this = "this call" if is_one_of_several else "this layer"  # that its tensors are of
        return {"layer": self.layer, "this": this, "flops_words": flops_words, "forms_words": forms_words}

    def part_about(self) -> dict[str, Any]:
        box = box_of(self.run.reader.model(self.values_in[1]), self.module, self.call, self.phase)
        calls = calls_of(self.run.store, self.layer.taps, *self.values_in)[self.module]
        return {"box": box, "calls": calls, "placement_note": placement_note(self.run, self.layer)}

    def part_numbers(self) -> dict[str, Any]:
        taps = call_of(self.layer.taps, self.call, self.phase)
        rows = values_of(self.run.reader, taps, *self.values_in)
        return {"rows": sorted(rows, key=lambda row: KINDS.index(row.tap.kind))}

    def part_happened(self) -> dict[str, Any]:
        return {"lines": lines_of(self.run, self.module, *self.listed_in)}

    def part_kept(self) -> dict[str, Any]:
        """Return the snapshot of one of its tensors that is nearest to the steps of the page."""
        kept = nearest_of(snapshots_of(self.run.reader, self.module, self.call), self.span)
        first, last = self.values_in
        is_about = kept is None or first is None or last is None or first <= kept.step <= last
        return {"kept": kept, "is_about": is_about}
