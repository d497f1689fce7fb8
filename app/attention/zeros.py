"""Outputs that are nothing but zeros."""

from __future__ import annotations

import numpy as np

from hookcore.store import Store, TapList
from hookcore.store.rows import Rows

from .findings import RULES, SPARK, WINDOW, Finding


def find_dead(store: Store, outputs: TapList) -> list[Finding]:
    """Every output that was zero throughout the recent steps."""
    steps, rule = store.steps(), RULES["dead"]
    newest = steps.newest
    if newest is None or not len(outputs.taps):
        return []
    rows = store.rows(outputs.numbers, "zero_fraction", max(0, newest - int(rule.limits["steps"]) + 1))
    seen = rows.present > 0
    alive = seen & ~(rows.low >= rule.limits["zero_fraction"])  # what is not finite is not dead either
    places = np.flatnonzero(~alive.any(axis=0) & (rows.present.sum(axis=0) >= rule.limits["least_seen"]))
    if not len(places):
        return []
    begin = max(0, newest - WINDOW + 1)
    longer = store.rows(outputs.numbers[places], "zero_fraction", begin)
    is_cut = begin > (steps.first or 0)
    return [_told(outputs, place, lane, longer, is_cut) for lane, place in enumerate(places.tolist())]


def _told(outputs: TapList, place: int, lane: int, rows: Rows, is_cut: bool) -> Finding:
    rule = RULES["dead"]
    seen = rows.present[:, lane] > 0
    low, firsts = rows.low[seen, lane], rows.first[seen]
    alive = np.flatnonzero(~(low >= rule.limits["zero_fraction"]))
    begun = int(alive[-1]) + 1 if len(alive) else 0
    since = int(firsts[min(begun, len(firsts) - 1)])
    message = f"every value of the output is zero since step {since}" + (" or earlier" if is_cut and not begun else "")
    spark = tuple(low[np.isfinite(low)][-SPARK:].tolist())
    usual = float(low[alive[-1]]) if len(alive) else float("nan")
    number, tap = int(outputs.numbers[place]), outputs.taps[place]
    value = float(low[-1])
    return Finding("dead", rule.severity, number, tap, "zero_fraction", value, usual, since, None, message, spark, 0)
