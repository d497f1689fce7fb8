"""The recorder's messages to the keeper of steps, if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from hookcore.hooks.compiled import guarded
from hookcore.hooks.internals import DisableTorchFunction
from hookcore.recorder.cadence import Cadence
from hookcore.recorder.clock import Clock
from hookcore.recorder.dispatch import Dispatcher
from hookcore.recorder.roots import Root
from hookcore.records import GRADIENT_KINDS, TENSOR_KINDS, Frame, Occasion

_KINDS: Final = frozenset(TENSOR_KINDS)


@dataclass(slots=True, eq=False)
class Keeping:
    """Asks the dispatcher for the keeper each time: a run without one pays nothing else."""

    _dispatcher: Dispatcher
    _cadence: Cadence
    _lock: AbstractContextManager[Any]

    def ask(self, occasion: Occasion | None = None) -> None:
        """Capture the next step, and let the keeper save it. After an incident, the keeper decides whether to."""
        if self._dispatcher.keeper is not None and self._dispatcher.keeper.ask(occasion):
            self._cadence.alarm("it was requested" if occasion is None else f"a step is saved {occasion.reason}")

    def look(self, where: str, clock: Clock, is_whole: bool = True) -> None:
        """Let it see a step whose weights are unchanged. Under a scaler, infinite gradients are normal."""
        keeper = self._dispatcher.keeper
        if keeper is not None and keeper.armed:
            kinds = _KINDS - GRADIENT_KINDS if clock.owners.scalers() else _KINDS
            keeper.look(partial(self._dispatcher.statistics.first_bad, kinds, clock.step, is_whole), where)

    def fire(self, what: str, module: str | None = None) -> bool:
        """Save the running step, captured or not: `what` became non-finite in it. Return whether it will be tried.

        It is saved at the end of the running backward pass, or before the optimizer, whichever comes first.
        """
        keeper = self._dispatcher.keeper
        return keeper is not None and keeper.fire(what, module)

    def settle(self, where: str) -> None:
        """Save the running step now if something fired in it."""
        keeper = self._dispatcher.keeper
        if keeper is not None and keeper.has_fired:
            keeper.settle(where)

    def end_step(self, roots: Sequence[Root]) -> None:
        """End the step."""
        assert self._dispatcher.keeper is not None
        self._dispatcher.keeper.end_step()
        if self._dispatcher.current.captured:
            self._dispatcher.look_for_models(roots)

    @guarded
    def fail(self, error: str) -> None:
        """Let it see a step that an exception ended."""
        with self._lock, DisableTorchFunction():
            if self._dispatcher.keeper is not None:
                self._dispatcher.keeper.fail(error)

    def alarm(self, step: int, clock: Clock) -> None:
        """Pass on what another device measured; what the CPU measured was seen in the step."""
        keeper, statistics = self._dispatcher.keeper, self._dispatcher.statistics
        if keeper is not None and statistics.devices.arenas and not clock.owners.scalers():
            keeper.alarm(step)

    def remember(self, frame: Frame) -> None:
        """Let the keeper remember a sent frame."""
        if self._dispatcher.keeper is not None:
            self._dispatcher.keeper.remember(frame)

    def close(self) -> None:
        """Let it let go of everything."""
        if self._dispatcher.keeper is not None:
            self._dispatcher.keeper.close()
