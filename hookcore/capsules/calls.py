"""One call of a model, as a recording keeps it, or by reference in an uncaptured step: cheap enough for every step."""

from __future__ import annotations

import importlib
import platform
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from hookcore.capsules.entries import SMALL_BYTES, STATISTICS, AtEntry, Members, bytes_of, is_tracking, state_of
from hookcore.errors import CapsuleError
from hookcore.hooks.compiled import guarded
from hookcore.hooks.internals import (
    any_autocast,
    current_graph_task,
    dispatch_modes,
    function_modes,
    is_wrapped,
    tracing_state,
    tree_map,
)
from hookcore.hooks.tensors import hook_gradient
from hookcore.observe import cpu
from hookcore.observe.plain import device_generators, generators, state_from, unseen, why_empty
from hookcore.recorder.known.roots import find_tensors
from hookcore.records.vocabulary import KIND_WORDS

# The gradient that arrives at an output of a kept call.


class SeesGradients(Protocol):
    """A call that keeps the gradients of its outputs."""

    def saw_gradient(self, place: str, gradient: Tensor) -> None:
        """Keep the gradient that arrived at an output."""


# Slots beside those of a base class of the extension, which checkers of types don't see.
_NO_SLOTS: Final[tuple[str, ...]] = ()
_OWN_SLOTS: Final = ("__weakref__",)


class Arrival(cpu.Arrival):  # type: ignore[misc]  # which is the extension's
    """Keeps the gradient that arrives at an output. The graph keeps this object alive, but not the call.

    The extension makes one for the only output of a call that it holds, and does itself what `saw` does.
    """

    __slots__ = _NO_SLOTS
    __torch_unserializable__ = True

    def __init__(self, call: SeesGradients, place: str) -> None:
        self.call, self.place = weakref.ref(call), place

    @guarded
    def saw(self, gradient: Tensor | None) -> None:
        """Keep it."""
        call: SeesGradients | None = self.held if self.call is None else self.call()
        place = self.place or ""
        if call is None or not isinstance(gradient, Tensor):
            return
        if type(gradient) is Tensor and not dispatch_modes() and not function_modes():
            call.saw_gradient(place, gradient)
        else:
            with unseen():
                call.saw_gradient(place, gradient)


cpu.know(Tensor, function_modes, dispatch_modes, state_from)


# Plain numbers that a model's own code changes in its calls, such as a layer's count of them.
#
# A model is pickled after its call, so a replay would go on counting. It begins with the numbers of the call instead.

FIRST: Final = 8  # calls before each of which all numbers are looked at;
EVERY: Final = 64  # later, before one in this many, and otherwise only those that were seen to change
NUMBERS: Final[frozenset[type]] = frozenset((int, float, bool, str, type(None)))
_MODE: Final = "training"

Numbers = list[tuple[str, str, Any]]  # the path of a module, the name of its attribute, and the value


class Counters:
    """The numbers of one model's own modules, and those that were seen to change."""

    __slots__ = ("_before", "_calls", "_modules", "_moving")

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(_own_modules(model))
        self._before: dict[tuple[str, str], Any] = {}
        self._moving: list[tuple[str, str, dict[str, Any]]] = []
        self._calls = 0

    def at_call(self) -> Numbers:
        """Return the numbers as they are now, when a call begins: those that change, and sometimes all."""
        looks = self._calls < FIRST or self._calls % EVERY == 0
        self._calls += 1
        if looks:
            return self._look()
        return [(path, name, attributes[name]) for path, name, attributes in self._moving if name in attributes]

    @property
    def settled(self) -> int:
        """Before how many of the next calls there is nothing to look at."""
        return 0 if self._calls < FIRST or self._moving else -self._calls % EVERY

    def skip(self, calls: int) -> None:
        """Count calls before which there was nothing to look at."""
        self._calls += calls

    def _look(self) -> Numbers:
        found: Numbers = []
        known = {(path, name) for path, name, _ in self._moving}
        for path, attributes in self._modules:
            for name, value in _numbers_in(attributes):
                key = path, name
                if self._before.get(key, value) != value and key not in known:
                    self._moving.append((path, name, attributes))
                self._before[key] = value
                found.append((path, name, value))
        return found


