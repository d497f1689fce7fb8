"""Why no call of a module was observed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from hookcore.hooks.internals import no_forward
from hookcore.recorder.flops import forward_of
from hookcore.recorder.plans import Plan
from hookcore.recorder.roots import joined
from hookcore.recorder.taps import TapTable
from hookcore.records import ROOT

NOT_CALLED = "not called in any captured step (direct calls to .forward() bypass hooks)"
GONE = "no call of it was seen before it was deleted"
COMPILED_UNSEEN = (
    "not called where hooks can see it: attach='module' can't see inside torch.compile; with attach='global', the "
    "boundary of compiled regions is captured"
)


@dataclass(frozen=True)
class World:
    """The facts from which reasons are derived."""

    table: TapTable
    by_path: Mapping[str, Plan]
    regions: Sequence[str]
    functions: Sequence[str]  # compiled ones, which hooks don't reach
    seen_roots: frozenset[int]  # those with any module that has run
    hides_compiled: bool  # whether something was compiled, so that hooks on modules don't reach it

    @cached_property
    def owners(self) -> Mapping[tuple[int, int], Sequence[tuple[int, str]]]:
        """The first two modules that have a weight, by root and weight: the position and the path of each."""
        owners: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
        for number, plan in enumerate(self.by_path.values()):
            for weight in _weights_of(plan):
                if len(sharing := owners[id(plan.root), weight]) < 2:
                    sharing.append((number, plan.path))
        return owners


def why_unseen(plan: Plan, world: World) -> str:
    """Return why no call of this module was observed; for a deleted one, what was known about it."""
    if plan.ref() is not None:
        plan.history.why_unseen = _why_unseen_now(plan, world)
    return plan.history.why_unseen or GONE


def _why_unseen_now(plan: Plan, world: World) -> str:
    known = _why_out_of_sight(plan, world)
    if known:
        return known
    if world.hides_compiled:
        return COMPILED_UNSEEN
    functions, model_was_seen = ", ".join(world.functions), id(plan.root) in world.seen_roots
    if functions and not model_was_seen:
        if plan.history.got_gradients:
            return (
                "its weights got gradients, but no call of it was seen: it runs inside a compiled function "
                f"({functions}), only its .forward() is called, or the script sets them"
            )
        return f"not called where hooks can see it; it may run inside a compiled function ({functions})"
    tied = _tied_to(plan, world)
    if tied is not None:
        return f"not called: its weight is tied to {tied or ROOT}, and using a weight directly calls no module"
    if not plan.history.got_gradients:
        return NOT_CALLED
    if functions:
        return (
            "not called where hooks can see it, but its weights got gradients: its parent uses them directly or calls "
            f".forward(), it runs inside a compiled function ({functions}), or the script sets them"
        )
    return (
        "not called, but its weights got gradients: its parent uses them directly or calls .forward(), which bypasses "
        "hooks, or the script sets the gradients"
    )


def _why_out_of_sight(plan: Plan, world: World) -> str:
    """Return the reason that follows from what the module is or belongs to, or ""."""
    module, parent = plan.ref(), _parent_of(plan, world)
    if module is not None and forward_of(module) is no_forward:
        return f"a container ({plan.type_name}), which is not called: see its children"
    if inside := why_compiled(plan, world):
        return inside
    owner = parent.ref() if parent is not None else None
    if parent is not None and isinstance(owner, torch.jit.ScriptModule):
        return f"inside TorchScript ({parent.path or 'the whole model'}), which calls no hooks"
    if isinstance(owner, nn.MultiheadAttention) and plan.path.endswith("out_proj"):
        return "its parent (MultiheadAttention) uses its weight directly and doesn't call it"
    return ""


def why_compiled(plan: Plan, world: World) -> str:
    """Return what the module is compiled with, so that its calls aren't observed, or ""."""
    for path in world.regions:
        if path != plan.path and (path == "" or plan.path.startswith((f"{path}.", f"{path}/"))):
            return f"inside the compiled region {path or '(the whole model)'}, whose boundary is captured"
    parent = _parent_of(plan, world)
    while parent is not None:
        if _has_compiled_forward(parent):
            return f"inside the compiled forward of {parent.path or 'the model'}, whose boundary is captured"
        parent = _parent_of(parent, world)
    return ""


def _has_compiled_forward(plan: Plan) -> bool:
    """Return whether only the forward was passed to `torch.compile`, not the module."""
    module = plan.ref()
    if module is None:
        return False
    forward = module.__dict__.get("forward") or getattr(type(module), "forward", None)
    return hasattr(forward, "_torchdynamo_orig_callable")


def _parent_of(plan: Plan, world: World) -> Plan | None:
    root = plan.root.name
    below = plan.path.removeprefix(f"{root}/") if root else plan.path
    return None if plan.is_root else world.by_path.get(joined(root, below.rpartition(".")[0]))


def _tied_to(plan: Plan, world: World) -> str | None:
    """Return the first other module with one of the same weights."""
    others = [
        (number, path)
        for weight in _weights_of(plan)
        for number, path in world.owners.get((id(plan.root), weight), ())
        if path != plan.path
    ]
    return min(others)[1] if others else None


def _weights_of(plan: Plan) -> set[int]:
    module = plan.ref()
    return (
        set() if module is None else {id(weight) for weight in list(module._parameters.values()) if weight is not None}
    )
