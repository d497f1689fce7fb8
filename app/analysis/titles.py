"""The titles of rules and events, as all pages show them."""

from __future__ import annotations

from hookcore.findings import RULES, Rule
from hookcore.records.vocabulary import OWN_RULE


def title_of_rule(name: str) -> str:
    """Return the title of a rule; one of the user has none but its name."""
    rule: Rule | None = RULES.get(name)  # type: ignore[call-overload]
    return title_of(name) if rule is None else rule.title


def title_of(name: str) -> str:
    """Return the name of an event as a title."""
    return name.removeprefix(OWN_RULE).replace("-", " ").capitalize()
