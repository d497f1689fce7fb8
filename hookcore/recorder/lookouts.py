"""The parameters whose gradients say whether a backward pass was finite: the last ones that it reaches.

A non-finite gradient makes those of the layers before it non-finite. So the sentinel looks at one small parameter of
each layer where the data flow begins. Two kinds of gradients reach none of them: those that a branch without parameters
stops, and those that are computed for a single parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from torch import Tensor

from hookcore.observe.finite import MAX_VALUES
from hookcore.recorder.parameters import Parameter
from hookcore.recorder.witnesses import spread
from hookcore.records.flow import FlowCall

MAX_LOOKOUTS: Final = 4


def choose_lookouts(parameters: Iterable[Parameter], flows: Iterable[Sequence[FlowCall]]) -> list[Parameter]:
    """Return the parameters to look at: from the data flow, or before it is known, in the order of registration."""
    sized: dict[str, tuple[int, Parameter]] = {}  # the smallest one of each module
    for each in parameters:
        if (tensor := each.tensor) is not None and _is_trained(tensor):
            size, path = tensor.numel(), each.plan.path
            if path not in sized or size < sized[path][0]:
                sized[path] = size, each
    # A batch reaches only some rows of an embedding, so a part of a large gradient says little.
    small = {path: each for path, (size, each) in sized.items() if size <= MAX_VALUES}
    known = small or {path: each for path, (_, each) in sized.items()}
    sources = {path: known[path] for calls in flows for path in first_of_flow(calls, known.keys())}
    return spread(list(sources.values()) or _first_of_branches(known), MAX_LOOKOUTS)


def first_of_flow(calls: Sequence[FlowCall], modules: Iterable[str]) -> list[str]:
    """Return those of the modules that some call feeds with nothing that another one of them has made."""
    modules = frozenset(modules)
    after: list[bool] = []  # for each call, whether one of the modules is before it
    found: dict[str, None] = {}
    for call in calls:
        feeding = [each for each in (*call.fed_by, *call.returns) if each < len(after)]
        is_after = any(after[each] for each in feeding)
        after.append(
            is_after or any(calls[each].module in modules and calls[each].module != call.module for each in feeding)
        )
        if call.module in modules and not after[-1]:
            found[call.module] = None
    return list(found)


def _first_of_branches(known: dict[str, Parameter]) -> list[Parameter]:
    """Return the first parameter of each model and of each of its children."""
    firsts: dict[tuple[int, str], Parameter] = {}
    for path, each in known.items():
        root = each.plan.root
        child = path.removeprefix(root.name).lstrip("/").partition(".")[0]
        firsts.setdefault((id(root), child), each)
    return list(firsts.values())


def _is_trained(tensor: Tensor) -> bool:
    return tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
