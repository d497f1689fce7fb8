"""This process among the ranks of a distributed training. Nothing here waits for another rank or sends it anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch.distributed as dist

from hookcore.delivery.place import completed, place_by_launcher, place_in_group
from hookcore.hooks.internals import default_store

if TYPE_CHECKING:
    from hookcore.records.wire import Place

MAX_AXES: Final = 16
_HAS_GROUPS: Final = dist.is_available()


class Ranks:
    """The place of this process, as far as it is known. The process group may be created long after the watch."""

    def __init__(self, watch: str = "") -> None:
        self._watch = watch
        self.axes: dict[str, tuple[int, int]] = {}  # replaced, never changed, as other threads read it
        self.place: Place | None = place_by_launcher(watch)
        self._decided = self.place is not None
        self._sent = self.look()

    def look(self) -> Place | None:
        """Return the place if it is known by now."""
        if not self._decided:
            rank, world = rank_and_world()
            if world > 1:
                self._decided, self.place = True, place_in_group(self._watch, rank, world, meeting())
        return self.place

    def news(self, device: Callable[[], str]) -> Place | None:
        """Return the place if more of it is known than at the last call. `device` says where the model is, or ""."""
        place = self.look()
        if place is not None and (not place.device or self.axes != place.axes):
            place = self.place = completed(place, device(), self.axes)
        if place == self._sent:
            return None
        self._sent = place
        return place

    def saw_axes(self, axes: dict[str, tuple[int, int]]) -> None:
        """Add axes of a device mesh: this rank's coordinate on each, and its size."""
        if not axes.items() <= self.axes.items():
            merged = axes | self.axes
            self.axes = dict(list(merged.items())[:MAX_AXES])


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank in the default process group, and the number of ranks; (0, 1) without a group."""
    try:
        if _HAS_GROUPS and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
    except (RuntimeError, ValueError):  # the training destroys it at this moment
        pass
    return 0, 1


def meeting() -> tuple[str, ...]:
    """Return where the processes of the default group met, or nothing if that is unknown. Asks only this process."""
    try:
        store = default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if hasattr(store, "host"):
            return "tcp", str(store.host), str(store.port)
        if hasattr(store, "path"):
            return "file", str(store.path)
    except Exception:
        pass
    return ()
