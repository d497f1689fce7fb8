"""Commands from readers: read and checked in their thread, carried out between two steps."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from hookcore.config import LIVE, did_you_mean
from hookcore.errors import ArgumentError, PatternError
from hookcore.recorder.calls.keeping import Keeping
from hookcore.recorder.calls.placement import Observers, Placement
from hookcore.recorder.context import Context
from hookcore.recorder.known.models import Choice, Models
from hookcore.recorder.measured.snapshots import INPUT_KINDS, Snapshots
from hookcore.records import TENSOR_KINDS, Command, Tap, Value, about_command

# A command is read where it arrives, so a long list of patterns costs the training nothing. Changes of hooks wait for
# the end of a step: then the training thread itself is inside the recorder, holding its lock, so none of its forward
# passes can be half done. While no step ends, the recorder's thread carries out changes that no hook reads: the cadence
# and the pause, both of which are read at the end of a step under the same lock.

MAX_WAITING: Final = 256
_OF_HOOKS: Final = frozenset(setting.name for setting in LIVE.values() if setting.live == "hooks")


@dataclass(frozen=True, slots=True)
class Change:
    """New values of settings and, if modules are reselected, the selection."""

    number: int  # of its command
    values: dict[str, Any]
    choice: Choice | None = None
    replaced_by: int | None = None  # the later command that has replaced one of its values before a step used it
    has_rest: bool = False  # whether some of its values still wait


class Commands:
    """The commands of one recorder that were read and wait."""

    def __init__(self, context: Context, models: Models, snapshots: Snapshots, keeping: Keeping) -> None:
        self._coming = context.settings  # the settings after all waiting commands
        self._emit, self._models, self._snapshots, self._keeping = context.emit, models, snapshots, keeping
        self._lock = threading.Lock()  # for readers only, because they emit events, which takes the recorder's lock
        self._last = -1
        self.changes: deque[Change] = deque()  # waiting; appended by readers, emptied under the recorder's lock
        self.wants_description = True  # whether one was requested, as the first one is; the recorder's thread sends it

    def enqueue(self, command: Command) -> None:
        """Validate a command and queue it. A repeated one is carried out once."""
        with self._lock:
            if command.number <= self._last:
                return
            self._last = command.number
            if command.name == "settings":
                self._read_settings(command.number, command.changes)
            elif command.name == "snapshot":
                self.ask(command.tap, command.number)
            elif command.name == "capsule":
                self._keeping.ask(command.occasion)
            else:
                self.wants_description = True

    def ask(self, tap: Tap | None, number: int = -1) -> bool:
        """Look for a tensor from the next step on, or return why not."""
        reason = "the command doesn't name a tap" if tap is None else self._why_not(tap)
        module = tap.module if tap is not None else ""
        if not reason and tap is not None and not self._snapshots.ask(tap, number):
            reason = "too many snapshots are pending: wait for them"
        if reason:
            self._emit("snapshot-missed", reason, "info", module, about_command(number, "refused"))
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

    def _read_settings(self, number: int, given: dict[str, Any]) -> None:
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
            self._refuse(number, given, str(error))
            return
        except RuntimeError as error:  # its dictionaries changed while they were read
            self._refuse(number, given, f"the model changed while it was being read ({error}): try again")
            return
        if len(self.changes) >= MAX_WAITING:
            self._refuse(
                number, given, f"{MAX_WAITING} changes are already waiting for the step to end: try again later"
            )
            return
        self._coming = coming
        self.changes.append(Change(number, values, choice))

    def _refuse(self, number: int, given: dict[str, Any], reason: str) -> None:
        about = about_command(number, "refused")
        self._emit("settings-refused", f"{', '.join(given)}: {reason}", about=about)

    def take(self) -> Change:
        """Return the change that waits longest, with the later one that replaces a value of it."""
        change = self.changes.popleft()
        later = [each.number for each in list(self.changes) if _replaces(each, change)]
        return replace(change, replaced_by=later[-1]) if later else change

    def apply_while_idle(self, apply: Callable[[Change], None]) -> None:
        """Carry out what no hook reads. Called in the recorder's thread while no step ends; the rest keeps waiting."""
        later: list[Change] = []
        while self.changes:
            now, rest = _split(self.take())
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
    return (
        replace(change, values=now, choice=None, has_rest=bool(later)) if now else None,
        replace(change, values=later) if later else None,
    )


def _replaces(later: Change, change: Change) -> bool:
    """Return whether a later change gives a setting another value."""
    return any(later.values.get(name, value) != value for name, value in change.values.items())


def describe_change(before: dict[str, Any], after: dict[str, Any], names: dict[str, Any]) -> str:
    """Describe the changes of the given settings, from old to new values."""
    shown = (f"{name}: {json.dumps(before[name])} -> {json.dumps(after[name])}" for name in names)
    return "; ".join(shown) or "no setting was given, so nothing changed"


def _outcome_of(change: Change) -> dict[str, Value]:
    if change.has_rest:
        return about_command(change.number, "received")
    if change.replaced_by is not None:
        return about_command(change.number, "superseded", change.replaced_by)
    return about_command(change.number, "applied")


class Control:
    """Carries out commands. Called under the recorder's lock."""

    def __init__(
        self, context: Context, commands: Commands, models: Models, observers: Observers, placement: Placement
    ) -> None:
        self._context, self._commands, self._models = context, commands, models
        self._observers, self._placement = observers, placement
        self._reported_waiting = -1  # the newest change that was reported to wait

    def current_settings(self) -> dict[str, Any]:
        """Return the current settings in types that JSON has, with `paused` and figures of the cadence."""
        context = self._context
        return {**context.settings.as_dict(), "paused": context.paused, **context.cadence.as_settings()}

    @property
    def has_work(self) -> bool:
        """Return whether a command or a snapshot needs attention at the end of the step."""
        observers = self._observers
        return observers.snapshots.active or observers.flows.is_learning or bool(self._commands.changes)

    def apply_pending(self) -> None:
        """Carry out everything that waits, in order. Called between two steps, on the training thread."""
        while self._commands.changes:
            self._apply(self._commands.take())
        self._observers.begin_snapshots()

    def apply_while_idle(self) -> None:
        """Carry out what no hook reads. Called on the recorder's thread while no step ends.

        A forward may be running, even a slow one. The cadence and the pause are read only at the end of a step, under
        the lock that is held here.
        """
        if not self._commands.waits_for_a_step:
            self._commands.apply_while_idle(self._apply)
        for change in list(self._commands.changes):
            if change.number > self._reported_waiting:
                self._reported_waiting = change.number
                why = "no step is running: the change takes effect at the end of the next one"
                self._context.emit("settings-waiting", why, about=about_command(change.number, "received"))

    def _apply(self, change: Change) -> None:
        context, before = self._context, self.current_settings()
        values = {name: value for name, value in change.values.items() if name != "paused"}
        settings = context.settings = replace(context.settings, **values)
        if "every" in values or "budget" in values:
            context.cadence.change(settings.every, settings.budget)
        if "channels" in values:
            self._observers.probes.choose_channels(settings.channels)
        if change.choice is not None:
            self._models.rechoose(change.choice)
            limit = self._placement.follow_choice([plan for plan, _ in change.choice])
            if limit is not None:
                context.emit("settings-limited", limit, "warning")
        context.paused = change.values.get("paused", context.paused)
        message = describe_change(before, self.current_settings(), change.values)
        if change.replaced_by is not None:
            message += ". A later change replaced it before a step used it"
        context.emit("settings-changed", message, about=_outcome_of(change))
