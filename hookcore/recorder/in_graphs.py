"""Hooks that are traced into compiled graphs, and called directly outside of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hookcore.config import Settings
from hookcore.hooks import internals
from hookcore.hooks.compiled import Inside
from hookcore.hooks.headroom import hold_headroom, release_headroom
from hookcore.recorder.dispatch import Dispatcher
from hookcore.recorder.plans import Plan
from hookcore.records.vocabulary import counted


def feasible(settings: Settings) -> tuple[Settings, str]:
    """Return the settings that this release of torch allows, and why they are not the given ones."""
    if settings.compiled != "inside" or internals.SEES_INSIDE:
        return settings, ""
    needed = ".".join(map(str, internals.INSIDE_FROM))
    why = f"compiled='inside' needs torch {needed} or newer, and this is {torch.__version__}"
    return replace(settings, compiled="boundary"), f"{why}: of compiled regions, only the boundaries are captured"


class InsideAttachment:
    """A hook on each initially selected module. Another selection would recompile every graph."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        plans = {key: plan for key, plan in enumerate(dispatcher.plans.live()) if plan.wants_output}
        hold_headroom()
        self._has_headroom = True
        self._inside = Inside(GraphReporter(dispatcher, plans))
        modules = [(key, module) for key, plan in plans.items() if (module := plan.ref()) is not None]
        self.compiled_before = self._inside.attach(modules)
        self._attached = {id(plan) for plan in plans.values()}

    def on(self) -> None:
        pass

    def off(self) -> None:
        pass

    def follow_observers(self) -> None:
        pass

    def follow_choice(self, chosen: Sequence[Plan]) -> str | None:
        missing = sum(plan.wants_output and id(plan) not in self._attached for plan in chosen)
        if not missing:
            return None
        return f"{counted(missing, 'module')} can't be captured: compiled graphs contain only the initial selection"

    def close(self) -> None:
        self._inside.close()
        if self._has_headroom:
            self._has_headroom = False
            release_headroom()


class GraphReporter:
    """Passes the reports of the ops in a compiled graph on to the dispatcher."""

    def __init__(self, dispatcher: Dispatcher, plans: dict[int, Plan]) -> None:
        self._dispatcher = dispatcher
        self._plans = plans

    def saw_output(self, key: int, index: str, output: Tensor) -> int:
        """Report an output and return the ticket of its gradient."""
        dispatcher, plan = self._dispatcher, self._plans[key]
        if not dispatcher.current.captured or plan.muted:
            return -1
        if (meter := dispatcher.current.meter) is not None:
            meter.enter()
        ticket = -1
        try:
            ticket = dispatcher.saw_traced_output(plan, index, output)
        except Exception as error:
            dispatcher.errors.record("op in a compiled graph", error, plan)
        if meter is not None:
            meter.leave()
        return ticket

    def saw_gradient(self, key: int, index: str, ticket: int, gradient: Tensor) -> None:
        """Report the gradient of the output with this ticket."""
        plan = self._plans[key]
        try:
            self._dispatcher.saw_traced_gradient(plan, ticket, gradient)
        except Exception as error:
            self._dispatcher.errors.record("op in a compiled graph", error, plan)
