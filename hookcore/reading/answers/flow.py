"""The data flow between module calls."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hookcore import records
from hookcore.reading.answers.base import Answer, Number
from hookcore.records import Phase
from hookcore.records.flow import How

Places = tuple[int, ...]


class FlowCall(Answer, frozen=True):
    """One call of a module, and the calls that feed it, by their places in the list of calls."""

    module: str
    call: int
    phase: Phase
    fed_by: Annotated[Places, Meta(description="the calls whose outputs it directly computed its own from")]
    returns: Annotated[Places, Meta(description="the calls inside it whose outputs it returned as they were")]
    how: Annotated[How, Meta(description="how this is known; `order` is a guess from the order of execution")]


class Flow(Answer, frozen=True):
    """The calls of a step with their sources, in the order in which the calls returned. Empty if unknown."""

    run: str
    step: Annotated[int | None, Meta(description="the step in which it was learned; null if it isn't known")]
    steps: Annotated[tuple[int, ...], Meta(description="all steps in which a structure of the model was learned")]
    seconds: Annotated[Number, Meta(description="the time that learning it cost the training")]
    calls: tuple[FlowCall, ...]

    @classmethod
    def of(cls, run: str, flows: tuple[records.flow.Flow, ...], step: int | None) -> Flow:
        """Return the answer for the newest flow, or for the newest one up to a step."""
        steps = tuple(flow.step for flow in flows)
        found = records.flow.flow_at(flows, step)
        if found is None:
            return cls(run, None, steps, Number(0.0), ())
        calls = (FlowCall(*(getattr(call, name) for name in FlowCall.__struct_fields__)) for call in found.calls)
        return cls(run, found.step, steps, Number(found.seconds), tuple(calls))
