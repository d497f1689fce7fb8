"""One setting: its name, its default, and how a value for it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hookcore.errors import ArgumentError, shown


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table. `read` turns an argument into the stored value, or raises ValueError with a hint."""

    name: str
    default: object  # as a caller writes it
    allowed: str
    help: str
    read: Callable[[object], object]
    from_text: Callable[[str], object] = str  # turns the text of a variable into an argument
    live: Literal["cadence", "hooks", "probes"] | None = None  # what a change in a running training replaces
    secret: bool = False  # nothing shows its value
    of_run: bool = False  # describes the run, not how it is watched

    @property
    def variable(self) -> str:
        """The environment variable that is used if the argument is missing."""
        return f"HOOKCORE_{self.name.upper()}"

    def value_of(self, given: object) -> object:
        """Return the stored value for an argument, or raise ArgumentError."""
        return self._read(self.name, given)

    def value_of_text(self, variable: str, text: str) -> object:
        """Return the stored value for the text of a variable, or raise ArgumentError."""
        try:
            given = self.from_text(text.strip())
        except ValueError:
            given = text  # `read` rejects it with a hint
        return self._read(variable, given)

    def _read(self, source: str, given: object) -> object:
        try:
            return self.read(given)
        except (ValueError, TypeError) as error:
            what = "..." if self.secret else shown(given)
            message = f"{source}={what} is invalid: {self.name} must be {self.allowed}.{error}"
            raise ArgumentError(message) from None
