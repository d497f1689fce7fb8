"""What keeps the running step, so that it can be run again elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

from hookcore.records import Frame, Occasion, Tap

Emit = Callable[..., None]  # adds an event: name, message, severity, module
# Makes a keeper from functions that return the running step, emit an event, and count the changes of models.
MakeKeeper = Callable[[Callable[[], int], Emit, Callable[[], int]], "StepKeeper | None"]
FirstBad = Callable[[], Tap | None]  # the first tap of this step with a non-finite value


class Place(Protocol):
    """Where a model is."""

    path: str

    @property
    def below(self) -> str:
        """What the paths of the modules inside it begin with."""


class StepKeeper(Protocol):
    """Follows the captured steps. Called on the training thread, under the recorder's lock, or as it says."""

    @property
    def armed(self) -> bool:
        """Whether it keeps calls now: else `entered` and `look` do nothing."""

    def ask(self, occasion: Occasion | None = None) -> bool:
        """Save the next step that is captured, after an incident only if the settings say so. Return whether it will.

        Called on any thread.
        """

    def entered(self, place: Place, model: nn.Module, args: Any, keywords: dict[str, Any] | None) -> None:
        """Handle a call of a model, before it runs. `keywords` is None if they can't be read."""

    def left(self, model: nn.Module, output: Any) -> None:
        """Handle what a call returned."""

    updates: int  # how often optimizers have updated any weights

    def hold(self, place: Place, model: nn.Module, args: Any) -> None:
        """Handle a call of a model in an uncaptured step, before it runs. Must take microseconds."""

    def returned(self, model: nn.Module, kwargs: dict[str, Any] | None, output: Any) -> None:
        """Handle what such a call returned."""

    def miss(self, why: str) -> None:
        """Handle the reason why the calls of an uncaptured step are not held."""

    @property
    def has_fired(self) -> bool:
        """Whether `settle` has something to do."""

    def fire(self, what: str, module: str | None) -> bool:
        """Save the running step, captured or not: `what` became non-finite in it, in this module if it is known.

        It is saved once the gradients of the running backward pass have arrived. Return whether it will be tried.
        """

    def settle(self, where: str) -> None:
        """Handle a moment at which these gradients have arrived, and the weights are still those of the step."""

    def look(self, first_bad: FirstBad, where: str) -> None:
        """Handle a moment at which the weights are still those of the step."""

    def end_step(self) -> None:
        """Handle the end of a step, captured or not."""

    def alarm(self, step: int) -> None:
        """Handle non-finite values of an earlier step, which another device measured. Called on any thread."""

    def remember(self, frame: Frame) -> None:
        """Handle a frame that was sent. Called on the recorder's thread."""

    def fail(self, error: str) -> None:
        """Handle an exception that ends the running step, and the run."""

    def close(self) -> None:
        """Let go of everything."""
