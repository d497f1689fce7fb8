"""The tree of a watched model, and for each of its modules whether it is captured, or why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from hookcore.hooks.compiled import clean_path, compiled_functions, has_compiled, is_region, runs_uncompiled
from hookcore.hooks.tree import parameters_of, walk
from hookcore.recorder.plans import Plan, PlanTable
from hookcore.recorder.roots import Root, joined
from hookcore.recorder.selecting import paths_of
from hookcore.recorder.shards import is_shard, words_of
from hookcore.recorder.sources import source_of
from hookcore.recorder.taps import TapTable
from hookcore.recorder.unseen import World, why_compiled, why_unseen
from hookcore.records import Coverage, Kind, ModuleRecord

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
        full, *others = dict.fromkeys(joined(root.name, each) for each in aliases[id(module)])
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
