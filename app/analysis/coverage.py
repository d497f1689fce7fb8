"""What is captured of a model, one record for every module, so that all pages count the same modules."""

from __future__ import annotations

from hookcore.records import Coverage, Kind
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
