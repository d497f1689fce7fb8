"""Numbers of a step: those that the script logs, the loss it found, learning rates, and the scale of the loss."""

from __future__ import annotations

import ctypes
import math
import re
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from threading import get_ident
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from hookcore.errors import ArgumentError
from hookcore.findings.losses import jump_limit
from hookcore.hooks.internals import dispatch_modes, function_modes, is_wrapped
from hookcore.observe.arena import LOW, is_freed
from hookcore.observe.copies import apart_from_captures, start_copy
from hookcore.observe.plain import make_plain, unseen
from hookcore.recorder.clock.owners import Fate, Owner, Owners
from hookcore.recorder.known.parameters import Parameter, Parameters
from hookcore.records import GRADIENT_KINDS
from hookcore.records.vocabulary import FOUND_LOSS, LOGGED_LOSS, is_rate, loss_rank

# The user's own numbers, read immediately, or later if they are on a device.

_TYPES: Final[dict[torch.dtype, Any]] = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
    torch.bfloat16: ctypes.c_uint16,
    torch.float16: ctypes.c_uint16,
}


_float32: Final = torch.float32
_strided: Final = torch.strided
_c_float: Final = ctypes.c_float.from_address


class _Pending:
    """A device scalar that is read by the recorder's thread, so that training never waits for the device."""

    def __init__(self, value: Tensor) -> None:
        first = value.detach().reshape(-1)[:1]
        # Read on the device, it would wait for all that is queued there.
        self._done: Any = None
        self._value, self._done = start_copy(first, first.dtype) if value.is_cuda else (first.clone(), None)

    @property
    def is_done(self) -> bool:
        """Whether `resolve` returns at once."""
        return self._done is None or bool(self._done.query())

    def resolve(self) -> float:
        """Wait for the value."""
        if self._done is not None:
            self._done.synchronize()
        return float(self._value)


def read_memory(value: Any) -> float | None:
    """Return the number of a plain tensor in memory; None if it isn't one, or a mode of the user might see it read.

    It is read by address, because `item()` would be an operator in the user's profile.
    """
    if type(value) is not Tensor or function_modes() or dispatch_modes():  # which see each of the following
        return None
    if not value.is_cpu or value.layout is not torch.strided or value.is_nested or value.numel() != 1:
        return None
    return None if is_wrapped(value) else _number_at(value)


def _address_of(value: Tensor) -> int:
    """Return where a tensor's value is; 0 if it has none."""
    address = value.data_ptr()
    return 0 if address < LOW and is_freed(value) else address


def product_of(*values: Any) -> float | None:
    """Return the product of plain float32 tensors without axes, while no mode is active; None if one is another one."""
    product = 1.0
    for value in values:
        if (
            type(value) is not Tensor
            or value.dtype is not _float32
            or not value.is_cpu
            or value.layout is not _strided
            or value.dim()
            or value.is_neg()
            or is_wrapped(value)
            or not (address := _address_of(value))
        ):
            return None
        product *= _c_float(address).value
    return product


def _number_at(value: Tensor) -> float | None:
    """Return the number in the memory of a strided tensor; None if it has none of its own, or is of another type."""
    kind = _TYPES.get(value.dtype)
    if kind is None or value.is_neg() or not (address := _address_of(value)):
        return None
    number = kind.from_address(address).value
    if kind is not ctypes.c_uint16:
        return float(number)
    half = value.dtype is torch.float16
    found = struct.unpack("e", struct.pack("H", number)) if half else struct.unpack("f", struct.pack("I", number << 16))
    return float(found[0])


def scalar_of(value: Any) -> Any:
    """Return a number, or a device scalar that can be waited for. Raises an exception for anything else."""
    if not isinstance(value, Tensor):
        return float(value)
    if (number := read_memory(value)) is not None:
        return number
    with unseen():
        if value.numel() != 1:
            shape = tuple(value.shape)
            raise ArgumentError(f"a tensor of shape {shape} was given: give a single number, such as its mean")
        return read_unseen(value)


