"""The dispatch mode of a replay: follows non-finite values from operator to operator, to the one that made them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Final, Literal

import torch
from torch import Tensor

from hookcore.capsules.content import MAX_ELEMENTS, bad_elements, facts_of, is_numeric, lines_of, running_lines
from hookcore.hooks.internals import TorchDispatchMode, current_node, tree_iter
from hookcore.reading.answers import SourceLine, TensorFacts
from hookcore.records.vocabulary import KIND_WORDS

# What an operator is given: its arguments, the memory behind them, and what it changes.


def storage_of(tensor: Tensor) -> int:
    """Return a key that is the same for tensors that share memory."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a sparse tensor has none
        return id(tensor)


def fills_storage(tensor: Tensor) -> bool:
    """Return whether a tensor covers all of its memory, so that no earlier value remains."""
    try:
        return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return True


def copy_of(tensor: Tensor) -> Tensor:
    """Return a copy that is identified by the storage of its original."""
    twin = tensor.detach().clone()
    twin._hookcore_storage = storage_of(tensor)  # type: ignore[attr-defined]
    return twin


def arguments_of(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Return each argument with its parameter in the schema."""
    parameters = func._schema.arguments
    yield from zip(parameters, args, strict=False)
    yield from ((parameter, kwargs[parameter.name]) for parameter in parameters if parameter.name in kwargs)


def changed_by(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments that an operator changes in place."""
    if not func._schema.is_mutable:
        return []
    written = (
        value for each, value in arguments_of(func, args, kwargs) if each.alias_info and each.alias_info.is_write
    )
    return [tensor for value in written for tensor in tree_iter(value)]


def is_view(func: Any) -> bool:
    """Return whether an operator returns the memory of its inputs."""
    return any(each.alias_info is not None for each in func._schema.returns)


def bad_numbers(args: Any, kwargs: Any, above: float | None) -> list[float]:
    """Return the numbers among the arguments that are non-finite, or above a threshold."""
    limit = sys.float_info.max if above is None else above
    numbers = (each for each in tree_iter((args, kwargs)) if isinstance(each, int | float))
    return [float(number) for number in numbers if not abs(number) <= limit]


# A non-finite value isn't always a mistake: a mask may be minus infinity on purpose, `torch.empty` contains anything,
# and
# `torch.where` may discard what it didn't select. So each operator that makes a non-finite value of finite ones is
# only a
# *suspect*. The suspects behind each tensor are carried along, and those behind the step's results remain.

Origin = Literal["operator", "given", "constant", "uninitialized"]
GRADIENT: Final = KIND_WORDS["output_grad"]  # how names of what arrives at the model's output begin
_MAX_INPUTS: Final = 8
_MAX_CODE: Final = 160  # characters of a line in a sentence
_SENTENCES: Final = {
    "operator": "{} made the first {} value",
    "given": "The {} already had {} values when the model was called",
    "constant": "{} received a {} constant, perhaps a mask; no other origin was found",
    "arrived": "The {} already had {} values when it arrived at the model: look at the loss, and after the model",
    "uninitialized": "{} left memory uninitialized, and it was read before it was written",
}
_OVERWRITING: Final = frozenset(("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_"))
_UNINITIALIZED: Final = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "resize_")
)
_NONE: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Suspect:
    """Where a non-finite value came from. `origin` "given": it was in the batch, weights, or arriving gradients."""

    origin: Origin
    operator: str
    number: int  # in the order of the step's operators; 0 before the first one
    phase: str  # forward or backward
    node: str = ""  # the step of autograd that ran it, in the backward pass
    stack: tuple[SourceLine, ...] = ()  # outermost first; in the backward pass, that of the forward call
    inputs: tuple[TensorFacts, ...] = ()
    output: TensorFacts | None = None
    elements: tuple[tuple[int, ...], ...] = ()  # the indices of the first bad ones
    bad: int = 0  # the number of bad elements
    on_purpose: bool = False  # an infinity that the code writes as a constant, which is often a mask
    above: float | None = None  # the values are finite, but exceed this magnitude
    module: str = ""  # in which it ran, or whose forward call made the node of autograd

    @property
    def sentence(self) -> str:
        """What the operator did, and in which line."""
        has_arrived = self.origin == "given" and self.operator.startswith(GRADIENT)
        sentence = _SENTENCES["arrived" if has_arrived else self.origin].format(
            self.operator, "non-finite" if self.above is None else "too large"
        )
        sentence += "" if self.above is None else f" (above {self.above:.3g})"
        where = f" in the {self.phase} pass" if self.phase else ""
        if self.line is None:
            return f"{sentence}{where}."
        code = self.line.code[:_MAX_CODE]
        place = f"{Path(self.line.file).name}, line {self.line.line}, in {self.line.function}"
        return f"{sentence}{where}: {place}: {code}" if code else f"{sentence}{where}: {place}."

    @property
    def line(self) -> SourceLine | None:
        """The innermost line of the user's code."""
        return self.stack[-1] if self.stack else None


class OperatorTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operator, and notes the suspects."""

    def __init__(
        self, above: float | None, until: CodeType, phase: str = "", module_of: Callable[[Any], str] = lambda _: ""
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._module_of = module_of
        self._given_above = above
        self._judged_phase = phase  # in which `above` counts; "" is both
        self._given_phase = ""  # of the values passed to `give`
        self._until = until  # where the stacks of the user's code begin
        self.count = 0
        self.suspects: list[Suspect] = []
        self._behind: dict[int, frozenset[int]] = {}  # the suspects behind a storage
        self._fresh: dict[int, int] = {}  # uninitialized storages with bad values, and the number of their operator
        self._read: frozenset[int] = _NONE  # the suspects behind numbers that Python has read

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave this class unmarked for Dynamo: torch would import that, which takes as long as torch itself."""
        return False

    @property
    def _above(self) -> float | None:
        """The threshold for the running pass."""
        phase = self._given_phase or self._phase()
        return self._given_above if self._judged_phase in ("", phase) else None

    # Values from before the step

    def give(self, name: str, tensor: Any) -> None:
        """Record the values of a tensor that no operator of the step has computed."""
        self._given_phase = "backward" if name.startswith(GRADIENT) else "forward"
        if self._is_bad(tensor):
            self._give(name, tensor)
        self._given_phase = ""

    def _give(self, name: str, tensor: Any) -> None:
        described = self._described(name, tensor)
        on_purpose = not name.startswith(("weight", GRADIENT)) and not described["output"].nan
        suspect = Suspect("given", name, self.count, "", on_purpose=on_purpose, **described)
        self._behind[storage_of(tensor)] = frozenset((self._add(suspect),))

    def behind(self, tensor: Any) -> frozenset[int]:
        """Return the suspects behind a tensor, none if it is fine."""
        return self._behind.get(storage_of(tensor), _NONE) if self._is_bad(tensor) else _NONE

    # Operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.count += 1
        changed = [each for each in changed_by(func, args, kwargs) if is_numeric(each)]
        name = func._schema.name.partition("::")[2]
        inputs = [] if not changed else self._read_inputs(func, name, args, kwargs, copy=True)
        before = self._bad_inputs(inputs) if changed else None
        result = func(*args, **kwargs)
        outputs = [each for each in tree_iter(result) if is_numeric(each)] + changed
        if name in _UNINITIALIZED:
            self._note_fresh(outputs)
        elif name == "_local_scalar_dense":
            self._read |= self._behind_all(self._bad_inputs([("", args[0])]))
        elif not is_view(func) or changed:
            inputs = inputs or self._read_inputs(func, name, args, kwargs, copy=False)
            self._follow(func, inputs, before, outputs, args, kwargs)
        return result

    def _follow(self, func: Any, inputs: Any, before: Any, outputs: list[Tensor], args: Any, kwargs: Any) -> None:
        bad = [tensor for tensor in outputs if self._is_bad(tensor)]
        origins = _NONE
        if bad:
            before = self._bad_inputs(inputs) if before is None else before
            origins = self._origins(func, inputs, before, bad, args, kwargs)
        for tensor in outputs:
            if fills_storage(tensor):
                self._behind.pop(storage_of(tensor), None)
                self._fresh.pop(storage_of(tensor), None)
        for tensor in bad:
            key = storage_of(tensor)
            self._behind[key] = self._behind.get(key, _NONE) | origins

    def _origins(
        self, func: Any, inputs: Any, before: list[tuple[Tensor, frozenset[int]]], bad: list[Tensor], args: Any, kw: Any
    ) -> frozenset[int]:
        """Return the suspects behind bad outputs; a new one if the inputs don't explain them."""
        behind = self._behind_all(before)
        numbers = bad_numbers(args, kw, self._above)
        if not behind and numbers and self._read:
            return self._read
        unknown = any(not origins for _, origins in before)
        if behind and not self._turns_to_nan(before, behind, bad):
            return behind
        written = not behind and (unknown or self._are_copies(bad[0], numbers))
        return behind | {self._suspect("constant" if written else "operator", func, inputs, bad[0])}

    def _are_copies(self, tensor: Tensor, numbers: list[float]) -> bool:
        """Return whether bad values are constants in the code. A large one may also be a factor."""
        if not all(map(math.isfinite, numbers)):
            return True
        values = tensor.detach()[bad_elements(tensor.detach(), self._above)]
        return any(bool((values == number).all()) for number in numbers)

    def _turns_to_nan(self, before: list[tuple[Tensor, frozenset[int]]], behind: frozenset[int], bad: Any) -> bool:
        """Return whether infinities that are there on purpose became NaN, as in a softmax of a fully masked row."""
        if not all(self.suspects[each].on_purpose for each in behind):
            return False
        return not any(_has_nan(tensor) for tensor, _ in before) and any(map(_has_nan, bad))

    def _bad_inputs(self, inputs: list[tuple[str, Tensor]]) -> list[tuple[Tensor, frozenset[int]]]:
        found = []
        for _, tensor in inputs:
            if self._is_bad(tensor):
                key = getattr(tensor, "_hookcore_storage", None) or storage_of(tensor)
                if key not in self._behind and key in self._fresh:
                    empty = Suspect("uninitialized", "torch.empty", self._fresh[key], self._phase())
                    self._behind[key] = frozenset((self._add(empty),))
                if key not in self._behind and self._judged_phase and _is_finite(tensor):
                    continue  # it is from the other pass, whose magnitudes aren't judged
                found.append((tensor, self._behind.get(key, _NONE)))
        return found

    @staticmethod
    def _behind_all(bad: list[tuple[Tensor, frozenset[int]]]) -> frozenset[int]:
        return frozenset().union(*(origins for _, origins in bad))

    def _note_fresh(self, outputs: list[Tensor]) -> None:
        for tensor in outputs:
            self._behind.pop(storage_of(tensor), None)
            if self._is_bad(tensor):
                self._fresh[storage_of(tensor)] = self.count

    def _read_inputs(self, func: Any, name: str, args: Any, kwargs: Any, copy: bool) -> list[tuple[str, Tensor]]:
        """Return the tensors that an operator reads, with their names; copies if it is about to change them."""
        found: list[tuple[str, Tensor]] = []
        for parameter, value in arguments_of(func, args, kwargs):
            written = parameter.alias_info is not None and parameter.alias_info.is_write
            if written and (name in _OVERWRITING or parameter.is_out):
                continue
            for tensor in tree_iter(value):
                if is_numeric(tensor):
                    found.append((parameter.name, copy_of(tensor) if copy and written else tensor))
        return found

    # Suspects

    def _suspect(self, origin: Origin, func: Any, inputs: list[tuple[str, Tensor]], output: Tensor) -> int:
        described = self._described("result", output)
        node = current_node()
        stack = running_lines(self._until)
        if node is not None and not stack:
            metadata = getattr(node, "metadata", None) or {}
            stack = lines_of(metadata.get("traceback_", ()))
        shape = output.shape
        suspect = Suspect(
            origin=origin,
            operator=str(func),
            number=self.count,
            phase=self._phase(),
            node="" if node is None else node.name(),
            stack=stack,
            inputs=tuple(facts_of(name, each, described["elements"], shape) for name, each in inputs[:_MAX_INPUTS]),
            on_purpose=origin == "constant",
            module=self._module_of(node),
            **described,
        )
        return self._add(suspect)

    def _described(self, name: str, tensor: Tensor) -> dict[str, Any]:
        """Return what a suspect says of its bad tensor; `above` only if nothing but a finite magnitude is wrong."""
        bad = bad_elements(tensor.detach(), self._above)
        elements = tuple(tuple(map(int, at)) for at in bad.nonzero()[:MAX_ELEMENTS])
        facts = facts_of(name, tensor, elements)
        above = None if facts.nan or facts.inf else self._above
        return {"output": facts, "elements": elements, "bad": int(bad.sum()), "above": above}

    def _add(self, suspect: Suspect) -> int:
        self.suspects.append(suspect)
        return len(self.suspects) - 1

    def _phase(self) -> str:
        return "forward" if current_node() is None else "backward"

    def _is_bad(self, tensor: Any) -> bool:
        try:
            return is_numeric(tensor) and bool(bad_elements(tensor.detach(), self._above).any())
        except (RuntimeError, NotImplementedError):  # a layout or a type without this operator
            return False


def _is_finite(tensor: Tensor) -> bool:
    return not bool(bad_elements(tensor.detach(), None).any())


def _has_nan(tensor: Tensor) -> bool:
    return bool(torch.isnan(tensor.detach()).any())
