"""Activations inside a compiled region: by ops in its graph, also gradients; or those that the graph keeps anyway."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from hookcore import hooks
from hookcore.hooks import internals
from hookcore.hooks.compiled import forget_graphs, guard_functions, unwrap
from hookcore.hooks.handle import InertInCopies
from hookcore.hooks.internals import (
    calls_around,
    function_of,
    is_compiled_function,
    is_forward,
    joint_settings,
    kept_nodes,
    node_number,
    saved_by_function,
)

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


class Writer(Protocol):
    """Says what operators write on a device when they run, or are recorded in a CUDA graph, and then nothing more."""

    def table(self, key: int, number: int) -> Tensor | None:
        """Return a module's table on its device, which begins with this number; None if no kernel can read it."""
        ...

    def write(self, key: int, place: int, index: str, value: Tensor, requires_grad: bool, gradient: bool) -> None:
        """Launch what writes, in any step: only the device knows which ones are captured. `place`: of the output."""
        ...

    def lost(self) -> None:
        """Count a tensor whose module isn't known."""
        ...


# A graph can hold numbers and tensors but no Python objects, so its ops find their observers here, by number.
_observers: dict[int, tuple[Observer, Writer | None]] = {}
_tables: dict[int, int] = {}  # the numbers in tables, by address, because reading a device would wait for it
_library: torch.library.Library | None = None


class Inside:
    """Observes the modules inside compiled regions, in the same graphs and without a break.

    The hooks are per module, because Dynamo traces those. Intermediate tensors that a backend would have fused away
    become real: this costs time, and results may differ in the last bits.
    """

    def __init__(self, observer: Observer, writer: Writer | None = None) -> None:
        _define_ops()
        self._number = next(number for number in range(len(_observers) + 1) if number not in _observers)
        _observers[self._number] = observer, writer
        self._writer = writer
        self._handles: list[hooks.HookHandle] = []
        self._modules: list[nn.Module] = []
        self._tables: list[Tensor] = []

    def attach(self, modules: Iterable[tuple[int, nn.Module]]) -> bool:
        """Watch these modules under these keys. Return whether some were compiled already and will be recompiled."""
        added = [(key, unwrap(module)) for key, module in modules]
        for key, module in added:
            number = self._number << _KEY_BITS | key
            table = None if self._writer is None else self._writer.table(key, number)
            if table is not None:
                internals.mark_static(table)
                _tables[table.data_ptr()] = number
                self._tables.append(table)
            hook = _OutputHook(number, table)
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
        for table in self._tables:
            _tables.pop(table.data_ptr(), None)


class _OutputHook(InertInCopies):
    """The forward hook of one module.

    Its address is in the graph as a tensor. A number would be compiled in, and identical modules that are compiled one
    by one, which otherwise share a graph, would each need their own.
    """

    __slots__ = ("address", "number", "table")

    def __init__(self, number: int, table: Tensor | None) -> None:
        self.number, self.table = number, table
        with torch.inference_mode(False):  # a backward can't save a tensor made in inference mode
            self.address = torch.tensor(number, dtype=torch.int64, device="cpu")

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_exporting():
            return
        for place, (index, tensor) in enumerate(_tensors(output)):
            if not torch.compiler.is_compiling():
                _see(tensor, self.number, index)
            elif self.table is None:
                _trace(tensor, self.address, index)
            else:
                _trace_write(tensor, self.table, place, index)


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


def _trace_write(output: Tensor, table: Tensor, place: int, index: str) -> None:
    """Trace the op that writes on the device into Dynamo's graph."""
    torch.ops.hookcore.write(output.detach(), table, place, index, output.requires_grad, False)
    if output.requires_grad and not output.is_leaf:

        def saw_gradient(gradient: Tensor) -> None:
            torch.ops.hookcore.write(gradient, table, place, index, True, True)

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
    observer, _ = _observers.get(number >> _KEY_BITS, (None, None))
    if observer is None:
        return -1
    with torch.set_grad_enabled(requires_grad):
        return observer.saw_output(number & (1 << _KEY_BITS) - 1, index, output)


