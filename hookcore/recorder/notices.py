"""What hookcore could not do, said once as an event: it must not only be missing."""

from __future__ import annotations

from collections.abc import Callable

from hookcore.recorder.capture import Capture
from hookcore.recorder.coverage import NO_ROOM, hidden_roots
from hookcore.recorder.models import Models


class Notices:
    """Compares the counters of one recorder with what was said of them. Called on the recorder's thread."""

    def __init__(self, capture: Capture, models: Models, say: Callable[..., None]) -> None:
        self._capture = capture
        self._models = models
        self._say = say
        self._said: set[str] = set()

    def look(self) -> None:
        """Say what is new."""
        capture = self._capture
        if capture.refused_taps:
            self._once("taps-refused", f"some tensors are not captured: {NO_ROOM}")
        if self._models.refused:
            self._once("model-not-watched", f"a model that runs is not watched. {self._models.refused}")
        for device, arena in list(capture.devices.items()):
            if arena.fallback_reason:
                self._once(
                    "slow-kernel", f"tensors on {device} are measured by PyTorch operators: {arena.fallback_reason}"
                )
        for path, why in hidden_roots(capture, self._models.hooks_are_on_modules):
            message = f"{path or 'the model'} trains, but no call of its modules is seen: {why}"
            self._once("inside-compiled-function", message, path)

    def _once(self, name: str, message: str, module: str = "") -> None:
        if message not in self._said:
            self._said.add(message)
            self._say(name, message, "warning", module)