def read_unseen(value: Tensor) -> Any:
    """Return a tensor's only number, or a device scalar that can be waited for. Within `unseen()` only."""
    if value.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ArgumentError("inside the capture of a CUDA graph it has no value yet: log it after a replay")
    if not value.is_cpu:
        return _Pending(value)
    number = read_memory(value)
    return float(value.item()) if number is None else number


def number_of(value: Any) -> float:
    """Return the number, after waiting for it, also while the training captures a CUDA graph."""
    if not hasattr(value, "resolve"):
        return float(value)
    with apart_from_captures():
        return float(value.resolve())


def is_known(value: Any) -> bool:
    """Return whether `number_of` returns at once."""
    return isinstance(value, float) or bool(value.is_done)


# The loss of a script that logs none: what `backward()` was called on.

FIRST_STEPS: Final = 2  # after which it is known whether the script logs its loss
MAX_TENSORS: Final = 16  # of a backward pass


class HeldLoss(NamedTuple):
    """The loss of one of the first steps, which waits for the end of the next one: the script may still log it."""

    step: int
    time_s: float  # when the step ended
    found: Sum
    owner: Owner | None
    scale: Any


class FoundLoss:
    """The sum over the backward passes of a step, because their gradients are added, since these were last reset.

    It is unknown if anything but single numbers was passed to `backward()`. Nothing waits for a device.
    """

    def __init__(self) -> None:
        self.is_logged = False  # by the script, so that nothing needs to be found
        self.reads = True  # in this step, which isn't one of a pause
        self.wanted = True  # whether the loss of this step can be found, and is
        self._running: dict[int, list[Any] | None] = {}  # by thread, because threads may run passes at once
        self.of_step: list[Any] | None = []
        self.held: HeldLoss | None = None  # the loss of an earlier step, which waits

    @property
    def running(self) -> list[Any] | None:
        """What this thread's running pass starts from: numbers, or device scalars to wait for; None if unknown."""
        return self._running.get(get_ident(), [])

    def resume(self, thread: int, running: list[Any] | None) -> None:
        """Take over what the running pass of a thread starts from; nothing if it runs none."""
        self._running[thread] = running

    def begin_step(self, paused: bool) -> None:
        """Decide whether to find the loss of the step that begins."""
        self.reads = not paused
        self.wanted = not paused and not self.is_logged

    def note_log(self, step: int, names: Iterable[str]) -> None:
        """Note which numbers the script logs."""
        if step <= FIRST_STEPS and not self.is_logged:
            self.is_logged = any(loss_rank(name) <= LOGGED_LOSS for name in names)

    def begin_pass(self, tensors: Sequence[Any], weights: Sequence[Any], earlier: Fate = "kept") -> None:
        """Read what a backward pass starts from, and with which weights.

        `earlier`: the gradients of earlier passes.
        """
        if earlier != "kept":
            self.of_step = [] if earlier == "reset" else None
        running: list[Any] | None = None
        is_plain = len(tensors) == len(weights) == 1 and not (function_modes() or dispatch_modes())
        if is_plain and (number := product_of(tensors[0], weights[0])) is not None:
            running = [number]
        elif len(tensors) == len(weights) <= MAX_TENSORS:
            numbers = list(map(_number, tensors, weights))
            running = None if None in numbers else numbers
        self._running[get_ident()] = running

    def end_pass(self, counts: bool) -> None:
        """Add the pass to the step; `counts` if it reached a watched parameter."""
        running = self._running.pop(get_ident(), [])
        if counts and self.wanted:
            self.of_step = None if self.of_step is None or running is None else self.of_step + running

    def stop(self) -> None:
        """Find nothing in the rest of the running step."""
        self.reads, self.wanted, self.of_step = False, False, []

    def forget(self) -> None:
        """Make the loss of the running step unknown."""
        self.of_step = None

    def take(self, step: int, owner: Owner | None, scale: Any = None) -> Sum | None:
        """Return the loss of a step; None if it is unknown, logged, or held for one more step.

        `owner` is the optimizer that ends the step, and `scale` that of a GradScaler.
        """
        found, self.of_step = self.of_step, []
        if not found or self.is_logged:
            return None
        if step >= FIRST_STEPS:
            return Sum(found)
        self.held = HeldLoss(step, time.time(), Sum(found), owner, scale)
        return None

    def take_held(self) -> HeldLoss | None:
        """Return the loss that was held, now that the script would have logged it."""
        held, self.held = self.held, None
        return None if self.is_logged else held


