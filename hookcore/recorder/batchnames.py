"""The script's names for the positions and samples of a batch, which become part of its snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import get_ident
from typing import Any, Final

import torch

from hookcore.config.flat import cut_text
from hookcore.errors import ArgumentError
from hookcore.hooks.internals import current_graph_task
from hookcore.records import GRADIENT_KINDS, Names, text_of

OF_BATCHES: Final = frozenset({"input", "output", "input_grad", "output_grad"})
MAX_NAME: Final = 100  # characters
MAX_BYTES: Final = 1 << 20  # of the tokens of a snapshot, and of its labels
_OF_TEXT: Final = 56  # bytes of a Python string in addition to its characters

Rows = tuple[tuple[Any, ...], ...]


class BatchNames:
    """The names of the running batch.

    They are those of the next outermost pass of a model in the same thread, and of its gradients. Whatever may be of
    another batch has none: later passes, calls outside of any model, and gradients of a step with several passes.
    """

    def __init__(self) -> None:
        self._tokens: Rows = ()
        self._shared = False
        self._labels: tuple[Any, ...] = ()
        self._step = -1
        self._thread = 0
        self._used = False  # a pass has begun that has them
        self._carried = False  # into another step
        self._inside = 0  # the models that are running
        self._passes = 0  # of this step
        self._mixed = False  # whether gradients may be of several batches

    def give_tokens(self, tokens: Any, step: int) -> None:
        """Name the positions: of each sample, or of all samples alike."""
        rows = _list_of("tokens", tokens)
        nested = [isinstance(row, Iterable) and not isinstance(row, str | bytes) for row in rows]
        if any(nested) != all(nested):
            raise ArgumentError(
                "tokens mixes names and lists: give a list of names, or a list of such lists, one for each sample"
            )
        shared = not any(nested)
        given: Rows = (tuple(rows),) if shared else tuple(tuple(_list_of("tokens", row)) for row in rows)
        self._begin(step)
        self._tokens, self._shared = given, shared

    def give_labels(self, labels: Any, step: int) -> None:
        """Name the samples."""
        given = tuple(_list_of("labels", labels))
        self._begin(step)
        self._labels = given

    def _begin(self, step: int) -> None:
        self._mixed |= self._passes > 0
        thread = get_ident()
        if self._used or self._step != step or self._thread != thread:
            self._drop()
        self._step, self._thread, self._carried = step, thread, False

    def _drop(self) -> None:
        self._tokens, self._shared, self._labels = (), False, ()
        self._used = False

    def enters(self) -> None:
        """Note that a model is about to run."""
        if current_graph_task() != -1:  # a checkpoint repeats a pass
            return
        self._inside += 1
        if self._inside > 1:
            return
        self._passes += 1
        self._mixed |= self._passes > 1
        if self._used or self._thread != get_ident():
            self._drop()
        self._used = bool(self._tokens or self._labels)

    def leaves(self) -> None:
        """Note that a model has returned."""
        if current_graph_task() == -1:
            self._inside -= self._inside > 0

    def saw_call(self) -> None:
        """Note the call of a module: outside of a model, it is of an unknown batch."""
        self._mixed |= not self._inside

    def begin_step(self, step: int, captured: bool) -> None:
        """Start a step; `captured`: whether passes of the last one were seen.

        The end of a step may be noticed only when the next one runs: names from in between are the next one's.
        """
        if (self._tokens or self._labels) and (self._used or self._carried or not captured):
            self._drop()
        self._carried = bool(self._tokens or self._labels)
        self._step, self._inside, self._passes, self._mixed = step, 0, 0, False

    def of(self, kind: str, step: int) -> Names | None:
        """Return the names that a tensor has which is captured now. They are converted when they are sent."""
        if not self._used or step != self._step or kind not in OF_BATCHES:
            return None
        # Gradients arrive in other threads, after the pass.
        unknown = self._mixed if kind in GRADIENT_KINDS else not self._inside or self._thread != get_ident()
        return None if unknown else Names(self._tokens, self._shared, self._labels)


def _list_of(what: str, given: Any) -> Sequence[Any]:
    """Return some names as a list that the script can't change anymore."""
    if isinstance(given, torch.Tensor | str | bytes) or not isinstance(given, Iterable):
        raise ArgumentError(f"{what} has the type {type(given).__name__}: give a list of names, such as ['the', 'cat']")
    names = list(given)
    if any(isinstance(name, torch.Tensor) for name in names):
        raise ArgumentError(f"{what} contains tensors: give a list of names; tensor.tolist() makes a list of numbers")
    return names


def plain_names(names: Names) -> tuple[Names, str]:
    """Return names as strings, as many as there is room for, and a description of what was left out."""
    room = MAX_BYTES
    rows: list[tuple[str, ...]] = []
    for row in names.tokens:
        texts = tuple(map(_text_of, row))
        room -= _size_of(texts)
        if room < 0:
            break
        rows.append(texts)
    labels = tuple(map(_text_of, names.labels))
    labels = labels if _size_of(labels) <= MAX_BYTES else ()
    left = [
        f"{len(names.tokens) - len(rows)} of {len(names.tokens)} samples without tokens"
        * (len(rows) < len(names.tokens)),
        "too many labels" * (len(labels) < len(names.labels)),
    ]
    return Names(tuple(rows), names.shared, labels), ", ".join(filter(None, left))


def _size_of(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) + _OF_TEXT for text in texts)


def _text_of(name: Any) -> str:
    try:
        return cut_text(text_of(name if isinstance(name, str) else str(name)), MAX_NAME)
    except Exception:  # of the script's own class
        return f"({type(name).__name__})"
