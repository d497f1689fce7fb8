# mypy: disable-error-code="no-untyped-call"
"""Unusual return values of modules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from tests.zoo.case import Trial, mean_square, noise, training, zoo


class Pair(NamedTuple):
    """A named tuple output."""

    left: Tensor
    right: Tensor


@dataclass
class Result:
    """A dataclass output."""

    value: Tensor
    extra: Tensor | None
    note: str


@dataclass(frozen=True, slots=True)
class FrozenResult:
    """A dataclass output without a dictionary."""

    value: Tensor
    parts: tuple[Tensor, ...]


class ModelOutput(OrderedDict[str, Any]):
    """A dictionary with access by attribute and by index, as in model libraries."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


class Touchy:
    """Raises when any code except its creator's touches it."""

    def __init__(self, value: Tensor) -> None:
        object.__setattr__(self, "_value", value)

    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError(f"touched: {name}")

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("touched: iter")

    def __len__(self) -> int:
        raise RuntimeError("touched: len")

    def __bool__(self) -> bool:
        raise RuntimeError("touched: bool")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("touched: eq")

    def __hash__(self) -> int:
        raise RuntimeError("touched: hash")

    def __repr__(self) -> str:
        raise RuntimeError("touched: repr")


class TouchyDict(dict[str, Tensor]):
    """A dictionary whose own methods raise."""

    def items(self) -> NoReturn:
        raise RuntimeError("touched: items")

    def values(self) -> NoReturn:
        raise RuntimeError("touched: values")

    def __iter__(self) -> NoReturn:
        raise RuntimeError("touched: iter")

    def __len__(self) -> NoReturn:
        raise RuntimeError("touched: len")


class Labelled(Tensor):
    """A tensor subclass that counts how often torch's functions are called on it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Labelled.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Shaped(nn.Module):
    """A linear layer whose result is returned in some kind of container."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        self.shape = shape
        self.inner = nn.Linear(6, 4)
        self.constant = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        out: Tensor = self.inner(x)
        return getattr(self, f"_as_{self.shape}")(out)

    def _as_dict(self, out: Tensor) -> Any:
        return {"value": out, "half": out * 0.5, 3: out.sum(), "none": None}

    def _as_nested(self, out: Tensor) -> Any:
        return {"hidden": (out, [out * 2, {"deep": out.sin()}]), "tuple": ()}

    def _as_dataclass(self, out: Tensor) -> Any:
        return Result(out, None, "a note")

    def _as_frozen_dataclass(self, out: Tensor) -> Any:
        return FrozenResult(out, (out.sin(), out.cos()))

    def _as_named_tuple(self, out: Tensor) -> Any:
        return Pair(out, out.cos())

    def _as_model_output(self, out: Tensor) -> Any:
        return ModelOutput(loss=out.sum(), logits=out)

    def _as_list_with_repeats(self, out: Tensor) -> Any:
        return [out, out, out.relu()]

    def _as_leaf_parameter(self, out: Tensor) -> Any:
        return (out, self.constant)

    def _as_integers(self, out: Tensor) -> Any:
        return out, out.argmax(-1), (out > 0), out.argmax(-1).to(torch.uint8), (out * 10).to(torch.int32)

    def _as_empty(self, out: Tensor) -> Any:
        return out, out[:0], out.new_empty(0, 3)

    def _as_zero_dim(self, out: Tensor) -> Any:
        return out.sum()

    def _as_expanded(self, out: Tensor) -> Any:
        return out.sum(0).expand(5, 4), out[:, :1].expand(5, 4)

    def _as_transposed(self, out: Tensor) -> Any:
        return out.T, out[::2, ::2], out.reshape(5, 2, 2).permute(2, 0, 1)

    def _as_sparse(self, out: Tensor) -> Any:
        return out, out.detach().relu().to_sparse(), out.detach().relu().to_sparse_csr()

    def _as_differentiable_sparse(self, out: Tensor) -> Any:
        return out.relu().to_sparse().to_dense()

    def _as_not_finite(self, out: Tensor) -> Any:
        bad = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e-42])
        return out, out.detach() * bad, torch.full((2,), float("nan"))

    def _as_detached(self, out: Tensor) -> Any:
        return out, out.detach()

    def _as_views_of_itself(self, out: Tensor) -> Any:
        return out.unbind(0)


