"""Hugging Face's Trainer: `Trainer(..., callbacks=[HookcoreCallback()])`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hookcore.frameworks.watching import Watching


class HookcoreCallback(Watching, TrainerCallback):  # type: ignore[misc]
    """Watches the model from the start of `train` to its end. Takes the settings of `hookcore.watch`.

    What the Trainer logs arrives as scalars. It tells no callback that a training raised: train inside
    `with HookcoreCallback() as callback:`, else the run ends with the process, or with the next training.
    """

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Begins a run."""
        self.begin(kwargs.get("model"))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> None:
        """Loss, learning rate, and whatever else was logged."""
        self.log_numbers(logs or {})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ends the run."""
        self.close()
