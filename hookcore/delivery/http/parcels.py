"""The contents of the outbox: records with their sizes, parcels, and the description of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from hookcore.delivery.http.fitting import fitted
from hookcore.records import Coverage, Frame, HookRecord, ModuleRecord, Snapshot, Tap
from hookcore.records.wire import DeliveryCounters, Description, EndItem

PARCEL_BYTES: Final = 8_000_000  # a larger item is sent alone
STRIKES: Final = 2  # a part that was refused this often by itself is dropped
_TAP_BYTES: Final = 80  # of a tap, besides its texts

Described = TypeVar("Described", ModuleRecord, Coverage)


@dataclass(slots=True, eq=False)
class Entry:
    """A frame or a snapshot with its number; `taps` is the number of taps that the receiver must know."""

    number: int
    record: Frame | Snapshot
    size: int
    taps: int
    strikes: int = 0


@dataclass(frozen=True, slots=True)
class Parcel:
    """The content of one batch."""

    taps_from: int
    taps: tuple[Tap, ...]
    description: Description | None
    entries: tuple[Entry, ...]
    end: EndItem | None
    counters: DeliveryCounters
    retained: int = -1  # the highest acknowledged item that can be sent again

    @property
    def has_news(self) -> bool:
        """Whether it is more than a sign of life."""
        return bool(self.taps or self.description or self.entries or self.end)


def some_taps(taps: Sequence[Tap], first: int) -> tuple[Tap, ...]:
    """Return the taps from this number on, as many as one parcel takes."""
    room, last = PARCEL_BYTES, first
    while last < len(taps) and room > 0:
        room -= _TAP_BYTES + len(taps[last].module) + len(taps[last].index)
        last += 1
    return tuple(taps[first:last])


class CurrentDescription:
    """The description of the run, with a version that changes only if the content does."""

    def __init__(self) -> None:
        self.received = -1  # the version that the receiver has
        self.version = -1
        self._modules: dict[str, ModuleRecord] = {}
        self._coverage: dict[str, Coverage] = {}
        self._hooks: tuple[HookRecord, ...] = ()
        self._strikes = 0

    def update(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage], hooks: Sequence[HookRecord]
    ) -> bool:
        """Return whether anything is new."""
        differs = _update(self._modules, modules)
        differs |= _update(self._coverage, coverage)
        new_hooks = tuple(map(fitted, hooks)) or self._hooks
        if not differs and new_hooks == self._hooks:
            return False
        self._hooks = new_hooks
        self.version += 1
        self._strikes = 0
        return True

    @property
    def due(self) -> Description | None:
        """The description, if the receiver doesn't have it and hasn't refused it repeatedly."""
        return self.whole if self.is_due else None

    @property
    def whole(self) -> Description:
        """The description."""
        return Description(self.version, tuple(self._modules.values()), tuple(self._coverage.values()), self._hooks)

    @property
    def is_due(self) -> bool:
        """Whether to send it."""
        return self.received < self.version and self._strikes < STRIKES

    def strike(self) -> None:
        """Note that it was refused by itself."""
        self._strikes += 1


def _update(known: dict[str, Described], given: Sequence[Described]) -> bool:
    """Update records by path; return whether any of them changed."""
    differs = False
    for each in given:
        if known.get(each.path) != each and known.get((each := fitted(each)).path) != each:
            known[each.path] = each
            differs = True
    return differs
