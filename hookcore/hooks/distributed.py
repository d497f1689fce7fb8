"""Records of the gradient buckets that DistributedDataParallel reduces between processes: their norms and times."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hookcore.errors import ArgumentError, HookError
from hookcore.hooks.checks import describe, require_callable
from hookcore.hooks.handle import HookHandle, registering
from hookcore.hooks.internals import MIXED_PRECISION_HOOK, REDUCING_HOOKS, communication_hooks

if TYPE_CHECKING:
    from hookcore.hooks.internals import GradBucket

# The record of a gradient bucket: its norms and times, fetched from the device only when they are read.


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """A reduced bucket: `norm_before` of this process's own gradients, `norm_after` of the reduced ones."""

    index: int
    is_last: bool
    numel: int
    bytes: int
    dtype: str
    norm_before: float
    norm_after: float
    elapsed_s: float


class _Moment:
    """A norm and the time at which it was taken, fetched from the device only when it is read."""

    __slots__ = ("_event", "_norm", "time_s")

    def __init__(self, buffer: torch.Tensor) -> None:
        self._norm = _norm(buffer)
        self.time_s = time.perf_counter()
        self._event: Any = None
        if buffer.is_cuda:
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(buffer.device))

    def read_norm(self) -> float:
        """Return the norm. Waits for the device."""
        if self._event is not None:
            self._event.synchronize()
        return float("nan") if self._norm is None else float(self._norm)

    def measure_since(self, earlier: _Moment) -> float:
        """Return the seconds since an earlier moment, on the device's own clock if it has one."""
        if self._event is not None and earlier._event is not None:
            self._event.synchronize()
            return float(earlier._event.elapsed_time(self._event)) / 1000
        return self.time_s - earlier.time_s


def _norm(buffer: torch.Tensor) -> torch.Tensor | None:
    if buffer.layout is not torch.strided:
        return None
    with torch.no_grad():
        # Half precision overflows at 65,504, which the square of a gradient's norm easily exceeds.
        wide = torch.float32 if buffer.dtype in (torch.float16, torch.bfloat16) else None
        norm: torch.Tensor = torch.linalg.vector_norm(buffer, dtype=wide)
        return norm


class _Passage:
    """A bucket whose reduction has started and may have finished."""

    __slots__ = ("_facts", "after", "before", "is_last")

    def __init__(self, bucket: GradBucket) -> None:
        buffer = bucket.buffer()
        size = buffer.numel()
        self.is_last = bucket.is_last()
        self._facts = (bucket.index(), self.is_last, size, size * buffer.element_size(), str(buffer.dtype)[6:])
        self.after: _Moment | None = None
        self.before = _Moment(buffer)

    def arrive(self, reduced: torch.Tensor) -> None:
        """Note that the reduction is done or, on a GPU, queued."""
        self.after = _Moment(reduced)

    def read(self) -> BucketRecord | None:
        """Return the record, or None while the reduction runs."""
        after = self.after
        if after is None:
            return None
        return BucketRecord(*self._facts, self.before.read_norm(), after.read_norm(), after.measure_since(self.before))


class Exposed:
    """How long the reductions of a backward pass went on after its last bucket was ready, read when it is needed."""

    __slots__ = ("_arrived", "_ready")

    def __init__(self, ready: _Moment, arrived: _Moment) -> None:
        self._ready, self._arrived = ready, arrived

    @property
    def ready_s(self) -> float:
        """When the last bucket was ready, by `time.perf_counter`."""
        return self._ready.time_s

    def resolve(self) -> float:
        """Return the seconds. Waits for a GPU, on whose own clock it is then."""
        return self._arrived.measure_since(self._ready)


class BucketLog:
    """The buckets of one registration, and the errors of recording them."""

    def __init__(self, max_records: int) -> None:
        self.passages: deque[_Passage] = deque(maxlen=max_records)
        self.dropped = 0
        self.errors = 0
        self.first_error = ""

    def open(self, bucket: GradBucket) -> _Passage | None:
        """Note that a reduction starts. Errors are counted and never reach the training."""
        try:
            passage = _Passage(bucket)
        except Exception as error:
            self.note(error)
            return None
        if len(self.passages) == self.passages.maxlen:
            self.dropped += 1
        self.passages.append(passage)
        return passage

    def close(self, passage: _Passage, value: Any) -> None:
        """Note that the reduction has finished."""
        try:
            passage.arrive(value[0] if isinstance(value, (list, tuple)) else value)
        except Exception as error:
            self.note(error)

    def newest(self) -> Exposed | None:
        """Return what the newest pass waited for at its end, or None while a reduction runs."""
        passages = list(self.passages)
        if not passages:
            return None
        own = [passages.pop()]
        while passages and not passages[-1].is_last:
            own.append(passages.pop())
        arrived = [each.after for each in own if each.after is not None]
        if len(arrived) < len(own) or not own[0].is_last:
            return None
        return Exposed(own[0].before, max(arrived, key=lambda each: each.time_s))

    def note(self, error: Exception) -> None:
        """Count an error of the recording and keep the first as text: its traceback would keep tensors alive."""
        self.errors += 1
        self.first_error = self.first_error or f"{type(error).__name__}: {error}"


CommunicationHook = Callable[[Any, Any], torch.futures.Future[torch.Tensor]]
DEFAULT_MAX_RECORDS: Final = 4096


class _Recorder:
    """The state of the hook on the model: how to reduce, and where to record."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.hook: CommunicationHook | None = None
        self.state: Any = None
        self.log: BucketLog | None = None

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Run the user's hook, or do what DDP does without one."""
        if self.hook is not None:
            return self.hook(self.state, bucket)
        buffer = bucket.buffer()
        size = self.group.size()
        # DDP multiplies by the inverse (and divides sparse gradients). Dividing here could change the last bit.
        buffer = buffer.div_(size) if buffer.is_sparse else buffer.mul_(1.0 / size)
        work = dist.all_reduce(buffer, group=self.group, async_op=True)
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(_first)
        return future