def numbers_of(model: nn.Module) -> Numbers:
    """Return all numbers of a model's own modules."""
    return [(path, name, value) for path, each in _own_modules(model) for name, value in _numbers_in(each)]


def set_numbers(model: nn.Module, numbers: Numbers) -> None:
    """Give the modules of a model the numbers of a call."""
    modules = dict(model.named_modules())
    for path, name, value in numbers:
        if path in modules:
            modules[path].__dict__[name] = value


def _own_modules(model: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the attributes of the modules that aren't torch's, by path."""
    for path, module in model.named_modules():
        if not type(module).__module__.startswith("torch."):
            yield path, vars(module)


def _numbers_in(attributes: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in attributes.items() if type(value) in NUMBERS and name != _MODE]


_PLAIN: Final = (Tensor, nn.Parameter)
_FLAT: Final = (Tensor, int, float, str, type(None))  # everything else may contain tensors


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
    entry: AtEntry | None = None  # the weights as they were, on a device that tells late whether a step was finite
    weights: dict[int, Tensor] = field(default_factory=dict)  # of the call, by the id of those that the model has now

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
            self.versions[f"{KIND_WORDS['output_grad']} {place}".rstrip()] = alias, alias._version


def _copy_of(buffer: Tensor) -> Tensor:
    """Return a copy; of a buffer whose memory was freed, an alias."""
    alias = buffer.detach()
    return alias if why_empty(buffer) else alias.clone()


def call_of(model: nn.Module, args: Any, kwargs: Any, autocast: dict[str, torch.dtype], grad_enabled: bool) -> Call:
    """Return a call that begins, with everything that a later replay needs to know about the model."""
    members = Members(model)
    args, kwargs = aliases_in(args), aliases_in(kwargs)
    return Call(
        args=args,
        kwargs=kwargs,
        training={name: module.training for name, module in model.named_modules()},
        buffers={name: _copy_of(buffer) for name, buffer in model.named_buffers()},
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


def bits_of(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


# The conditions that a step's results depend on, in addition to the model and its arguments.


def versions() -> dict[str, str]:
    """Return the versions and settings that bit-for-bit results depend on."""
    on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    device = torch.cuda.get_device_name() if on_cuda else platform.machine()
    return {
        "hookcore": importlib.import_module("hookcore").__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": device,
        "threads": str(torch.get_num_threads()),
    }


def autocast_types() -> dict[str, torch.dtype]:
    """Return the type of each device for which autocast is on."""
    return {device: torch.get_autocast_dtype(device) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)}


# One call of a model in an uncaptured step, held by reference: cheap enough for every step.
#
# Nothing is copied but the state of the generator. What can't be held at this price is said in the capsule.

HELD_BYTES: Final = 64 << 20  # of outputs and their gradients, if a call's arguments take less
_cpu: Final = torch.default_generator
_RESET: Final = (
    "the running statistics of batch norm start at 0 and 1: they weren't held, and in training mode the results don't "
    "depend on them"
)


class NotHeldError(Exception):
    """The reason why a call can't be held."""


class Held(cpu.HeldCall):  # type: ignore[misc]  # which is the extension's
    """A call that was held. Torch's graph refers to it only weakly, so nothing outlives the step.

    The extension makes it without calling `__init__`, and its lists and dictionaries only when they are asked for.
    """

    __slots__ = _OWN_SLOTS
    args: Any
    kwargs: dict[str, Any] | None  # known when the call has returned
    versions: list[tuple[str, Any, Tensor, int]]  # what it is, its place, and its version
    updates: int  # of any weights before
    at: float
    numbers: Numbers
    generators: Any
    autocast: dict[str, torch.dtype]
    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor]
    unkept: list[str]
    entry: AtEntry | None  # the weights as they are now, on a device

    def __init__(self, args: tuple[Any, ...], updates: int, numbers: Numbers) -> None:
        self.versions = []
        self.args = self._hold(args, "argument")
        self.kwargs = self.entry = None
        self.updates, self.numbers = updates, numbers
        self.at = time.monotonic()
        on_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self.generators = device_generators() if on_device else _cpu.get_state()
        self.autocast = autocast_types() if any_autocast() else {}
        self.outputs, self.gradients, self.unkept = {}, {}, []

    def _hold(self, values: Any, what: str) -> Any:
        """Return the values to hold, and note the versions of their tensors, which changes in place increment.

        The extension does the same with a tuple.
        """
        aliases: dict[Any, Tensor] = {}  # of tensors with a graph, which isn't held
        for key, each in values.items() if type(values) is dict else enumerate(values):
            if type(each) in _PLAIN and not each.is_inference():
                if each.requires_grad:
                    with unseen():
                        each = aliases[key] = alias_of(each)
                self.versions.append((what, key, each, each._version))
            elif type(each) not in NUMBERS:
                return self._hold_nested(values, what)
        if aliases and type(values) is not dict:
            return tuple(aliases.get(key, each) for key, each in enumerate(values))
        return {**values, **aliases} if aliases else values

    def _hold_nested(self, values: Any, what: str) -> Any:
        with unseen():
            for place, tensor in find_tensors(values):
                if not has_data(tensor):
                    raise NotHeldError("its arguments are of a custom tensor class, or the model is being traced")
                if not tensor.is_inference():
                    self.versions.append((what, place, tensor.detach(), tensor._version))
            return aliases_in(values)

    def returned(self, kwargs: dict[str, Any] | None, output: Any) -> None:
        """Hold the keyword arguments and the outputs, and wait for the gradients of these."""
        self.kwargs = self._hold(kwargs, "argument") if kwargs else kwargs
        if type(output) is Tensor and output.grad_fn is not None and not dispatch_modes() and not function_modes():
            if output.numel() * output.element_size() <= HELD_BYTES or self._is_small([output]):
                self.outputs[""] = output.detach()
                hook_gradient(output, Arrival(self, ""))
            return
        with unseen():
            outputs = [(place, each) for place, each in find_tensors(output) if has_data(each)]
            if not self._is_small([each for _, each in outputs]):
                return
            for place, each in outputs:
                self.outputs[place] = alias_of(each)
                if each.requires_grad and not each.is_leaf:
                    hook_gradient(each, Arrival(self, place))

    def _is_small(self, outputs: list[Tensor]) -> bool:
        limit, used = HELD_BYTES, bytes_of(outputs)
        if used > limit:
            limit = max(limit, bytes_of(each for _, each in find_tensors((self.args, self.kwargs))))
        if used > limit:
            self.unkept.append(f"the activations and their gradients, which take more than {limit >> 20} MiB")
        return used <= limit

    def saw_gradient(self, place: str, gradient: Tensor) -> None:
        """Hold the gradient that arrived at an output."""
        self.gradients[place] = alias = gradient.detach()
        if not alias.is_inference():
            self.versions.append((KIND_WORDS["output_grad"], place, alias, alias._version))

    def as_call(self, model: nn.Module, is_updated: bool, moved: Callable[[Container[str]], list[str]]) -> Call:
        """Return the call with all that a capsule needs. Called at most a few times in a run.

        `is_updated`: whether the weights were updated since. `moved` returns what to say of changed buffers.
        """
        members = Members(model)
        modes = dict(members.modes() if self.entry is None else self.entry.modes)
        reset = {
            f"{path}.{name}" if path else name: value
            for path, module in model.named_modules()
            for name, value in _reset_statistics(module, modes.get(path, False)).items()
        }
        now = members.versions()
        generators = self.generators if isinstance(self.generators, dict) else {"cpu": self.generators}
        return Call(
            args=self.args,
            kwargs=self.kwargs or {},
            training={},  # a model is pickled with its modes
            buffers=reset,
            generators=generators,
            autocast=self.autocast,
            grad_enabled=True,
            members=members,
            weight_versions=[] if is_updated else now,
            versions={f"{what} {place}".rstrip(): (tensor, version) for what, place, tensor, version in self.versions},
            outputs=self.outputs,
            gradients=self.gradients,
            numbers=self.numbers,
            unkept=[*self.unkept, *moved(reset)],
            notes=[_RESET] if reset else [],
        )


