"""The tree of a watched model, and for each of its modules whether it is captured, or why not."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import CodeType, FunctionType
from typing import Final

import torch
from torch import nn

from hookcore.config import Settings
from hookcore.config.patterns import select
from hookcore.errors import PatternError
from hookcore.hooks.checks import parameters_of, walk
from hookcore.hooks.compiled import clean_path, compiled_functions, has_compiled, is_region, runs_uncompiled
from hookcore.hooks.internals import no_forward
from hookcore.recorder.calls.plans import Plan, PlanTable
from hookcore.recorder.known.roots import Root, joined
from hookcore.recorder.measured.sizes import forward_of
from hookcore.recorder.measured.statistics import TapTable, is_shard, words_of
from hookcore.records import ROOT, Coverage, Kind, ModuleRecord

# Why no call of a module was observed.

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
            for weight in weights_of(plan):
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
        for weight in weights_of(plan)
        for number, path in world.owners.get((id(plan.root), weight), ())
        if path != plan.path
    ]
    return min(others)[1] if others else None


def weights_of(plan: Plan) -> set[int]:
    module = plan.ref()
    return (
        set() if module is None else {id(weight) for weight in list(module._parameters.values()) if weight is not None}
    )


# The modules of a model as the patterns see them.

Aliases = dict[str, tuple[str, ...]]


class LaterModules:
    """Selects modules that came later: the patterns hold for them, but none of them has to match."""

    def __init__(self, settings: Settings, root: Root) -> None:
        self._patterns, self._aliases = (settings.include, settings.exclude), aliases_of(root)

    def reason(self, path: str, module: nn.Module) -> str:
        """Return why a module is left out, or an empty string."""
        leaves = set() if module._modules else {path}
        try:
            return select({path: module}, leaves, *self._patterns, strict=False, aliases=self._aliases).reason(path)
        except PatternError:
            return "matched by no include pattern"


def reasons_of(plans: Sequence[Plan], settings: Settings) -> list[tuple[Plan, str]]:
    """Return why modules are left out that came later."""
    selection = {root: LaterModules(settings, root) for root in {plan.root for plan in plans}}
    found = []
    for plan in plans:
        if (module := plan.ref()) is not None:
            path = "" if plan.is_root else plan.path.removeprefix(f"{plan.root.name}/")
            found.append((plan, selection[plan.root].reason(path, module)))
    return found


def modules_of(root: Root) -> dict[str, nn.Module]:
    """Return the modules of a model by path."""
    top = root.ref()
    return {} if top is None else {clean_path(path): child for path, child in walk(top)}


def paths_of(root: Root) -> dict[int, list[str]]:
    """Return all paths of each module of a model, by the module's identity."""
    top, paths = root.ref(), dict[int, list[str]]()
    for path, module in () if top is None else walk(top, every_path=True):
        paths.setdefault(id(module), []).append(clean_path(path))
    return paths


def aliases_of(root: Root) -> Aliases:
    """Return the other paths of each module that a model has more than once, by its first path."""
    return {first: tuple(others) for first, *others in paths_of(root).values() if others}


def leaves_of(modules: dict[str, nn.Module]) -> set[str]:
    """Return the paths of the modules without children."""
    return {path for path, child in modules.items() if not child._modules}


MAX_FILE: Final = 2_000_000  # characters of a source file
MAX_CLASSES: Final = 4096  # that are remembered


def source_of(kind: type) -> str:
    """Return where a class is defined, as `file:line`; "" if unknown, for example for classes made by functions."""
    name = kind.__name__
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    codes = [code for code in _codes_of(kind) if file is None or code.co_filename == file]
    if not codes:
        return "" if file is None else _find(file, name, None)
    first = min(codes, key=lambda code: code.co_firstlineno)
    return _find(first.co_filename, name, first.co_firstlineno) or f"{first.co_filename}:{first.co_firstlineno}"


def _codes_of(kind: type) -> Iterator[CodeType]:
    """Yield the code of the functions that are written in the class."""
    for value in list(vars(kind).values()):
        if type(value) is FunctionType and value.__module__ == kind.__module__:
            yield value.__code__


