"""One call of a model, as a recording keeps it: aliases of the training's tensors, without their graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from hookcore.capsules.numbers import Numbers, numbers_of
from hookcore.hooks.internals import current_graph_task, is_wrapped, tracing_state, tree_map, version_of
from hookcore.observe.generators import generators
from hookcore.recorder.outputs import find_tensors

_PLAIN: Final = (Tensor, nn.Parameter)
_FLAT: Final = (Tensor, int, float, str, type(None))  # everything else may contain tensors


class Members:
    """A model's weights and buffers, found through its modules, so that nothing is kept alive.

    A weak reference to a weight would make `torch.utils.swap_tensors` raise.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.named_modules())
        self._weights = [(weakref.ref(each), name) for _, each in modules for name in _names(each.named_parameters)]
        self._buffers = [
            (f"{path}.{name}" if path else name, weakref.ref(each), name)
            for path, each in modules
            for name in _names(each.named_buffers)
        ]

    def weights(self) -> Iterator[Tensor | None]:
        """Return the weights as they are now; None for one that is gone."""
        return (_member(ref(), "_parameters", name) for ref, name in self._weights)

    def versions(self) -> list[tuple[int, int]]:
        """Return a state that differs if a weight is changed or replaced."""
        return [state_of(weight) for weight in self.weights()]

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Return the buffers as they are now."""
        for path, ref, name in self._buffers:
            buffer = _member(ref(), "_buffers", name)
            if buffer is not None:
                yield path, buffer


def state_of(tensor: Tensor | None) -> tuple[int, int]:
    """Return a state that differs if a tensor is changed in place or replaced: its identity and version counter."""
    return (0, -1) if tensor is None else (id(tensor), version_of(tensor))


def _names(members: Callable[..., Iterable[tuple[str, Tensor]]]) -> list[str]:
    return [name for name, _ in members(recurse=False)]


def _member(module: nn.Module | None, table: str, name: str) -> Tensor | None:
    # A user's module may compute any attribute; a scripted one has no usual dictionary.
    known = getattr(module, table, None)
    found = known.get(name) if type(known) is dict else getattr(module, name, None)
    return found if isinstance(found, Tensor) else None


@dataclass  # without slots: arrivals refer to it weakly, and before Python 3.11 no slot can be made for that
class Call:
    """One call of the model. Tensors are aliases of the training's, without their graph and without copies."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: dict[str, bool]
    buffers: dict[str, Tensor]  # copies, because BatchNorm changes them
    generators: dict[str, Any]
    autocast: dict[str, torch.dtype]
    grad_enabled: bool
    members: Members
    weight_versions: list[tuple[int, int]]
    versions: dict[str, tuple[Tensor, int]]  # of all other tensors that are kept
    outputs: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    unkept: list[str] = field(default_factory=list)  # values that were too large to keep, or weren't held
    numbers: Numbers = field(default_factory=list)  # those that the model's own code changes in its calls
    notes: list[str] = field(default_factory=list)  # what is different, but doesn't change the results

    @property
    def updated(self) -> bool:
        """Whether a weight was changed or replaced since."""
        return self.members.versions() != self.weight_versions

    def changed(self) -> list[str]:
        """Return which of the kept tensors were changed in place since."""
        return [name for name, (tensor, version) in self.versions.items() if tensor._version != version]

    def saw_gradient(self, place: str, gradient: Tensor) -> None:
        """Keep the gradient that arrived at an output."""
        self.gradients[place] = alias = gradient.detach()
        if not alias.is_inference():
            self.versions[f"activation gradient {place}".rstrip()] = alias, alias._version


def call_of(model: nn.Module, args: Any, kwargs: Any, autocast: dict[str, torch.dtype], grad_enabled: bool) -> Call:
    """Return a call that begins, with everything that a later replay needs to know about the model."""
    members = Members(model)
    args, kwargs = aliases_in(args), aliases_in(kwargs)
    return Call(
        args=args,
        kwargs=kwargs,
        training={name: module.training for name, module in model.named_modules()},
        buffers={name: buffer.detach().clone() for name, buffer in model.named_buffers()},
        generators=generators(),
        autocast=autocast,
        grad_enabled=grad_enabled,
        members=members,
        weight_versions=members.versions(),
        versions=versions_of(find_tensors((args, kwargs))),
        numbers=numbers_of(model),
    )


def versions_of(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, tuple[Tensor, int]]:
    """Return the tensors of arguments with their version counters, which every change in place increments."""
    return {
        f"argument {place.partition('.')[2]}": (each.detach(), each._version)
        for place, each in tensors
        if not each.is_inference()
    }


def is_plain(values: Any) -> bool:
    """Return whether this is a call of the training itself: none of a checkpoint, a tracer, or `torch.func`."""
    return not is_traced() and all(has_data(tensor) for _, tensor in find_tensors(values))


def is_traced() -> bool:
    """Return whether a checkpoint's recomputation or a trace is running."""
    return current_graph_task() != -1 or bool(tracing_state()) or torch.compiler.is_compiling()


def has_data(tensor: Tensor) -> bool:
    """Return whether a tensor is an ordinary one with data."""
    return type(tensor) in _PLAIN and not is_wrapped(tensor)


def aliases_in(values: Any) -> Any:
    """Return a nested value with aliases of its tensors."""
    if type(values) is tuple and all(isinstance(each, _FLAT) for each in values):
        return tuple(map(alias_of, values))  # ten times as fast as a tree
    if type(values) is dict and all(isinstance(each, _FLAT) for each in values.values()):
        return {name: alias_of(each) for name, each in values.items()}
    return tree_map(alias_of, values)


def alias_of(value: Any) -> Any:
    """Return a tensor without its graph: a training may free that as usual."""
    if not isinstance(value, Tensor):
        return value
    alias = value.detach()
    return alias.requires_grad_() if value.requires_grad else alias


def compact(value: Any) -> Any:
    """Return a tensor without the rest of its storage, as a batch may be a view of a whole data set."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return value
    used = value.numel() * value.element_size()
    return alias_of(value).clone().detach().requires_grad_(value.requires_grad) if _is_part(value, used) else value


def _is_part(tensor: Tensor, used: int) -> bool:
    return tensor.untyped_storage().nbytes() > used


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the memory that tensors take."""
    return sum(each.numel() * each.element_size() for each in tensors)


def bits_of(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
