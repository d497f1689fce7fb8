"""Snapshots: requested raw tensors, copied in the hook and sent by the recorder's thread."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hookcore.hooks.internals import DisableTorchFunction, is_wrapped
from hookcore.hooks.tensors import hook_gradient
from hookcore.observe.copies import MAX_BYTES, Copy, first_part, take_copy
from hookcore.observe.plain import unseen, why_empty
from hookcore.recorder.calls.plans import Call, Plan
from hookcore.recorder.clock.errors import ErrorLog
from hookcore.recorder.clock.owners import instances_of
from hookcore.recorder.context import Context
from hookcore.recorder.known.parameters import Parameter
from hookcore.recorder.known.roots import BatchNames, Words, plain_names
from hookcore.recorder.measured.scalars import LossScale
from hookcore.records import PARAMETER_KINDS, Names, Snapshot, Tap, about_command
from hookcore.records.vocabulary import ATTENTION_MAP

Send = Callable[[Snapshot], None]
Item = TypeVar("Item")


class Outgoing(ABC, Generic[Item]):
    """Items that become snapshots when the recorder's thread sends them, oldest first."""

    what: ClassVar[str]  # in the list of errors

    def __init__(self, errors: ErrorLog) -> None:
        self._errors = errors
        self._waiting: deque[Item] = deque()

    @property
    def waiting(self) -> bool:
        """Whether any item waits to be sent."""
        return bool(self._waiting)

    def ship(self, send: Send) -> None:
        """Send the items. Called on the recorder's thread."""
        while self._waiting:
            item = self._waiting[0]
            try:
                self._send(item, send)
            except Exception as error:
                self._errors.record(self.what, error)
                self._lose(item, error)
            finally:
                self._waiting.popleft()
                self._release(item)

    @abstractmethod
    def _send(self, item: Item, send: Send) -> None:
        """Send the snapshot of an item."""

    def _lose(self, item: Item, error: Exception) -> None:
        """Note that an item couldn't be sent."""

    def _release(self, item: Item) -> None:
        """Give back the memory that an item took."""


MAX_MEDIA: Final = 256  # items
MAX_MEDIA_BYTES: Final = 32 << 20


