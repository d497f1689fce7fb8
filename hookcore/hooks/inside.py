"""Activations and gradients inside a compiled region, by ops that every backend keeps in its graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from hookcore import hooks
from hookcore.hooks.compiled import forget_graphs, guard_functions, unwrap
from hookcore.hooks.handle import InertInCopies

_KEY_BITS: Final = 32  # the low bits of an address are the module's key, the high bits the number of its `Inside`


class Observer(Protocol):
    """Receives what `Inside` sees. Its methods must not raise, keep the tensor, or leave a trace on it.

    Grad mode says whether the output requires a gradient, whatever mode the compiled code itself runs in. A
    checkpointed part runs again in the backward and is reported again; `torch._C._current_graph_task_id()` is then not
    -1. Its gradients have the tickets of that second time.
    """

    def saw_output(self, key: int, index: str, output: Tensor) -> int:
        """Handle an output. Return a ticket (a call number); a negative one stops further reports of this output."""
        ...

    def saw_gradient(self, key: int, index: str, ticket: int, gradient: Tensor) -> None:
        """Handle the gradient of an output, with the ticket from `saw_output`."""
        ...


# A graph can hold numbers and tensors but no Python objects, so its ops find their observers here, by number.
_observers: dict[int, Observer] = {}
_library: torch.library.Library | None = None


class Inside:
    """Observes the modules inside compiled regions, in the same graphs and without a break.

    The hooks are per module, because Dynamo traces those. Intermediate tensors that a backend would have fused away
    become real: this costs time, and results may differ in the last bits.
    """

    def __init__(self, observer: Observer) -> None:
        _define_ops()
        self._number = next(number for number in range(len(_observers) + 1) if number not in _observers)
        _observers[self._number] = observer
        self._handles: list[hooks.HookHandle] = []
        self._modules: list[nn.Module] = []

    def attach(self, modules: Iterable[tuple[int, nn.Module]]) -> bool:
        """Watch these modules under these keys. Return whether some were compiled already and will be recompiled."""
        added = [(key, unwrap(module)) for key, module in modules]
        for key, module in added:
            hook = _OutputHook(self._number << _KEY_BITS | key)
            self._handles.append(hooks.on_forward(module, hook))
        self._modules += [module for _, module in added]
        return forget_graphs(module for _, module in added)

    def close(self) -> None:
        """Remove the hooks and drop the graphs that hold them: each region is compiled once more at its next call."""
        if _observers.pop(self._number, None) is None:
            return
        while self._handles:
            self._handles.pop().remove()
        forget_graphs(self._modules)
        self._modules.clear()


class _OutputHook(InertInCopies):
    """The forward hook of one module.

    Its address is in the graph as a tensor. A number would be compiled in, and identical modules that are compiled one
    by one, which otherwise share a graph, would each need their own.
    """

    __slots__ = ("address", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        with torch.inference_mode(False):  # a backward can't save a tensor made in inference mode
            self.address = torch.tensor(number, dtype=torch.int64, device="cpu")

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_exporting():
            return
        for index, tensor in _tensors(output):
            if torch.compiler.is_compiling():
                _trace(tensor, self.address, index)
            else:
                _see(tensor, self.number, index)


class _GradientHook:
    """The gradient hook of one output outside of a graph."""

    __slots__ = ("index", "number", "ticket")

    def __init__(self, number: int, index: str, ticket: int) -> None:
        self.number, self.index, self.ticket = number, index, ticket

    def __call__(self, gradient: Tensor | None) -> None:
        if gradient is not None:
            _report_gradient(self.number, self.index, self.ticket, gradient)


def _see(output: Tensor, number: int, index: str) -> None:
    """Report the output of a module in no region, or of the root of one."""
    ticket = _report_output(number, index, output, output.requires_grad)
    if ticket >= 0 and output.grad_fn is not None:
        output.register_hook(_GradientHook(number, index, ticket))  # type: ignore[no-untyped-call]


def _trace(output: Tensor, address: Tensor, index: str) -> None:
    """Trace the ops into Dynamo's graph."""
    # Detached, because the op has no derivative and must not look as if one were missing.
    ticket = torch.ops.hookcore.saw_output(output.detach(), address, index, output.requires_grad)
    # A leaf is an input of the graph, and would keep the hook forever.
    if output.requires_grad and not output.is_leaf:

        def saw_gradient(gradient: Tensor) -> None:
            torch.ops.hookcore.saw_gradient(gradient, address, ticket, index)

        output.register_hook(saw_gradient)  # type: ignore[no-untyped-call]


