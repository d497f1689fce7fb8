"""Hugging Face's Trainer: `Trainer(..., callbacks=[HookcoreCallback()])`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hookcore.frameworks.watching import Stopping

_UNFINISHED: Final = (
    "the Trainer stopped before the end of the training, and hookcore did not see the exception; train inside "
    "`with HookcoreCallback() as callback:` to record it"
)


class HookcoreCallback(Stopping, TrainerCallback):  # type: ignore[misc]
    """Watches the model from the start of `train` to its end. Takes the settings of `hookcore.watch`, and `stop_on`.

    Values that the Trainer logs become scalars. The Trainer notifies no callback when a training raises. Train inside
    `with HookcoreCallback() as callback:` to end the run immediately and record the exception.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start a run."""
        self.begin(kwargs.get("model"), _UNFINISHED)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> None:
        """Log the loss, the learning rate, and all other logged numbers."""
        self.log_numbers(logs or {})

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop if an incident asks for it."""
        if self.must_stop():
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the run."""
        self.finish()