FIRST_LOSSES: Final = 8
BEFORE_JUMP: Final = 64  # backward passes whose losses show what is usual
_KNOWN_AT: Final = 24  # passes, from which on a limit is known
_RENEWED_EVERY: Final = 32


class Jumps:
    """Knows above which value the loss of the next backward pass is a jump.

    It is compared before the pass begins: the batch and the graph of the loss are still there, and the weights are
    those of the step. Only the losses of a single optimizer are compared, in memory, without a scaler.
    """

    def __init__(self, track: Any, owners: Owners) -> None:
        self._track, self._owners = track, owners
        self._newest: deque[float] = deque(maxlen=BEFORE_JUMP)
        self._first, self._seen, self._is_off = 0.0, 0, False
        self.limit = self._track.limit = math.inf
        self.is_new = False  # whether the running pass has begun with one

    def add(self, losses: Iterable[Any]) -> None:
        """Note the losses of passes that have ended."""
        known: list[float] = []  # by which to renew the limit: only once, however many losses come together
        for loss in losses:
            if type(loss) is not float:
                self.stop()
            if self._is_off:
                return
            self._newest.append(loss)
            self._seen += 1
            if self._seen <= FIRST_LOSSES:
                self._first = max(self._first, abs(loss))
            elif self._seen == _KNOWN_AT or not self._seen % _RENEWED_EVERY:
                known = list(self._newest)
        if known:
            self._renew(known)

    def _renew(self, known: Sequence[float]) -> None:
        is_alone = len(list(self._owners)) == 1 and not self._owners.scalers()
        is_one_sided = not min(known) < 0 < max(known)
        self.limit = self._track.limit = jump_limit(known, self._first) if is_alone and is_one_sided else math.inf

    def saw(self, running: Sequence[Any] | None) -> float | None:
        """Return the loss of a pass that begins if it is a jump."""
        self.is_new = False
        if running is None or len(running) != 1 or type(running[0]) is not float or not math.isfinite(running[0]):
            return None
        if running[0] > self.limit:
            self._renew(list(self._newest))  # it may be some passes old
        self.is_new = running[0] > self.limit
        return running[0] if self.is_new else None

    def stop(self) -> None:
        """Look for no more jumps."""
        self._is_off = True
        self.limit = self._track.limit = math.inf


@dataclass(frozen=True, slots=True)
class Sum:
    """Numbers whose sum is the loss, still with the scale of a GradScaler."""

    numbers: list[Any]

    def resolve(self, scale: float | None) -> float:
        """Return the loss, after waiting for its numbers."""
        # A scaler that halves its scale at every step ends at zero.
        return sum(map(number_of, self.numbers)) / (scale or 1.0)


def _number(tensor: Any, weight: Any) -> Any:
    """Return a number, or a device scalar that can be waited for; None if it is none."""
    if (number := read_memory(tensor)) is not None and (times := read_memory(weight)) is not None:
        return number * times
    both = tensor, weight
    if not all(isinstance(each, Tensor) and each.numel() == 1 for each in both) or tensor.is_complex():
        return None
    with unseen():
        plain, factor = make_plain(tensor), make_plain(weight)
        if isinstance(plain, str) or isinstance(factor, str):
            return None
        if plain.is_cuda and torch.cuda.is_current_stream_capturing():
            return None  # what the recorder's thread waits for may be no part of a graph
        # By default, `backward()` multiplies by one.
        return read_unseen(plain) * read_unseen(factor) if plain.is_cpu else read_unseen(plain.float() * factor)


_BETWEEN: Final = re.compile(r"[/.]")  # the name of a model and a path, and the parts of a path
_Parts = tuple[str, ...]


