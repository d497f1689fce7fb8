"""Which step a number belongs to that is logged between two steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_NAMES: Final = 4096


class Between:
    """Tells numbers of the step that ended from numbers of the step that is about to begin.

    Most loops log after `optimizer.step()`: what they log belongs to the step that just ended. Others log a learning
    rate at the top, before the forward pass. Both come between two steps. But only the latter are also logged
    before the first backward pass ends, when there is no step that they could belong to but the first.
    """

    def __init__(self) -> None:
        self._ahead: set[str] = set()  # names that are logged before their step runs, or in the middle of it
        self._behind: set[str] = set()

    def note_first(self, names: Iterable[str]) -> None:
        """Note names that are logged before the first backward pass has ended."""
        for name in names:
            if len(self._ahead) < MAX_NAMES:
                self._ahead.add(name)

    def is_behind(self, name: str, has_run: bool | None) -> bool:
        """Return whether a number, logged before the step's first backward pass, belongs to the step that ended.

        `has_run`: whether a module has run since then; None if it was not checked, because the step isn't captured.
        """
        if name in self._ahead or name in self._behind:
            return name in self._behind
        if has_run is not None and len(self._ahead) + len(self._behind) < MAX_NAMES:
            (self._ahead if has_run else self._behind).add(name)
        return not has_run
