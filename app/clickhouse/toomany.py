"""How much is added up for one question, at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hookcore.errors import HookcoreError

Found = TypeVar("Found")


class TooManyError(HookcoreError):
    """More rows than are added up for one question. `rest` is the answer without them, if there is one."""

    def __init__(self, message: str, rest: Any = None) -> None:
        super().__init__(message)
        self.rest = rest


def or_too_many(find: Callable[[], Found]) -> Found | TooManyError:
    """Return an answer, or that it would be too much."""
    try:
        return find()
    except TooManyError as error:
        return error


def check(count: int, most: int, what: str) -> None:
    """Raise TooManyError if a count is above its limit."""
    if count > most:
        raise TooManyError(
            f"this needs the sum of {count:,} {what} of ranks, and {most:,} is the limit: choose "
            "fewer steps or tensors, or open the run of a single rank"
        )
