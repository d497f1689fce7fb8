"""Which sample of a batch holds the loss: the loss in its parts, and the same step with another sample in its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from msgspec.structs import replace
from torch import Tensor

from hookcore.hooks.internals import option_of, saved_by, tree_map
from hookcore.reading.answers import SampleShare, SampleShares
from hookcore.recorder.known.roots import find_tensors
from hookcore.records.moments import Batch

# The parts of a loss, from the tensors that its graph keeps for the backward pass. Nothing is run again, and nothing is
# unpacked: a hook of the script may give a tensor back only once, and that of a checkpoint would run its operators.

MAX_NODES: Final = 16  # from the loss to what was reduced
MAX_PARTS: Final = 1 << 22
_NEAR: Final = 1e-3  # by how much the sum of the parts may differ from the loss
_MEAN, _SUM = 1, 2  # torch's numbers of reductions
_SAME: Final = frozenset(
    f"{name}Backward0"
    for name in ("ToCopy", "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "Alias")
)


class LossParts(NamedTuple):
    """What was summed to the loss, as float32 in memory, and the loss."""

    values: Tensor
    loss: float


class UnknownPartsError(Exception):
    """The reason why the parts of a loss aren't known."""


def parts_of(loss: Tensor) -> LossParts:
    """Return the parts of a loss whose backward pass hasn't begun. Raises UnknownPartsError."""
    node, factor = loss.grad_fn, 1.0
    for _ in range(MAX_NODES):
        if node is None:
            break
        name = node.name()
        if name in _SAME:
            node = _fed_by(node)
        elif name == "NegBackward0":
            node, factor = _fed_by(node), -factor
        elif (scalar := _scalar_of(node, name)) is not None:
            node, factor = _fed_by(node), factor * scalar
        else:
            return _reduced(node, name, factor, float(loss.detach()))
    raise UnknownPartsError("the loss isn't computed from the model's outputs by operators that are known")


def _reduced(node: Any, name: str, factor: float, loss: float) -> LossParts:
    if name in ("MeanBackward0", "SumBackward0"):
        values = _elements(_fed_by(node))
        value = values.sum() if name == "SumBackward0" else values.mean()
    elif name in _LOSSES:
        values, reduction = _LOSSES[name](node), node._saved_reduction
        value = values.sum()
        if reduction == _MEAN:
            total = _kept(node, "total_weight")
            value = value / (values.numel() if total is None else total)
    else:
        raise UnknownPartsError(f"the loss isn't a mean or a sum over known parts, but ends in {name}")
    if values.numel() > MAX_PARTS:
        raise UnknownPartsError(f"the loss has {values.numel():,} parts, more than {MAX_PARTS:,}")
    if not math.isclose(float(value.detach()) * factor, loss, rel_tol=_NEAR):
        raise UnknownPartsError(f"its parts add up to {float(value) * factor:.6g}, and it is {loss:.6g}")
    return LossParts(values.detach().float().cpu(), loss)


def _fed_by(node: Any, place: int = 0) -> Any:
    return node.next_functions[place][0]


def _kept(node: Any, name: str) -> Any:
    """Return what a node keeps: a tensor, or a number. Raises UnknownPartsError if a hook has packed it."""
    try:
        found = saved_by(node, name)
    except LookupError:
        raise UnknownPartsError(
            "a hook on saved tensors, as of a checkpoint, has packed what it is computed from"
        ) from None
    return option_of(node, name) if found is None and not hasattr(node, f"_raw_saved_{name}") else found


def _scalar_of(node: Any, name: str) -> float | None:
    """Return the number by which a node multiplies; None if it does something else."""
    if name not in ("DivBackward0", "MulBackward0", "DivBackward1", "MulBackward1"):
        return None
    if len(node.next_functions) > 1 and _fed_by(node, 1) is not None:
        return None
    other = _kept(node, "other")
    if other is None or (isinstance(other, Tensor) and other.dim()):
        return None
    return float(other) if name.startswith("Mul") else 1 / float(other)


def _elements(node: Any) -> Tensor:
    """Return what a node has computed, element by element."""
    name = "" if node is None else node.name()
    if name in _LOSSES and not node._saved_reduction:
        return _LOSSES[name](node)
    make = _OPERATORS.get(name)
    if make is None:
        raise UnknownPartsError(f"its parts are computed by {name or 'nothing that has a gradient'}")
    return make(node)


def _product(node: Any) -> Tensor:
    one = _elements(_fed_by(node)) if _kept(node, "self") is None else _kept(node, "self")
    other = _kept(node, "other")
    if other is None:
        other = _elements(_fed_by(node, 1))
    product: Tensor = one * other
    return product


def _summed(node: Any) -> Tensor:
    values = _elements(_fed_by(node))
    axes = list(map(_signed, node._saved_dim))
    summed = values.mean if node.name().startswith("Mean") else values.sum
    return summed(axes, keepdim=node._saved_keepdim)


def _signed(number: int) -> int:
    """Return a number that torch gives as one without a sign."""
    return number - 2**64 if number >= 2**63 else number


