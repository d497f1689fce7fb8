"""Conversion of parcels to batches, and of error answers to sentences."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

from hookcore.delivery.http.fitting import fitted, fitted_frame
from hookcore.delivery.http.parcels import Entry, Parcel
from hookcore.records import Frame
from hookcore.records.wire import Batch, FrameItem, Item, RunInfo, SnapshotItem, frame_item, snapshot_item

MAX_SENTENCE = 500


def batch_of(parcel: Parcel, run: RunInfo, commands_done: int) -> Batch:
    """Return the batch for a parcel."""
    items: list[Item] = [_item(entry) for entry in parcel.entries]
    if parcel.end is not None:
        items.append(parcel.end)
    return Batch(
        run=run,
        taps_from=parcel.taps_from,
        taps=parcel.taps,
        description=parcel.description,
        items=tuple(items),
        counters=parcel.counters,
        commands_done=commands_done,
        retained=parcel.retained,
    )


def _item(entry: Entry) -> FrameItem | SnapshotItem:
    if isinstance(entry.record, Frame):
        return frame_item(entry.number, fitted_frame(entry.record))
    return snapshot_item(entry.number, replace(entry.record, tap=fitted(entry.record.tap)))


def sentence_of(body: bytes) -> str:
    """Return the error in an answer, with a leading colon, or an empty string."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return f": {str(json.loads(body)['error'])[:MAX_SENTENCE]}"
    return ""
