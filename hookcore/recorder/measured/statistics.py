"""Statistics: the taps of one watcher, and the observer that adds tensors and their gradients to the rows of arenas."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hookcore.config import Settings
from hookcore.hooks.internals import (
    DisableTorchFunction,
    current_graph_task,
    function_modes,
    is_wrapped,
    root_mesh_of,
    stream_number,
    tracing_state,
)
from hookcore.hooks.tensors import hook_gradient
from hookcore.observe import cpu, layout
from hookcore.observe.arena import CODES, LOW, CpuArena, address_of
from hookcore.observe.plain import make_plain, unseen
from hookcore.recorder.calls.plans import Call, Plan
from hookcore.recorder.clock.current import CurrentStep, TensorHook
from hookcore.recorder.clock.errors import ErrorLog
from hookcore.records import GRADIENT_KINDS, UNKNOWN_OWNER, Kind, Phase, Tap
from hookcore.records.masks import LARGE, Masks

if TYPE_CHECKING:
    from hookcore.observe.device import DeviceArena, Transfer

# The arenas of devices other than the CPU: one for each stream, because streams run at the same time.

_NOTHING: Final = nullcontext()
Held = dict[tuple["DeviceArena", int], tuple[Plan, Tensor]]  # by arena and slot


class Devices:
    """The arenas in use. Each has the slots of the CPU's."""

    def __init__(self, host: CpuArena, errors: ErrorLog) -> None:
        self.arenas: dict[tuple[torch.device, int], DeviceArena] = {}  # by the number of the stream
        self._host = host
        self._errors = errors
        self._held: dict[int, Held] = {}  # by thread, inside of `together`

    def begin_step(self) -> None:
        """Begin a step as the host's arena did: with or without histograms, which sample other values than before."""
        for arena in list(self.arenas.values()):
            arena.begin_step(self._host.sketch_values)

    def begin_transfers(self) -> tuple[Transfer, ...]:
        """Start to copy the measurements to the host. If an arena fails, only its measurements are lost (reported)."""
        begun: list[Transfer] = []
        for arena in list(self.arenas.values()):
            try:
                begun += arena.begin_transfers()
            except Exception as error:
                self._errors.record("end of a step", error)
        return tuple(begun)

    def clear(self, slots: list[int]) -> None:
        """Drop what was added to these slots in this step."""
        for arena in list(self.arenas.values()):
            arena.clear(slots)

    def together(self) -> AbstractContextManager[None]:
        """Return a context in which this thread adds tensors that nothing changes before its end.

        There, small ones are then added by one launch for each type, if the device's kernel can do that.
        """
        can = self.arenas and any(arena.kernel.add_all is not None for arena in list(self.arenas.values()))
        return self._together() if can and get_ident() not in self._held else _NOTHING

    @contextmanager
    def _together(self) -> Iterator[None]:
        thread = get_ident()
        self._held[thread] = {}
        try:
            yield
        finally:
            self._add_held(self._held.pop(thread))

    def _add_held(self, held: Held) -> None:
        alike: dict[tuple[DeviceArena, torch.dtype], list[tuple[Plan, Tensor, int]]] = {}
        for (arena, slot), (plan, tensor) in held.items():
            alike.setdefault((arena, tensor.dtype), []).append((plan, tensor, slot))
        for (arena, _), each in alike.items():
            if arena.kernel.add_all is None:  # it has failed for another type
                self._add_alone(each)
                continue
            try:
                arena.observe_all([(tensor, slot) for _, tensor, slot in each])
            except Exception as error:
                self._errors.record("launch for several tensors", error)
                self._add_alone(each)

    def _add_alone(self, held: Iterable[tuple[Plan, Tensor, int]]) -> None:
        for plan, tensor, slot in held:
            try:
                self.observe(plan, tensor, slot, stays=False)
            except Exception as error:
                self._errors.record("tensor on a device", error, plan)

    def observe(self, plan: Plan, tensor: Tensor, slot: int, stays: bool) -> None:
        """Add a plain tensor of another device to a slot, or note why not. `stays`: what `together` asks for."""
        key = tensor.device, stream_number(tensor.device)
        arena = self.arenas.get(key)
        if arena is None:
            from hookcore.observe.device import DeviceArena

            new = DeviceArena(tensor.device, self._host.capacity, self._host.sketch_values)
            arena = self.arenas.setdefault(key, new)  # another thread may have been faster
        if self._held and stays and (held := self._held.get(get_ident())) is not None and arena.can_wait(tensor, slot):
            if (arena, slot) in held or len(held) == arena.at_once:  # one launch adds only one tensor to a slot
                self._add_held(dict(held))
                held.clear()
            held[arena, slot] = plan, tensor
            return
        if reason := arena.observe(tensor, slot):
            plan.note_reason(reason)


