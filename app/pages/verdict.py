"""What the pages claim about a run: how far it is, and that no problem was found, each with its scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..attention.findings import LEAST_PAST, RECENT, WINDOW
from ..cost import cost_of
from ..coverage import captured_steps
from ..runs import Run

ENOUGH: Final = RECENT + LEAST_PAST  # captured steps that the rules need to compare a layer with its own past
_STATES: Final = {
    "live": "Live",
    "ended": "Ended",
    "crashed": "Crashed",
    "interrupted": "Interrupted",
    "lost": "Lost, nothing received from the training any more",
    "kept": "Read from disk",
}


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run ended before its time."""

    title: str
    error: str
    traceback: str


def stop_of(run: Run) -> Stop | None:
    """Return why a run ended before its time, or None if it didn't."""
    failure: Any = getattr(run, "failure", None)
    if failure is None:
        return None
    return Stop(f"{_STATES[failure.outcome]} at step {failure.step:,}", failure.error, failure.traceback)


def progress_of(run: Run) -> str:
    """Return how far a run is and how many of its steps were left out."""
    state, steps = _STATES.get(run.state, run.state.capitalize()), run.store.steps()
    if steps.first is None or steps.newest is None:
        return f"{state}. No step has been captured yet."
    left_out = cost_of(run).left_out
    words = f"step {steps.first:,}" if steps.first == steps.newest else f"steps {steps.first:,} to {steps.newest:,}"
    count = "" if left_out is None else ", all captured" if not left_out else f", {left_out:,} of them not captured"
    return f"{state}: {words}{count}."


def claim_of(run: Run, last: int | None = None) -> str:
    """Return what can be said of a run in which nothing needs attention, with how much was looked at."""
    steps = run.store.steps()
    if steps.first is None or steps.newest is None:
        return "Findings appear here once steps have been captured."
    if last is not None:
        return f"None of the current findings began by step {last:,}."
    total = steps.newest - steps.first + 1
    first = max(steps.first, steps.newest - WINDOW + 1)
    looked_at, captured = steps.newest - first + 1, captured_steps(run.store, first, steps.newest)
    known = any(run.has_seen(finding) for finding in run.attention.findings())
    new = "new " if known else ""
    if captured < ENOUGH:
        return (
            f"No {new}NaN or infinity found. Not enough captured steps to judge anything else: "
            f"{captured:,} of {looked_at:,} captured, {ENOUGH} needed."
        )
    scope = f"the last {looked_at:,} steps" if looked_at < total else f"{total:,} steps"
    stopped = "This run crashed. " if stop_of(run) is not None and run.state != "live" else ""
    return f"{stopped}No {new}problems found in {scope} ({captured:,} captured)."
