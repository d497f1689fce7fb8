"""Fills the store of a run from ClickHouse: with all of it, or with the newest steps before a past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hookcore.archive import load_frames, load_into
from hookcore.store import Store

from ..clickhouse.past import RunPast
from ..clickhouse.record import StoredRun, begin_of_newest, extent_of, steps_before

WHOLE_ROWS: Final = 2_000_000  # of a run that is read completely
WINDOW_ROWS: Final = 1_000_000  # of the newest steps of a longer one
LOOKS: Final = "Findings, incidents, and counts of non-finite steps"
SEES_ALL: Final = "Series, heatmaps, histograms, and events have all steps."


def fill(store: Store, past: RunPast, stored: StoredRun, rows: int) -> str:
    """Fill a store, and give it its past. Return what doesn't begin with the run, in a sentence, or nothing."""
    if rows <= WHOLE_ROWS:
        load_into(store, stored)
        store.past = past
        return ""
    stored.first, step = begin_of_newest(stored.shard, stored.run, stored.last, WINDOW_ROWS)
    earlier, captured = steps_before(stored.shard, stored.run, step)
    store.announce(stored.taps())
    store.describe(stored.modules(), stored.coverage(), stored.hooks())
    if earlier.first is not None and earlier.newest is not None:
        latest = past.latest(len(stored.taps()), (earlier.first, earlier.newest))
        store.begin_after(earlier, captured, stored.scalars(), latest)
    for event in stored.earlier_events():
        store.add_event(event)
    store.past = past
    load_frames(store, stored)
    return f"This run is long: {LOOKS[0].lower()}{LOOKS[1:]} look at steps {step:,} and later. {SEES_ALL}"


def limit(ranks: Sequence[StoredRun]) -> str:
    """Limit what is added up of all ranks to the newest steps, if there is too much. Return what that leaves out."""
    total = sum(extent_of(each.shard, each.run, each.last).rows for each in ranks)
    if total <= WHOLE_ROWS:
        return ""
    share = WINDOW_ROWS // len(ranks)
    step = max(begin_of_newest(each.shard, each.run, each.last, share)[1] for each in ranks if each.last >= 0)
    for each in ranks:
        each.first = each.first_at(step)
    return f"This run is long: the sum of all ranks begins at step {step:,}. The runs of the ranks have all steps."
