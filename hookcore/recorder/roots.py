"""The models under watch, and whether each of them trains or evaluates."""

from __future__ import annotations

import weakref

import torch
from torch import nn

from hookcore.records import Phase


class Root:
    """A model: the outermost module of a tree."""

    __slots__ = ("__weakref__", "called", "depth", "entered_with_grad", "name", "passed_in_training", "ref", "trained")

    def __init__(self, module: nn.Module, name: str) -> None:
        self.ref = weakref.ref(module)
        self.name = name
        self.trained: bool | None = None  # whether it trains in training mode; None if unknown
        self.passed_in_training: bool | None = None  # its mode in the last backward pass of the running step
        self.entered_with_grad = False  # whether it is running, and was called with gradients enabled
        self.depth = 0  # at which its modules are called by the training: 1 if that calls parts, never the whole
        self.called = False  # whether one of them was, in this captured step

    def trains(self) -> bool:
        """Whether the model is in training mode now; False if it is gone."""
        module = self.ref()
        if module is not None and module.training:
            self.trained = True
            return True
        return False

    @property
    def evaluates(self) -> bool:
        """Whether it trains in training mode, and is not in it now."""
        module = self.ref()
        return self.trained is True and module is not None and not module.training

    def enter(self) -> None:
        """Handle the start of a call of the model."""
        self.entered_with_grad = torch.is_grad_enabled()

    def leave(self) -> None:
        """Handle the end of the call."""
        self.entered_with_grad = False

    def note_pass(self) -> None:
        """Record that a backward pass reached its weights."""
        module = self.ref()
        if module is not None:
            self.passed_in_training = module.training

    def note_step(self) -> None:
        """Handle the end of a step. A model whose gradients arrived in evaluation mode trains in that mode.

        This uses data of every step, captured or not, so that a call's phase doesn't depend on what is captured.
        """
        if self.passed_in_training is not None:
            self.trained, self.passed_in_training = self.passed_in_training, None

    def phase(self, requires_grad: bool) -> Phase:
        """Return training or evaluation, by the root's own mode.

        A model that was never in training mode but builds a graph is being trained in eval mode, as in many fine-tuning
        scripts. Once its passes have shown that, the same is true for its parts that need no gradient.
        """
        module = self.ref()
        if module is None or module.training:
            self.trained = True
            return "train"
        graph = requires_grad or (self.trained is False and torch.is_grad_enabled())
        return "train" if graph and not self.trained else "eval"