class Wraps(nn.Module):
    """Passes a child's odd output on to a loss that can handle it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.last = nn.Linear(4, 2)


class Secretive(Wraps):
    """Has a child that returns an object that raises when touched."""

    def forward(self, x: Tensor) -> Any:
        return self.last(object.__getattribute__(self.inner(x), "_value"))


class MakesTouchy(nn.Module):
    """Returns an object that raises when touched."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Any:
        return Touchy(self.inner(x))


class MakesTouchyDict(nn.Module):
    """Returns a dictionary whose methods raise."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Any:
        return TouchyDict(value=self.inner(x))


class Unwraps(Wraps):
    """Has a child that returns a dictionary whose methods raise."""

    def forward(self, x: Tensor) -> Any:
        return self.last(dict.__getitem__(self.inner(x), "value"))


class Yields(nn.Module):
    """Its forward is a generator: nothing runs until it is consumed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Iterator[Any]:
        for _ in range(3):
            yield self.inner(x)


class Consumes(Wraps):
    """Consumes a generator, which works only once."""

    def forward(self, x: Tensor) -> Any:
        return self.last(sum(self.inner(x)))


class Remarks(nn.Module):
    """Has children that return None, a string, and a number."""

    class Says(nn.Module):
        """Returns something that isn't a tensor."""

        def __init__(self, what: Any) -> None:
            super().__init__()
            self.what = what

        def forward(self, x: Tensor) -> Any:
            return self.what

    def __init__(self) -> None:
        super().__init__()
        self.none, self.word, self.number = self.Says(None), self.Says("word"), self.Says(3)
        self.inner = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Any:
        self.none(x)
        return self.inner(x) * self.number(x) + len(self.word(x))


class Unused(nn.Module):
    """The output of one child is unused, of another one detached, and of a third one in no loss."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.detached, self.used = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Any:
        self.unused(x)
        return self.used(x) + self.detached(x).detach()


class Recurrent(nn.Module):
    """A recurrent net, of which only a part of the output is used."""

    def __init__(self, use_state: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 4, num_layers=2, batch_first=True, dropout=0.2)
        self.use_state = use_state

    def forward(self, x: Tensor) -> Any:
        out, (hidden, cell) = self.lstm(x)
        return hidden.sum(0) * cell.sum(0) if self.use_state else out


class Packed(nn.Module):
    """A GRU over a packed sequence, which is a named tuple that contains None."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 4, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        packed = pack_padded_sequence(x, torch.tensor([4, 3, 2]), batch_first=True)
        out, hidden = self.gru(packed)
        return out.data, hidden


class Nests(nn.Module):
    """Has a child that returns a nested tensor."""

    class Child(nn.Module):
        """Returns a nested tensor of the strided layout."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return torch.nested.as_nested_tensor([out[0, :2], out[1, :3]])

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child()

    def forward(self, x: Tensor) -> Tensor:
        nested: Tensor = self.child(x)
        return nested.to_padded_tensor(0.0)


class Jagged(Nests):
    """Has a child that returns a nested tensor of the jagged layout, which is a tensor subclass."""

    class Child(Nests.Child):
        """Returns a jagged tensor."""

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return torch.nested.nested_tensor_from_jagged(out.reshape(-1, 4), torch.tensor([0, 3, 8]))


class ComplexNet(nn.Module):
    """Complex weights, activations, and a conjugate view."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4, dtype=torch.complex64)
        self.conjugate = self.Conjugate()

    class Conjugate(nn.Module):
        """Returns a tensor with the conjugate bit set, and one with the negative bit."""

        def forward(self, x: Tensor) -> Any:
            return x.conj(), x.conj().imag

    def forward(self, x: Tensor) -> Any:
        flipped, negative = self.conjugate(self.first(x))
        return flipped.abs() + negative


class Subclassed(nn.Module):
    """Has a child that returns a tensor subclass. The result includes how often it was touched."""

    class Child(nn.Module):
        """Returns a tensor subclass."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out.as_subclass(Labelled)

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child()

    def forward(self, x: Tensor) -> Tensor:
        Labelled.calls = 0
        out: Tensor = self.child(x) * 2
        return out.as_subclass(Tensor) + Labelled.calls


class SameTensor(nn.Module):
    """Has two children that return the same tensor that they received."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.identity, self.again, self.last = (
            nn.Linear(6, 4),
            nn.Identity(),
            nn.Identity(),
            nn.Linear(4, 2),
        )

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x)
        same = self.again(self.identity(hidden))
        return self.last(same) * float(same is hidden)


