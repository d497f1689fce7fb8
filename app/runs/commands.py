"""The commands that wait for one trainer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, Protocol

from hookcore.records import Command

MAX_COMMANDS: Final = 256  # that wait for one trainer
OnCommand = Callable[[Command], None]
Ask = Literal["settings", "snapshot", "inventory", "capsule"]


class Relay(Protocol):
    """The way of commands to a trainer that sends its frames elsewhere."""

    def newest(self) -> int:
        """Return the highest number of a command that any server gave the trainer; -1 for none."""

    def send(self, commands: Sequence[Command]) -> None:
        """Store commands where the trainer's collector looks for them."""


class Commands(deque[Command]):
    """The waiting commands, oldest first.

    `local` takes those for a trainer in this process, and `relay` passes them on to one that sends elsewhere.
    """

    def __init__(self, numbers: Iterator[int], local: OnCommand | None = None) -> None:
        super().__init__()
        self.local = local
        self.relay: Relay | None = None
        self.dropped = 0
        self.waiting: tuple[int, ...] = ()  # their numbers, for readers without the run's lock
        self._numbers = numbers
        self._newest = -1  # the highest number of a command, of this server or an earlier one

    def make(self, name: Ask, each: Sequence[dict[str, Any]]) -> list[Command]:
        """Return commands with numbers above those that the trainer knows, whatever the clock says."""
        made = []
        for what in each:
            self._newest = max(next(self._numbers), self._newest + 1)
            made.append(Command(self._newest, name, **what))
        return made

    def wait(self, commands: Sequence[Command]) -> bool:
        """Queue commands; if too many wait, drop and count the oldest. Return whether these are the first dropped."""
        self.extend(commands)
        before = self.dropped
        while len(self) > MAX_COMMANDS:
            self.popleft()
            self.dropped += 1
        self._list()
        return before == 0 < self.dropped

    def know(self, number: int) -> None:
        """Number further commands above this one, because a trainer ignores lower ones."""
        self._newest = max(self._newest, number)

    def done(self, number: int) -> None:
        """Forget the commands up to a number, which the trainer has received."""
        self.know(number)
        while self and self[0].number <= number:
            self.popleft()
        self._list()

    def _list(self) -> None:
        self.waiting = tuple(command.number for command in self)