def _tensors(output: Any, index: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a nested output, with its place."""
    if isinstance(output, Tensor):
        yield index, output
        return
    for name, part in _parts(output):
        yield from _tensors(part, f"{index}.{name}" if index else str(name))


def _parts(output: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(output, dict):
        return output.items()
    if isinstance(output, (tuple, list)):
        return enumerate(output)
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [(field.name, getattr(output, field.name)) for field in dataclasses.fields(output)]
    return ()


def _report_output(number: int, index: str, output: Tensor, requires_grad: bool) -> int:
    observer = _observers.get(number >> _KEY_BITS)
    if observer is None:
        return -1
    with torch.set_grad_enabled(requires_grad):
        return observer.saw_output(number & (1 << _KEY_BITS) - 1, index, output)


def _report_gradient(number: int, index: str, ticket: int, gradient: Tensor) -> None:
    observer = _observers.get(number >> _KEY_BITS)
    if observer is not None and ticket >= 0:
        observer.saw_gradient(number & (1 << _KEY_BITS) - 1, index, ticket, gradient)


# The ops. The forward one returns a tensor, so that the ticket waits in the graph for the backward of its call.


def _run_saw_output(output: Tensor, address: Tensor, index: str, requires_grad: bool) -> Tensor:
    return _ticket(_report_output(int(address), index, output, requires_grad))


def _run_saw_gradient(gradient: Tensor, address: Tensor, ticket: Tensor, index: str) -> None:
    _report_gradient(int(address), index, int(ticket), gradient)


def _ticket(number: int) -> Tensor:
    return torch.full((), number, dtype=torch.int64, device="cpu")


def _fake_saw_output(output: Tensor, address: Tensor, index: str, requires_grad: bool) -> Tensor:
    return torch.empty((), dtype=torch.int64, device="cpu")


def _fake_saw_gradient(gradient: Tensor, address: Tensor, ticket: Tensor, index: str) -> None:
    return None


def _vmap_saw_output(info: Any, dims: Any, *arguments: Any) -> tuple[Tensor, None]:
    """Record nothing, because one call under vmap represents many."""
    return _ticket(-1), None


def _vmap_saw_gradient(*arguments: Any) -> tuple[None, None]:
    return None, None


def _define_ops() -> None:
    """Register the two ops, once per process.

    They are pure in their arguments, so that no version counter or alias is affected, and marked as having a side
    effect, so that no pass removes them. torch's ordered effect tokens would also work, but with inductor they fail on
    a checkpointed part, and disable the reuse of buffers.
    """
    global _library
    if _library is not None:
        return
    library: Any = torch.library.Library("hookcore", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("saw_output(Tensor output, Tensor address, str index, bool requires_grad) -> Tensor")
    library.define("saw_gradient(Tensor gradient, Tensor address, Tensor ticket, str index) -> ()")
    library.impl("saw_output", _run_saw_output, "CompositeExplicitAutograd")
    library.impl("saw_gradient", _run_saw_gradient, "CompositeExplicitAutograd")
    torch.library.register_fake("hookcore::saw_output", _fake_saw_output, lib=library)
    torch.library.register_fake("hookcore::saw_gradient", _fake_saw_gradient, lib=library)
    torch.library.register_vmap("hookcore::saw_output", _vmap_saw_output, lib=library)
    torch.library.register_vmap("hookcore::saw_gradient", _vmap_saw_gradient, lib=library)
    torch.fx.node.has_side_effect(torch.ops.hookcore.saw_output.default)
    torch.fx.node.has_side_effect(torch.ops.hookcore.saw_gradient.default)
    _library = library


guard_functions(_OutputHook.__call__, _GradientHook.__call__, _run_saw_output, _run_saw_gradient)
