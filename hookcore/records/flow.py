"""The data flow of a step: which call of a module got the outputs of which others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

How = Literal["graph", "identity", "order"]

MAX_FLOW_CALLS: Final = 20_000
MAX_FLOW_EDGES: Final = 100_000
_BYTES: Final = 200
_CALL_BYTES: Final = 350
_EDGE_BYTES: Final = 40


@dataclass(frozen=True, slots=True)
class FlowCall:
    """One call of a module. Other calls are given by their places in the flow.

    `how` is how its sources are known: from the autograd graph, from the identity of tensors, or only from the order of
    execution, which is a guess.
    """

    module: str
    call: int = 0
    phase: Literal["train", "eval"] = "train"
    fed_by: tuple[int, ...] = ()  # the calls from whose outputs it computed its own, directly
    returns: tuple[int, ...] = ()  # the calls inside it whose outputs it returned as they were
    how: How = "graph"


@dataclass(frozen=True, slots=True)
class Flow:
    """The calls of one step in the order in which they returned, valid from this step until the next flow."""

    step: int
    calls: tuple[FlowCall, ...]
    seconds: float = 0.0  # that it cost the training

    @property
    def edges(self) -> int:
        """The number of all references between calls."""
        return sum(len(each.fed_by) + len(each.returns) for each in self.calls)

    @property
    def nbytes(self) -> int:
        """Roughly the memory that it takes."""
        return _BYTES + sum(_CALL_BYTES + 4 * len(each.module) for each in self.calls) + _EDGE_BYTES * self.edges

    @property
    def is_sound(self) -> bool:
        """Whether it is as large as it may be at most, and refers to calls that exist."""
        many = len(self.calls)
        small = 0 < many <= MAX_FLOW_CALLS and self.edges <= MAX_FLOW_EDGES
        return small and all(0 <= place < many for each in self.calls for place in (*each.fed_by, *each.returns))
