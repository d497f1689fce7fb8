"""What a script gives to a watch: numbers, media, names, and tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from hookcore.watcher.media import Content, figure_content, image_content, table_content, text_content
from hookcore.watcher.watched import WatchedRun


class FedRun(WatchedRun):
    """The side of a watch that a script fills. None of it raises, or does anything once the watch is closed."""

    def log(self, /, **scalars: float | Tensor) -> None:
        """Record numbers such as the loss and the learning rate for the running step. Never waits for a tensor.

        Between two steps, they are recorded for the one that ended (docs/how-it-works.md has the rule).
        """
        self._guarded("log", self._recorder.given.log, scalars)

    def log_image(self, name: str, image: Any) -> None:
        """Log an image with the step: an array or a tensor (0 to 255, or floats from 0 to 1), or a Pillow image."""
        self._log_media(name, image_content, image)

    def log_text(self, name: str, text: str) -> None:
        """Log a string with the step, at most 1 MiB of it."""
        self._log_media(name, text_content, text)

    def log_table(self, name: str, table: Any) -> None:
        """Log up to 1,000 rows of a table with the step: a mapping of columns, mappings, or a DataFrame."""
        self._log_media(name, table_content, table)

    def log_figure(self, name: str, figure: Any) -> None:
        """Log a Plotly or Matplotlib figure with the step."""
        self._log_media(name, figure_content, figure)

    def tokens(self, tokens: Iterable[Any]) -> None:
        """Name the positions of the batch that runs next: a list for each sample, or one list for all of them.

        Snapshots of its activations and gradients then carry them: attention maps and rollouts show the tokens.
        """
        self._guarded("tokens", self._recorder.given.give_tokens, tokens)

    def labels(self, labels: Iterable[Any]) -> None:
        """Name the samples of the batch that runs next, in snapshots of its activations and gradients."""
        self._guarded("labels", self._recorder.given.give_labels, labels)

    def _log_media(self, name: str, content_of: Callable[[Any], Content], value: Any) -> None:
        self._guarded("log", self._recorder.given.add_media, str(name), lambda: astuple(content_of(value)))

    def _log_behind(self, scalars: dict[str, float | Tensor]) -> None:
        """Record numbers that a callback receives after their step has ended."""
        self._guarded("log", self._recorder.given.log, scalars, True)

    def observe(self, name: str, tensor: Tensor) -> Tensor:
        """Capture an intermediate tensor of a forward, and its gradient, as taps called `name`. Return the tensor."""
        if not torch.compiler.is_compiling() and self._recorder.capturing and isinstance(tensor, Tensor):
            self._guarded("observe", self._recorder.given.observe, name, tensor)
        return tensor

    def _guarded(self, what: str, call: Callable[..., None], *arguments: Any) -> None:
        if not self._recorder.closed:
            try:
                call(*arguments)
            except Exception as error:
                self._recorder.errors.record(what, error)
