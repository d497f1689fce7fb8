"""The drawer's facts about a layer. Reads, never draws."""

from __future__ import annotations

from hookcore.reading import Reader, answers
from hookcore.reading.answers import Model, ModelBox, Snapshot
from hookcore.records import Phase, Tap
from hookcore.store import TapList


def box_of(model: Model, module: str, call: int, phase: str) -> ModelBox | None:
    """Return the box of a call of a module, or of the module."""
    boxes = [box for box in model.boxes if box.module == module and box.kind != "repeat"]
    exact = (box for box in boxes if (box.call, box.phase) == (call, phase))
    return next(exact, boxes[0] if boxes else None)


def call_of(taps: TapList, call: int, phase: Phase) -> TapList:
    """Return the taps of one call of a module, and of the module's parameters."""
    return taps.at([place for place, tap in enumerate(taps.taps) if _belongs(tap, call) and _is_in(tap, phase)])


def snapshots_of(reader: Reader, module: str, call: int) -> list[Snapshot]:
    """Return the snapshots of a call's tensors and of the module's parameters, newest step first."""
    found = [each for each in reader.snapshots() if each.tap.module == module and _belongs(each.tap, call)]
    return sorted(found, key=lambda each: -each.step)


def _belongs(tap: Tap | answers.Tap, call: int) -> bool:
    return _is_of_parameters(tap) or tap.call == call


def _is_in(tap: Tap, phase: Phase) -> bool:
    return _is_of_parameters(tap) or tap.phase == phase


def _is_of_parameters(tap: Tap | answers.Tap) -> bool:
    return tap.kind.startswith(("param", "update"))
