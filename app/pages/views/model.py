"""Words about boxes for the page Model and the drawer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from hookcore.reading.answers import ModelBox, ModelTensor
from hookcore.records import Tap
from hookcore.store.incidents import NONFINITE, Incident

from ...runs import Run

_PLAIN: Final = "!'()*-._~"  # what encodeURIComponent leaves as it is, other than letters and digits
_UNITS: Final = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")


def flops_words(box: ModelBox) -> str:
    """Return the operations of a box: "1.2 GFLOP", "at least 1.2 GFLOP", or "unknown"."""
    if box.flops is None:
        return "unknown"
    size, unit = float(box.flops), 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size /= 1000
        unit += 1
    words = f"{size:.3g} {_UNITS[unit]}"
    return f"at least {words}" if box.flops_unknown else words


def forms_words(tensors: Sequence[ModelTensor]) -> str:
    """Return the shapes and dtypes of tensors, with their places if there are several."""
    places = [each.place if len(tensors) > 1 else "" for each in tensors]
    return ", ".join(
        " ".join(filter(None, (place, " \u00d7 ".join(map(str, each.shape)) or "one value", each.dtype)))
        for place, each in zip(places, tensors, strict=True)
    )


def incident_of(run: Run) -> Incident | None:
    """Return the first incident of non-finite values."""
    return next((each for each in run.store.incidents() if each.rule == NONFINITE), None)


def box_id(tap: Tap) -> str:
    """Return the name of a tap's box in the address of the page, as `idOf` in js/model/tree.js makes it."""
    call = f";{tap.call}" if tap.call and not tap.kind.startswith(("param", "update")) else ""
    return f"{quote(tap.module, safe=_PLAIN) or '.'}{call}{';e' if tap.phase == 'eval' else ''}"
