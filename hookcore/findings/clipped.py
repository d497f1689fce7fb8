"""Gradients whose norm is the same number in every step, because each of them is clipped."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import SPARK, Finding
from hookcore.findings.loss import last_output
from hookcore.findings.rules import RULES, limits_of
from hookcore.store import Store, TapList

RULE: Final = "gradient-clipped-always"
_FEW: Final = 3  # captured steps that show that the norm varies
_OWN_CHANGE: Final = 1e-3  # by which the norm of a single gradient must change: else the gradient itself is constant

Floats = NDArray[np.float64]


def find_clipped(store: Store, taps: TapList, gradients: TapList) -> list[Finding]:
    """Return a note if the norm of all gradients of parameters together stays the same although each of them varies.

    If only some of the gradients that are clipped together are captured, their norm varies, so there is no note.
    """
    limits = limits_of(store, RULE)
    begin = store.captured_step(int(limits["among"]) - 1)
    if len(gradients.taps) < 2 or begin is None:
        return []
    same = limits["same"]
    newest = _norms_of_each(store, gradients, store.captured_step(_FEW - 1))[1]
    if len(newest) < _FEW or np.ptp(newest) > same * newest.max() * _FEW:
        return []  # most looks end here; one step in a while may be below the limit
    steps, totals, each = _norms_of_each(store, gradients, begin)
    if len(totals) < limits["captured_steps"]:
        return []
    usual = float(np.median(totals))
    alike = np.abs(totals - usual) <= same * usual
    varies = np.nanmax(each, axis=0) - np.nanmin(each, axis=0) > _OWN_CHANGE * np.nanmax(each, axis=0)
    if not usual > 0 or alike.mean() < limits["share"] or not varies.any():
        return []
    place = taps.fact(last_output)
    message = (
        f"the norm of all gradients was {usual:.4g} in {int(alike.sum())} of the newest {len(totals)} captured steps: "
        "each of them is clipped"
    )
    since = int(steps[np.flatnonzero(alike)[0]])
    about = "norm", usual, float("nan"), since, None, message, tuple(totals[-SPARK:].tolist()), 0
    return [Finding(RULE, RULES[RULE].severity, int(taps.numbers[place]), taps.taps[place], *about)]


def _norms_of_each(store: Store, gradients: TapList, first: int | None) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the steps with finite gradients, the norm of all together, and that of each; merged steps are left out."""
    rows = store.rows(gradients.numbers, "norm", first)
    whole = (rows.first == rows.last) & (rows.present > 0).any(axis=1) & (rows.nonfinite == 0).all(axis=1)
    each = rows.mean[whole]
    return rows.first[whole], np.sqrt(np.nansum(each**2, axis=1)), each
