"""Which infinities are a model's own: those of a mask, which everything computed from them survives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, Kind

MAX_MASKS: Final = 10_000
LARGE: Final = 1e4  # infinities next to finite values of this size are an overflow
_FORWARD: Final = frozenset({"input", "output"})
_ENDS: Final = [STAT_COLUMN["min"], STAT_COLUMN["max"]]


def no_masks(stats: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which stats [tap, stat] of non-finite values can't be a mask's: they have NaN, or large values."""
    is_large: NDArray[np.bool_] = (np.abs(stats[:, _ENDS]) > LARGE).any(axis=1)
    return is_large | (stats[:, STAT_COLUMN["nan"]] > 0)


class Masks:
    """Tells the infinities that do no harm from those that break a model.

    Attention, routers, and policies mask with infinities. In such a step, nothing is NaN, and gradients and losses are
    finite. Taps that had such infinities once may have them again: when something breaks later, it isn't their fault.
    """

    def __init__(self) -> None:
        self.since: dict[int, int] = {}  # the taps with such infinities, and the first step of each

    def harmful(
        self,
        step: int,
        bad: Mapping[int, bool],
        fine: Callable[[], Iterable[int]],
        kind_of: Callable[[int], Kind],
        known: int,
    ) -> list[int]:
        """Return the taps that do harm among those with non-finite values.

        `bad` says which of them can't be a mask, as `no_masks` does. `fine()` are the finite taps of the
        step. Taps from the number `known` on are new: there was no step in which they were otherwise.
        """
        suspects = [number for number, no_mask in bad.items() if no_mask or number not in self.since]
        if not suspects or len(self.since) + len(suspects) > MAX_MASKS:
            return suspects
        if any(no_mask or kind_of(number) not in _FORWARD for number, no_mask in bad.items()):
            return suspects
        kinds = {number: kind_of(number) for number in fine()}
        survived = "param_grad" in kinds.values()
        if not survived and min(suspects) >= known:
            survived = max((number for number, kind in kinds.items() if kind == "output"), default=-1) > max(suspects)
        if survived:
            self.since |= dict.fromkeys(suspects, step)
        return [] if survived else suspects
