"""Statistics: the observer that adds tensors and their gradients to the rows of arenas, one for each stream."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from hookcore.config import Settings
from hookcore.hooks.internals import (
    DisableTorchFunction,
    current_graph_task,
    function_modes,
    is_wrapped,
    stream_number,
    tracing_state,
)
from hookcore.hooks.tensors import hook_gradient
from hookcore.observe import cpu, layout
from hookcore.observe.arena import CODES, CpuArena
from hookcore.observe.plain import make_plain, unseen
from hookcore.recorder.calls.plans import Call, Plan
from hookcore.recorder.clock.current import CurrentStep, TensorHook
from hookcore.recorder.clock.errors import ErrorLog
from hookcore.recorder.measured.taps import Shards, TapTable, is_shard
from hookcore.records import GRADIENT_KINDS, Kind, Phase, Tap
from hookcore.records.masks import LARGE, Masks

if TYPE_CHECKING:
    from hookcore.observe.device import DeviceArena, Transfer

# The arenas of devices other than the CPU: one for each stream, because streams run at the same time.


class Devices:
    """The arenas in use. Each has the slots of the CPU's."""

    def __init__(self, host: CpuArena, errors: ErrorLog) -> None:
        self.arenas: dict[tuple[torch.device, int], DeviceArena] = {}  # by the number of the stream
        self._host = host
        self._errors = errors

    def begin_step(self) -> None:
        """Let each arena sample other values than in the last step."""
        for arena in list(self.arenas.values()):
            arena.begin_step()

    def begin_transfers(self) -> tuple[Transfer, ...]:
        """Start to copy the measurements to the host. If an arena fails, only its measurements are lost (reported)."""
        begun: list[Transfer] = []
        for arena in list(self.arenas.values()):
            try:
                if (transfer := arena.begin_transfer()) is not None:
                    begun.append(transfer)
            except Exception as error:
                self._errors.record("end of a step", error)
        return tuple(begun)

    def clear(self, slots: list[int]) -> None:
        """Drop what was added to these slots in this step."""
        for arena in list(self.arenas.values()):
            arena.clear(slots)

    def observe(self, tensor: Tensor, slot: int) -> str | None:
        """Add a plain tensor of another device to a slot, or return the reason why not."""
        key = tensor.device, stream_number(tensor.device)
        arena = self.arenas.get(key)
        if arena is None:
            from hookcore.observe.device import DeviceArena

            arena = DeviceArena(tensor.device, self._host.capacity, self._host.sketch_values)
            arena = self.arenas.setdefault(key, arena)  # another thread may have been faster
        return arena.observe(tensor, slot)


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

_observe = cpu.observe
_float32 = torch.float32
_PLAIN_TYPES = frozenset((Tensor, nn.Parameter))


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
        """Let each arena sample other values than in the last step."""
        self._known = len(self.table.taps)
        self.arena.begin_step()
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
        """Handle the most common output: a plain float32 tensor in training. Return False for every other one."""
        try:
            if (
                type(output) is Tensor
                and not function_modes()
                and output.requires_grad
                and output.dtype is _float32
                and output.is_cpu
                and current_graph_task() == -1
                and not tracing_state()
                and output.is_contiguous()
                and not output.is_leaf
                and plan.root.trains()
            ):
                counts, lone = plan.counts, plan.rows.lone
                call = counts.training
                hook = lone[call] if call < len(lone) else self._lone_hook(plan, call, output)
                if hook.row:
                    _observe(output.data_ptr(), output.numel(), hook.row, self._control)
                counts.training = call + 1
                if hook.grad_row:
                    hook_gradient(output, hook)
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
        try:
            with DisableTorchFunction():
                self.add(plan, tensor, slot)
        except Exception as error:
            self._errors.record("gradient hook", error, plan)

    def add(self, plan: Plan, tensor: Tensor, slot: int) -> None:
        """Add any kind of tensor to a slot's row, or record why it has none."""
        if type(tensor) in _PLAIN_TYPES and tensor.dtype in CODES and not tensor.is_neg():
            if tensor.is_cpu:
                try:
                    self.arena.observe(tensor, self.arena.row(slot))
                    return
                except RuntimeError:  # without memory of its own: handled below
                    pass
            elif is_readable_on_cuda(tensor):
                self.add_elsewhere(plan, tensor, slot)
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
                self.add_elsewhere(plan, plain, slot)

    def add_elsewhere(self, plan: Plan, tensor: Tensor, slot: int) -> None:
        """Add a plain tensor of another device."""
        reason = self.devices.observe(tensor, slot)
        if reason:
            plan.note_reason(reason)


def _can_have_gradient(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and not is_wrapped(tensor)


def _note_shape(plan: Plan, name: str, tensor: Tensor) -> None:
    try:
        plan.rows.shapes.setdefault(name, tuple(tensor.shape))
    except Exception:  # nested tensors have none
        plan.rows.shapes.setdefault(name, ())