def _report_gradient(number: int, index: str, ticket: int, gradient: Tensor) -> None:
    observer, _ = _observers.get(number >> _KEY_BITS, (None, None))
    if observer is not None and ticket >= 0:
        observer.saw_gradient(number & (1 << _KEY_BITS) - 1, index, ticket, gradient)


# The ops. The forward one returns a tensor, so that the ticket waits in the graph for the backward of its call.


def _run_saw_output(output: Tensor, address: Tensor, index: str, requires_grad: bool) -> Tensor:
    return _ticket(_report_output(int(address), index, output, requires_grad))


def _run_saw_gradient(gradient: Tensor, address: Tensor, ticket: Tensor, index: str) -> None:
    _report_gradient(int(address), index, int(ticket), gradient)


def _run_write(value: Tensor, table: Tensor, place: int, index: str, requires_grad: bool, is_gradient: bool) -> None:
    if not is_gradient and internals.current_graph_task() != -1:
        return  # a checkpoint outside of the graph repeats a call
    number = _tables.get(table.data_ptr(), -1)
    _, writer = _observers.get(number >> _KEY_BITS, (None, None))
    if writer is not None:
        writer.write(number & (1 << _KEY_BITS) - 1, place, index, value, requires_grad, is_gradient)
        return
    for _, other in list(_observers.values()) if number < 0 else ():
        if other is not None:
            other.lost()


def _fake_write(value: Tensor, table: Tensor, place: int, index: str, requires_grad: bool, is_gradient: bool) -> None:
    return None


def _ticket(number: int) -> Tensor:
    return torch.full((), number, dtype=torch.int64, device="cpu")


def _fake_saw_output(output: Tensor, address: Tensor, index: str, requires_grad: bool) -> Tensor:
    return torch.empty((), dtype=torch.int64, device="cpu")


def _fake_saw_gradient(gradient: Tensor, address: Tensor, ticket: Tensor, index: str) -> None:
    return None


def _vmap_saw_output(info: Any, dims: Any, *arguments: Any) -> tuple[Tensor, None]:
    """Record nothing, because one call under vmap represents many."""
    return _ticket(-1), None


def _vmap_nothing(*arguments: Any) -> tuple[None, None]:
    return None, None


def _define_ops() -> None:
    """Register the ops, once per process.

    They are pure in their arguments, so that no version counter or alias is affected, and marked as having a side
    effect, so that no pass removes them. torch's ordered effect tokens would also work, but with inductor they fail on
    a checkpointed part, and disable the reuse of buffers. If `write` named its rows as an argument that it changes,
    autograd would save them, and refuse a backward pass if another one has written in the meantime.
    """
    global _library
    if _library is not None:
        return
    library: Any = torch.library.Library("hookcore", "FRAGMENT")  # type: ignore[no-untyped-call]
    tags = [torch.Tag.cudagraph_unsafe]  # a replay of a CUDA graph would leave them out, so inductor splits it there
    library.define("saw_output(Tensor output, Tensor address, str index, bool requires_grad) -> Tensor", tags=tags)
    library.define("saw_gradient(Tensor gradient, Tensor address, Tensor ticket, str index) -> ()", tags=tags)
    library.impl("saw_output", _run_saw_output, "CompositeExplicitAutograd")
    library.impl("saw_gradient", _run_saw_gradient, "CompositeExplicitAutograd")
    torch.library.register_fake("hookcore::saw_output", _fake_saw_output, lib=library)
    torch.library.register_fake("hookcore::saw_gradient", _fake_saw_gradient, lib=library)
    torch.library.register_vmap("hookcore::saw_output", _vmap_saw_output, lib=library)
    torch.library.register_vmap("hookcore::saw_gradient", _vmap_nothing, lib=library)
    library.define(
        "write(Tensor value, Tensor table, int place, str index, bool requires_grad, bool is_gradient) -> ()"
    )
    library.impl("write", _run_write, "CompositeExplicitAutograd")
    torch.library.register_fake("hookcore::write", _fake_write, lib=library)
    torch.library.register_vmap("hookcore::write", _vmap_nothing, lib=library)
    torch.fx.node.has_side_effect(torch.ops.hookcore.write.default)
    torch.fx.node.has_side_effect(torch.ops.hookcore.saw_output.default)
    torch.fx.node.has_side_effect(torch.ops.hookcore.saw_gradient.default)
    _library = library


