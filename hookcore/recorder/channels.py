"""The numbers of probes in their order: held until their step ends, and sent by the recorder's thread."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from hookcore.observe.copies import Copy, take_copy
from hookcore.observe.plain import unseen
from hookcore.recorder.outgoing import Outgoing, Send
from hookcore.records import Snapshot, Tap

MAX_WAITING: Final = 4096  # columns
_DROPPED: Final = "of channels dropped: too many results of probes were waiting for the recorder's thread"


@dataclass(slots=True, eq=False)
class ChannelColumns(Outgoing[tuple[Tap, int, float, Copy]]):
    """The columns of one watcher. Of several micro-batches, the largest value of each channel is kept, or NaN."""

    what = "channels of a probe"
    _held: dict[Tap, tuple[int, int, Tensor]] = field(default_factory=dict)  # of this step: step, channels, values

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
            if len(self._waiting) >= MAX_WAITING:
                self._errors.count_loss("channels-dropped", "column", _DROPPED)
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
