"""The watched models: their trees, the plan of every module, and the models that are discovered later."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence, Set
from functools import partial
from typing import Any, Final

from torch import nn

from hookcore.config import Pattern, Settings
from hookcore.config.patterns import select
from hookcore.errors import PatternError
from hookcore.hooks.checks import parameters_of, walk
from hookcore.hooks.compiled import guarded, is_dynamo_graph, unwrap
from hookcore.hooks.internals import DisableTorchFunction, tracing_state
from hookcore.recorder.calls.coverage import (
    Aliases,
    LaterModules,
    aliases_of,
    coverage_of,
    leaves_of,
    modules_of,
    reasons_of,
    records_of,
)
from hookcore.recorder.calls.plans import Plan
from hookcore.recorder.clock.errors import ErrorLog
from hookcore.recorder.clock.owners import instances_of
from hookcore.recorder.context import Context
from hookcore.recorder.known.roots import Root, joined, unique_root_name
from hookcore.records import Coverage, HookRecord, Kind, ModuleRecord


class Registrations:
    """The newest owner of each module. By identity: the user's modules may define comparison and hash."""

    def __init__(self, errors: ErrorLog) -> None:
        self._errors = errors
        self._owners: dict[int, tuple[weakref.ref[nn.Module], weakref.ref[nn.Module]]] = {}

    @guarded
    def saw(self, owner: nn.Module, name: str, child: Any) -> None:
        """Record which module is part of which. torch's module registration hook."""
        try:
            if isinstance(child, nn.Module) and type(owner).__name__ != "OptimizedModule":
                key, owners = id(child), self._owners
                owners[key] = (weakref.ref(child, lambda _: owners.pop(key, None)), weakref.ref(owner))
        except Exception as error:
            self._errors.record("registration hook", error)

    def topmost(self, module: nn.Module) -> nn.Module:
        """Return the outermost module that this one is a part of."""
        seen = {id(module)}
        while (known := self._owners.get(id(module))) is not None:
            child, owner = known[0](), known[1]()
            if child is not module or owner is None or id(owner) in seen:
                break
            if all(part is not module for part in owner._modules.values()):  # it was taken out
                break
            seen.add(id(owner))
            module = owner
        return module

    def having(self, parameters: Set[int]) -> Iterator[nn.Module]:
        """Yield the modules that have any of these parameters, given by id."""
        for reference in itertools.chain.from_iterable(list(self._owners.values())):
            module = reference()
            if module is not None and not parameters.isdisjoint(map(id, module._parameters.values())):
                yield module


def _tops_having(parameters: Set[int], known: Set[int]) -> list[nn.Module]:
    """Return the outermost live modules around these parameters, given by id, without a known module. It takes a while.

    That finds models that were made before anything was registered and that no hook sees.
    """
    owners: dict[int, nn.Module] = {}
    having = []
    for module in instances_of(nn.Module):
        if is_dynamo_graph(module):
            continue
        parts = module.__dict__  # an unfinished module lacks some
        if type(module).__name__ != "OptimizedModule":
            owners |= {id(child): module for child in parts.get("_modules", {}).values() if child is not None}
        if not parameters.isdisjoint(map(id, parts.get("_parameters", {}).values())):
            having.append(module)
    tops: dict[int, nn.Module] = {}
    for module in having:
        seen = {id(module)}
        while (owner := owners.get(id(module))) is not None and id(owner) not in seen:
            if any(id(part) in known for _, part in walk(owner)):
                break
            seen.add(id(owner))
            module = owner
        tops[id(module)] = module
    return list(tops.values())


Choice = list[tuple[Plan, str]]  # each plan with "", or the reason why its module is left out

_MAX_SEARCHES: Final = 8  # a loop may make an optimizer of tensors of no module for every batch
_NO_KINDS: frozenset[Kind] = frozenset()
_BOUNDARY_KINDS: frozenset[Kind] = frozenset(("output", "output_grad"))