guard_functions(_OutputHook.__call__, _GradientHook.__call__, _run_saw_output, _run_saw_gradient, _run_write)


# What a compiled graph keeps anyway. Nothing is added to it: torch shows us the joint graph of the forward and the
# backward pass, its nodes get marks that name the modules that return their values, and torch copies the marks to what
# it decides to keep. After a call of the region, the kept tensors are read from the autograd graph.

_MARK: Final = "hookcore"  # a node's key for its mark
_START: Final = re.compile(r"L\['\w+'\]\.?")  # of a path: the module that Dynamo traced
_aten = torch.ops.aten
_COPY: Final = _aten.copy_.default
# Operators that return all values of their first argument, and no others.
_SAME_VALUES: Final = frozenset(
    (
        *(_aten.alias.default, _aten.clone.default, _aten.detach.default, _aten.permute.default, _aten.t.default),
        *(_aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.transpose.int, _aten.unsqueeze.default),
        *(_aten.view.default, _aten._unsafe_view.default),
    )
)

Called = tuple[str, int]  # a call of a module in a graph: its path from the module that was traced, and its identity
Sizes = tuple[int | str, ...]  # of a tensor; a text stands for a size that changes
# What changes the order of a tensor's dimensions, and what only its shape: the order, or None, and the sizes then.
Move = tuple[tuple[int, ...] | None, Sizes]
# What is known of a node: its name, because what torch puts in its place with the same metadata has another one; the
# calls of modules in its graph; and the places of those calls that return the node's values, with what brings these
# into the shape that the module returns.
Mark = tuple[str, tuple[Called, ...], tuple[tuple[int, tuple[Move, ...]], ...]]


class Materialized:
    """Reads those outputs of modules in compiled regions that the compiled graph keeps for its backward pass."""

    def __init__(self) -> None:
        self.unnamed = 0  # calls of graphs about which nothing is known
        self._graphs: weakref.WeakKeyDictionary[Any, _Graph | None] = weakref.WeakKeyDictionary()
        _see_joint_graphs(self)

    def read(
        self, region: nn.Module, outputs: Iterable[Tensor], since: int
    ) -> Iterator[tuple[nn.Module, Tensor | None]]:
        """Yield each call of a module in a region's last call, with its output if the graph has kept it.

        `since`: the number of the first node of the autograd graph that the call may have made.
        """
        for node in _compiled_calls(outputs, since):
            graph = self._graph_of(function_of(node))
            if graph is None or not graph.is_of(region):
                self.unnamed += 1
                continue
            kept = graph.kept(node)
            for place, (path, _) in enumerate(graph.calls):
                module = _find(region, path)
                if module is not None:
                    yield module, kept.get(place)

    def _graph_of(self, function: Any) -> _Graph | None:
        if function not in self._graphs:
            nodes = kept_nodes(function) or []
            self._graphs[function] = _Graph(nodes) if any(map(_mark_of, nodes)) else None
        return self._graphs[function]

    def close(self) -> None:
        """Look at no further graph."""
        _forget_joint_graphs(self)