def _reset_statistics(module: nn.Module, is_training: bool) -> dict[str, Tensor]:
    """Return the running statistics of a batch norm in training mode as they are at first."""
    if not is_tracking(module, is_training):
        return {}
    found = {name: module._buffers.get(name) for name in STATISTICS}
    make = {"running_var": torch.ones_like}
    return {name: make.get(name, torch.zeros_like)(each) for name, each in found.items() if each is not None}


@dataclass(slots=True)
class KeptModel:
    """A model that is called itself. Between its calls, no tensor is kept alive."""

    ref: weakref.ref[nn.Module]
    path: str
    below: str  # what the paths of the modules inside begin with
    members: Members
    counters: Counters
    moving: set[str] = field(default_factory=set)  # buffers that were seen to change
    still: dict[str, tuple[int, int]] = field(default_factory=dict)  # the states of large ones
    call: Call | None = None
    runs: bool = False
    held: Held | None = None  # the call of an uncaptured step
    is_late: bool = False  # whether it is on a device that tells late whether a step was finite
    _noted: dict[str, tuple[int, int]] = field(default_factory=dict)  # the states of all buffers, when seen last

    def __post_init__(self) -> None:
        self._noted = {name: state_of(buffer) for name, buffer in self.members.buffers()}

    def held_call(self, model: nn.Module, updates: int) -> Call:
        """Return the held call of an uncaptured step as one that can be saved, after so many updates of any weights."""
        assert self.held is not None
        return self.held.as_call(model, self.held.updates != updates, self._moved_buffers)

    def late_call(self, model: nn.Module, call: Call | Held) -> Call:
        """Return a call of an earlier step as one that can be saved: with the weights that it began with."""
        entry, members = call.entry, Members(model)
        assert entry is not None
        copies, weights = entry.copies, dict(members.named_weights())
        gone = copies.keys() - weights.keys() - dict(members.buffers()).keys()
        if gone:
            raise CapsuleError(f"the model has changed since: {min(gone)} is gone")
        missing = [f"the value of {path} when the call began" for path in entry.changed(members)]
        kept = call if isinstance(call, Call) else call.as_call(model, False, lambda _: [])
        return replace(
            kept,
            training=dict(entry.modes),
            buffers={path: copy for path, copy in copies.items() if path not in weights} | kept.buffers,
            members=members,
            weight_versions=members.versions(),
            unkept=[*kept.unkept, *missing],
            weights={
                id(weight): nn.Parameter(copies[path], weight.requires_grad)
                for path, weight in weights.items()
                if path in copies
            },
        )

    def _moved_buffers(self, others: Container[str]) -> list[str]:
        """Return the buffers that have changed since they were seen last, perhaps in the running step."""
        moved = [name for name, each in self.members.buffers() if self._noted.get(name) != state_of(each)]
        return [f"the value of buffer {name} when the call began" for name in moved if name not in others]

    def contains(self, path: str) -> bool:
        """Return whether a module is a part of it."""
        return not self.path or path == self.path or path.startswith((f"{self.path}.", f"{self.path}/"))

    def copies_of_buffers(self) -> dict[str, Tensor]:
        """Return copies of small buffers, and of buffers that were seen to change."""
        copies = {}
        for name, buffer in self.members.buffers():
            self._noted[name] = state_of(buffer)
            small = bytes_of((buffer,)) <= SMALL_BYTES
            known = name in self.still
            if not small and self._moved(name, buffer) and known:
                self.moving.add(name)
            if small or name in self.moving:
                copies[name] = _copy_of(buffer)
        return copies

    def changed(self, call: Call) -> list[str]:
        """Return the buffers that changed since the call began and were not copied."""
        others = ((name, buffer) for name, buffer in self.members.buffers() if name not in call.buffers)
        return [f"buffer {name}" for name, buffer in others if self._moved(name, buffer)]

    def _moved(self, name: str, buffer: Tensor) -> bool:
        state = state_of(buffer)
        moved = self.still.get(name) != state
        self.still[name] = state
        return moved
