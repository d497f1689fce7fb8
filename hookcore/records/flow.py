"""The data flow of a step: which call of a module fed which others, how large each was, and what a replay measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

How = Literal["graph", "identity", "order"]

MAX_FLOW_CALLS: Final = 20_000
MAX_FLOW_EDGES: Final = 100_000
MAX_FLOW_TENSORS: Final = 200_000  # inputs and outputs of all calls
MAX_CALL_TENSORS: Final = 8  # of the inputs of a call, and of its outputs
OUTERMOST: Final = -1  # of what no other call contains
_BYTES: Final = 200
_CALL_BYTES: Final = 600
_EDGE_BYTES: Final = 40
_TENSOR_BYTES: Final = 250
_MAX_NUMBER: Final = 2**63


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
    inside: int = OUTERMOST  # the call during which it ran


@dataclass(frozen=True, slots=True)
class TensorForm:
    """The form of an input or output of a call. `place` is that in the nested value, as a tap's index."""

    place: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallSize:
    """How large a call was, without the calls inside it. A number that isn't known is None, and `why` says why."""

    inputs: tuple[TensorForm, ...] = ()  # the first ones
    outputs: tuple[TensorForm, ...] = ()
    made_by: str = ""  # the operator that made its first output itself, such as "Add"
    memory: int | None = None  # bytes of its outputs that were new
    flops: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Flow:
    """The calls of one step in the order in which they returned, valid from this step until the next flow."""

    step: int
    calls: tuple[FlowCall, ...]
    seconds: float = 0.0  # that it cost the training
    sizes: tuple[CallSize, ...] = ()  # of the calls, in their order; none if they aren't known

    @property
    def edges(self) -> int:
        """The number of all references between calls."""
        return sum(len(call.fed_by) + len(call.returns) for call in self.calls)

    @property
    def tensors(self) -> int:
        """The number of all inputs and outputs."""
        return sum(len(size.inputs) + len(size.outputs) for size in self.sizes)

    @property
    def nbytes(self) -> int:
        """Roughly the memory that it takes."""
        calls = sum(_CALL_BYTES + 4 * len(call.module) for call in self.calls)
        return _BYTES + calls + _EDGE_BYTES * self.edges + _TENSOR_BYTES * self.tensors

    @property
    def is_sound(self) -> bool:
        """Whether it is as large as it may be at most, and its numbers can be true."""
        many = len(self.calls)
        if not 0 < many <= MAX_FLOW_CALLS or self.edges > MAX_FLOW_EDGES or self.tensors > MAX_FLOW_TENSORS:
            return False
        places = (place for call in self.calls for place in (*call.fed_by, *call.returns))
        sized = len(self.sizes) in (0, many) and all(map(_is_size, self.sizes))
        return sized and all(0 <= place < many for place in places) and _is_nested([call.inside for call in self.calls])


def flow_at(flows: Sequence[Flow], step: int | None) -> Flow | None:
    """Return the newest flow, or the newest one up to a step."""
    return next((flow for flow in reversed(flows) if step is None or flow.step <= step), None)


def _is_size(size: CallSize) -> bool:
    numbers = (size.memory or 0, size.flops or 0, *(n for each in (*size.inputs, *size.outputs) for n in each.shape))
    return all(0 <= number < _MAX_NUMBER for number in numbers)


def _is_nested(inside: Sequence[int]) -> bool:
    """Return whether each call is inside of one that exists, and none inside itself."""
    if not all(OUTERMOST <= place < len(inside) for place in inside):
        return False
    fine = {OUTERMOST}
    for place in range(len(inside)):
        way: set[int] = set()
        while place not in fine:
            if place in way:
                return False
            way.add(place)
            place = inside[place]
        fine |= way
    return True


# What the replay of a saved step measured of each layer, as the compact text of an event.

EXPLAINED: Final = "explained"  # the event with the operator and the line that a replay found
NOTHING: Final = "nothing"  # its fact `found` if all results of the step were finite
REPLAYED: Final = "replayed"  # the event with the layers of the replayed step
MEASURED: Final = ("count", "nan", "inf", "zero", "mean", "std", "min", "max", "rms", "norm")
MAX_LAYERS: Final = 64
_MAX_TEXT: Final = 15_000  # characters


@dataclass(frozen=True, slots=True)
class ReplayedTap:
    """One tensor of a replayed step: an activation, or its gradient. `values` are those of MEASURED."""

    module: str
    kind: str
    index: str
    call: int
    values: tuple[float, ...]

    @property
    def is_bad(self) -> bool:
        """Whether it had a NaN or an infinity."""
        return self.values[1] > 0 or self.values[2] > 0


def packed(taps: Iterable[ReplayedTap]) -> str:
    """Return tensors as a text, without the last ones if it were too long."""
    rows: list[str] = []
    used = 2
    for tap in list(taps)[:MAX_LAYERS]:
        values = [float(f"{each:.6g}") if math.isfinite(each) else None for each in tap.values]
        row = json.dumps([tap.module, tap.kind, tap.index, tap.call, *values], separators=(",", ":"))
        used += len(row) + 1
        if used > _MAX_TEXT:
            break
        rows.append(row)
    return f"[{','.join(rows)}]"


def unpacked(text: Any) -> list[ReplayedTap]:
    """Return the tensors of such a text; none if it is anything else."""
    try:
        return [_tap(*row) for row in json.loads(text)[:MAX_LAYERS]]
    except (TypeError, ValueError, RecursionError):
        return []


def _tap(module: str, kind: str, index: str, call: int, *values: float | None) -> ReplayedTap:
    known = tuple(math.nan if each is None else float(each) for each in values)
    if kind not in ("output", "output_grad") or len(known) != len(MEASURED):
        raise ValueError(kind)
    return ReplayedTap(str(module), kind, str(index), int(call), known)
