"""The observers of something for which all of them share one place in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from hookcore.hooks.handle import registering

Observer = TypeVar("Observer")


class Observers(Generic[Observer]):
    """`put_in` takes the place in torch, unless it is taken, and `put_back` gives it back when no observer is left."""

    __slots__ = ("_put_back", "_put_in", "now")

    def __init__(self, put_in: Callable[[], None], put_back: Callable[[], None]) -> None:
        self.now: tuple[Observer, ...] = ()  # replaced, never changed, because other threads go through it
        self._put_in, self._put_back = put_in, put_back

    def add(self, observer: Observer) -> ObserverHandle[Observer]:
        """Call the observer from now on."""
        with registering():
            self._put_in()
            self.now = (*self.now, observer)
        return ObserverHandle(self, observer)

    def drop(self, observer: Observer | None) -> None:
        with registering():
            self.now = tuple(each for each in self.now if each is not observer)
            if not self.now:
                self._put_back()


class ObserverHandle(Generic[Observer]):
    """Stops observing when it is removed. A second removal does nothing."""

    __slots__ = ("_observer", "_observers")

    def __init__(self, observers: Observers[Observer], observer: Observer) -> None:
        self._observers = observers
        self._observer: Observer | None = observer

    def remove(self) -> None:
        observer, self._observer = self._observer, None
        self._observers.drop(observer)