@lru_cache(MAX_CLASSES)
def _find(file: str, name: str, before: int | None) -> str:
    """Return the line of the last such class up to a line, or of the only one."""
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            text = opened.read(MAX_FILE)
    except (OSError, ValueError):
        return ""
    lines = [text.count("\n", 0, found.start("word")) + 1 for found in _classes(text, name)]
    fitting = lines if before is None else [line for line in lines if line <= before]
    if not fitting or (before is None and len(fitting) > 1):
        return ""
    return f"{file}:{fitting[-1]}"


def _classes(text: str, name: str) -> Iterator[re.Match[str]]:
    return re.finditer(rf"^[ \t]*(?P<word>class)[ \t]+{re.escape(name)}\b", text, re.MULTILINE)


NO_ROOM = "no room for its values: give hookcore more memory, or watch fewer modules"
NO_GRADIENT_ARRIVED = (
    "no gradient arrived: its output is unused, detached, only used by torch.autograd.grad, or a view that was changed "
    "in place"
)
NO_WEIGHT_GRADIENT = (
    "no weight gradient was there at any step of its optimizer: its output doesn't reach the loss, or gradients are "
    "reset before they can be read"
)
_ON_MODULES = "attach='module' can't see inside torch.compile. Use attach='global'."
_IN_FUNCTIONS = (
    "they run inside a compiled function ({}), or only .forward() is called. Compile the model instead of the "
    "function, or use compiled='inside'."
)

_MODULE_KINDS: frozenset[Kind] = frozenset(("output", "output_grad", "input", "input_grad"))


# -- the tree --------------------------------------------------------------------------------------------------------


def records_of(root: Root, plans: Mapping[int, Plan]) -> Iterator[ModuleRecord]:
    """Return a record of every module of a model."""
    top = root.ref()
    if top is None:
        return
    aliases = paths_of(root)
    for path, module in walk(top):
        clean = clean_path(path)
        sizes = [
            (p.numel(), p.requires_grad) for p in parameters_of(module) if not isinstance(p, nn.UninitializedParameter)
        ]
        known = aliases.get(id(module), [clean])  # without one, the training has added it since
        full, *others = dict.fromkeys(joined(root.name, alias) for alias in known)
        yield ModuleRecord(
            path=full,
            type=type(module).__name__,
            parent=None if clean == "" else joined(root.name, clean.rpartition(".")[0]),
            parameters=sum(size for size, _ in sizes),
            trainable=sum(size for size, trainable in sizes if trainable),
            aliases=tuple(others),
            shapes=_shapes_of(module, plans.get(id(module))),
            bases=tuple(base.__name__ for base in type(module).__mro__[1:] if base not in (nn.Module, object)),
            source=source_of(type(module)),
            placements=_placements_of(module, plans.get(id(module))),
        )


def _shapes_of(module: nn.Module, plan: Plan | None) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the shapes of a module's own parameters, and of its first inputs and outputs."""
    known: dict[str, tuple[int, ...]] = {}
    for name, parameter in dict(module._parameters).items():
        if parameter is not None and not isinstance(parameter, nn.UninitializedParameter):
            known[name] = tuple(parameter.shape)
    return (*known.items(), *(dict(plan.rows.shapes).items() if plan else ()))


def _placements_of(module: nn.Module, plan: Plan | None) -> tuple[tuple[str, str], ...]:
    """Return how torch has spread a module's tensors over ranks.

    `fully_shard` replaces them by whole parameters while the module runs, so the first placements seen are kept.
    """
    known = {} if plan is None else plan.rows.placements
    for name, parameter in dict(module._parameters).items():
        if parameter is not None and is_shard(parameter):
            known[name] = words_of(parameter.device_mesh, parameter.placements)  # type: ignore[attr-defined]
    return tuple(dict(known).items())


# -- coverage --------------------------------------------------------------------------------------------------------


