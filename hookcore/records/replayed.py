"""What the replay of a saved step measured of each layer, as the compact text of an event."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

EXPLAINED: Final = "explained"  # the event with the operator and the line that a replay found
REPLAYED: Final = "replayed"  # the event with the layers of the replayed step
MEASURED: Final = ("count", "nan", "inf", "zero", "mean", "std", "min", "max", "rms", "norm")
MAX_LAYERS: Final = 64
_MAX_TEXT: Final = 15_000  # characters


@dataclass(frozen=True, slots=True)
class ReplayedTap:
    """One tensor of a replayed step: an activation, or its gradient. `values` are those of MEASURED."""

    module: str
    kind: str
    index: str
    call: int
    values: tuple[float, ...]

    @property
    def is_bad(self) -> bool:
        """Whether it had a NaN or an infinity."""
        return self.values[1] > 0 or self.values[2] > 0


def packed(taps: Iterable[ReplayedTap]) -> str:
    """Return tensors as a text, without the last ones if it were too long."""
    rows: list[str] = []
    used = 2
    for tap in list(taps)[:MAX_LAYERS]:
        values = [float(f"{each:.6g}") if math.isfinite(each) else None for each in tap.values]
        row = json.dumps([tap.module, tap.kind, tap.index, tap.call, *values], separators=(",", ":"))
        used += len(row) + 1
        if used > _MAX_TEXT:
            break
        rows.append(row)
    return f"[{','.join(rows)}]"


def unpacked(text: Any) -> list[ReplayedTap]:
    """Return the tensors of such a text; none if it is anything else."""
    try:
        return [_tap(*row) for row in json.loads(text)[:MAX_LAYERS]]
    except (TypeError, ValueError, RecursionError):
        return []


def _tap(module: str, kind: str, index: str, call: int, *values: float | None) -> ReplayedTap:
    known = tuple(math.nan if each is None else float(each) for each in values)
    if kind not in ("output", "output_grad") or len(known) != len(MEASURED):
        raise ValueError(kind)
    return ReplayedTap(str(module), kind, str(index), int(call), known)
