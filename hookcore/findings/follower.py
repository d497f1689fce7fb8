"""Runs the rules while frames arrive, so that findings become incidents before the evidence is merged."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.config import did_you_mean
from hookcore.errors import ArgumentError, shown
from hookcore.findings.advice import ADVICE
from hookcore.findings.finding import Finding
from hookcore.findings.losses import last_output
from hookcore.findings.ranking import RuleInputs, findings_of
from hookcore.findings.rules import THRESHOLDS, defaults_of
from hookcore.records import SEVERITIES, STAT_COLUMN, Event, Frame, Severity, is_shared
from hookcore.records.vocabulary import ENDED, OWN_PROBLEM, OWN_RULE, is_loss
from hookcore.store import Store
from hookcore.store.incidents import GRACE, NONFINITE, Found, is_named
from hookcore.store.segments import Lanes, lanes_of

Values = NDArray[np.float32]
Flags = NDArray[np.bool_]

BLOCK: Final = 4  # frames that are judged together
_FLOOR: Final = np.float32(-160.0)  # the binary logarithm that stands for zero
_FAR: Final = np.float32(3.0)  # binary orders of magnitude from the usual level: few enough for sudden changes
_SPREADS: Final = np.float32(6.0)
_SPIKE: Final = np.float32(6.0)  # orders of magnitude of a single value above the usual level
_RATE: Final = np.float32(1 / 16)  # at which the level follows, per block
_LOOK_AFTER: Final = (1, 2, 4, 8, 16)  # blocks for which it has been far off


class Gate:
    """The usual level of the magnitudes in some lanes, and for how long each has been far from it."""

    def __init__(self) -> None:
        self._rows: NDArray[np.float64] = np.empty((0, 0))  # of frames that aren't judged yet
        self._level: Values = np.empty(0, np.float32)  # NaN if unknown
        self._spread: Values = np.empty(0, np.float32)
        self._away: NDArray[np.int32] = np.empty(0, np.int32)  # blocks
        self._last: NDArray[np.integer[Any]] | None = None  # the newest lanes, which many frames share
        self._place: Lanes = slice(0)  # where they are in a row

    def take(self, lanes: NDArray[np.integer[Any]], values: NDArray[np.floating[Any]]) -> bool:
        """Add a frame's magnitudes; return whether the rules should look."""
        return bool(len(lanes)) and self.take_until(lanes, values[None], lambda _, is_due: is_due) > 0

    def take_until(
        self,
        lanes: NDArray[np.integer[Any]],
        values: NDArray[np.floating[Any]],
        stops: Callable[[int, bool], bool],
    ) -> int:
        """Add the magnitudes [frame, lane] of frames until `stops` returns True; return how many then, else 0.

        `stops` is called after each frame, with its place and whether the rules should look.
        """
        if lanes is not self._last:
            self._grow(int(lanes.max()) + 1)
            self._last, self._place = lanes if is_shared(lanes) else None, lanes_of(lanes)
        before, taken, is_stopped = len(self._rows), 0, False
        rows = np.full((before + len(values), len(self._level)), np.nan)
        rows[:before] = self._rows
        rows[before:, self._place] = values
        with np.errstate(all="ignore"):  # of infinities and zeros
            means, tops = self._judge(rows[: len(rows) // BLOCK * BLOCK])
            while taken < len(values) and not is_stopped:
                taken += 1
                block, rest = divmod(before + taken, BLOCK)
                is_stopped = stops(taken - 1, not rest and self._follow(means[block - 1], tops[block - 1]))
        self._rows = rows[(before + taken) // BLOCK * BLOCK : before + taken].copy()
        return taken * is_stopped

    def _grow(self, lanes: int) -> None:
        more = lanes - len(self._level)
        if more > 0:
            self._rows = np.pad(self._rows, ((0, 0), (0, more)), constant_values=np.nan)
            self._level = np.pad(self._level, (0, more), constant_values=np.nan)
            self._spread = np.pad(self._spread, (0, more), constant_values=1)
            self._away = np.pad(self._away, (0, more))

    def _judge(self, rows: NDArray[np.float64]) -> tuple[Values, Values]:
        """Return the mean and the largest logarithm in each block of frames [block, lane]; a mean is NaN if unknown."""
        logs = np.log2(rows.astype(np.float32)).reshape(-1, BLOCK, rows.shape[1])
        np.maximum(logs, _FLOOR, out=logs)
        top, total = logs.max(axis=1), np.add.reduce(logs, axis=1)
        mean = total / np.float32(BLOCK)
        if not np.isfinite(mean).all():
            known = np.isfinite(logs)  # the others were not captured, or not finite
            total, top = np.where(known, logs, 0).sum(axis=1), np.where(known, logs, -np.inf).max(axis=1)
            mean = (total / known.sum(axis=1)).astype(np.float32)
        return mean, top

    def _follow(self, mean: Values, top: Values) -> bool:
        """Move the levels toward those of a block; NaN changes nothing."""
        new = np.isnan(self._level)
        if np.count_nonzero(new):
            self._level[new] = mean[new]
        off = mean - self._level
        size = np.abs(off)
        far = (size > np.maximum(_FAR, _SPREADS * self._spread)) | (top - self._level > _SPIKE)
        present = ~np.isnan(off)
        if np.count_nonzero(far) or np.count_nonzero(self._away):
            return self._follow_each(off, size, far, present)
        np.add(self._level, _RATE * off, out=self._level, where=present)
        np.add(self._spread, _RATE * (size - self._spread), out=self._spread, where=present)
        return False

    def _follow_each(self, off: Values, size: Values, far: Flags, present: Flags) -> bool:
        self._away = np.where(present, np.where(far, self._away + 1, 0), self._away).astype(np.int32)
        calm = present & ~far
        self._level[calm] += (_RATE * off)[calm]
        self._spread[calm] += _RATE * (size - self._spread)[calm]
        is_due = any(bool((far & (self._away == blocks)).any()) for blocks in _LOOK_AFTER)
        stays = self._away >= _LOOK_AFTER[-1]  # this is the usual level from now on
        self._level[stays] += off[stays]
        self._away[stays] = 0
        return is_due


# The choices for a run: thresholds of rules, and rules that are off.

Choices = Mapping[str, Mapping[str, float] | bool]  # by rule: thresholds that aren't the default, or False for off
Changes = Sequence[tuple[int, Choices]]  # each with the step after which it applies

MAX_SAID: Final = 1000  # rules in a description
MAX_CHANGES: Final = 200  # of a run that are kept
FOLLOWED: Final = "nonfinite"  # always: the store itself follows it, and it has no thresholds


def read_choices(given: Mapping[str, object], before: Choices | None = None) -> Choices:
    """Return the choices after a change, by rule: numbers; False for off; True or None for the defaults.

    A rule may be given by its name in SageMaker Debugger, which stands for every rule that it names; a hyphen and an
    underscore are the same. Raises ArgumentError for a wrong name or number.
    """
    chosen = dict(before or {})
    for name, what in given.items():
        rules = rules_named(name)
        if what is None or what is True:
            for rule in rules:
                chosen.pop(rule, None)
        elif what is False:
            off = [rule for rule in rules if rule != FOLLOWED]
            if not off:
                raise ArgumentError(f"the rule {FOLLOWED} can't be switched off: mute it instead")
            chosen |= dict.fromkeys(off, False)
        elif isinstance(what, Mapping):
            _choose(chosen, name, rules, what)
        else:
            raise ArgumentError(
                f"{name}={shown(what)} is invalid: give thresholds, such as {{'factor': 20}}, False to switch the "
                "rule off, or True for the defaults"
            )
    return chosen


def _choose(
    chosen: dict[str, Mapping[str, float] | bool], name: str, rules: list[str], what: Mapping[Any, Any]
) -> None:
    for key, value in what.items():
        having = [(rule, each) for rule in rules for each in THRESHOLDS.get(rule, ()) if each.name == key]
        if not having:
            known = list(dict.fromkeys(each.name for rule in rules for each in THRESHOLDS.get(rule, ())))
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ArgumentError(
                f"{shown(key)} is not a threshold of the rule {name}: {has}.{did_you_mean(str(key), known)}"
            )
        for rule, threshold in having:
            mine = dict(_numbers(chosen.get(rule)))
            number = threshold.read(rule, value)
            if number == threshold.default:
                mine.pop(threshold.name, None)
            else:
                mine[threshold.name] = number
            chosen.pop(rule, None)
            if mine:
                chosen[rule] = mine


def _numbers(chosen: Mapping[str, float] | bool | None) -> Mapping[str, float]:
    return {} if chosen is None or isinstance(chosen, bool) else chosen


def rules_named(name: object) -> list[str]:
    """Return the rules with a name or alias. Raises ArgumentError if there is none."""
    wanted = str(name).strip().replace("_", "-")
    found = [wanted] if wanted in ADVICE else [rule for rule in ADVICE if wanted in aliases_of(rule)]
    if not found:
        raise ArgumentError(
            f"{shown(name)} is not a rule: the rules are {', '.join(ADVICE)}.{did_you_mean(wanted, [*_names()])}"
        )
    return found


def aliases_of(rule: str) -> tuple[str, ...]:
    """Return the other names of a rule, with hyphens."""
    known = ADVICE[rule].known_as.replace("_", "-")
    return (known,) if known and known != rule else ()


def _names() -> Iterator[str]:
    for rule in ADVICE:
        yield rule
        yield from aliases_of(rule)


def chosen_in(said: object, before: Choices = MappingProxyType({})) -> tuple[Choices, str]:
    """Return the choices after the valid ones in what a trainer or a file says, and why others are ignored."""
    chosen = before
    why = ""
    for name, what in list(said.items())[:MAX_SAID] if isinstance(said, Mapping) else ():
        try:
            chosen = read_choices({name: what}, chosen)
        except ArgumentError as error:
            why = why or str(error)
    return chosen, why


def changed(changes: Changes, step: int, chosen: Choices) -> list[tuple[int, Choices]]:
    """Add a change after a step. Only the newest ones are kept, and the first."""
    kept = [change for change in changes if change[0] < step]
    found = [*kept, (step, chosen)]
    return found if len(found) <= MAX_CHANGES else [found[0], *found[2:]]


def started_with(chosen: Choices) -> list[tuple[int, Choices]]:
    """Return the changes of a run that begins with these choices."""
    return [(-1, chosen)] if chosen else []


def changes_in(said: object) -> list[tuple[int, Choices]]:
    """Return the changes that a file says, without what can't be read."""
    found: list[tuple[int, Choices]] = []
    for each in said[:MAX_CHANGES] if isinstance(said, list) else ():
        if isinstance(each, list) and len(each) == 2 and isinstance(each[0], int):
            found = changed(found, each[0], chosen_in(each[1])[0])
    return found


def words_of(chosen: Choices, before: Choices) -> str:
    """Describe the difference in words, for an event."""
    parts = []
    for rule in dict.fromkeys([*before, *chosen]):
        one, two = before.get(rule), chosen.get(rule)
        if one == two:
            continue
        if two is False:
            parts.append(f"{rule} off")
            continue
        old, new = {**defaults_of(rule), **_numbers(one)}, {**defaults_of(rule), **_numbers(two)}
        numbers = [f"{name} {old[name]:g} to {new[name]:g}" for name in new if old[name] != new[name]]
        parts.append(f"{rule} on" if one is False and not numbers else f"{rule}: {', '.join(numbers)}")
    return "; ".join(parts)


# Looking at 2,000 tensors takes as long as adding three to five frames. When to look depends on the frames alone, so
# that a run that is read again has the same incidents.
EVERY: Final = 1024  # frames between two looks in which nothing seems to have changed; fewer in a young run
YOUNG: Final = frozenset({8, 16, 32, 64, 128, 256, 512})
TURNS: Final = 16  # a rank looks up to so many frames later than the first one: all at once would stall live pages
RULES_CHANGED: Final = "rules-changed"
AGAIN: Final = 48  # frames after a further look to see what became of it
PER_LOOK: Final = 512  # frames to wait for each further look
MAX_OWN: Final = 200  # problems that rules of the user find at the same time
MAX_LOSSES: Final = 1000  # whose levels are known
MAX_LOOKS: Final = 8  # further looks in quick succession

_LOSS_FAR: Final = 3.0  # binary orders of magnitude
_LOSS_LOOK_AFTER: Final = frozenset({4, 16, 64})  # frames
_RMS: Final = STAT_COLUMN["rms"]


@dataclass(slots=True)
class _Level:
    """The usual binary logarithm of a loss, and for how many frames it has been far above."""

    usual: float
    away: int = 0

    def rises(self, now: float) -> bool:
        """Follow a value; return whether the rules should look."""
        far = now - self.usual > _LOSS_FAR
        self.away = self.away + 1 if far else 0
        self.usual += (now - self.usual) / (256 if far else 16)
        return self.away in _LOSS_LOOK_AFTER


class Follower:
    """Follows one store. Everything but `look` is called by the thread that adds frames."""

    def __init__(self, store: Store, changes: Changes = (), rank: int = 0) -> None:
        self._ref = weakref.ref(store)  # which has this follower: a circle would keep a store until a full collection
        self._later = 0  # by how many frames the schedule is later
        self._changes = list(changes)  # of thresholds, that are to come
        self.inputs = RuleInputs()
        self._sizes = Gate()
        self._fitting: object = None  # taps that are all known, which many frames share; never a part of a message
        self._names: tuple[str, ...] = ()  # of scalars
        self._losses: tuple[str, ...] = ()
        self._levels: dict[str, _Level] = {}  # of losses
        self._frames = 0
        self._own: dict[tuple[str, str], Found] = {}  # what rules of the user find now, by rule and module
        self._has_own = False
        self._looks = float(MAX_LOOKS)  # that are left
        self._wanted = self._is_due = False
        self._again = -1  # the frame at which to look again
        self._spikes_reported = -1  # the step up to which they are
        self._fine_for = GRACE + 1  # frames since a loss was non-finite
        self._failed = False
        self.take_turns(rank)
        self._change_before(0)

    @property
    def _store(self) -> Store:
        store = self._ref()
        assert store is not None, "only a store's own thread calls its follower"
        return store

    def take_turns(self, rank: int) -> None:
        """Look at the store at other frames than most other ranks of the training."""
        self._later = rank % TURNS

    def notices(self, frame: Frame) -> bool:
        """Return whether to act when this frame is in the store: on the schedule, or because a value changed."""
        if self._changes:
            self._change_before(frame.step)
        for event in frame.events:
            self.hear(event)
        has_rows = len(frame.taps) > 0
        is_due = self._notice_sizes(frame) if has_rows else False
        return self._acts_after(frame, is_due or any(event.name in ENDED for event in frame.events), has_rows)

    def notices_alike(self, frames: Sequence[Frame], stats: NDArray[np.float64] | None) -> int:
        """Read frames of the same known taps with nothing but numbers, up to one after which to act, and return how
        many then; 0 if there is none. `stats` are theirs [frame, tap, stat], if they have any.
        """

        def stops(at: int, is_due: bool) -> bool:
            if self._changes:
                self._change_before(frames[at].step)
            return self._acts_after(frames[at], is_due, stats is not None)

        if stats is None:
            return next((at + 1 for at in range(len(frames)) if stops(at, False)), 0)
        return self._sizes.take_until(frames[0].taps, stats[:, :, _RMS], stops)

    def _acts_after(self, frame: Frame, is_due: bool, has_rows: bool) -> bool:
        if self._notice_loss(frame.scalars) or is_due:
            self._wanted, self._again = True, self._frames + AGAIN + has_rows
        self._is_due = has_rows and self._is_scheduled()
        return self._is_due or (self._wanted and self._looks >= 1) or self._has_own

    def _is_scheduled(self) -> bool:
        """Count a frame with rows: steps that weren't captured bring the rules hardly anything new."""
        self._frames += 1
        self._looks = min(float(MAX_LOOKS), self._looks + 1 / PER_LOOK)
        self._wanted |= self._frames == self._again
        scheduled = self._frames - self._later
        return scheduled in YOUNG or (scheduled > 0 and scheduled % EVERY == 0)

    def act(self) -> None:
        """Follow the findings of the user's rules, which check every frame, and the held ones; run the rules if due."""
        if self._has_own and self._store.taps_known:
            self._store.judge(list(self._own.values()), per_frame=True)
        if self._is_due or (self._wanted and self._looks >= 1):
            self._looks -= not self._is_due
            self.look()

    def _change_before(self, step: int) -> None:
        while self._changes and self._changes[0][0] < step:
            self.change(*self._changes.pop(0))

    def change(self, step: int, chosen: Choices) -> None:
        """Use other thresholds after a step. Earlier findings stay; the rules check the next frame."""
        words = words_of(chosen, self._store.rules)
        self._store.choose(chosen)
        self._wanted = True
        if words:
            self._store.add_event(Event(max(step, 0), time.time(), RULES_CHANGED, words))

    def look(self) -> None:
        """Run the rules now."""
        self._wanted = False
        newest = self._store.steps().newest
        if newest is None:
            return
        try:
            with np.errstate(all="ignore"), self._store.in_memory():  # no value of a trainer may stop the rules
                found = findings_of(self._store, self.inputs, self._spikes_reported)
            settled = -1 if self.inputs.sizes is None else self.inputs.sizes.settled
            self._store.judge([_found(each) for each in found if self._counts(each, settled)])
        except Exception as error:  # a rule must never cost a frame
            self._report(newest, error)
            return
        self._spikes_reported = max(self._spikes_reported, settled)
        if self._frames >= self._again:  # the next look is far off, and will read other steps
            self.inputs.shrink()

    def _counts(self, finding: Finding, settled: int) -> bool:
        """Return whether a finding is an incident. Non-finite values are followed by the store itself.

        Without a captured tensor there is none, because its evidence would be missing.
        """
        if finding.number < 0:
            return False
        if finding.rule in ("spike", "loss-spike"):
            return self._spikes_reported < finding.since_step <= settled
        return finding.rule != NONFINITE and finding.severity != "info"

    def hold(self, rule: str, found: Found | None) -> None:
        """Take what another part of the server finds in the next frame, under the name of a rule; None: nothing."""
        if found is not None:
            self._has_own = True
            self._own[rule, ""] = found
        else:
            self._own.pop((rule, ""), None)

    def hear(self, event: Event) -> None:
        """Take what a rule of the user found, or no longer finds."""
        if not event.name.startswith(OWN_RULE) or OWN_PROBLEM not in event.about:
            return
        self._has_own = True
        key = event.name, event.module
        if event.about[OWN_PROBLEM] is None:
            self._own.pop(key, None)
        elif key in self._own or len(self._own) < MAX_OWN:
            self._own[key] = self._own_found(key[0], event)

    def _own_found(self, rule: str, event: Event) -> Found:
        taps = self._store.taps()
        of_module = [place for place, tap in enumerate(taps.taps) if tap.module == event.module and event.module]
        place = min(of_module, key=lambda each: taps.taps[each].kind != "output", default=taps.fact(last_output))
        number = int(taps.numbers[place])
        severity: Severity = next((each for each in SEVERITIES if each == event.about[OWN_PROBLEM]), "warning")
        text = event.message
        is_said = not event.module or is_named(event.module, text)
        message = text.rstrip(".") + ("" if is_said else f", in {event.module}")
        about = event.step, None, message, ((number, event.step),)
        return Found(rule, severity, number, math.nan, math.nan, *about, placed=bool(event.module))

    def _notice_sizes(self, frame: Frame) -> bool:
        numbers, sizes = frame.taps, frame.stats[:, _RMS]
        if numbers is not self._fitting:
            if numbers.max() < self._store.taps_known:
                self._fitting = numbers if is_shared(numbers) else None
            else:  # there was no room for them
                fit = numbers < self._store.taps_known
                numbers, sizes = numbers[fit], sizes[fit]
        return self._sizes.take(numbers, sizes)

    def _notice_loss(self, scalars: Mapping[str, float]) -> bool:
        names = tuple(scalars)
        if names != self._names:  # most frames have the same scalars
            self._names, self._losses = names, tuple(filter(is_loss, names))
        is_due, is_bad = False, False
        for name in self._losses:
            value = scalars[name]
            if not math.isfinite(value):
                is_bad = True
            elif value > 0 and (name in self._levels or len(self._levels) < MAX_LOSSES):
                is_due |= self._levels.setdefault(name, _Level(math.log2(value))).rises(math.log2(value))
        if self._losses:  # it takes two looks to know that it is over
            is_due |= self._fine_for in (0, GRACE) if not is_bad else self._fine_for > 0
            self._fine_for = 0 if is_bad else self._fine_for + 1
        return is_due

    def _report(self, step: int, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            message = f"a rule failed, so incidents may be missing: {type(error).__name__}: {error}"
            self._store.add_event(Event(step, time.time(), "rule-failed", message, "warning"))


def follow(store: Store, changes: Changes = (), rank: int = 0) -> Store:
    """Let the rules follow a store, with thresholds that change after these steps; return it."""
    store.attach(Follower(store, changes, rank))
    return store


def _found(finding: Finding) -> Found:
    members = finding.members or ((finding.number, finding.since_step),)
    about = finding.value, finding.usual, finding.since_step, finding.until_step, finding.message, members
    return Found(finding.rule, finding.severity, finding.number, *about, finding.unseen, not finding.is_of_loss)