class _Graph:
    """A compiled graph: the calls of modules in it, and what it keeps."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self._marks = [_mark_of(node) for node in nodes]
        self.calls = next(mark[1] for mark in self._marks if mark is not None)
        self._types = [(node.meta["val"].dtype, node.meta["val"].dim()) for node in nodes]
        self._sizes = [_sizes_of(node) for node in nodes]
        self._kind: type | None = None  # the class whose forward was traced
        self._fits: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def is_of(self, region: nn.Module) -> bool:
        """Return whether the graph is that of the region's own forward, not of a module inside it.

        The paths in a graph begin at the module that was traced, which the graph doesn't name. Modules that are
        compiled one by one share a graph, in which the first one of them was traced.
        """
        if region in self._fits or not self.calls:
            return True
        found = [(module, identity) for path, identity in self.calls if (module := _find(region, path)) is not None]
        if found and all(id(module) == identity for module, identity in found):
            self._kind = type(region)
        elif type(region) is not self._kind or any(type(each) is self._kind for each in _below(region)):
            return False
        self._fits.add(region)
        return True

    def kept(self, node: Any) -> dict[int, Tensor]:
        """Return the outputs that one call has kept, by the place of the module's call."""
        try:
            tensors = saved_by_function(node)
        except (RuntimeError, LookupError):  # freed, changed in place, or packed by the user
            return {}
        kept: dict[int, Tensor] = {}
        if [(each.dtype, each.dim()) for each in tensors if each is not None] == self._types:
            there = [tensor for tensor in tensors if tensor is not None]
            known = {
                text: size
                for sizes, each in zip(self._sizes, there, strict=True)
                for text, size in zip(sizes, each.shape, strict=True)
            }
            for mark, tensor in zip(self._marks, there, strict=True):
                for place, moves in () if mark is None else mark[2]:
                    if place not in kept and (output := _moved(tensor, moves, known)) is not None:
                        kept[place] = output
        return kept


def _mark_of(node: Any) -> Mark | None:
    mark: Mark | None = node.meta.get(_MARK)
    return mark if mark is not None and mark[0] == node.name else None


def _find(region: nn.Module, path: str) -> nn.Module | None:
    found: nn.Module | None = region
    for part in path.split(".") if path else ():
        found = None if found is None else found._modules.get(part)
    return found


def _below(region: nn.Module) -> Iterator[nn.Module]:
    return (each for each in region.modules() if each is not region)


def _compiled_calls(outputs: Iterable[Tensor], since: int) -> list[Any]:
    """Return the nodes of the compiled functions that led to these outputs, in the order of their calls."""
    made = (output.grad_fn for output in outputs)
    waiting = list({node for node in made if node is not None and node_number(node) >= since})
    seen, found = set(waiting), []
    while waiting:
        node = waiting.pop()
        if is_compiled_function(node):
            found.append(node)
        for source, _ in node.next_functions:
            if source is not None and source not in seen and node_number(source) >= since:
                seen.add(source)
                waiting.append(source)
    return sorted(found, key=node_number)


# Torch has such settings for each thread, and one of each, so there is one table of all readers.
_readers: set[Materialized] = set()
_settings_before = threading.local()  # this thread's, before there was a reader


def _see_joint_graphs(reader: Materialized) -> None:
    settings = joint_settings()
    if settings is not None and settings.joint_custom_pass is not _saw_joint_graph:
        _settings_before.both = settings.joint_custom_pass, settings.enable_autograd_cache
        # What comes from this cache shows no joint graph. The cache of compiled code is another one, which stays on.
        settings.joint_custom_pass, settings.enable_autograd_cache = _saw_joint_graph, False
    _readers.add(reader)


def _forget_joint_graphs(reader: Materialized) -> None:
    _readers.discard(reader)
    if not _readers:
        _restore_settings()


def _restore_settings() -> None:
    settings = joint_settings()
    if settings is not None and settings.joint_custom_pass is _saw_joint_graph:
        settings.joint_custom_pass, settings.enable_autograd_cache = _settings_before.both


