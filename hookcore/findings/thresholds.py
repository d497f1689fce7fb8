"""The thresholds of the rules that a user may change, with their ranges, and what was chosen for a run."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hookcore.errors import ArgumentError
from hookcore.findings.advice import ADVICE

Choices = Mapping[str, Mapping[str, float] | bool]  # by rule: thresholds that aren't the default, or False for off
Changes = Sequence[tuple[int, Choices]]  # each with the step after which it applies

MAX_SAID: Final = 1000  # rules in a description
MAX_CHANGES: Final = 200  # of a run that are kept
FOLLOWED: Final = "nonfinite"  # always: the store itself follows it, and it has no thresholds


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that a rule compares with, and the range of what may be given instead."""

    name: str
    default: float
    least: float
    most: float
    help: str
    whole: bool = False

    def read(self, rule: str, given: object) -> float:
        """Return a given number. Raises ArgumentError for what is none, or out of range."""
        number = float("nan") if isinstance(given, bool) or not isinstance(given, int | float) else float(given)
        if not (self.least <= number <= self.most) or (self.whole and number != int(number)):
            what = "a whole number" if self.whole else "a number"
            raise ArgumentError(
                f"{self.name}={_shown(given)} is invalid for the rule {rule}: it must be {what} from {self.least:g} to "
                f"{self.most:g} ({self.help}; default: {self.default:g})"
            )
        return number


def _captured(default: int, most: int) -> Threshold:
    help = "captured steps in which it must be so"
    return Threshold("captured_steps", default, 1, most, help, whole=True)


def _logged(default: int, most: int = 100_000) -> Threshold:
    return Threshold("least_logged", default, 2, most, "values of the loss before it is judged", whole=True)


# Taking logarithms, the rules need factors above 1.
_DEPTH: Final = (
    Threshold("decades", 5.0, 0.5, 40, "powers of ten between the first layers and the last ones"),
    Threshold("least_layers", 8, 3, 10_000, "layers that a stack must have", whole=True),
    Threshold("monotone", 0.8, 0.1, 1, "how steadily it must change with depth; 1: from each layer to the next"),
)
THRESHOLDS: Final[Mapping[str, tuple[Threshold, ...]]] = {
    "loss": (
        Threshold("factor", 100.0, 1.1, 1e12, "times its lowest value"),
        _logged(16),
    ),
    "exploding": (
        Threshold("factor", 20.0, 1.1, 1e12, "times its usual value"),
        Threshold("spreads", 6.0, 0, 1000, "standard deviations above its usual value"),
        Threshold("error_factor", 1e4, 1.1, 1e30, "times its usual value, from which on it is an error"),
        Threshold("large", 1e4, 1, 1e38, "a magnitude that is too large whatever the loss does"),
        Threshold("worse", 1.2, 1, 1000, "times as large as before, from which on a loss counts as worse"),
        *_DEPTH,
    ),
    "vanishing": (
        Threshold("factor", 100.0, 1.1, 1e12, "times below its usual value"),
        Threshold("spreads", 6.0, 0, 1000, "standard deviations below its usual value"),
        Threshold("beside_factor", 1e4, 1.1, 1e30, "times below the gradients of other layers"),
        Threshold("shrinks", 3.0, 1.1, 1e6, "times below its usual value, if it is so small beside others"),
        Threshold("alike", 10.0, 1.1, 1e6, "times as much as other layers: if it fell less, it is a note"),
        *_DEPTH,
    ),
    "no-gradient": (Threshold("share", 0.5, 0.01, 1, "of the layers"), _captured(8, 32)),
    "dead": (
        Threshold("zero_fraction", 0.999, 0.1, 1, "of the values that are zero"),
        _captured(16, 64),
    ),
    "saturated-activation": (
        Threshold("slope", 0.02, 1e-6, 1, "the share of the gradient that passes"),
        _captured(16, 64),
    ),
    "overfit": (
        Threshold("factor", 1.5, 1.001, 1e6, "times the lowest loss of the validation"),
        Threshold("falls", 0.9, 0.01, 1, "times what it was: below it, the loss of the training still falls"),
        _logged(12, 1000),
        Threshold("since_best", 6, 1, 1000, "values since the lowest one", whole=True),
    ),
    "loss-not-decreasing": (
        _logged(200),
        Threshold("falls", 0.98, 0.01, 1, "times what it was at first: below it, the loss has fallen"),
    ),
    "bf16-update-lost": (
        Threshold("share", 0.95, 0.1, 1, "of the values that have a gradient and don't change"),
        Threshold("least_fed", 0.1, 0.001, 1, "of the values must have a gradient"),
        _captured(32, 64),
    ),
    "large-update": (
        Threshold("share", 0.3, 1e-6, 1e6, "of the weight"),
        Threshold("relative_share", 0.03, 1e-9, 1e6, "of the weight, if it is also far above its usual value"),
        Threshold("factor", 10.0, 1.1, 1e12, "times its usual value"),
    ),
    "stalled": (
        Threshold("share", 6e-8, 1e-30, 1, "of the weight"),
        Threshold("factor", 1e4, 1.1, 1e30, "times below its usual value"),
    ),
    "spike": (
        Threshold("factor", 5.0, 1.1, 1e12, "times its usual value"),
        Threshold("spreads", 8.0, 0, 1000, "standard deviations above its usual value"),
        Threshold("least_spread", 0.02, 0, 10, "powers of ten: the least standard deviation that is assumed"),
        Threshold("rare", 4, 1, 64, "columns of the window: a tensor with more spikes is noisy", whole=True),
        Threshold("warning_factor", 100.0, 1.1, 1e30, "times its usual value, from which on it is a warning"),
    ),
}


def defaults_of(rule: str) -> dict[str, float]:
    """Return the thresholds of a rule as nobody changed them."""
    return {each.name: each.default for each in THRESHOLDS.get(rule, ())}


def read_choices(given: Mapping[str, object], before: Choices | None = None) -> Choices:
    """Return what is chosen after a change: by rule, numbers; False for off; True or None for the defaults.

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
                raise ArgumentError(f"the rule {FOLLOWED} can't be switched off: mute it where it doesn't matter")
            chosen |= dict.fromkeys(off, False)
        elif isinstance(what, Mapping):
            _choose(chosen, name, rules, what)
        else:
            raise ArgumentError(
                f"{name}={_shown(what)} is invalid: give thresholds, such as {{'factor': 20}}, False to switch the "
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
            raise ArgumentError(f"{_shown(key)} is no threshold of the rule {name}: {has}.{_nearest(str(key), known)}")
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
            f"{_shown(name)} is no rule: the rules are {', '.join(ADVICE)}.{_nearest(wanted, [*_names()])}"
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


def _nearest(given: str, options: list[str]) -> str:
    near = difflib.get_close_matches(given.lower(), options, n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."


def chosen_in(said: object) -> tuple[Choices, str]:
    """Return the valid choices in what a trainer or a file says, and why others are ignored."""
    chosen: Choices = {}
    why = ""
    for name, what in list(said.items())[:MAX_SAID] if isinstance(said, Mapping) else ():
        try:
            chosen = read_choices({name: what}, chosen)
        except ArgumentError as error:
            why = why or str(error)
    return chosen, why


def changed(changes: Changes, step: int, chosen: Choices) -> list[tuple[int, Choices]]:
    """Add a change after a step. Only the newest ones are kept, and the first."""
    kept = [each for each in changes if each[0] < step]
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
    """Return in words what is different, for an event."""
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
