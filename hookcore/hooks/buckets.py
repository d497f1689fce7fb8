"""The record of a gradient bucket: its norms and times, fetched from the device only when they are read."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from hookcore.hooks.internals import GradBucket


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