def is_readable_on_cuda(tensor: Tensor) -> bool:
    """Return whether the kernel of a GPU can read the values of a tensor without a class of its own where they are."""
    is_plain = tensor.is_cuda and tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_complex()
    return is_plain and not is_wrapped(tensor)


MAX_TAPS_OF_MODULE: Final = 512

LEAF_OUTPUT: Final = "its output is a parameter: see the parameter's gradient"
CUT_OUTPUT: Final = "its output is cut from the graph (detach().requires_grad_()): no gradient flows back through it"
NO_GRADIENT: Final = "its output needs no gradient (frozen, detached, or not differentiable)"
PARAMETER_INPUT: Final = "its input is a parameter: see the parameter's gradient"
NO_INPUT_GRADIENT: Final = "an input needs no gradient (data, frozen, detached, or not differentiable)"
INPUT_AGAIN: Final = (
    "gradients of inputs aren't captured of calls that run again in the backward pass, as in a reentrant checkpoint"
)
OTHER_PHASE: Final = {
    "eval": "ran in eval mode or without gradients; phases={'train', 'eval'} captures that, too",
    "train": "ran in training; phases={'train', 'eval'} captures that, too",
}

_observe, _observe_tensor = cpu.observe_other, cpu.observe_tensor
_float32 = torch.float32
PLAIN_TYPES: Final = frozenset((Tensor, nn.Parameter))


