"""How large the calls of a step are: shapes, dtypes, memory of outputs, and floating-point operations.

Each thread numbers the nodes that it adds to the autograd graph. So a node belongs to the innermost call during which
its number was given, whichever outputs lead to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from torch import Tensor, nn

from hookcore.hooks.internals import is_wrapped, next_node_number, node_number
from hookcore.recorder.flops import NO_GRADIENTS, Work, operator_of, work_of_module, work_of_node
from hookcore.records import text_of
from hookcore.records.flow import MAX_CALL_TENSORS, CallSize, TensorForm

UNSEEN: Final = "the start of its call wasn't seen, as with compiled modules"
UNNUMBERED: Final = "this release of torch doesn't number the nodes of its graph"
WRAPPED: Final = "it ran inside torch.func (vmap, grad)"
SHARDED: Final = "its tensors are parts of larger ones on several devices"
COUNTED: Final = -1  # the place of a call whose nodes are counted already
MAX_TEXT: Final = 200


def now() -> int:
    """Return the number of the next node of this thread."""
    return next_node_number() if next_node_number is not None else 0


@dataclass(slots=True, eq=False)
class SeenCall:
    """A call that returned. `began` is the number of the next node when it began, None if that wasn't seen."""

    module: nn.Module | None
    began: int | None
    inputs: Sequence[TensorForm]
    outputs: Sequence[tuple[str, Tensor]]
    memory: int | None  # bytes of its outputs that were new
    maker: Any  # the node of its first own output, if it is a container
    has_calls: bool  # whether other modules were called inside


@dataclass(slots=True, eq=False)
class Sizes:
    """The sizes of the calls of one step. It holds numbers and words."""

    _sizes: list[CallSize] = field(default_factory=list)  # by place of the call
    _spans: list[tuple[int, int, int]] = field(default_factory=list)  # first node, the one after the last, place
    _work: dict[int, Work] = field(default_factory=dict)  # of nodes, by their numbers
    _newest: list[int] = field(default_factory=list)  # the number of the newest call that was counted, by place

    def counts(self, place: int, number: int) -> bool:
        """Return whether a call counts. Calls in later micro-batches add nothing new."""
        return place == len(self._sizes) or number > self._newest[place]

    def saw_node(self, node: Any) -> None:
        """Note what the operator of a node did."""
        work = work_of_node(node)
        if work is not None:
            self._work[node_number(node)] = work

    def saw_call(self, place: int, number: int, seen: SeenCall) -> None:
        """Add a call that counts."""
        forms = forms_of(seen.outputs)
        work = self._work_of(place, seen, forms)
        if place == len(self._sizes):
            made_by = "" if seen.maker is None else text_of(operator_of(seen.maker))[:MAX_TEXT]
            known = (None, text_of(work)[:MAX_TEXT]) if isinstance(work, str) else (work, "")
            self._sizes.append(CallSize(tuple(seen.inputs[:MAX_CALL_TENSORS]), forms, made_by, seen.memory, *known))
            self._newest.append(number)
            return
        self._newest[place] = number
        size = self._sizes[place]
        memory = None if seen.memory is None or size.memory is None else size.memory + seen.memory
        self._sizes[place] = _with(replace(size, memory=memory), work)

    def _work_of(self, place: int, seen: SeenCall, forms: Sequence[TensorForm]) -> Work:
        """Return the operations that shapes imply, or why they aren't known; 0 if the graph's nodes provide them."""
        if seen.module is None or seen.began is None:
            return UNSEEN
        owned = (each for each in seen.module._parameters.values() if each is not None)
        trouble = next(filter(None, map(_hides, (*(tensor for _, tensor in seen.outputs), *owned))), "")
        if trouble:
            return trouble
        inputs, outputs = [each.shape for each in seen.inputs], [each.shape for each in forms]
        known = work_of_module(seen.module, inputs, outputs, seen.has_calls)
        if known is not None:
            self._spans.append((seen.began, now(), COUNTED))
            return known
        if next_node_number is None:
            return UNNUMBERED
        if not any(tensor.requires_grad and tensor.grad_fn is not None for _, tensor in seen.outputs):
            return NO_GRADIENTS
        self._spans.append((seen.began, now(), place))
        return 0

    def all(self) -> tuple[CallSize, ...]:
        """Return the sizes of all calls."""
        for place, work in _by_call(self._spans, self._work):
            self._sizes[place] = _with(self._sizes[place], work)
        return tuple(self._sizes)


def forms_of(tensors: Iterable[tuple[str, Tensor]]) -> tuple[TensorForm, ...]:
    """Return the forms of the first tensors."""
    found: list[TensorForm] = []
    for name, tensor in tensors:
        if len(found) == MAX_CALL_TENSORS:
            break
        try:
            shape = tuple(int(size) for size in tensor.shape)
        except Exception:  # a nested tensor has none
            shape = ()
        found.append(TensorForm(text_of(name), str(tensor.dtype).removeprefix("torch."), shape))
    return tuple(found)


def _hides(tensor: Tensor) -> str:
    if is_wrapped(tensor):
        return WRAPPED
    return SHARDED if type(tensor).__name__ == "DTensor" else ""


def _with(size: CallSize, work: Work) -> CallSize:
    """Add operations, or the reason why some aren't known, to a size."""
    if isinstance(work, str):
        return replace(size, flops=None, why=size.why or text_of(work)[:MAX_TEXT])
    return size if size.flops is None else replace(size, flops=size.flops + work)


def _by_call(spans: Iterable[tuple[int, int, int]], work: dict[int, Work]) -> Iterator[tuple[int, Work]]:
    """Yield the work of each node with the place of the innermost call around it, if it has one that counts nodes."""
    # Of calls with the same nodes, the one that returned last is around the others.
    waiting = sorted(reversed(list(spans)), key=lambda span: (span[0], -span[1]))
    around: list[tuple[int, int]] = []  # the ends and places of the calls that are open
    at = 0
    for number in sorted(work):
        while at < len(waiting) and waiting[at][0] <= number:
            begin, end, place = waiting[at]
            while around and around[-1][0] <= begin:
                around.pop()
            around.append((end, place))
            at += 1
        while around and around[-1][0] <= number:
            around.pop()
        if around and around[-1][1] >= 0:
            yield around[-1][1], work[number]
