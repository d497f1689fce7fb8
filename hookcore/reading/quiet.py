"""Acknowledged findings and events, and muted rules: a run shows them, but raises no alert about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hookcore.config import patterns
from hookcore.errors import ArgumentError, PatternError
from hookcore.store import Store

MAX_ACKNOWLEDGED: Final = 10_000  # findings and events of one run; the oldest are forgotten
MAX_MUTED: Final = 100

Muting = Callable[[str, str], "Mute | None"]  # the mute that covers a rule, or a kind of event, in a module


@dataclass(frozen=True, slots=True)
class Mute:
    """No alerts from a rule, or of events with a name, in the modules that match."""

    rule: str
    match: str = ""  # "" is everywhere


@dataclass(slots=True)
class Quiet:
    """The acknowledgements and mutes of one run."""

    acknowledged: dict[str, int] = field(default_factory=dict)  # by key, with the step up to which it is valid
    mutes: dict[Mute, patterns.Condition] = field(default_factory=dict)

    def acknowledge(self, key: str, step: int | None) -> None:
        """Acknowledge the finding or event with this key up to a step, or undo that."""
        self.acknowledged.pop(key, None)
        if step is not None:
            self.acknowledged[key] = step
            while len(self.acknowledged) > MAX_ACKNOWLEDGED:
                del self.acknowledged[next(iter(self.acknowledged))]

    def has_seen(self, key: str, since: int) -> bool:
        """Return whether something that began at a step has since been acknowledged. A recurrence counts as new."""
        return since <= self.acknowledged.get(key, -1)

    def mute(self, mute: Mute) -> None:
        """Mute a rule. Raises ArgumentError for a malformed pattern, or if there are too many."""
        condition = patterns.parse(mute.match, patterns.STRUCTURE)
        if mute not in self.mutes and len(self.mutes) >= MAX_MUTED:
            raise ArgumentError(
                f"this run has {MAX_MUTED} mutes already: remove one, or use a pattern that covers several"
            )
        self.mutes = {**self.mutes, mute: condition}

    def unmute(self, mute: Mute) -> None:
        """Remove a mute."""
        self.mutes = {other: condition for other, condition in self.mutes.items() if other != mute}

    def muting(self, store: Store) -> Muting:
        """Return a function that finds the mute of a rule in a module. Use it for one answer: modules may be added."""
        mutes = self.mutes
        facts: dict[str, patterns.Facts] = {}

        def find(rule: str, module: str) -> Mute | None:
            for mute, condition in mutes.items():
                if mute.rule != rule:
                    continue
                if mute.match and not facts:
                    facts.update(store.facts())
                if not mute.match or condition.fits(facts.get(module) or patterns.Facts(module, is_root=not module)):
                    return mute
            return None

        return find

    def as_data(self) -> dict[str, Any]:
        """Return the acknowledgements and mutes in a form that JSON can store."""
        mutes = [{"rule": mute.rule, "match": mute.match} for mute in self.mutes]
        return {"acknowledgements": self.acknowledged, "mutes": mutes}

    @classmethod
    def of(cls, page: Mapping[str, Any]) -> Quiet:
        """Read saved acknowledgements and mutes. Unreadable entries are left out, so their alerts come back."""
        quiet = cls(dict(_acknowledged_in(page.get("acknowledgements"))))
        for mute in _mutes_in(page.get("mutes")):
            try:
                quiet.mute(mute)
            except (ArgumentError, PatternError):
                continue
        return quiet


def _acknowledged_in(saved: object) -> Iterator[tuple[str, int]]:
    if isinstance(saved, dict):
        for key, step in list(saved.items())[:MAX_ACKNOWLEDGED]:
            if isinstance(key, str) and isinstance(step, int):
                yield key, step


def _mutes_in(saved: object) -> Iterator[Mute]:
    for entry in _list(saved):
        rule, match = (entry.get(name) for name in ("rule", "match")) if isinstance(entry, dict) else (None, None)
        if isinstance(rule, str) and isinstance(match, str):
            yield Mute(rule, match)


def _list(saved: object) -> Iterable[object]:
    return saved[:MAX_MUTED] if isinstance(saved, list) else ()
