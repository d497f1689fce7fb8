"""How much memory a record takes while it waits to be sent or written."""

from __future__ import annotations

from typing import Final

from hookcore.records import Frame, Snapshot
from hookcore.store.bounded import bytes_of

# Acknowledged data that isn't on the receiver's disk yet. A trainer keeps as much to send it again if the receiver is
# killed, and a receiver that saves runs accepts no more until its disk has some of it.
UNSAVED_BYTES: Final = 16 * 2**20
_ENTRY_BYTES: Final = 500  # an item without its arrays and texts


def size_of(record: Frame | Snapshot) -> int:
    """Return about how much memory a record takes, with all its names."""
    if isinstance(record, Snapshot):
        return bytes_of(record) + _ENTRY_BYTES
    block = record.sketches
    texts = sum(len(event.message) + _ENTRY_BYTES for event in record.events)
    names = sum(len(name) + 9 for name in record.scalars)
    labels = sum(len(name) + len(text) for name, text in record.labels.items())
    arrays = record.stats.nbytes + record.taps.nbytes + block.start.nbytes + block.bins.nbytes + block.counts.nbytes
    flow = 0 if record.flow is None else record.flow.nbytes
    arrays += 0 if record.owners is None else record.owners.nbytes
    return arrays + texts + names + labels + flow + _ENTRY_BYTES
