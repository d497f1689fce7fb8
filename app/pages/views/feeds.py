"""What feeds a module, and what it feeds, for the page Layer."""

from __future__ import annotations

from dataclasses import dataclass

from hookcore.reading import Reader
from hookcore.reading.answers import Flow, FlowCall
from hookcore.records import ROOT


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


def feeds_of(reader: Reader, path: str, step: int | None = None) -> Feeds | None:
    """Return what feeds a module, in the newest structure up to a step in which it ran; None if that isn't known."""
    flow = reader.flow(step)
    while not any(_is_in(call, path) for call in flow.calls):
        earlier = [each for each in flow.steps if flow.step is not None and each < flow.step]
        if not earlier:
            return None
        flow = reader.flow(earlier[-1])
    return _feeds(flow, path)


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
