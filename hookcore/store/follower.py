"""What a store asks of the rules that run on it. Those are in hookcore.findings, which a store doesn't know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hookcore.records import Event, Frame
from hookcore.store.incidents import Found


class Follower(Protocol):
    """Runs the rules on a store."""

    def take_turns(self, rank: int) -> None:
        """Run them at other frames than most other ranks of the training."""

    def take(self, frame: Frame) -> None:
        """Run them if a new frame asks for it."""

    def look(self) -> None:
        """Run them now."""

    def hear(self, event: Event) -> None:
        """Take what a rule of the user found, if the event says so."""

    def change(self, step: int, chosen: Mapping[str, Mapping[str, float] | bool]) -> None:
        """Use other thresholds after a step."""

    def hold(self, rule: str, found: Found | None) -> None:
        """Take what is found in the next frame by something else than a rule of the store."""