class MediaQueue(Outgoing[Snapshot]):
    """Items in the order in which they were logged. If too many wait, newer ones are dropped and counted."""

    what = "logged media"

    def __init__(self, errors: ErrorLog) -> None:
        super().__init__(errors)
        self._bytes = 0
        self._count = threading.Lock()  # both threads change the number of bytes

    def put(self, tap: Tap, step: int, dtype: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
        """Add an item, of which some values may have been left out. Called with the recorder's lock."""
        if len(self._waiting) >= MAX_MEDIA or self._bytes + values.nbytes > MAX_MEDIA_BYTES:
            self._errors.count_loss("media-dropped", "logged item", "dropped: too many were waiting to be sent")
            return
        with self._count:
            self._bytes += values.nbytes
        self._waiting.append(Snapshot(tap, step, time.time(), dtype, shape, values, math.prod(shape) > values.size))

    def _send(self, item: Snapshot, send: Send) -> None:
        send(item)

    def _release(self, item: Snapshot) -> None:
        with self._count:
            self._bytes -= item.values.nbytes


MAX_COLUMNS: Final = 4096  # columns
_COLUMNS_DROPPED: Final = "of channels dropped: too many results of probes were waiting for the recorder's thread"


class ChannelColumns(Outgoing[tuple[Tap, int, float, Copy]]):
    """The columns of one watcher. Of several micro-batches, the largest value of each channel is kept, or NaN."""

    what = "channels of a probe"

    def __init__(self, errors: ErrorLog) -> None:
        super().__init__(errors)
        self._held: dict[Tap, tuple[int, int, Tensor]] = {}  # of this step: step, channels, values

    def note(self, tap: Tap, step: int, channels: int, values: Tensor) -> None:
        """Hold the numbers of a call."""
        _, before, held = self._held.get(tap, (step, -1, values))
        if before == channels and held.shape == values.shape and held.device == values.device:
            with unseen():
                values = torch.maximum(held, values)
        self._held[tap] = step, channels, values

    def end_step(self) -> None:
        """Begin to copy the held results. Waits for no device."""
        held, self._held = self._held, {}
        for tap, (step, channels, values) in held.items():
            if len(self._waiting) >= MAX_COLUMNS:
                self._errors.count_loss("channels-dropped", "column", _COLUMNS_DROPPED)
                continue
            try:
                copy = take_copy(values, (channels,))
            except Exception as error:
                self._errors.record(self.what, error)
            else:
                if isinstance(copy, Copy):
                    self._waiting.append((tap, step, time.time(), copy))

    def _send(self, item: tuple[Tap, int, float, Copy], send: Send) -> None:
        tap, step, time_s, copy = item
        send(Snapshot(tap, step, time_s, copy.dtype, copy.shape, copy.finish(), copy.truncated))


# Copies of requested tensors that wait for the recorder's thread, which sends them.

MAX_WAITING_BYTES: Final = 2 * MAX_BYTES


@dataclass(slots=True, eq=False)
class Request:
    """A requested tensor."""

    tap: Tap
    number: int
    steps: int = 0  # that it has waited
    taken: bool = False
    hint: str = ""  # why it is missing
    before: Tensor | None = None  # a parameter before the optimizer's step
    by_itself: bool = False  # nobody asked for it


@dataclass(slots=True)
class _Taken:
    request: Request
    copy: Copy
    step: int
    time_s: float
    scale: float | None
    names: Names | None
    ids: Copy | None


class WaitingCopies(Outgoing[_Taken]):
    """The copies of one watcher, in bounded memory."""

    what = "snapshot"

    def __init__(self, context: Context, scale: LossScale, names: BatchNames) -> None:
        super().__init__(context.errors)
        self._emit, self._current, self._owners = context.emit, context.current, context.owners
        self._scale, self._names, self._words = scale, names, Words(instances_of)
        self._lock = threading.Lock()
        self.waiting_bytes = 0

    def take(self, request: Request, tensor: Tensor, whole: tuple[int, ...] | None = None) -> None:
        """Copy the tensor now, because code after this hook may change it."""
        with self._lock:
            if request.taken:
                return
            if self.waiting_bytes > MAX_WAITING_BYTES - MAX_BYTES:
                request.hint = "too many bytes waited for the recorder's thread"
                return
            request.taken = True
            self.waiting_bytes += MAX_BYTES  # until its size is known
        copy: Copy | str = "it could not be copied"
        try:
            copy = take_copy(tensor, whole)
        except Exception as error:
            copy = f"{type(error).__name__}: {error}"
        finally:
            self._keep(request, copy)

    def _keep(self, request: Request, copy: Copy | str) -> None:
        scale = self._owners.known_scale() if request.tap.kind in self._scale.kinds else None
        with self._lock:
            self.waiting_bytes -= MAX_BYTES
            if isinstance(copy, str):
                request.taken, request.hint = False, copy
            else:
                self.waiting_bytes += copy.nbytes
                step = self._current.number
                kind = request.tap.kind
                names, ids = self._names.of(kind, step), self._names.ids_of(kind, step)
                self._waiting.append(_Taken(request, copy, step, time.time(), scale, names, ids))

    def miss(self, request: Request, reason: str) -> None:
        """Give up a request, and say why in an event."""
        request.taken, request.before = True, None
        if request.by_itself:
            return
        hint = f": {request.hint}" if request.hint else ""
        about = about_command(request.number, "refused")
        self._emit("snapshot-missed", f"{request.tap.label}: {reason}{hint}", "info", request.tap.module, about)

    def _lose(self, item: _Taken, error: Exception) -> None:
        self.miss(item.request, f"it was captured but couldn't be sent: {error}")

    def _release(self, item: _Taken) -> None:
        with self._lock:
            self.waiting_bytes -= item.copy.nbytes

    def _send(self, item: _Taken, send: Send) -> None:
        copy, request = item.copy, item.request
        values = copy.finish()
        names, left = (None, "") if item.names is None else plain_names(item.names)
        if item.ids is not None:
            names = self._words.name(item.ids, () if names is None else names.labels)
        send(
            Snapshot(
                tap=request.tap,
                step=item.step,
                time_s=item.time_s,
                dtype=copy.dtype,
                shape=copy.shape,
                values=values,
                truncated=copy.truncated,
                number=request.number,
                names=names,
            )
        )
        if request.by_itself:
            return
        cut = f", of which the first {values.size} values were captured" if copy.truncated else ""
        scale = f"; still multiplied by the loss scale {item.scale:g}" if item.scale not in (None, 1.0) else ""
        unnamed = f"; {left}" if left else ""
        message = f"{request.tap.label} of step {item.step}: {copy.dtype} {list(copy.shape)}{cut}{scale}{unnamed}"
        about = about_command(request.number, "applied")
        self._emit("snapshot-taken", message, "info", request.tap.module, about)


# While none is pending, nothing here is called: the hooks that look for a tensor are registered on request, and removed
# when it was found.

MAX_PENDING: Final = 64
MAX_STEPS: Final = 100  # then a missing tap is given up
HURRY_STEPS: Final = 8  # steps that are captured for a snapshot, whatever the cadence says

INPUT_KINDS: Final = frozenset(("input", "input_grad"))


class Snapshots:
    """The requests of one watcher."""

    def __init__(self, context: Context, copies: WaitingCopies) -> None:
        self._plans, self._current, self._errors = context.plans, context.current, context.errors
        self.copies = copies
        self._lock = threading.RLock()
        self._asked: list[Request] = []  # from the next step on
        self._pending: list[Request] = []
        self._by_path: dict[str, list[Request]] = {}  # the current targets; replaced, never changed
        self.active = False  # whether anything is requested, which is all that the training thread reads in a step

    # -- asking -----------------------------------------------------------------------------------------------------

    def ask(self, tap: Tap, number: int = -1) -> bool:
        """Look for a tensor from the next step on. Return False if too many are pending."""
        with self._lock:
            if len(self._asked) + len(self._pending) >= MAX_PENDING:
                return False
            self._asked.append(Request(tap, number))
            self.active = True
            return True

    def begin(self) -> None:
        """Start to look for new requests, at the beginning of a step."""
        with self._lock:
            self._pending = [request for request in self._pending if not request.taken] + self._asked
            self._asked = []
            self._index()

    def end_step(self, hint: str = "") -> None:
        """Give up overdue requests, at the end of a step."""
        self._take_quiet_parameters()
        for request in self._pending:
            request.steps += 1
            request.hint = hint or request.hint
            if request.steps >= MAX_STEPS and not request.taken:
                self.copies.miss(request, f"it did not arrive within {MAX_STEPS} steps")

    def give_up(self, reason: str) -> None:
        """Give up everything, because the training ends."""
        for request in [*self._pending, *self._asked]:
            if not request.taken:
                self.copies.miss(request, reason)
        self._asked = []
        self.begin()

    @property
    def hurries(self) -> bool:
        """Return whether to capture the next step for a snapshot."""
        return any(request.steps < HURRY_STEPS for request in self._pending)

    def _index(self) -> None:
        by_path: dict[str, list[Request]] = {}
        for request in self._pending:
            by_path.setdefault(request.tap.module, []).append(request)
        self._by_path = by_path
        self.active = bool(self._pending or self._asked)

    # -- attention --------------------------------------------------------------------------------------------------

    @property
    def wants_maps(self) -> bool:
        """Whether maps of attention are looked for that have to be computed."""
        return any(request.tap.index.startswith(ATTENTION_MAP) for request in self._pending)

    def maps_wanted(self, call: Call, index: str) -> list[Request]:
        """Return the requests for such a map of a call."""
        wanted = Tap(call.plan.path, "output", index, call.number, call.phase)
        return [each for each in self._by_path.get(call.plan.path, ()) if each.tap == wanted and not each.taken]

    # -- modules ----------------------------------------------------------------------------------------------------

    @property
    def looks_at_calls(self) -> bool:
        """Whether anything is looked for now."""
        return bool(self._by_path)

    def wants(self, plan: Plan) -> bool:
        """Return whether a tensor of this module is looked for."""
        return plan.path in self._by_path

    @property
    def wants_inputs(self) -> bool:
        """Whether an input is looked for."""
        return any(request.tap.kind in INPUT_KINDS for request in self._pending)

    def saw_inputs(self, call: Call) -> None:
        """Check the inputs that a module is about to get."""
        self._look(self._by_path.get(call.plan.path, ()), "input", call)

    def saw_outputs(self, call: Call) -> None:
        """Check the outputs of a module."""
        requests = self._by_path.get(call.plan.path, ())
        if call.again or call.traced:
            kind = "output_grad" if call.again else "output"
            requests = [request for request in requests if request.tap.kind == kind]
        self._look(requests, "output", call)

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Check a gradient that a compiled graph reports."""
        for request in self._by_path.get(plan.path, ()):
            if request.tap == tap and self._current.reach():
                self.copies.take(request, gradient)

    def saw_requested_gradient(self, request: Request, gradient: Tensor) -> None:
        """Copy a gradient from inside its hook; let no exception out."""
        if not self._current.captured:
            return
        try:
            if self._current.reach():
                with DisableTorchFunction():
                    self.copies.take(request, gradient)
        except Exception as error:
            self._errors.record("snapshot of a gradient", error)

    def _look(self, requests: Sequence[Request], kind: str, call: Call) -> None:
        for request in requests:
            tap = request.tap
            if (
                request.taken
                or tap.kind not in (kind, f"{kind}_grad")
                or tap.index.startswith(ATTENTION_MAP)
                or (tap.call, tap.phase) != (call.number, call.phase)
            ):
                continue
            tensor = next((tensor for index, tensor in call.tensors if index == tap.index), None)
            if tensor is None:
                places = ", ".join(repr(index) for index, _ in call.tensors[:8]) or "none"
                request.hint = f"there is no {kind} {tap.index!r}; the module has {places}"
            elif tap.kind == kind:
                self.copies.take(request, tensor)
            else:
                self._hook(request, tensor)

    def _hook(self, request: Request, tensor: Tensor) -> None:
        if not tensor.requires_grad:
            request.hint = "the tensor needs no gradient (frozen, detached, or not differentiable)"
        elif not tensor.is_leaf:
            hook_gradient(tensor, SnapshotHook(self, request))
        elif request.tap.kind == "input_grad" and not isinstance(tensor, nn.Parameter):
            self._current.hook_leaf(tensor, SnapshotHook(self, request))
        else:
            request.hint = "the tensor is a leaf: see its parameter's gradient"

    # -- parameters -------------------------------------------------------------------------------------------------

    def before_step(self, owned: Sequence[Parameter], with_gradients: bool) -> None:
        """Copy weights and gradients as the optimizer is about to use them."""
        for request, tensor in self._parameters({"param", "update"}, owned):
            if request.tap.kind == "param":
                self.copies.take(request, tensor)
            else:
                self._remember(request, tensor)
        if with_gradients:
            self.read_gradients(owned)

    def _remember(self, request: Request, tensor: Tensor) -> None:
        held = sum(other.before.nbytes for other in self._pending if other.before is not None)
        if held > MAX_WAITING_BYTES - MAX_BYTES:
            request.hint = "other pending updates already take too many bytes"
            return
        if reason := why_empty(tensor):
            request.hint = reason
            return
        with unseen():
            request.before = first_part(tensor.detach()).clone()

    def read_gradients(self, owned: Sequence[Parameter]) -> None:
        """Copy the current gradients."""
        for request, tensor in self._parameters({"param_grad"}, owned):
            if tensor.grad is None:
                request.hint = "the parameter has no gradient"
            else:
                self.copies.take(request, tensor.grad)

    def after_step(self, owned: Sequence[Parameter]) -> None:
        """Copy the results of the optimizer's step."""
        for request, tensor in self._parameters({"update"}, owned):
            before, request.before = request.before, None
            if before is not None:
                with unseen():
                    change = first_part(tensor.detach()) - before
                self.copies.take(request, change, tuple(tensor.shape))

    def _parameters(self, kinds: set[str], owned: Sequence[Parameter]) -> list[tuple[Request, Tensor]]:
        wanted = [request for request in self._pending if request.tap.kind in kinds and not request.taken]
        if not wanted:
            return []
        mine = {id(tensor) for parameter in owned if (tensor := parameter.tensor) is not None}
        found = ((request, self._parameter_of(request)) for request in wanted)
        return [(request, tensor) for request, tensor in found if tensor is not None and id(tensor) in mine]

    def _parameter_of(self, request: Request) -> Tensor | None:
        plan = self._plans.at(request.tap.module)
        module = plan.ref() if plan is not None else None
        if module is None:
            return None
        own = dict(module._parameters.items())  # a scripted module's table supports little more
        tensor = own.get(request.tap.index)
        if tensor is None:
            names = ", ".join(map(repr, list(own)[:8])) or "none"
            request.hint = f"there is no parameter {request.tap.index!r}; the module has {names}"
        return tensor

    def _take_quiet_parameters(self) -> None:
        """Copy weights that no optimizer stepped, which are unchanged."""
        for request in self._pending:
            if request.tap.kind == "param" and not request.taken and self._current.captured:
                tensor = self._parameter_of(request)
                if tensor is not None:
                    self.copies.take(request, tensor)
            elif request.tap.kind in PARAMETER_KINDS and not request.taken and not request.hint:
                request.hint = "no torch optimizer steps this parameter"


class SnapshotHook:
    """The tensor hook that copies a gradient. It holds no tensor, so it extends no graph's life."""

    __slots__ = ("request", "snapshots")
    __torch_unserializable__ = True

    def __init__(self, snapshots: Snapshots, request: Request) -> None:
        self.snapshots = snapshots
        self.request = request

    def __call__(self, grad: Any) -> None:
        snapshots, request = self.snapshots, self.request
        if grad is not None and not request.taken:
            snapshots.saw_requested_gradient(request, grad)


# Automatic snapshots: of outputs of one step in many, so that a run that has ended has tensors to look at.

ROOM_BYTES: Final = 4 << 20  # of a step
SHARE: Final = 0.01  # of the memory of the run's store, if that is less
OF_OTHERS: Final = 0.25  # of this room for outputs other than attention maps, which are most wanted
SPREAD: Final = 32  # layers, at equal distances in the order of the model
MAPS: Final = 16  # parts of the room for one attention map; of a larger tensor, the first samples are kept


class AutomaticSnapshots:
    """Takes the outputs of a step that the cadence has chosen. Between such steps, nothing here is called."""

    wants_inputs = False

    def __init__(self, context: Context, copies: WaitingCopies) -> None:
        self._context, self._errors, self._now = context, context.errors, context.now
        self._copies = copies
        self.due = False  # in this step
        self._chosen: frozenset[int] = frozenset()  # ids of plans
        self._room = self._of_map = self._of_other = 0.0  # bytes: what is left of all, and at most of a tensor
        self._spent_s = 0.0

    def begin_step(self, captured: bool) -> bool:
        """Decide by the number of the step. Return whether it looks at other calls than before."""
        context, was_due, every = self._context, self.due, self._context.settings.snapshot_every
        if was_due and every is not None:
            context.cadence.took_snapshots(self._spent_s, every)
        self.due = captured and every is not None and context.cadence.has_snapshots(context.step, every)
        if self.due:
            leaves = [plan for plan in context.plans.live() if plan.wants_output and plan.is_leaf]
            self._chosen = frozenset(map(id, leaves[:: max(1, -(-len(leaves) // SPREAD))]))
            self._room = min(ROOM_BYTES, SHARE * context.settings.memory)
            self._of_map, self._of_other = self._room / MAPS, OF_OTHERS * self._room / max(1, len(self._chosen))
            self._spent_s = 0.0
        return was_due or self.due

    def wants(self, plan: Plan) -> bool:
        """Return whether a module may have a tensor for it: those that are captured anyway."""
        return plan.wants_output

    def saw_inputs(self, call: Call) -> None:
        """Leave inputs: they are outputs of other modules."""

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Leave gradients."""

    def saw_outputs(self, call: Call) -> None:
        """Take what there is room for of a module's first call."""
        if not self.due or call.number or call.again or call.phase != "train":
            return
        began = self._now()
        try:
            for index, tensor in call.tensors:
                is_plain = type(tensor) is Tensor and not is_wrapped(tensor) and tensor.layout is torch.strided
                if is_plain and not tensor.is_nested and tensor.dim() > 1:
                    self._take(call.plan, Tap(call.plan.path, "output", index), tensor)
        finally:
            self._spent_s += self._now() - began

    def _take(self, plan: Plan, tap: Tap, tensor: Tensor) -> None:
        is_map = tensor.dim() in (3, 4) and tensor.shape[-1] == tensor.shape[-2] and tensor.is_floating_point()
        if not is_map and id(plan) not in self._chosen:
            return
        if not (row := tensor.numel() // max(1, len(tensor)) * tensor.element_size()):
            return
        rows = min(len(tensor), int(min(self._room, self._of_map if is_map else self._of_other) // row))
        if not rows:
            why = "left out of automatic snapshots: too large, or no room was left"
            self._errors.count_loss("snapshot-left-out", "tensor", why, "info")
            return
        self._room -= rows * row
        with unseen():
            first = tensor.detach()[:rows]
        self._copies.take(Request(tap, -1, by_itself=True), first, tuple(tensor.shape))