def coverage_of(plans: PlanTable, table: TapTable, boundary: bool, on_modules: bool = False) -> list[Coverage]:
    """Return every module: captured, or why not.

    `boundary`: whether compiled regions are observed only from outside. `on_modules`: whether the hooks are on modules.
    """
    live = plans.live()
    paths = {plan.path for plan in live}
    departed = {plan.path: plan for plan in plans.departed}
    regions = list(plans.regions)
    if boundary:
        regions += [plan.path for plan in live if _hides_its_parts(plan)]
    everyone = [*(plan for plan in departed.values() if plan.path not in paths), *live, *plans.named]
    world = World(
        table,
        {plan.path: plan for plan in live},
        regions,
        compiled_functions(module for plan in live if (module := plan.ref()) is not None),
        frozenset(id(plan.root) for plan in live if plan.history.seen),
        on_modules and has_compiled(),
    )
    return [_coverage_of(plan, world, departed.get(plan.path)) for plan in everyone]


def hidden_roots(plans: PlanTable, on_modules: bool = False) -> list[tuple[str, str]]:
    """Return the models that train without an observed call, by name, and why."""
    live = plans.live()
    seen = {id(plan.root) for plan in live if plan.history.seen}
    hidden = [plan for plan in live if plan.is_root and id(plan.root) not in seen and _ran_unseen(plan, live)]
    if not hidden:
        return []
    if on_modules:
        return [(plan.path, _ON_MODULES) for plan in hidden] if has_compiled() else []
    functions = compiled_functions(module for plan in live if (module := plan.ref()) is not None)
    return [(plan.path, _IN_FUNCTIONS.format(", ".join(functions))) for plan in hidden] if functions else []


def _ran_unseen(root: Plan, live: Sequence[Plan]) -> bool:
    return any(plan.root is root.root and plan.history.got_gradients for plan in live)


def _hides_its_parts(plan: Plan) -> bool:
    module = plan.ref()
    return module is not None and is_region(module) and not runs_uncompiled(module)


def _filled(plan: Plan, table: TapTable, before: Plan | None = None) -> dict[Kind, bool]:
    """Return the captured kinds, and whether each was in the newest frame."""
    filled: dict[Kind, bool] = {}
    for source in (plan, before) if before is not None else (plan,):
        for key, slot in list(source.rows.slots.items()):
            if slot < 0 or key[0] not in plan.kinds:
                continue
            number = table.numbers[slot]
            if number in table.filled:
                filled[key[0]] = filled.get(key[0], False) or number in table.newest
    return filled


def _lacks_weight_gradients(plan: Plan) -> bool:
    known = plan.history
    wanted = any(kind == "param_grad" and slot >= 0 for (kind, *_), slot in dict(plan.rows.slots).items())
    return wanted and known.seen and bool(known.without_gradient) and not known.got_gradients


def _coverage_of(plan: Plan, world: World, before: Plan | None) -> Coverage:
    """Return the coverage of a module. `before`: the plan of a deleted module with the same path."""
    table = world.table
    filled = _filled(plan, table, before if before is not plan else None)
    # A module with only its parameters captured is not captured if its activations were requested.
    asked = plan.kinds & _MODULE_KINDS or plan.kinds
    captured = not asked.isdisjoint(filled)
    reasons = list(plan.history.reasons)
    slots = dict(plan.rows.slots)
    if any(slot < 0 for slot in slots.values()):
        reasons.append(NO_ROOM)
    if (
        "output" in filled
        and "output_grad" not in filled
        and any(key[0] == "output_grad" and slot >= 0 for key, slot in slots.items())
    ):
        reasons.append(NO_GRADIENT_ARRIVED)
    if _lacks_weight_gradients(plan):
        reasons.append(NO_WEIGHT_GRADIENT)
    if not plan.history.seen and not captured and not plan.history.left:
        reasons.append(why_unseen(plan, world))
    reason = plan.skipped_by or "; ".join(reasons)
    if not reason and not filled:
        reason = "no step has ended since it ran"
    if not reason and captured and not any(filled[kind] for kind in asked if kind in filled):
        reason = why_compiled(plan, world) or f"not reached in step {table.newest_step}, the last one captured"
    return Coverage(plan.path, plan.type_name, captured, tuple(sorted(filled)), reason)
