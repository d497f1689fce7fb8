"""Missing data of a run: lost data, and kinds without data."""

from __future__ import annotations

from hookcore.records import GRADIENT_KINDS
from hookcore.records.vocabulary import KIND_WORDS
from hookcore.store import Store

from ..runs import JointRun, Run


def losses_of(run: Run) -> dict[str, int]:
    """Return how much was lost in the store, and on the way to it, by reason."""
    on_the_way = {f"sender {reason}": count for reason, count in run.received.counters.dropped.items()}
    on_the_way["commands queue-full"] = run.commands.dropped
    if isinstance(run, JointRun):
        on_the_way["steps without some rank"] = run.assembly.absences.incomplete
        on_the_way["frames of ranks that came too late"] = sum(each.late for each in run.assembly.ranks.values())
    return {reason: count for reason, count in (run.store.usage().dropped | on_the_way).items() if count}


def why_empty(store: Store, kind: str, live: bool) -> str:
    """Return why there is no data of a kind, with advice if the run is live; or an empty string."""
    if len(store.taps(None, kind).taps):
        return ""
    if store.steps().newest is None:
        return "No steps yet. The heatmap starts with the first step." if live else "No step was captured."
    if kind == "update":
        why = "Updates were not captured. They need a copy of every parameter, so they are off by default."
        return f"{why} To capture them, select update on the Hooks page." if live else why
    words = KIND_WORDS.get(kind, kind)
    unselected = "this kind is not selected on the Hooks page" if live else "this kind was not selected"
    if kind in GRADIENT_KINDS:
        return (
            f"No {words} was captured: no module has run a backward pass (model.eval()? torch.no_grad()?), "
            f"or {unselected}."
        )
    return f"No {words} was captured: no module has run, or {unselected}."


def why_uncaptured(store: Store, kind: str, live: bool, first: int | None = None, last: int | None = None) -> str:
    """Return why no value of a kind is shown at the newest captured step of some steps, or an empty string."""
    if why := why_empty(store, kind, live):
        return why
    captured = store.latest(stat="count", first=first, last=last, merged=True).steps
    # A held step is shown whether or not anything was captured in it.
    shown = last if (first is not None and first == last) or not len(captured) else int(captured.max())
    if shown is None or len(store.latest(kind, "count", first=shown, last=shown, merged=True).numbers):
        return ""
    ever = store.latest(kind, "count").steps
    rest = f"; the newest is at step {ever.max():,}" if len(ever) else ""
    return f"No {KIND_WORDS.get(kind, kind)} was captured at step {shown:,}{rest}."
