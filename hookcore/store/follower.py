"""The interface between a store and its rules, which are in hookcore.findings, unknown to the store."""

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
        """Take a finding about the next frame that isn't from a rule of the store."""