class Statistics:
    """The rows of one watcher and their contents. Graphs keep it alive, so it refers to no recorder."""

    wants_inputs = False  # the plans decide

    def __init__(self, settings: Settings, current: CurrentStep, errors: ErrorLog) -> None:
        capacity = max(256, min(1 << 16, settings.memory // 4 // layout.ROW_USE))
        self.arena = arena = CpuArena(capacity, settings.sketch_values)
        self.devices = Devices(arena, errors)
        self.table = TapTable(arena.capacity)
        self.shards = Shards()
        self._masks = Masks()
        self._known = 0  # taps before this step
        self._control = arena.control
        self.phases = settings.phases
        self._max_calls = settings.calls
        self._current = current
        self._errors = errors

    def wants(self, plan: Plan) -> bool:
        """Return whether the plan asks for outputs or inputs."""
        return plan.wants_output or plan.wants_input

    def begin_step(self) -> None:
        """Begin a captured step: with or without histograms, which sample other values than before."""
        self._known = len(self.table.taps)
        self.arena.begin_step(self._current.sketched)
        if self.devices.arenas:
            self.devices.begin_step()

    def first_bad(self, kinds: Collection[Kind], step: int, is_whole: bool) -> Tap | None:
        """Return a tap of these kinds with a non-finite value in this step, as measured on the CPU.

        Of the forward pass the first one, else of the backward pass, which visits modules in reverse, the last one. As
        long as the step isn't whole, infinities may turn out to be those of a mask.
        """
        taps = self.table.taps
        found = self.arena.bad(len(taps), LARGE)
        found = {slot: no_mask for slot, no_mask in found.items() if taps[slot].kind in kinds}
        if not found or not (is_whole or any(found.values())):
            return None
        fine = partial(self.arena.fine, len(taps))
        harmful = self._masks.harmful(step, found, fine, lambda slot: taps[slot].kind, self._known)
        bad = [taps[slot] for slot in harmful]
        forward = (tap for tap in bad if tap.kind not in GRADIENT_KINDS)
        return next(forward, bad[-1] if bad else None)

    # Rows

    def slot_of(
        self, plan: Plan, kind: Kind, index: str, call: int, phase: Phase = "train", tensor: Tensor | None = None
    ) -> int:
        """Return the slot of a tap, new on first use; -1 if the plan excludes it or there is no room."""
        if kind not in plan.kinds:
            return -1
        key = (kind, index, min(call, self._max_calls - 1), phase)
        slots = plan.rows.slots
        slot = slots.get(key)
        if slot is None:
            if len(slots) >= MAX_TAPS_OF_MODULE:
                plan.note_reason(f"more than {MAX_TAPS_OF_MODULE} tensors; the rest is left out")
                return -1
            if tensor is not None:
                _note_shape(plan, f"{kind} {index}".rstrip(), tensor)
            slot = slots[key] = self.table.add(Tap(plan.path, *key))
        return slot

    def _lone_hook(self, plan: Plan, call: int, output: Tensor) -> TensorHook:
        """Return the rows of a call of a module whose output is one tensor."""
        plan.history.seen = True
        lone = plan.rows.lone
        call, shown = min(call, self._max_calls - 1), "train" in self.phases
        if not shown:
            plan.note_reason(OTHER_PHASE["train"])
        while len(lone) <= call:
            number = len(lone)
            slot = self.slot_of(plan, "output", "", number, tensor=output) if shown else -1
            hook = self._hook(plan, self.slot_of(plan, "output_grad", "", number) if shown else -1)
            hook.row = self.arena.row(slot) if slot >= 0 else 0
            lone.append(hook)
        return lone[call]

    def _hook(self, plan: Plan, slot: int) -> TensorHook:
        """Return the only hook object of a row, so that a tensor that is returned again is recognized."""
        hook = plan.rows.hooks.get(slot)
        if hook is None:
            row = self.arena.row(slot) if slot >= 0 else 0
            hook = TensorHook(self._current, self._control, 0, row, partial(self._add_gradient, plan, slot))
            if slot >= 0:
                plan.rows.hooks[slot] = hook
        return hook

    # Outputs

    def saw_plain(self, plan: Plan, output: Any) -> bool:
        """Handle the most common output, a plain tensor in training, as `_calls.h` does. Return False for others."""
        try:
            if (
                type(output) is Tensor
                and not function_modes()
                and output.requires_grad
                and (code := CODES.get(output.dtype)) is not None
                and output.is_cpu
                and current_graph_task() == -1
                and not tracing_state()
                and output.is_contiguous()
                and not output.is_neg()
                and not output.is_leaf
                and (root := plan.root.ref()) is not None
                and root.training
                and not plan.root.rehearses
            ):
                plan.root.trained = True
                counts, lone = plan.counts, plan.rows.lone
                call = counts.training
                hook = lone[call] if call < len(lone) else self._lone_hook(plan, call, output)
                address = output.data_ptr() if hook.row else LOW
                if address < LOW:
                    address = address_of(output)
                if hook.grad_row:
                    hook_gradient(output, hook)
                if hook.row:  # after all that may raise, because the slow path measures the output, too
                    _observe(address, output.numel(), code, hook.row, self._control)
                counts.training = call + 1
                return True
        except Exception:  # a layout without an address, or a functorch wrapper: the slow path distinguishes them
            pass
        return False

    def saw_outputs(self, call: Call) -> None:
        """Add the outputs, and hook their gradients."""
        plan, phase = call.plan, call.phase
        if not plan.wants_output or not self._captures(call):
            return
        for index, tensor in call.tensors:
            if not call.again:
                slot = self.slot_of(plan, "output", index, call.number, phase, tensor)
                if slot >= 0:
                    self.add(plan, tensor, slot)
            if phase == "train" and "output_grad" in plan.kinds and not call.traced:
                self._hook_output(call, index, tensor)

    def _captures(self, call: Call) -> bool:
        if call.phase in self.phases:
            return True
        call.plan.note_reason(OTHER_PHASE[call.phase])
        return False

    def _hook_output(self, call: Call, index: str, tensor: Tensor) -> None:
        plan = call.plan
        if not tensor.requires_grad:
            if not call.comes_again and _can_have_gradient(tensor):
                plan.note_reason(NO_GRADIENT)
            return
        if tensor.is_leaf:
            plan.note_reason(LEAF_OUTPUT if isinstance(tensor, nn.Parameter) else CUT_OUTPUT)
            return
        slot = self.slot_of(plan, "output_grad", index, call.number)
        if slot >= 0:
            hook_gradient(tensor, self._hook(plan, slot))

    # Compiled graphs

    def ticket(self, plan: Plan, index: str, call: int) -> int:
        """Return the slot of the gradient of an output in a compiled graph, -1 if it isn't needed."""
        return self.slot_of(plan, "output_grad", index, call) if "train" in self.phases else -1

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Add a gradient that a compiled graph reports."""
        self._hook(plan, self.table.slot(tap))(gradient)

    # Inputs

    def saw_inputs(self, call: Call) -> None:
        """Add the inputs, and hook their gradients."""
        plan, phase = call.plan, call.phase
        if not plan.wants_input or phase not in self.phases:
            return
        for index, tensor in call.tensors:
            slot = self.slot_of(plan, "input", index, call.number, phase, tensor)
            if slot >= 0:
                self.add(plan, tensor, slot)
            if phase == "train" and "input_grad" in plan.kinds:
                self.hook_input(call, index, tensor)

    def hook_input(self, call: Call, index: str, tensor: Tensor) -> None:
        plan = call.plan
        if not tensor.requires_grad:
            if _can_have_gradient(tensor):
                plan.note_reason(INPUT_AGAIN if call.comes_again else NO_INPUT_GRADIENT)
            return
        if isinstance(tensor, nn.Parameter):
            plan.note_reason(PARAMETER_INPUT)
            return
        slot = self.slot_of(plan, "input_grad", index, call.number)
        if slot >= 0 and tensor.is_leaf:
            self._current.hook_leaf(tensor, self._hook(plan, slot))
        elif slot >= 0:
            hook_gradient(tensor, self._hook(plan, slot))

    # Values

    def _add_gradient(self, plan: Plan, slot: int, gradient: Any) -> None:
        self.add_safely(plan, gradient, slot)

    def add_safely(self, plan: Plan, tensor: Any, slot: int) -> None:
        """Add any kind of tensor, outside of the user's modes; let no exception out."""
        if type(tensor) in PLAIN_TYPES and _observe_tensor(tensor, self.arena.row(slot), self._control):
            return
        try:
            with DisableTorchFunction():
                self.add(plan, tensor, slot)
        except Exception as error:
            self._errors.record("gradient hook", error, plan)

    def add(self, plan: Plan, tensor: Tensor, slot: int) -> None:
        """Add any kind of tensor to a slot's row, or record why it has none."""
        if type(tensor) in PLAIN_TYPES and tensor.dtype in CODES and not tensor.is_neg():
            if tensor.is_cpu:
                try:
                    self.arena.observe(tensor, self.arena.row(slot))
                    return
                except RuntimeError:  # without memory of its own: handled below
                    pass
            elif is_readable_on_cuda(tensor):
                self.devices.observe(plan, tensor, slot, stays=True)
                return
        with unseen():
            if is_shard(tensor):
                layout = self.shards.saw(slot, tensor)
                if layout is not None and layout.words:
                    plan.rows.placements.setdefault(self.table.taps[slot].tensor, layout.words)
            plain = make_plain(tensor.detach())
            if isinstance(plain, str):
                plan.note_reason(plain)
            elif plain.is_cpu:
                self.arena.observe(plain, self.arena.row(slot))
            else:
                self.devices.observe(plan, plain, slot, stays=False)


def _can_have_gradient(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and not is_wrapped(tensor)


def _note_shape(plan: Plan, name: str, tensor: Tensor) -> None:
    try:
        plan.rows.shapes.setdefault(name, tuple(tensor.shape))
    except Exception:  # nested tensors have none
        plan.rows.shapes.setdefault(name, ())


# The taps, and tensors that torch has split over ranks: whose values each one's local part repeats.


class TapTable:
    """Assigns slots and numbers. Both only grow, because frames and the store refer to taps by number."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.taps: list[Tap] = []  # by slot
        self.numbers: list[int] = []  # by slot: its number in the frames; -1 if no frame shows it
        self.refused = 0
        self.filled: set[int] = set()  # numbers that occurred in a frame
        self.newest: set[int] = set()  # those of the newest step
        self.newest_step = -1
        self._slots: dict[Tap, int] = {}
        self._last: tuple[NDArray[np.uint32] | None, set[int]] = None, set()  # the taps of the newest frame
        self._shown = 0
        self._announced = 0
        self._by_number: list[Tap] = []  # as far as it was asked for
        self._lock = threading.RLock()

    def add(self, tap: Tap, hidden: bool = False) -> int:
        """Return the slot of a tap, or -1 if there is no room. Frames don't show a hidden one."""
        with self._lock:
            if not hidden and tap in self._slots:
                return self._slots[tap]  # a model of the same name continues where the last one ended
            if len(self.taps) >= self.capacity:
                self.refused += 1
                return -1
            if not hidden:
                self._slots[tap] = len(self.taps)
            self.taps.append(tap)
            self.numbers.append(-1 if hidden else self._shown)
            self._shown += not hidden
            return len(self.taps) - 1

    @property
    def is_announced(self) -> bool:
        """Whether frames have announced all taps."""
        return self._announced == len(self.taps)

    @property
    def room(self) -> int:
        """The number of taps for which there is room."""
        return self.capacity - len(self.taps)

    def shown_taps(self) -> list[Tap]:
        """Return the taps by their numbers."""
        with self._lock:
            if len(self._by_number) != self._shown:
                self._by_number = [self.taps[slot] for slot, number in enumerate(self.numbers) if number >= 0]
            return self._by_number

    def slot(self, tap: Tap) -> int:
        """Return the slot of a tap that was added, else -1."""
        return self._slots.get(tap, -1)

    def take_new(self) -> tuple[Tap, ...]:
        """Return the taps that no frame has announced yet, in the order of their numbers."""
        first, self._announced = self._announced, len(self.taps)
        fresh = range(first, self._announced)
        return tuple(self.taps[slot] for slot in fresh if self.numbers[slot] >= 0) if fresh else ()

    def saw_frame(self, step: int, taps: NDArray[np.uint32]) -> None:
        """Note that a frame, or a part of one, was built with these taps. Many frames share one array."""
        if taps is not self._last[0]:
            self._last = taps, set(taps.tolist())
            self.filled |= self._last[1]
        numbers = self._last[1]
        if not numbers:
            return  # a step that isn't captured has a frame, too, with its loss
        if step > self.newest_step:
            self.newest_step, self.newest = step, set()
        if step == self.newest_step:
            self.newest = self.newest | numbers


# Tensors that torch has split over ranks (DTensor): whose values each one's local part repeats, by its placements.

MAX_WORDS: Final = 400  # characters
MAX_LAYOUTS: Final = 1000  # after that, they are worked out again


class Layout(NamedTuple):
    """How a tensor is spread over the ranks of a device mesh, as seen by one of them."""

    owner: int  # the lowest rank of the mesh that holds the same part
    ranks: int  # of the mesh
    splits_batch: bool  # whether it is what `fully_shard` does to a parameter: the ranks then have batches of their own
    axes: dict[str, tuple[int, int]]  # see `axes_of`
    words: str  # see `words_of`


NO_LAYOUT: Final = Layout(UNKNOWN_OWNER, 0, False, {}, "")


class Shards:
    """The layouts of tensors that were seen, by the slots of their rows. Graphs keep it alive."""

    def __init__(self) -> None:
        self.by_slot: dict[int, Layout] = {}
        self.version = 0  # grows with every change
        self._known: dict[Any, Layout] = {}

    def saw(self, slot: int, tensor: Tensor) -> Layout | None:
        """Note the layout of a tensor that is added to this row, and return it if it is new."""
        layout = self.layout_of(tensor)
        if self.by_slot.get(slot) is layout:
            return None
        self.by_slot[slot] = layout
        self.version += 1
        return layout

    def layout_of(self, tensor: Any) -> Layout:
        """Return the layout of a DTensor. Asks no other rank."""
        key = (tensor.device_mesh, tuple(tensor.placements))
        layout = self._known.get(key)
        if layout is None:
            if len(self._known) >= MAX_LAYOUTS:
                self._known.clear()
            with unseen():
                layout = self._known[key] = _layout(*key)
        return layout


def is_shard(tensor: object) -> bool:
    """Return whether torch has split this tensor over ranks, or repeats it on them."""
    return type(tensor).__name__ == "DTensor"


def _layout(mesh: Any, placements: tuple[Any, ...]) -> Layout:
    here = mesh.get_coordinate()
    if here is None:  # this rank has nothing of the tensor
        return NO_LAYOUT
    there = [0 if placement.is_replicate() else at for placement, at in zip(placements, here, strict=True)]
    partial = any(placement.is_partial() for placement in placements)
    owner = UNKNOWN_OWNER if partial else int(mesh.mesh[tuple(there)])
    return Layout(owner, int(mesh.size()), _splits_batch(placements), axes_of(mesh), words_of(mesh, placements))


def axes_of(mesh: Any) -> dict[str, tuple[int, int]]:
    """Return this rank's coordinate on each named axis of a mesh, and the axis's size.

    A slice, such as that of the ranks with the same stage of a pipeline, has the axes of the mesh that it's from, too.
    """
    found: dict[str, tuple[int, int]] = {}
    for each in (root_mesh_of(mesh), mesh):
        here, names = each.get_coordinate(), each.mesh_dim_names
        if here is not None and names is not None:
            found |= {
                name: (int(at), int(each.size(axis))) for axis, (name, at) in enumerate(zip(names, here, strict=True))
            }
    return found


def words_of(mesh: Any, placements: tuple[Any, ...]) -> str:
    """Return how a tensor is spread over each axis of a mesh, such as "Shard(0) over dp, 4 ranks"."""
    names = mesh.mesh_dim_names or ("",) * len(placements)
    parts = []
    for axis, (name, placement) in enumerate(zip(names, placements, strict=True)):
        size = int(mesh.size(axis))
        parts.append(f"{_word_of(placement)} over {name and f'{name}, '}{size} {'rank' if size == 1 else 'ranks'}")
    return "; ".join(parts)[:MAX_WORDS]


def _word_of(placement: Any) -> str:
    """Return what torch calls a placement, with its dimension, or with the operation that is still to be done."""
    about = getattr(placement, "dim", getattr(placement, "reduce_op", None))
    name = type(placement).__name__.removeprefix("_")
    return name if about is None else f"{name}({about})"


def _splits_batch(placements: tuple[Any, ...]) -> bool:
    """Return whether `fully_shard` alone places a parameter like this.

    On one axis, or on two, of which the first repeats it. With tensor parallelism, its axis comes last, and the first
    one shards.
    """
    *first, last = placements
    return len(first) < 2 and type(last).__name__ == "Shard" and all(each.is_replicate() for each in first)