def _saw_joint_graph(graph: Any, inputs: Any) -> Any:
    """Mark the nodes of a joint graph. Torch calls this before it splits the graph."""
    sees_too, _ = _settings_before.both
    if callable(sees_too):
        graph = sees_too(graph, inputs)
    if _readers:
        with contextlib.suppress(Exception):  # the model must be compiled in any case; without marks, it is `unnamed`
            mark_outputs(graph.graph.nodes)
    else:  # another thread has closed the last one, and can't change this thread's settings
        _restore_settings()
    return graph


def mark_outputs(nodes: Iterable[Any]) -> None:
    """Note at the nodes of a joint graph which calls of modules return their values.

    A module returns what is made inside its call and used outside of it. If there are several such values, nothing says
    which place each one has in what the module returns, so none is marked.
    """
    left: dict[tuple[str, str], dict[Any, Any]] = {}  # by call: the sources of what leaves it, and the node that does
    for node in nodes:
        for call in _calls_of(node):
            sources = left.setdefault(call, {})
            if isinstance(node.meta.get("val"), Tensor) and any(call not in _calls_of(user) for user in _users(node)):
                sources[_line_of(node)[-1]] = node
    places: dict[Any, list[tuple[int, Any]]] = {}
    for place, sources in enumerate(left.values()):
        for source, node in sources.items() if len(sources) == 1 else ():
            places.setdefault(source, []).append((place, node))
    calls = tuple((_START.sub("", path, count=1), int(key.partition("@")[0])) for key, path in left)
    for node in nodes:
        line = _line_of(node)
        returned = tuple((place, _moves(line, _line_of(leaves))) for place, leaves in places.get(line[-1], ()))
        node.meta[_MARK] = (node.name, calls, returned)


def _calls_of(node: Any) -> list[tuple[str, str]]:
    """Return the calls of modules that a node belongs to: the key and the path of each."""
    return [(key, path) for key, (path, _) in calls_around(node).items() if key.partition("@")[0].isdecimal()]


def _users(node: Any) -> list[Any]:
    """Return what uses a node in the forward pass, except for what changes a buffer."""
    return [user for user in node.users if user.op == "output" or (is_forward(user) and user.target is not _COPY)]


def _line_of(node: Any) -> list[Any]:
    """Return a node, and those before it that had all of its values, and no others."""
    line = [node]
    while line[-1].op == "call_function" and line[-1].target in _SAME_VALUES:
        line.append(line[-1].args[0])
    return line


def _moves(line: Sequence[Any], other: Sequence[Any]) -> tuple[Move, ...]:
    """Return what makes the first node of the other line of that of this one. Both lines end alike."""
    shared = next(node for node in line if node in other)
    back, forth = line[: line.index(shared)], other[: other.index(shared)]
    undone = ((_inverse(_order(node)), _sizes_of(node.args[0])) for node in back)
    return (*undone, *((_order(node), _sizes_of(node)) for node in reversed(forth)))


def _order(node: Any) -> tuple[int, ...] | None:
    """Return the dimensions of a node's argument in the order in which the node has them, if it may change that."""
    places = list(range(node.meta["val"].dim()))
    if node.target is _aten.permute.default:
        return tuple(places[dim] for dim in node.args[1])
    if node.target is _aten.t.default:
        return tuple(reversed(places))
    if node.target is _aten.transpose.int:
        one, two = (places[dim] for dim in node.args[1:3])
        places[one], places[two] = two, one
        return tuple(places)
    return None


def _inverse(order: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if order is None else tuple(sorted(range(len(order)), key=order.__getitem__))


def _sizes_of(node: Any) -> Sizes:
    return tuple(size if isinstance(size, int) else str(size) for size in node.meta["val"].shape)


def _moved(tensor: Tensor, moves: Sequence[Move], known: Mapping[int | str, int]) -> Tensor | None:
    """Return a tensor in another shape; None if its sizes aren't known."""
    for order, sizes in moves:
        if order is not None:
            tensor = tensor.permute(order)
        else:
            shape = [size if isinstance(size, int) else known.get(size, -1) for size in sizes]
            if shape.count(-1) > 1:
                return None
            tensor = tensor.reshape(shape)
    return tensor
