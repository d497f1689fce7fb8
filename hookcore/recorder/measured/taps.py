"""The taps of one watcher, and tensors that torch has split over ranks: whose values each one's local part repeats."""

from __future__ import annotations

import threading
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hookcore.hooks.internals import root_mesh_of
from hookcore.observe.plain import unseen
from hookcore.records import UNKNOWN_OWNER, Tap


class TapTable:
    """Assigns slots and numbers. Both only grow, because frames and the store refer to taps by number."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.taps: list[Tap] = []  # by slot
        self.numbers: list[int] = []  # by slot: its number in the frames; -1 if no frame shows it
        self.refused = 0
        self.filled: set[int] = set()  # numbers that occurred in a frame
        self.newest: set[int] = set()  # those of the newest step
        self.newest_step = -1
        self._slots: dict[Tap, int] = {}
        self._last: tuple[NDArray[np.uint32] | None, set[int]] = None, set()  # the taps of the newest frame
        self._shown = 0
        self._announced = 0
        self._by_number: list[Tap] = []  # as far as it was asked for
        self._lock = threading.Lock()

    def add(self, tap: Tap, hidden: bool = False) -> int:
        """Return the slot of a tap, or -1 if there is no room. Frames don't show a hidden one."""
        with self._lock:
            if not hidden and tap in self._slots:
                return self._slots[tap]  # a model of the same name continues where the last one ended
            if len(self.taps) >= self.capacity:
                self.refused += 1
                return -1
            if not hidden:
                self._slots[tap] = len(self.taps)
            self.taps.append(tap)
            self.numbers.append(-1 if hidden else self._shown)
            self._shown += not hidden
            return len(self.taps) - 1

    @property
    def room(self) -> int:
        """The number of taps for which there is room."""
        return self.capacity - len(self.taps)

    def shown_taps(self) -> list[Tap]:
        """Return the taps by their numbers."""
        with self._lock:
            if len(self._by_number) != self._shown:
                self._by_number = [self.taps[slot] for slot, number in enumerate(self.numbers) if number >= 0]
            return self._by_number

    def slot(self, tap: Tap) -> int:
        """Return the slot of a tap that was added, else -1."""
        return self._slots.get(tap, -1)

    def take_new(self) -> tuple[Tap, ...]:
        """Return the taps that no frame has announced yet, in the order of their numbers."""
        first, self._announced = self._announced, len(self.taps)
        fresh = range(first, self._announced)
        return tuple(self.taps[slot] for slot in fresh if self.numbers[slot] >= 0) if fresh else ()

    def saw_frame(self, step: int, taps: NDArray[np.uint32]) -> None:
        """Note that a frame, or a part of one, was built with these taps. Many frames share one array."""
        if taps is not self._last[0]:
            self._last = taps, set(taps.tolist())
            self.filled |= self._last[1]
        numbers = self._last[1]
        if not numbers:
            return  # a step that isn't captured has a frame, too, with its loss
        if step > self.newest_step:
            self.newest_step, self.newest = step, set()
        if step == self.newest_step:
            self.newest = self.newest | numbers


# Tensors that torch has split over ranks (DTensor): whose values each one's local part repeats, by its placements.

MAX_WORDS: Final = 400  # characters
MAX_LAYOUTS: Final = 1000  # after that, they are worked out again


class Layout(NamedTuple):
    """How a tensor is spread over the ranks of a device mesh, as seen by one of them."""

    owner: int  # the lowest rank of the mesh that holds the same part
    ranks: int  # of the mesh
    splits_batch: bool  # whether it is what `fully_shard` does to a parameter: the ranks then have batches of their own
    axes: dict[str, tuple[int, int]]  # see `axes_of`
    words: str  # see `words_of`


NO_LAYOUT: Final = Layout(UNKNOWN_OWNER, 0, False, {}, "")


class Shards:
    """The layouts of tensors that were seen, by the slots of their rows. Graphs keep it alive."""

    def __init__(self) -> None:
        self.by_slot: dict[int, Layout] = {}
        self.version = 0  # grows with every change
        self._known: dict[Any, Layout] = {}

    def saw(self, slot: int, tensor: Tensor) -> Layout | None:
        """Note the layout of a tensor that is added to this row, and return it if it is new."""
        layout = self.layout_of(tensor)
        if self.by_slot.get(slot) is layout:
            return None
        self.by_slot[slot] = layout
        self.version += 1
        return layout

    def layout_of(self, tensor: Any) -> Layout:
        """Return the layout of a DTensor. Asks no other rank."""
        key = (tensor.device_mesh, tuple(tensor.placements))
        layout = self._known.get(key)
        if layout is None:
            if len(self._known) >= MAX_LAYOUTS:
                self._known.clear()
            with unseen():
                layout = self._known[key] = _layout(*key)
        return layout


def is_shard(tensor: object) -> bool:
    """Return whether torch has split this tensor over ranks, or repeats it on them."""
    return type(tensor).__name__ == "DTensor"


def _layout(mesh: Any, placements: tuple[Any, ...]) -> Layout:
    here = mesh.get_coordinate()
    if here is None:  # this rank has nothing of the tensor
        return NO_LAYOUT
    there = [0 if placement.is_replicate() else at for placement, at in zip(placements, here, strict=True)]
    partial = any(placement.is_partial() for placement in placements)
    owner = UNKNOWN_OWNER if partial else int(mesh.mesh[tuple(there)])
    return Layout(owner, int(mesh.size()), _splits_batch(placements), axes_of(mesh), words_of(mesh, placements))


def axes_of(mesh: Any) -> dict[str, tuple[int, int]]:
    """Return this rank's coordinate on each named axis of a mesh, and the axis's size.

    A slice, such as that of the ranks with the same stage of a pipeline, has the axes of the mesh that it's from, too.
    """
    found: dict[str, tuple[int, int]] = {}
    for each in (root_mesh_of(mesh), mesh):
        here, names = each.get_coordinate(), each.mesh_dim_names
        if here is not None and names is not None:
            found |= {
                name: (int(at), int(each.size(axis))) for axis, (name, at) in enumerate(zip(names, here, strict=True))
            }
    return found


def words_of(mesh: Any, placements: tuple[Any, ...]) -> str:
    """Return how a tensor is spread over each axis of a mesh, such as "Shard(0) over dp, 4 ranks"."""
    names = mesh.mesh_dim_names or ("",) * len(placements)
    parts = []
    for axis, (name, placement) in enumerate(zip(names, placements, strict=True)):
        size = int(mesh.size(axis))
        parts.append(f"{_word_of(placement)} over {name and f'{name}, '}{size} {'rank' if size == 1 else 'ranks'}")
    return "; ".join(parts)[:MAX_WORDS]


def _word_of(placement: Any) -> str:
    """Return what torch calls a placement, with its dimension, or with the operation that is still to be done."""
    about = getattr(placement, "dim", getattr(placement, "reduce_op", None))
    name = type(placement).__name__.removeprefix("_")
    return name if about is None else f"{name}({about})"


def _splits_batch(placements: tuple[Any, ...]) -> bool:
    """Return whether `fully_shard` alone places a parameter like this.

    On one axis, or on two, of which the first repeats it. With tensor parallelism, its axis comes last, and the first
    one shards.
    """
    *first, last = placements
    return len(first) < 2 and type(last).__name__ == "Shard" and all(each.is_replicate() for each in first)