class Models:
    """Identifies modules, and sends them whenever a model or a part of one is added."""

    def __init__(self, context: Context) -> None:
        self._context, self.plans, self.parameters = context, context.plans, context.parameters
        self.hooks: tuple[HookRecord, ...] = ()  # the last inventory, which is sent with the modules
        self._is_sending = True
        self.discovers = False  # whether unnamed models are watched too
        self.unsure = True  # whether to compare the models' trees with the plans at the next call
        self._gone: dict[str, int] = {}  # the calls of modules that left within this step, by path
        self._lock = threading.RLock()
        self.wants_inputs = _wants_inputs(context.settings)  # whether the inputs of any module are requested
        self.refused: dict[str, str] = {}  # discovered models that could not be planned, by name, and why
        self._ignored: dict[int, weakref.ref[nn.Module]] = {}
        self._searches = 0  # among all live modules
        self.registrations = Registrations(context.errors)

    # -- planning ---------------------------------------------------------------------------------------------------

    def watch(self, model: nn.Module | None) -> None:
        """Watch a model; with None, every model that runs."""
        if model is None:
            self.discovers = True
        else:
            self.add(model)

    def add(self, module: nn.Module, name: str = "") -> None:
        """Plan a whole model. Raises PatternError if a pattern matches none of its modules."""
        module = unwrap(module)
        root = Root(module, name)
        modules = modules_of(root)
        patterns = self._context.settings.include, self._context.settings.exclude
        selection = select(modules, leaves_of(modules), *patterns, aliases=aliases_of(root))
        self._plan_all(root, {path: (child, selection.reason(path)) for path, child in modules.items()})
        self.plans.roots = [*(known for known in self.plans.roots if known.ref() is not None), root]
        self.send()

    def check_patterns(self, include: Sequence[Pattern]) -> None:
        """Raise PatternError if a pattern matches no module of the models that are known."""
        if any(plan.ref() is not None for plan in self.plans.live()):
            self.chosen(include, strict=True)

    def chosen(self, include: Sequence[Pattern], strict: bool = False) -> frozenset[str]:
        """Return the paths of the known modules that match a pattern."""
        modules = {plan.path: module for plan in self.plans.live() if (module := plan.ref()) is not None}
        return frozenset(select(modules, leaves_of(modules), include, strict=strict).chosen)

    def path_of(self, module: object) -> str | None:
        """Return the path of a watched module; None for anything else."""
        plan = self.plans.by_id.get(id(module))
        return plan.path if plan is not None and plan.ref() is module else None

    def plan_for_name(self, name: str) -> Plan:
        """Return a plan for a tensor that the user names. The first model says whether it is training."""
        root = self.plans.roots[0] if self.plans.roots else Root(nn.Module(), "")
        if any(plan.path == name for plan in self.plans.live()):
            name = f"{name} (observed)"  # the path of a module, whose numbers must stay separate
        module, kinds = root.ref() or nn.Module(), frozenset[Kind](("output", "output_grad"))
        plan = Plan(name, module, root, kinds, type_name="observed tensor")
        self.plans.named.append(plan)
        return plan

    def _plan_all(self, root: Root, modules: dict[str, tuple[nn.Module, str]]) -> None:
        plans = self.plans.by_id
        for path, (module, reason) in modules.items():
            key = id(module)
            if key in plans:
                continue
            self._ignored.pop(key, None)
            kinds = _NO_KINDS if reason else self._context.settings.kinds
            when_gone = partial(self._departed, key)
            plan = Plan(joined(root.name, path), module, root, kinds, reason, when_gone=when_gone)
            plans[key] = plan
            self.parameters.adopt(plan)

    # -- changes of the tree ----------------------------------------------------------------------------------------

    def check(self) -> bool:
        """Look the paths up again if a module was added, removed, renamed, wrapped, or exchanged. Return if one was."""
        if self.unsure:
            self.unsure = False
            self._gone.clear()
        changed = self.plans.changed_roots()
        for root in changed:
            with self._lock:
                self._follow(root)
        if changed:
            self.plans.changes += 1
            self.send()
        return bool(changed)

    def _follow(self, root: Root) -> None:
        """Update the plans of a model to its tree. Captured data keeps its name."""
        plans, modules = self.plans.by_id, modules_of(root)
        selection = LaterModules(self._context.settings, root)
        mine = [(key, plan) for key, plan in list(plans.items()) if plan.root is root]
        calls = self._gone | {plan.path: plan.counts.training for _, plan in mine}
        paths = {id(module): path for path, module in modules.items()}
        for key, plan in mine:
            module, path = plan.ref(), paths.get(key)
            if module is None or path is None:
                self._departed(key, None)
            elif joined(root.name, path) != plan.path:
                self._rename(plan, joined(root.name, path), selection.reason(path, module))
        self._plan_all(root, {path: (module, selection.reason(path, module)) for path, module in modules.items()})
        for plan in [plan for plan in list(plans.values()) if plan.root is root]:
            # A module that replaced another within a pass: their calls must not share a tap.
            plan.counts.continue_from(calls.get(plan.path, 0))
            if (module := plan.ref()) is not None:
                plan.follow_tree(module)

    def _rename(self, plan: Plan, path: str, reason: str) -> None:
        """Rename a module that moved in the tree. Its next values get taps of the new name."""
        self.plans.departed.append(plan.move_to(path))
        plan.choose(_NO_KINDS if reason else self._context.settings.kinds, reason)
        self.parameters.rename(plan)

    def choose(self, settings: Settings) -> Choice:
        """Return what other settings would select from the known models. Raises PatternError as `add` does.

        It only reads, so any thread can call it, even while the models run.
        """
        choice: Choice = []
        unmatched: set[str] | None = None
        everything: dict[str, nn.Module] = {}
        aliases: Aliases = {}
        patterns = settings.include, settings.exclude
        for root in self.plans.roots:
            modules = modules_of(root)
            own = aliases_of(root)
            selection = select(modules, leaves_of(modules), *patterns, strict=False, aliases=own)
            missing = set(selection.unmatched)
            unmatched = missing if unmatched is None else unmatched & missing
            everything |= modules
            aliases |= own
            plans = ((self.plans.by_id.get(id(module)), path) for path, module in modules.items())
            choice += [(plan, selection.reason(path)) for plan, path in plans if plan is not None]
        if unmatched:
            select(everything, leaves_of(everything), *patterns, aliases=aliases)
        return choice

    def rechoose(self, choice: Choice) -> None:
        """Select the modules again by the current settings, between two steps."""
        settings = self._context.settings
        self.wants_inputs = _wants_inputs(settings)
        for plan, reason in [*choice, *self._planned_since(choice)]:
            kinds = _NO_KINDS if reason else settings.kinds
            if reason and plan.path in self.plans.regions:
                kinds, reason = settings.kinds & _BOUNDARY_KINDS, ""
            plan.choose(kinds, reason)
        self.parameters.choose(settings.kinds)

    def _planned_since(self, choice: Choice) -> Choice:
        """Return modules that were added after the selection."""
        chosen = {id(plan) for plan, _ in choice}
        later = [plan for plan in self.plans.live() if id(plan) not in chosen]
        return reasons_of(later, self._context.settings)

    def paths(self) -> set[str]:
        """Return the path of every plan."""
        return {plan.path for plan in [*self.plans.live(), *self.plans.named]}

    def device(self) -> str:
        """Return where the first model's weights are, such as "cuda:3"; "" if that is unknown."""
        top = self.plans.roots[0].ref() if self.plans.roots else None
        parameter = None if top is None else next(parameters_of(top), None)
        with DisableTorchFunction():
            return "" if parameter is None else str(parameter.device)

    def make_boundary(self, plan: Plan) -> None:
        """Capture a compiled region's root even if the patterns leave it out, because it represents all inside."""
        if plan.path in self.plans.regions:
            return
        self.plans.regions.append(plan.path)
        if plan.skipped_by:
            plan.make_boundary(self._context.settings.kinds & _BOUNDARY_KINDS)

    def _departed(self, key: int, _: object) -> None:
        """Handle a removed module. Its facts are kept."""
        if "plans" not in vars(self):  # taken apart: see `Recorder.dismantle`
            return
        plan = self.plans.by_id.pop(key, None)
        if plan is not None:
            self._gone[plan.path] = plan.counts.training
            self.parameters.forget(plan)
            if plan.root.ref() is not None:
                plan.leave("no longer part of the model")
            self.plans.departed.append(plan)

    # -- finding ----------------------------------------------------------------------------------------------------

    def found(self, module: nn.Module) -> None:
        """Handle a module without a plan that is about to run: a new model, a new part of a known one, or neither."""
        if tracing_state():
            return  # a trace counts attribute reads; the module is found at its next real call
        known = self._ignored.get(id(module))
        if known is not None and known() is module:
            return
        key, ignored = id(module), self._ignored
        ignored[key] = weakref.ref(module, lambda _: ignored.pop(key, None))
        if is_dynamo_graph(module):
            return
        for root in self.plans.roots:
            top = root.ref()
            if top is not None and any(child is module for _, child in walk(top)):
                self._follow(root)
                self.send()
                return
        if self.discovers and "_is_replica" not in module.__dict__:
            with self._lock:  # two threads may find two models of one name
                self._discover(self.registrations.topmost(unwrap(module)))

    def found_owner(self, parameters: Set[int]) -> bool:
        """Watch the models that own any of these parameters, given by id. Return whether there are any."""
        before = self.plans.roots  # a new one may take the place of one that is gone
        for module in self.registrations.having(parameters):
            self.found(module)
        if self.plans.roots is before and self._searches < _MAX_SEARCHES:
            self._searches += 1
            with self._lock:
                for module in _tops_having(parameters, self.plans.by_id.keys()):
                    self._discover(module)
        return self.plans.roots is not before

    def _discover(self, top: nn.Module) -> None:
        """Watch a model that has started to run, except losses and metrics, which have no parameters."""
        if id(top) in self.plans.by_id or next(parameters_of(top), None) is None:
            return
        name = unique_root_name(type(top).__name__, {root.name for root in self.plans.roots if root.ref() is not None})
        try:
            self.add(top, name)
        except PatternError as error:
            self.refused[name] = str(error)  # the patterns were meant for another model
        else:
            self.refused.pop(name, None)  # of another model, which has an event
            self._absorb(self.plans.roots[-1])

    def _absorb(self, whole: Root) -> None:
        """Count models that ran before this one was built around them as parts of it."""
        top = whole.ref()
        inside = set() if top is None else {id(module) for _, module in walk(top)}
        parts = [root for root in self.plans.roots if root is not whole and id(root.ref()) in inside]
        if not parts:
            return
        for plan in list(self.plans.by_id.values()):
            if plan.root in parts:
                plan.root, plan.is_model = whole, False
                plan.choose(plan.kinds, plan.skipped_by)
        self.plans.roots = [root for root in self.plans.roots if root not in parts]
        self._follow(whole)
        self.plans.changes += 1
        self.send()

    # -- describing -------------------------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Send nothing more."""
        self._is_sending = False

    def send(self, coverage: Sequence[Coverage] = ()) -> None:
        """Send the modules, with the hooks of the last inventory."""
        if self._is_sending:
            self._context.sink.describe(self.records(), coverage, self.hooks)

    def records(self) -> list[ModuleRecord]:
        """Return the tree of every watched model."""
        plans = self.plans.by_id
        return [record for root in self.plans.roots for record in records_of(root, plans)]

    def coverage(self) -> list[Coverage]:
        """Return every module: captured, or why not. A model that could not be planned counts as one module."""
        boundary = self._context.settings.compiled == "boundary"
        refused = [
            Coverage(name, name.partition("#")[0], False, (), f"not watched: {why}")
            for name, why in list(self.refused.items())
        ]
        table = self._context.statistics.table
        return coverage_of(self.plans, table, boundary, self.hooks_are_on_modules) + refused

    @property
    def hooks_are_on_modules(self) -> bool:
        """Return whether compiled code calls none of our hooks."""
        return self._context.settings.attach == "module" and self._context.settings.compiled != "inside"


def _wants_inputs(settings: Settings) -> bool:
    return not settings.kinds.isdisjoint(("input", "input_grad"))
