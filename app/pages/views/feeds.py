"""What feeds a module, and what it feeds, for the page Layer."""

from __future__ import annotations

from dataclasses import dataclass

from hookcore.records import ROOT
from hookcore.records.flow import Flow, FlowCall
from hookcore.store import Store


@dataclass(frozen=True, slots=True)
class Feed:
    """A module at the other end. `guessed` says that only the order of execution is known."""

    path: str
    guessed: bool

    @property
    def name(self) -> str:
        """The path, or "(root)"."""
        return self.path or ROOT


@dataclass(frozen=True, slots=True)
class Feeds:
    """The modules outside of one whose outputs go into it or something in it, and those that get an output of these."""

    fed_by: tuple[Feed, ...]
    feeds: tuple[Feed, ...]


def feeds_of(store: Store, path: str, step: int | None = None) -> Feeds | None:
    """Return what feeds a module, in the newest structure up to a step in which it ran; None if that isn't known."""
    for flow in reversed(store.flows()):
        if (step is None or flow.step <= step) and any(_is_in(call, path) for call in flow.calls):
            return _feeds(flow, path)
    return None


def _feeds(flow: Flow, path: str) -> Feeds:
    inside = [_is_in(call, path) for call in flow.calls]
    fed_by: dict[str, bool] = {}
    feeds: dict[str, bool] = {}
    for place, call in enumerate(flow.calls):
        for source in call.fed_by:
            if inside[place] != inside[source]:
                ends, other = (fed_by, flow.calls[source]) if inside[place] else (feeds, call)
                ends[other.module] = ends.get(other.module, True) and call.how == "order"
    return Feeds(*(tuple(Feed(name, guessed) for name, guessed in each.items()) for each in (fed_by, feeds)))


def _is_in(call: FlowCall, path: str) -> bool:
    return not path or call.module == path or call.module.startswith((f"{path}.", f"{path}/"))
