"""Accelerate: `Accelerator(log_with=HookcoreTracker(model))`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker
from torch import nn
from typing_extensions import Unpack

from hookcore.config import WatchSettings
from hookcore.frameworks.watching import Watching
from hookcore.watcher import Watcher


class HookcoreTracker(Watching, GeneralTracker):  # type: ignore[misc]
    """Watches the model from `init_trackers` to `end_training`. Takes the settings of `hookcore.watch`.

    Values passed to `accelerator.log` become scalars. A `with` around the loop also ends the run if the loop raises.
    """

    name = "hookcore"
    requires_logging_directory = False

    def __init__(self, model: nn.Module | None = None, **settings: Unpack[WatchSettings]) -> None:
        super().__init__(**settings)
        self._model = model

    @property
    def tracker(self) -> Watcher | None:
        return self.watcher

    def start(self) -> None:
        self.begin(self._model)

    def store_init_configuration(self, values: Mapping[str, object]) -> None:
        """Ignore the script's configuration."""

    def log(self, values: Mapping[str, object], step: int | None = None, **kwargs: Any) -> None:
        """Log scalars of the step that just ended; `step` is the script's own count, which is ignored."""
        self.log_numbers(values)

    def finish(self) -> None:
        """End the run."""
        self.close()