_OPERATORS: Final[Mapping[str, Callable[[Any], Tensor]]] = {
    **dict.fromkeys(_SAME, lambda node: _elements(_fed_by(node))),
    "PowBackward0": lambda node: _kept(node, "self") ** node._saved_exponent,
    "AbsBackward0": lambda node: _kept(node, "self").abs(),
    "NegBackward0": lambda node: -_elements(_fed_by(node)),
    "MulBackward0": _product,
    "MulBackward1": lambda node: _elements(_fed_by(node)) * _kept(node, "other"),
    "DivBackward0": lambda node: _elements(_fed_by(node)) / _kept(node, "other"),
    "DivBackward1": lambda node: _elements(_fed_by(node)) / _kept(node, "other"),
    "SumBackward1": _summed,
    "MeanBackward1": _summed,
}


def _likelihood(node: Any) -> Tensor:
    logs, target, weight = _kept(node, "self"), _kept(node, "target"), _kept(node, "weight")
    return F.nll_loss(logs, target, weight, ignore_index=_signed(node._saved_ignore_index), reduction="none")


def _logistic(node: Any) -> Tensor:
    given = _kept(node, "self"), _kept(node, "target"), _kept(node, "weight")
    return F.binary_cross_entropy_with_logits(*given, pos_weight=_kept(node, "pos_weight"), reduction="none")


_LOSSES: Final[Mapping[str, Callable[[Any], Tensor]]] = {
    "NllLossBackward0": _likelihood,
    "NllLoss2DBackward0": _likelihood,
    "MseLossBackward0": lambda node: (_kept(node, "self") - _kept(node, "target")) ** 2,
    "BinaryCrossEntropyWithLogitsBackward0": _logistic,
    "BinaryCrossEntropyBackward0": lambda node: F.binary_cross_entropy(
        _kept(node, "self"), _kept(node, "target"), _kept(node, "weight"), reduction="none"
    ),
    "SmoothL1LossBackward0": lambda node: F.smooth_l1_loss(
        _kept(node, "self"), _kept(node, "target"), beta=node._saved_beta, reduction="none"
    ),
    "HuberLossBackward0": lambda node: F.huber_loss(
        _kept(node, "self"), _kept(node, "target"), delta=node._saved_delta, reduction="none"
    ),
}


# A jump of the loss, as a capsule has it, and the samples' shares of it.

HOLDS: Final = 0.5  # of the loss, for a sample to stand out,
TIMES: Final = 5.0  # and times the mean of the others,
RESTS: Final = 0.1  # of the loss, for what is left without it to be a jump of its own
MAX_SHARES: Final = 8
_STARTS: Final = ("position_ids", "positions")  # arguments that are zero where a packed sample begins,
_GROUPS: Final = ("document_ids", "doc_ids", "segment_ids", "sequence_ids", "seq_idx")  # and that number packed samples


@dataclass(frozen=True, slots=True)
class Jump:
    """A loss that jumped, and the batch that it is of, as far as they are known."""

    what: str
    limit: float  # a loss above it is one
    parts: LossParts | None
    why: str  # the parts aren't known
    batch: Batch | None = None
    why_no_ids: str = ""

    def packed(self) -> dict[str, Any]:
        """Return it as a part of a capsule."""
        parts = None if self.parts is None else tuple(self.parts)
        ids = ((), ()) if self.batch is None else (self.batch.ids, self.batch.rows)
        about = {"parts": parts, "why": self.why, "limit": self.limit}
        return {**about, "ids": ids[0], "rows": ids[1], "why_no_ids": self.why_no_ids}


Again = Callable[[Any, Any, Mapping[str, Tensor]], tuple[dict[str, Tensor], float]]


