"""Commands from readers: read and checked in the sender's thread, carried out between two steps.

A command is read where it arrives, so a long list of patterns costs the training nothing. Changes of hooks wait for the
end of a step: then the training thread itself is inside the recorder, holding its lock, so none of its forward passes
can be half done. While no step ends, the recorder's thread carries out changes that no hook reads: the cadence and the
pause, both of which are read at the end of a step under the same lock.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hookcore.config import LIVE, Settings, did_you_mean
from hookcore.errors import ArgumentError, PatternError
from hookcore.recorder.models import Choice, Models
from hookcore.recorder.snapshot_copies import Emit
from hookcore.recorder.snapshots import INPUT_KINDS, Snapshots
from hookcore.records import TENSOR_KINDS, Command, Occasion, Tap

MAX_WAITING: Final = 256
_OF_HOOKS: Final = frozenset(setting.name for setting in LIVE.values() if setting.live == "hooks")


@dataclass(frozen=True, slots=True)
class Change:
    """New values of settings and, if modules are reselected, the selection."""

    values: dict[str, Any]
    choice: Choice | None = None


@dataclass(slots=True, eq=False)
class Commands:
    """The commands of one recorder that were read and wait."""

    _coming: Settings  # the settings after all waiting commands
    _models: Models
    _snapshots: Snapshots
    _emit: Emit
    _describe: Callable[[], None]
    _save_step: Callable[[Occasion | None], None]
    # For readers only, because they emit events, which takes the recorder's lock.
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _last: int = field(default=-1, init=False)
    # Waiting ones; appended by readers, emptied under the recorder's lock.
    changes: deque[Change] = field(default_factory=deque, init=False)

    def enqueue(self, command: Command) -> None:
        """Validate a command and queue it. A repeated one is carried out once."""
        with self._lock:
            if command.number <= self._last:
                return
            self._last = command.number
            if command.name == "settings":
                self._read_settings(command.changes)
            elif command.name == "snapshot":
                self.ask(command.tap, command.number)
            elif command.name == "capsule":
                self._save_step(command.occasion)
            else:
                self._describe()

    def ask(self, tap: Tap | None, number: int = -1) -> bool:
        """Look for a tensor from the next step on, or return why not."""
        reason = "the command doesn't name a tap" if tap is None else self._why_not(tap)
        module = tap.module if tap is not None else ""
        if not reason and tap is not None and not self._snapshots.ask(tap, number):
            reason = "too many snapshots are pending: wait for them"
        if reason:
            self._emit("snapshot-missed", reason, "info", module)
        return not reason

    def _why_not(self, tap: Tap) -> str:
        if tap.kind not in TENSOR_KINDS:
            return f"{tap.kind!r} is not a kind of tensor; the kinds are {', '.join(TENSOR_KINDS)}"
        paths = self._models.paths()
        if tap.module not in paths:
            return f"there is no watched module {tap.module!r}.{did_you_mean(tap.module, paths)}"
        if self._coming.compiled == "inside" and tap.kind in INPUT_KINDS:
            return "compiled='inside' captures only outputs and their gradients: request the preceding module's output"
        return ""

    # -- settings ---------------------------------------------------------------------------------------------------

    def _read_settings(self, given: dict[str, Any]) -> None:
        try:
            values = {name: _value_of(name, value) for name, value in given.items()}
            kept = {name: value for name, value in values.items() if name != "paused"}
            coming = replace(self._coming, **kept)
            choice = None
            if not _OF_HOOKS.isdisjoint(kept):
                choice = self._models.choose(coming)
            if kept.get("channels"):
                self._models.check_patterns(coming.channels)
        except (ArgumentError, PatternError) as error:
            self._refuse(given, str(error))
            return
        except RuntimeError as error:  # its dictionaries changed while they were read
            self._refuse(given, f"the model changed while it was being read ({error}): try again")
            return
        if len(self.changes) >= MAX_WAITING:
            self._refuse(given, f"{MAX_WAITING} changes are already waiting for the step to end: try again later")
            return
        self._coming = coming
        self.changes.append(Change(values, choice))

    def _refuse(self, given: dict[str, Any], reason: str) -> None:
        """Say why a change isn't made, and of which settings, so that each reader knows whose it was."""
        self._emit("settings-refused", f"{', '.join(given)}: {reason}", "info", "")

    def apply_while_idle(self, apply: Callable[[Change], None]) -> None:
        """Carry out what no hook reads. Called in the recorder's thread while no step ends; the rest keeps waiting."""
        later: list[Change] = []
        while self.changes:
            now, rest = _split(self.changes.popleft())
            if now is not None:
                apply(now)
            if rest is not None:
                later.append(rest)
        self.changes.extendleft(reversed(later))

    @property
    def waits_for_a_step(self) -> bool:
        """Return whether everything that waits needs the end of a step."""
        return all(_OF_HOOKS.issuperset(change.values) for change in list(self.changes))


def _value_of(name: str, value: Any) -> Any:
    if name == "paused":
        if not isinstance(value, bool):
            raise ArgumentError(f"paused={value!r} is invalid: paused must be true or false")
        return value
    if name not in LIVE:
        names = ", ".join([*LIVE, "paused"])
        raise ArgumentError(f"{name!r} can't be changed during the training; these settings can: {names}")
    return LIVE[name].value_of(value)


def _split(change: Change) -> tuple[Change | None, Change | None]:
    now = {name: value for name, value in change.values.items() if name not in _OF_HOOKS}
    later = {name: value for name, value in change.values.items() if name in _OF_HOOKS}
    return Change(now) if now else None, Change(later, change.choice) if later else None


def describe_change(before: dict[str, Any], after: dict[str, Any], names: dict[str, Any]) -> str:
    """Describe the changes of the given settings, from old to new values."""
    shown = (f"{name}: {json.dumps(before[name])} -> {json.dumps(after[name])}" for name in names)
    return "; ".join(shown) or "no setting was given, so nothing changed"
