"""Fills the store of a run from ClickHouse: with all of it, or with the newest steps before a past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hookcore.delivery.archive import load_frames, load_into
from hookcore.store import Store

from ..record import Extent, StoredRun, begin_of_newest, steps_before
from ..runpast import RunPast

WHOLE_ROWS: Final = 2_000_000  # of a run that is read completely
WINDOW_ROWS: Final = 1_000_000  # of the newest steps of a longer one
WINDOW_FRAMES: Final = 10_000  # of these, since small frames take most of the time: about 0.4 ms each
MIN_FRAMES: Final = 1024  # of each of several ranks: what rules look at
LOOKS: Final = "Findings, incidents, and counts of non-finite steps"
SEES_ALL: Final = "Series, heatmaps, histograms, and events have all steps."


def fill(store: Store, past: RunPast, stored: StoredRun, rows: int) -> str:
    """Fill a store, and give it its past. Return what doesn't begin with the run, in a sentence, or nothing."""
    if rows <= WHOLE_ROWS:
        load_into(store, stored)
        store.recall_from(past)
        return ""
    stored.first, step = begin_of_newest(stored.shard, stored.run, stored.last, WINDOW_ROWS, WINDOW_FRAMES)
    earlier, captured = steps_before(stored.shard, stored.run, step)
    store.announce(stored.taps())
    store.describe(stored.modules(), stored.coverage(), stored.hooks())
    if earlier.first is not None and earlier.newest is not None:
        latest = past.latest(len(stored.taps()), (earlier.first, earlier.newest))
        store.begin_after(earlier, captured, stored.scalars(), latest)
    for event in stored.earlier_events():
        store.add_event(event)
    store.recall_from(past)
    load_frames(store, stored)
    return said_of(step)


def said_of(step: int) -> str:
    """Return what of a long run begins at a step, in sentences."""
    return f"This run is long: {LOOKS[0].lower()}{LOOKS[1:]} cover steps from {step:,} on. {SEES_ALL}"


def limit(attempts: Sequence[Sequence[tuple[StoredRun, Extent]]]) -> int | None:
    """Limit what is read of all ranks, if there is too much. Return the step at which that begins; None for all.

    Each attempt of the training has runs of its ranks. Left are the newest steps of the newest one, and of those before
    only their last step, because the steps of the next one continue from there.
    """
    if sum(extent.rows for here in attempts for _, extent in here) <= WHOLE_ROWS:
        return None
    *earlier, newest = attempts
    begin = sum(_keep_last_step(here) + 1 for here in earlier)
    ranks = [stored for stored, extent in newest if extent.newest >= 0]
    if ranks and sum(extent.rows for _, extent in newest) > WHOLE_ROWS:
        share = WINDOW_ROWS // len(ranks), max(WINDOW_FRAMES // len(ranks), MIN_FRAMES)
        step = max(begin_of_newest(each.shard, each.run, each.last, *share)[1] for each in ranks)
        begin += step
        for each in ranks:
            each.first = each.first_at(step)
    return begin


def _keep_last_step(ranks: Sequence[tuple[StoredRun, Extent]]) -> int:
    """Leave only the last step of an attempt. Return which one that is; -1 if it has none."""
    newest = max(extent.newest for _, extent in ranks)
    for stored, extent in ranks:
        stored.last = extent.last
        stored.first = extent.newest_at if extent.newest == newest else extent.last + 1
    return newest