def _shaped(shape: str) -> Trial:
    return training(Shaped(shape), noise(5, 6))


@zoo()
def dictionary_output() -> Trial:
    return _shaped("dict")


@zoo()
def nested_output() -> Trial:
    return _shaped("nested")


@zoo()
def dataclass_output() -> Trial:
    return _shaped("dataclass")


@zoo()
def frozen_dataclass_output() -> Trial:
    return _shaped("frozen_dataclass")


@zoo()
def named_tuple_output() -> Trial:
    return _shaped("named_tuple")


@zoo()
def model_output() -> Trial:
    return _shaped("model_output")


@zoo()
def same_tensor_twice_in_a_list() -> Trial:
    return _shaped("list_with_repeats")


@zoo()
def parameter_returned_as_output() -> Trial:
    return _shaped("leaf_parameter")


@zoo()
def integer_and_boolean_outputs() -> Trial:
    return _shaped("integers")


@zoo()
def empty_tensor_output() -> Trial:
    return _shaped("empty")


@zoo()
def zero_dimensional_output() -> Trial:
    return _shaped("zero_dim")


@zoo()
def expanded_output() -> Trial:
    return _shaped("expanded")


@zoo()
def transposed_and_strided_output() -> Trial:
    return _shaped("transposed")


@zoo()
def sparse_output() -> Trial:
    return training(Shaped("sparse"), noise(5, 6), loss=lambda output: mean_square(output[0]))


@zoo()
def differentiable_sparse_inside() -> Trial:
    return _shaped("differentiable_sparse")


@zoo()
def nan_and_infinity_in_an_output() -> Trial:
    def loss(output: Any) -> Tensor:
        return mean_square(output[0])

    return training(Shaped("not_finite"), noise(5, 6), loss=loss)


@zoo()
def partly_detached_output() -> Trial:
    return _shaped("detached")


@zoo()
def unbound_output() -> Trial:
    def loss(output: Any) -> Tensor:
        return mean_square(output[1:3])  # the gradients of the others are None, not zero

    return training(Shaped("views_of_itself"), noise(5, 6), loss=loss)


@zoo("no-twin")
def output_that_raises_when_touched() -> Trial:
    return training(Secretive(MakesTouchy()), noise(5, 6))


@zoo("no-twin")
def dictionary_that_raises_when_touched() -> Trial:
    return training(Unwraps(MakesTouchyDict()), noise(5, 6))


@zoo()
def generator_output() -> Trial:
    return training(Consumes(Yields()), noise(5, 6))


@zoo()
def none_string_and_number_outputs() -> Trial:
    return training(Remarks(), noise(5, 6))


@zoo()
def unused_and_detached_outputs() -> Trial:
    return training(Unused(), noise(5, 6))


@zoo()
def lstm() -> Trial:
    return training(Recurrent(use_state=False), noise(3, 4, 6))


@zoo()
def lstm_whose_state_is_used() -> Trial:
    return training(Recurrent(use_state=True), noise(3, 4, 6))


@zoo()
def packed_sequence() -> Trial:
    return training(Packed(), noise(3, 4, 6))


@zoo("no-twin")
def nested_tensor_output() -> Trial:
    return training(Nests(), noise(2, 4, 6))


@zoo("no-twin")
def jagged_tensor_output() -> Trial:
    return training(Jagged(), noise(2, 4, 6))


@zoo()
def complex_layers() -> Trial:
    return training(ComplexNet(), noise(5, 6, dtype=torch.complex64))


@zoo("no-twin")
def tensor_subclass_output() -> Trial:
    return training(Subclassed(), noise(5, 6))


@zoo("no-twin")
def identity_returns_the_same_tensor() -> Trial:
    return training(SameTensor(), noise(5, 6))


@zoo()
def channels_last() -> Trial:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return training(model, noise(2, 3, 6, 6).to(memory_format=torch.channels_last))
