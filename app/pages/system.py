"""The page System: the training machine, aligned with the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .page import RunPage
from .views.moment import nearest_sampled
from .views.span import ALL, Shared
from .views.system import machine_of


@dataclass(frozen=True, kw_only=True)
class SystemPage(RunPage):
    """Processors, memory, disks, network, and GPUs over the steps, and their newest values."""

    name = "system"
    parts = ("newest",)

    @property
    def usual(self) -> Shared:
        """All steps, because samples are seldom."""
        return Shared(ALL)

    def part_newest(self) -> dict[str, Any]:
        """Return the newest values in the steps that the page is about, or the nearest steps with samples."""
        machine, span = machine_of(self.run, *self.values_in), self.span
        near = None
        if not machine.gauges and span is not None and span.step is not None:
            near = nearest_sampled(self.run, machine.sampled, span.step)
        return {"machine": machine, "near": near}
