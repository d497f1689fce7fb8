"""Copies of requested tensors that wait for the recorder's thread, which sends them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from hookcore.observe.copies import MAX_BYTES, Copy, take_copy
from hookcore.recorder.batchnames import BatchNames, plain_names
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.errorlog import ErrorLog
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
class WaitingCopies:
    """The copies of one watcher, in bounded memory."""

    _current: CurrentStep
    _errors: ErrorLog
    _emit: Emit
    _scale: Callable[[str], float | None]
    _names: BatchNames
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _taken: deque[_Taken] = field(default_factory=deque, init=False)
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
                self._taken.append(_Taken(request, copy, step, time.time(), scale, names))

    def miss(self, request: Request, reason: str) -> None:
        """Give up a request, and say why in an event."""
        request.taken, request.before = True, None
        hint = f": {request.hint}" if request.hint else ""
        self._emit("snapshot-missed", f"{request.tap.label}: {reason}{hint}", "info", request.tap.module)

    @property
    def waiting(self) -> bool:
        """Return whether copies wait to be sent."""
        return bool(self._taken)

    def ship(self, send: Callable[[Snapshot], None]) -> None:
        """Send the copies. Called on the recorder's thread."""
        while self._taken:
            taken = self._taken[0]
            try:
                self._send(taken, send)
            except Exception as error:
                self._errors.record("snapshot", error)
                self.miss(taken.request, f"it was captured but couldn't be sent: {error}")
            finally:
                with self._lock:
                    self._waiting_bytes -= taken.copy.nbytes
                    self._taken.popleft()

    def _send(self, taken: _Taken, send: Callable[[Snapshot], None]) -> None:
        copy, request = taken.copy, taken.request
        values = copy.finish()
        names, left = (None, "") if taken.names is None else plain_names(taken.names)
        send(
            Snapshot(
                tap=request.tap,
                step=taken.step,
                time_s=taken.time_s,
                dtype=copy.dtype,
                shape=copy.shape,
                values=values,
                truncated=copy.truncated,
                number=request.number,
                names=names,
            )
        )
        cut = f", of which the first {values.size} values were captured" if copy.truncated else ""
        scale = f"; still multiplied by the loss scale {taken.scale:g}" if taken.scale not in (None, 1.0) else ""
        unnamed = f"; {left}" if left else ""
        message = f"{request.tap.label} of step {taken.step}: {copy.dtype} {list(copy.shape)}{cut}{scale}{unnamed}"
        self._emit("snapshot-taken", message, "info", request.tap.module)
