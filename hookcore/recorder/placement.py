"""Registration of hookcore's hooks: on modules, on optimizers, and around backward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from hookcore import hooks
from hookcore.config import Settings
from hookcore.hooks.engine import BackwardObserver, observe_backward
from hookcore.hooks.loading import UNSEEN, observe_loading
from hookcore.hooks.observing import ObserverHandle
from hookcore.hooks.optimizers import StepObserver, observe_steps
from hookcore.recorder.calls import Observer
from hookcore.recorder.dispatch import Dispatcher
from hookcore.recorder.holding import Holding
from hookcore.recorder.in_graphs import InsideAttachment
from hookcore.recorder.loading import Loading
from hookcore.recorder.models import Models
from hookcore.recorder.on_modules import ModuleAttachment
from hookcore.recorder.on_process import ProcessAttachment
from hookcore.recorder.plans import Plan


class Attachment(Protocol):
    """One way to observe modules: by hooks on the process, on the modules, or in compiled graphs.

    Its hooks report to the dispatcher. `on` and `off` are called between steps and must be cheap.
    """

    def on(self) -> None:
        """Start a captured step."""

    def off(self) -> None:
        """Capture nothing for a while."""

    def follow_observers(self) -> None:
        """Add and remove hooks as the observers need them now."""

    def follow_choice(self, chosen: Sequence[Plan]) -> str | None:
        """Add and remove hooks for a new selection of modules. Return why that's impossible for some."""

    def close(self) -> None:
        """Remove every hook."""


class Placement:
    """Registers the hooks of one recorder, and removes them."""

    def __init__(
        self,
        settings: Settings,
        dispatcher: Dispatcher,
        models: Models,
        emit: Callable[[str, str], None],
        lock: AbstractContextManager[Any],
    ) -> None:
        self._compiled, self._attach = settings.compiled, settings.attach
        self._dispatcher = dispatcher
        self._models = models
        self._loading = Loading(dispatcher.times, dispatcher.current, dispatcher.errors, lock)
        self._emit = emit
        self._attachment: Attachment | None = None
        self.holding: Holding | None = None  # with hooks on the process only
        self._closed: Attachment | None = None  # the last one, in circles until the recorder is taken apart
        self._handles: list[hooks.HookHandle | ObserverHandle[Any]] = []

    def attach(self, steps: StepObserver, passes: BackwardObserver, step: int, captured: bool) -> None:
        """Register every hook."""
        self._handles = [observe_steps(steps), observe_backward(passes), observe_loading(self._loading)]
        if UNSEEN:
            self._emit("loading-unseen", UNSEEN)
        if self._models.discovers:
            self._handles.append(hooks.on_module_registration(self._models.registrations.saw))
        self._attachment = self._new_attachment()
        if self._dispatcher.keeper is not None and isinstance(self._attachment, ProcessAttachment):
            self.holding = Holding(self._dispatcher)
        self.begin_step(step, captured)
        self._attachment.follow_observers()

    def _new_attachment(self) -> Attachment:
        if self._compiled == "inside":
            inside = InsideAttachment(self._dispatcher)
            if inside.compiled_before:
                self._emit(
                    "compiled-again",
                    "the model was compiled earlier; it is compiled again so that its inner modules can be captured",
                )
            return inside
        if self._attach == "module":
            return ModuleAttachment(self._dispatcher, self._models)
        return ProcessAttachment(self._dispatcher, self._models)

    def detach(self) -> None:
        """Remove every hook."""
        self._dispatcher.current.stop()
        if self._attachment is not None:
            self._attachment.close()
            self._closed, self._attachment = self._attachment, None
        if self.holding is not None:
            self.holding.close()
            self.holding = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def attached(self) -> bool:
        """Whether any hook is registered."""
        return self._attachment is not None

    def begin_step(self, step: int, captured: bool) -> None:
        """Start a step; hooks on modules are on in captured steps only."""
        was_captured = self._dispatcher.current.captured
        self._dispatcher.current.begin(step, captured)
        if captured or was_captured:
            self._dispatcher.begin_step(captured)
        if self._attachment is not None and (captured or was_captured):
            (self._attachment.on if captured else self._attachment.off)()
        if self.holding is not None:
            self.holding.begin_step(captured)

    def follow_observers(self, *others: Observer) -> None:
        """Let these observers see the calls of modules, in addition to the statistics."""
        self._dispatcher.add_only(*others)
        if self._attachment is not None:
            self._attachment.follow_observers()

    def follow_choice(self, chosen: Sequence[Plan]) -> str | None:
        """Follow a new selection of modules. Return why that's impossible for some."""
        return None if self._attachment is None else self._attachment.follow_choice(chosen)