class Sharing:
    """Divides the loss of a replayed step among its samples."""

    def __init__(self, step: Mapping[str, Any], outputs: Mapping[str, Tensor], norm: float, again: Again) -> None:
        self._step, self._outputs, self._norm, self._again = step, outputs, norm, again
        self._jump: Mapping[str, Any] = step["jump"]
        given = [each for _, each in find_tensors((step["args"], step["kwargs"])) if each.dim()]
        self._many = given[0].shape[0] if given else 0

    def result(self) -> SampleShares:
        """Return the shares, or why they aren't known."""
        parts = self._jump["parts"]
        loss = None if parts is None else float(parts[1])
        try:
            sums, names, rows = self._divided()
        except UnknownPartsError as error:
            return SampleShares(why=str(error), of="loss", loss=loss)
        total = float(sums.sum())
        order = sums.argsort(descending=True)[:MAX_SHARES].tolist()
        shares = tuple(SampleShare(names[each], rows[each], float(sums[each]) / total) for each in order)
        others = (total - float(sums[order[0]])) / max(1, len(sums) - 1)
        stands_out = len(sums) > 1 and shares[0].share >= HOLDS and float(sums[order[0]]) >= TIMES * others
        of: Literal["loss", "gradient"] = "loss" if parts is not None else "gradient"
        found = SampleShares(None, of, loss, len(sums), shares, stands_out, why_no_ids=self._jump["why_no_ids"] or None)
        if not stands_out:
            return found
        # A loss can be a jump, and little beside the one that jumped. Older capsules have no limit.
        limit = math.inf if loss is None else max(self._jump.get("limit", math.inf), RESTS * loss)
        if loss is not None and loss * (1 - shares[0].share) > limit:
            return replace(found, stands_out=False, still_jumps=True)
        left, norm, why = self._without(rows[order[0]], sums, rows)
        if left is not None and left > limit:
            found = replace(found, stands_out=False, still_jumps=True)
        return replace(found, loss_without=left, norm=self._norm, norm_without=norm, why_not_without=why)

    def _divided(self) -> tuple[Tensor, list[tuple[int | str, ...]], list[int]]:
        """Return the sum of each sample's parts, the names of it, and its row."""
        many, ids, widths = self._many, self._jump["ids"], self._jump["rows"]
        values = self._by_row()
        if bool((values < 0).any()) or not bool(torch.isfinite(values).all()) or not float(values.sum()) > 0:
            raise UnknownPartsError("parts of the loss are negative or non-finite, so they have no shares")
        segments = self._segments(values.shape[1])
        if segments is not None and len(ids) == int(segments.max()) + 1 and len(ids) != many:
            sums = torch.zeros(len(ids), dtype=values.dtype).index_add(0, segments.flatten(), values.flatten())
            row_of = [int((segments == each).any(1).nonzero()[0]) for each in range(len(ids))]
            return sums, [(each,) for each in ids], row_of
        names: list[tuple[int | str, ...]] = [()] * many
        if widths and len(widths) == many:
            ends = torch.tensor(widths).cumsum(0).tolist()
            names = [tuple(ids[end - width : end]) for end, width in zip(ends, widths, strict=True)]
        elif not widths and len(ids) == many:
            names = [(each,) for each in ids]
        return values.sum(1), names, list(range(many))

    def _by_row(self) -> Tensor:
        """Return the parts of each row of the batch."""
        many = self._many
        if not many:
            raise UnknownPartsError("the model was given no tensor with rows")
        parts = self._jump["parts"]
        if parts is not None:
            values: Tensor = parts[0].double()
            if values.dim() and values.shape[0] != many and (values.dim() > 1 or values.numel() % many):
                raise UnknownPartsError(f"the loss has parts of shape {tuple(values.shape)}, and the batch {many} rows")
            return values.reshape(many, -1)
        gradients = [each for each in self._step["gradients"].values() if each.dim() and each.shape[0] == many]
        if len(gradients) != 1:
            raise UnknownPartsError(self._jump["why"])
        by_row: Tensor = gradients[0].double().reshape(many, -1).norm(dim=1, keepdim=True)
        return by_row

    def _segments(self, width: int) -> Tensor | None:
        """Return the number of the packed sample to which each position belongs; None if nothing says so."""
        for name in (*_STARTS, *_GROUPS):
            given = self._step["kwargs"].get(name)
            if isinstance(given, Tensor) and given.dim() == 2 and given.shape[0] == self._many:
                begins = given == 0 if name in _STARTS else given != given.roll(1, 1)
                begins[:, 0] = True
                numbers = begins.flatten().cumsum(0).reshape(given.shape) - 1
                return numbers[:, -width:] if numbers.shape[1] >= width else None
        return None

    def _without(self, row: int, sums: Tensor, rows: Sequence[int]) -> tuple[float | None, float | None, str | None]:
        """Return the loss and the norm of the gradient with another row in its place, or why they are unknown."""
        many = self._many
        if many < 2:
            return None, None, "the batch has a single row, so no other one can take its place"
        by_row = torch.zeros(many, dtype=sums.dtype).index_add(0, torch.tensor(rows), sums)
        order = [each for each in by_row.argsort().tolist() if each != row]
        other = order[len(order) // 2]

        def swapped(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.dim() or value.shape[0] != many:
                return value
            copy = value.detach().clone()
            copy[row] = copy[other]
            return copy.requires_grad_(value.requires_grad)

        step = self._step
        gradients = {place: swapped(each) for place, each in step["gradients"].items()}
        outputs, norm = self._again(
            tree_map(swapped, step["args"]),
            tree_map(swapped, step["kwargs"]),
            gradients,
        )
        compared = [
            (each, outputs[place])
            for place, each in self._outputs.items()
            if place in outputs and each.dim() and each.shape[0] == many and each.is_floating_point()
        ]
        if not compared:
            return (
                None,
                None,
                "the model returns nothing for each row, which would show that rows are separate",
            )
        rest = [each for each in range(many) if each != row]
        if not all(torch.allclose(one[rest], two[rest], 1e-3, 1e-5 * float(one.abs().max())) for one, two in compared):
            return None, None, "the rows of a batch influence each other, as with BatchNorm"
        loss, total = self._jump["parts"] and float(self._jump["parts"][1]), float(by_row.sum())
        left = None if loss is None else loss * (total - float(by_row[row] - by_row[other])) / total
        return left, norm, None