class LossNames:
    """Names each loss by what its optimizer steps, if optimizers take turns. A name that was given stays."""

    def __init__(self, owners: Owners, parameters: Parameters) -> None:
        self._owners, self._parameters = owners, parameters

    def name_of(self, owner: Owner | None) -> str:
        """Return the name of the loss that this optimizer is stepped for; None: whichever it is."""
        if owner is None or owner.inside:
            return FOUND_LOSS
        if not owner.loss_name:
            owner.loss_name = self._choose(owner)
        return owner.loss_name

    def _choose(self, owner: Owner) -> str:
        used = {each.loss_name for each in self._owners}
        others = self._others(owner)
        if not others and FOUND_LOSS not in used:
            return FOUND_LOSS
        label = _label(_parts_of(self._owned(owner)), others)
        if label and (name := f"{FOUND_LOSS} {label}") not in used:
            return name
        place = self._owners.place_of(owner)
        numbered = [FOUND_LOSS if not each else f"{FOUND_LOSS}{each + 1}" for each in (place, *range(len(used) + 1))]
        return next(name for name in numbered if name not in used)

    def _others(self, owner: Owner) -> list[_Parts]:
        """Return what the optimizers step that take turns with this one, or may do so later."""
        known = [each for each in self._owners if each.owns]
        turns = [each for each in known if each is not owner and (each.ended or not each.steps)]
        owned = {id(each) for known_owner in known for each in self._owned(known_owner)}
        trainable = (
            parameter for parameter in self._parameters.all() if (t := parameter.tensor) is not None and t.requires_grad
        )
        # Looking for those that haven't stepped yet takes a while, so only if they have something left to step.
        later = self._owners.find_waiting() if any(id(each) not in owned for each in trainable) else []
        return [_parts_of(each) for each in (*map(self._owned, turns), *later)]

    def _owned(self, owner: Owner) -> list[Parameter]:
        optimizer = owner.ref()
        return [] if optimizer is None else self._parameters.owned(optimizer)


def _parts_of(owned: Sequence[Parameter]) -> _Parts:
    """Return what the paths of parameters begin with."""
    paths = [(*filter(None, _BETWEEN.split(each.plan.path)), each.name) for each in owned]
    return tuple(parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))


def _label(parts: _Parts, others: Sequence[_Parts]) -> str:
    """Return as much of a path as tells it from the others; "" if nothing does."""
    lengths = range(1, len(parts) + 1)
    told = (parts[:length] for length in lengths if all(other[:length] != parts[:length] for other in others))
    return ".".join(next(told, ()))


_BACKWARD_KINDS: Final = GRADIENT_KINDS - {"param_grad"}


def _applied_scale(optimizer: Optimizer) -> Tensor | None:
    """Return the scale that a fused optimizer divides out itself: its gradients are still scaled when its hook runs."""
    scale = optimizer.__dict__.get("grad_scale")
    return scale if isinstance(scale, Tensor) else None


