"""What is missing of a run: data that was lost, and kinds that have no data."""

from __future__ import annotations

from hookcore.records import GRADIENT_KINDS
from hookcore.store import Store

from ..runs import Run


def losses_of(run: Run) -> dict[str, int]:
    """Return how much was lost in the store, and on the way to it, by reason."""
    on_the_way = {f"sender {reason}": count for reason, count in run.counters.dropped.items()}
    on_the_way["commands queue-full"] = run.commands.dropped
    return {reason: count for reason, count in (run.store.usage().dropped | on_the_way).items() if count}


def why_empty(store: Store, kind: str) -> str:
    """Return why there is no data of a kind, or an empty string."""
    if len(store.taps(None, kind).taps):
        return ""
    if store.steps().newest is None:
        return "No steps yet. The heatmap starts with the first step."
    if kind == "update":
        return (
            "Updates are not captured, because they need a copy of every parameter. "
            "To capture them, select update on the Hooks page."
        )
    if kind in GRADIENT_KINDS:
        return (
            f"No {kind} was captured: no module has run a backward pass yet (model.eval()? torch.no_grad()?), "
            "or this kind is not selected on the Hooks page."
        )
    return f"No {kind} was captured: no module has run yet, or this kind is not selected on the Hooks page."
