"""The choices for a run: thresholds of rules, and rules that are off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hookcore.config import did_you_mean
from hookcore.errors import ArgumentError, shown
from hookcore.findings.advice import ADVICE
from hookcore.findings.thresholds import THRESHOLDS, defaults_of

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
