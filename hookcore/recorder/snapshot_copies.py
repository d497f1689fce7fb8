"""Copies of requested tensors that wait for the recorder's thread, which sends them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from hookcore.observe.copies import MAX_BYTES, Copy, take_copy
from hookcore.recorder.batchnames import BatchNames, plain_names
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.outgoing import Outgoing, Send
from hookcore.records import GRADIENT_KINDS, Names, Severity, Snapshot, Tap

MAX_WAITING_BYTES: Final = 2 * MAX_BYTES

Emit = Callable[[str, str, Severity, str], None]


@dataclass(slots=True, eq=False)
class Request:
    """A requested tensor."""

    tap: Tap
    number: int
    steps: int = 0  # that it has waited
    taken: bool = False
    hint: str = ""  # why it is missing
    before: Tensor | None = None  # a parameter before the optimizer's step


@dataclass(slots=True)
class _Taken:
    request: Request
    copy: Copy
    step: int
    time_s: float
    scale: float | None
    names: Names | None


@dataclass(slots=True, eq=False)
class WaitingCopies(Outgoing[_Taken]):
    """The copies of one watcher, in bounded memory."""

    what = "snapshot"
    _emit: Emit
    _current: CurrentStep
    _scale: Callable[[str], float | None]
    _names: BatchNames
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _waiting_bytes: int = field(default=0, init=False)

    def take(self, request: Request, tensor: Tensor, whole: tuple[int, ...] | None = None) -> None:
        """Copy the tensor now, because code after this hook may change it."""
        with self._lock:
            if request.taken:
                return
            if self._waiting_bytes > MAX_WAITING_BYTES - MAX_BYTES:
                request.hint = "too many bytes waited for the recorder's thread"
                return
            request.taken = True
            self._waiting_bytes += MAX_BYTES  # until its size is known
        copy: Copy | str = "it could not be copied"
        try:
            copy = take_copy(tensor, whole)
        except Exception as error:
            copy = f"{type(error).__name__}: {error}"
        finally:
            self._keep(request, copy)

    def _keep(self, request: Request, copy: Copy | str) -> None:
        scale = self._scale(request.tap.kind) if request.tap.kind in GRADIENT_KINDS else None
        with self._lock:
            self._waiting_bytes -= MAX_BYTES
            if isinstance(copy, str):
                request.taken, request.hint = False, copy
            else:
                self._waiting_bytes += copy.nbytes
                step = self._current.number
                names = self._names.of(request.tap.kind, step)
                self._waiting.append(_Taken(request, copy, step, time.time(), scale, names))

    def miss(self, request: Request, reason: str) -> None:
        """Give up a request, and say why in an event."""
        request.taken, request.before = True, None
        hint = f": {request.hint}" if request.hint else ""
        self._emit("snapshot-missed", f"{request.tap.label}: {reason}{hint}", "info", request.tap.module)

    def _lose(self, item: _Taken, error: Exception) -> None:
        self.miss(item.request, f"it was captured but couldn't be sent: {error}")

    def _release(self, item: _Taken) -> None:
        with self._lock:
            self._waiting_bytes -= item.copy.nbytes

    def _send(self, item: _Taken, send: Send) -> None:
        copy, request = item.copy, item.request
        values = copy.finish()
        names, left = (None, "") if item.names is None else plain_names(item.names)
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
        cut = f", of which the first {values.size} values were captured" if copy.truncated else ""
        scale = f"; still multiplied by the loss scale {item.scale:g}" if item.scale not in (None, 1.0) else ""
        unnamed = f"; {left}" if left else ""
        message = f"{request.tap.label} of step {item.step}: {copy.dtype} {list(copy.shape)}{cut}{scale}{unnamed}"
        self._emit("snapshot-taken", message, "info", request.tap.module)