def _first(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return future.value()[0]


# Not annotated: torch compares the annotations of a hook with its own classes, and ours are strings.
def reduce_and_record(recorder, bucket):  # type: ignore[no-untyped-def]
    """Reduce and record one bucket. `then` returns the reduced bucket unchanged."""
    log = recorder.log
    passage = None if log is None else log.open(bucket)
    future = recorder.reduce(bucket)
    if log is None or passage is None:
        return future

    def arrived(done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        value = done.value()
        log.close(passage, value)
        return value

    return future.then(arrived)


class CommunicationHandle(HookHandle):
    """Records of a model's reductions. Torch can't remove the hook; removed, it reduces but no longer records.

    The records stay readable after the removal, until the handle is dropped.
    """

    __slots__ = ("_log", "_recorder")

    def __init__(self, recorder: _Recorder, log: BucketLog) -> None:
        super().__init__("communication")
        self._recorder = weakref.ref(recorder)
        self._log = log

    @property
    def records(self) -> tuple[BucketRecord, ...]:
        """The newest reduced buckets, oldest first. Reading waits for a GPU; recording never does."""
        found = (passage.read() for passage in tuple(self._log.passages))
        return tuple(record for record in found if record is not None)

    @property
    def dropped(self) -> int:
        """Number of old records that were dropped to make room."""
        return self._log.dropped

    @property
    def errors(self) -> int:
        """Number of failed recordings. The reductions themselves weren't affected."""
        return self._log.errors

    @property
    def first_error(self) -> str:
        """The first error of the recording, or an empty string."""
        return self._log.first_error

    def clear(self) -> None:
        self._log.passages.clear()

    def _is_in_place(self) -> bool:
        recorder = self._recorder()
        return recorder is not None and recorder.log is self._log

    def _take_out(self) -> None:
        recorder = self._recorder()
        if recorder is not None and recorder.log is self._log:
            recorder.log = None

    def __getstate__(self) -> tuple[Any, ...]:
        raise TypeError("A communication handle belongs to a process group and cannot be copied. Register again.")


def on_communication(
    model: DistributedDataParallel,
    hook: CommunicationHook | None = None,
    state: Any = None,
    *,
    max_records: int = DEFAULT_MAX_RECORDS,
) -> CommunicationHandle:
    """Record each bucket of gradients around DDP's own all-reduce, or around `hook(state, bucket)`.

    Without a hook of your own, the reduced gradients are bit for bit those of DDP.
    """
    if hook is not None:
        require_callable(hook, "(state, bucket), which returns a future of the reduced tensor")
    if not isinstance(model, DistributedDataParallel):
        raise ArgumentError(
            f"Got {describe(model)}; expected a torch.nn.parallel.DistributedDataParallel, the only module that "
            "communicates in buckets. Pass the wrapped model."
        )
    if type(max_records) is not int or max_records < 1:
        raise ArgumentError(f"Got max_records={max_records!r}; expected a whole number of at least 1. Pass how many.")
    with registering():
        recorder = _find_recorder(model)
        if recorder is None:
            recorder = _Recorder(model.process_group)
            _register(model, recorder)
        log = BucketLog(max_records)
        recorder.hook, recorder.state, recorder.log = hook, state, log
        return CommunicationHandle(recorder, log)


def newest_reduction(model: DistributedDataParallel) -> Exposed | None:
    """Return how the newest backward pass ended, as far as `on_communication` records this model."""
    logs = [state.log for _, state in communication_hooks(model) if isinstance(state, _Recorder)]
    return logs[0].newest() if logs and logs[0] is not None else None


def reduces_whole_group(model: DistributedDataParallel) -> bool:
    """Return whether the gradients are the same on all ranks of the model's group once they are reduced.

    False if that isn't known: a communication hook may reduce over fewer ranks, seldom, or never.
    """
    return all(_reduces(hook, state, model.process_group) for hook, state in communication_hooks(model))


def _reduces(hook: Any, state: Any, group: Any) -> bool:
    if hook is reduce_and_record:
        return state.hook is None or _reduces(state.hook, state.state, group)
    name = f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', '')}"
    if name in REDUCING_HOOKS and (state is None or isinstance(state, dist.ProcessGroup)):
        return dist.get_process_group_ranks(state) == dist.get_process_group_ranks(group)
    return name == MIXED_PRECISION_HOOK


def _find_recorder(model: DistributedDataParallel) -> _Recorder | None:
    """Return our recorder from an earlier, removed registration. Raise if another hook is in use."""
    for hook, state in communication_hooks(model):
        if hook is reduce_and_record and isinstance(state, _Recorder) and state.log is None:
            return state
        name = getattr(hook, "__qualname__", describe(hook))
        raise HookError(
            f"The model already has the communication hook {name}; torch takes one per model. Pass that hook to "
            "on_communication instead of registering it, or remove hookcore's handle first."
        )
    return None


def _register(model: DistributedDataParallel, recorder: _Recorder) -> None:
    try:
        model.register_comm_hook(recorder, reduce_and_record)
    except RuntimeError as error:
        # Torch notes the hook before it asks the reducer, which refuses it if a built-in one is registered.
        hooks = communication_hooks(model)
        hooks[:] = [pair for pair in hooks if pair[1] is not recorder]
        raise HookError(
            f"Torch refused the communication hook: {error}. Torch takes one per model; a built-in one cannot be "
            "recorded. Call on_communication first, with your own hook."
        ) from error
