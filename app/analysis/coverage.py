"""What is captured of a model, one record for every module, so that all pages count the same modules."""

from __future__ import annotations

from hookcore.records import GRADIENT_KINDS, Coverage, Kind
from hookcore.store import Store

UNREPORTED = "not reported by the trainer yet"


def coverage_of(store: Store) -> list[Coverage]:
    """Return the coverage of every known module in the model's order, even if the trainer hasn't reported it."""
    known = {each.path: each for each in store.coverage()}
    modules = store.modules()
    if len(known) >= len(modules):
        return list(known.values())
    kinds: dict[str, list[Kind]] = {}
    for tap in store.taps().taps:
        kinds.setdefault(tap.module, []).append(tap.kind)
    for module in modules:
        if module.path not in known:
            seen = tuple(dict.fromkeys(kinds.get(module.path, ())))
            known[module.path] = Coverage(module.path, module.type, bool(seen), seen, "" if seen else UNREPORTED)
    order = {module.path: place for place, module in enumerate(modules)}
    return sorted(known.values(), key=lambda each: order.get(each.path, len(order)))


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