class LossScale:
    """The loss scale. If it is on a device, the recorder's thread waits for it."""

    def __init__(self) -> None:
        self.value: Any = None
        self.flag: Any = None  # on a device: whether a fused optimizer skipped its step; None if it is known
        self._in_parameters = False  # whether the parameters' gradients are still multiplied by it when they are read
        self._of_passes: dict[int, Any] = {}  # by id(scaler), when the first pass of the step had ended

    def read(self, scaler: GradScaler | None, optimizer: Optimizer) -> None:
        """Read the scale as the optimizer is about to step, and the flag of a fused one."""
        scale = scaler._scale if scaler is not None else None
        self.value = None if scale is None else _read(scale)
        attributes = optimizer.__dict__  # a scaler sets these two while it steps a fused optimizer
        self._in_parameters = "grad_scale" in attributes and _applied_scale(optimizer) is not None
        if "found_inf" in attributes and isinstance(found := attributes["found_inf"], torch.Tensor):
            flag = _read(found)
            self.flag = None if flag == 0.0 else flag

    def note_pass(self, scalers: Iterable[GradScaler]) -> None:
        """Record the scales of a pass: a skipped step is noticed only after the scale has been changed for it."""
        if not self._of_passes:
            self._of_passes = {id(scaler): _read(scaler._scale) for scaler in scalers if scaler._scale is not None}

    def resume(self, value: float, of_pass: float, scalers: Iterable[GradScaler]) -> None:
        """Take over the scales in the running step, and of its first pass if it is captured; NaN if unknown."""
        self.value = None if math.isnan(value) else value
        self._of_passes = {} if math.isnan(of_pass) else {id(scaler): of_pass for scaler in scalers}

    def skipped_by(self, scaler: GradScaler | None) -> bool:
        """Return whether this scaler, or a readable flag of a fused optimizer, skipped the step."""
        if scaler is not None and self.value is None:
            self.value = self._of_passes.get(id(scaler))
        if scaler is None and self.flag != 1.0:
            return False
        self.flag = None
        return True

    def forget(self) -> None:
        """Forget the scale, because its step was shipped."""
        self.value = None

    def begin_step(self) -> None:
        """Start without a scale."""
        self.value = self.flag = None
        self._of_passes = {}

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of gradients that are multiplied by the scale."""
        return GRADIENT_KINDS if self._in_parameters else _BACKWARD_KINDS


def _read(number: Any) -> Any:
    """Return a number of a scaler; None if it has none, or none yet, because a CUDA graph is being captured."""
    is_later = isinstance(number, torch.Tensor) and number.is_cuda and torch.cuda.is_current_stream_capturing()
    return None if number is None or is_later else scalar_of(number)


# The learning rates of optimizers, in the steps in which they change.

MAX_GROUPS: Final = 16  # of one optimizer


class Rates:
    """Compares the learning rates of each optimizer with those of its last step. Nothing waits for a device."""

    def __init__(self) -> None:
        self.is_logged = False  # by the script, so that nothing needs to be found

    def note_log(self, step: int, names: Iterable[str]) -> None:
        """Note which numbers the script logs."""
        if step <= FIRST_STEPS and not self.is_logged:
            self.is_logged = any(map(is_rate, names))

    def read(self, owner: Owner, optimizer: Optimizer) -> dict[int, tuple[Any, Any]]:
        """Return the rates that have changed, by group: the old one, if this is the first change, and the new one."""
        if self.is_logged:
            return {}
        given, rates = list[Any](), list[Any]()
        for group in optimizer.param_groups[:MAX_GROUPS]:  # before Python 3.12, a comprehension is a call of its own
            rate = group.get("lr")
            given.append(rate)
            rates.append(rate if type(rate) is float else _mark_of(rate))
        before, owner.rates = owner.rates, rates
        if before is None or rates == before:
            return {}
        changed = (place for place in range(len(rates)) if place >= len(before) or rates[place] != before[place])
        return {place: told for place in changed if (told := _tell(owner, place, before, given)) is not None}


def name_of_rate(optimizer: int, group: int) -> str:
    """Return the name of a learning rate, as facts name it: `optimizer/lr`, `optimizer2/group1/lr`."""
    return f"optimizer{optimizer + 1 if optimizer else ''}/{f'group{group}/' if group else ''}lr"


def _tell(owner: Owner, place: int, before: list[Any], given: list[Any]) -> tuple[Any, Any] | None:
    rates = owner.rates or []
    is_own = not place or place in owner.rated or rates[place] != rates[0]
    if not is_own or rates[place] is None:
        return None
    try:
        now = scalar_of(given[place])
    except ArgumentError:  # it has no value yet, inside the capture of a CUDA graph
        return None
    is_first = place not in owner.rated and place < len(before) and isinstance(before[place], float)
    owner.rated.add(place)
    return before[place] if is_first else None, now


def _mark_of(rate: Any) -> Any:
    """Return the number, or of a tensor on a device which version of which it is; None for anything else."""
    if isinstance(rate, Tensor):
        if rate.numel() != 1 or (number := read_memory(rate)) is not None:
            return None if rate.numel() != 1 else number
        return id(rate), 0 if rate.is_inference() else rate._version
    return float(rate) if isinstance(rate, int | float) else None
