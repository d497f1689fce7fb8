"""Ignite: `HookcoreHandler(model).attach(trainer)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ignite.engine import Engine, Events
from torch import nn
from typing_extensions import Unpack

from hookcore.config import WatchSettings
from hookcore.frameworks.watching import Stopping

if TYPE_CHECKING:
    from hookcore.records import Severity


class HookcoreHandler(Stopping):
    """Watches the model while an engine runs. Takes the settings of `hookcore.watch`, and `stop_on`.

    The engine's metrics, and its output if that is a number or a dictionary of numbers, become scalars.
    """

    def __init__(self, model: nn.Module, *, stop_on: Severity | None = None, **settings: Unpack[WatchSettings]) -> None:
        super().__init__(stop_on=stop_on, **settings)
        self._model = model

    def attach(self, engine: Engine) -> None:
        """Follow the engine from now on."""
        engine.add_event_handler(Events.STARTED, lambda: self.begin(self._model))
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._end_iteration)
        engine.add_event_handler(Events.EPOCH_COMPLETED, lambda found: self.log_numbers(found.state.metrics))
        engine.add_event_handler(Events.COMPLETED | Events.TERMINATE, lambda: self.finish())
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._end_raised)

    def _end_iteration(self, engine: Engine) -> None:
        output = engine.state.output
        self.log_numbers(output if isinstance(output, Mapping) else {"loss": output})
        if self.must_stop():
            engine.terminate()

    def _end_raised(self, engine: Engine, error: BaseException) -> None:
        self.close(error)
        # An engine raises only unhandled exceptions. It must raise the same ones as without this handler.
        if len(engine._event_handlers[Events.EXCEPTION_RAISED]) == 1:
            raise error
