"""The models under watch: their trees, the plan of every module, and the models that are found while they run."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from hookcore.compiled import clean_path, is_dynamo_graph, is_region, unwrap
from hookcore.config import Settings
from hookcore.errors import PatternError
from hookcore.names import select, unique_root_name
from hookcore.recorder.capture import Capture
from hookcore.recorder.parameters import Parameters
from hookcore.recorder.plans import Plan, Root
from hookcore.recorder.tree import parameters_of, walk
from hookcore.records import Coverage, Kind, ModuleRecord

Choice = list[tuple[Plan, str]]  # each plan with "", or the reason why its module is left out

_NO_KINDS: frozenset[Kind] = frozenset()
_MODULE_KINDS: frozenset[Kind] = frozenset(("output", "output_grad", "input", "input_grad"))
_BOUNDARY_KINDS: frozenset[Kind] = frozenset(("output", "output_grad"))


class Models:
    """Knows which module is which. `changed` is called whenever a model or a part of one was added."""

    def __init__(
        self, capture: Capture, parameters: Parameters, settings: Settings, changed: Callable[[], None]
    ) -> None:
        self._capture = capture
        self._parameters = parameters
        self._settings = settings
        self._changed = changed
        self.roots: list[Root] = []
        self.discovers = False  # whether models that nobody named are watched too
        self._lock = threading.RLock()
        self.refused = ""  # why a model that was found could not be planned
        self._ignored: dict[int, weakref.ref[nn.Module]] = {}
        # By identity: a module of the user's may compare or hash as it likes.
        self._owners: dict[int, tuple[weakref.ref[nn.Module], weakref.ref[nn.Module]]] = {}

    # -- planning ---------------------------------------------------------------------------------------------------

    def add(self, module: nn.Module, name: str = "") -> None:
        """Plan a whole model. Raises PatternError where a pattern matches none of its modules."""
        module = unwrap(module)
        root = Root(module, name)
        modules = _modules_of(root)
        selection = select(modules, _leaves(modules), self._settings.include, self._settings.exclude)
        self._plan_all(root, {path: (child, selection.reason(path)) for path, child in modules.items()})
        self.roots = [*(known for known in self.roots if known.ref() is not None), root]
        self._changed()

    def plan_for_name(self, name: str) -> Plan:
        """A plan for a tensor that the user names; the first model says whether it is training."""
        root = self.roots[0] if self.roots else Root(nn.Module(), "")
        if any(plan.path == name for plan in self._capture.plans.values()):
            name = f"{name} (observed)"  # a module's path: its numbers must not mix with these
        plan = Plan(name, root.ref() or nn.Module(), root, frozenset(("output", "output_grad")))
        plan.type_name = "observed tensor"
        self._capture.named.append(plan)
        return plan

    def _plan_all(self, root: Root, modules: dict[str, tuple[nn.Module, str]]) -> None:
        plans = self._capture.plans
        for path, (module, reason) in modules.items():
            key = id(module)
            if key in plans:
                continue
            self._ignored.pop(key, None)
            kinds = _NO_KINDS if reason else self._settings.kinds
            plan = Plan(_joined(root.name, path), module, root, kinds, reason)
            plan.ref = weakref.ref(module, partial(self._departed, key))
            plans[key] = plan
            self._parameters.adopt(plan)

    def choose(self, settings: Settings) -> Choice:
        """What other settings would choose of the models that are known; raises PatternError as `add` does.

        Reads only: any thread may call it, also while the models run.
        """
        choice: Choice = []
        unmatched: set[str] | None = None
        everything: dict[str, nn.Module] = {}
        for root in self.roots:
            modules = _modules_of(root)
            selection = select(modules, _leaves(modules), settings.include, settings.exclude, strict=False)
            missing = set(selection.unmatched)
            unmatched = missing if unmatched is None else unmatched & missing
            everything |= modules
            plans = ((self._capture.plans.get(id(module)), path) for path, module in modules.items())
            choice += [(plan, selection.reason(path)) for plan, path in plans if plan is not None]
        if unmatched:
            select(everything, _leaves(everything), settings.include, settings.exclude)
        return choice

    def rechoose(self, settings: Settings, choice: Choice) -> None:
        """Choose the modules anew, between two steps."""
        self._settings = settings
        for plan, reason in [*choice, *self._planned_since(choice)]:
            kinds = _NO_KINDS if reason else settings.kinds
            if reason and plan.path in self._capture.regions:
                kinds, reason = settings.kinds & _BOUNDARY_KINDS, ""
            plan.choose(kinds, reason)
        self._parameters.choose(settings.kinds)

    def _planned_since(self, choice: Choice) -> Choice:
        """Modules that came after the choice was made."""
        chosen, selection = {id(plan) for plan, _ in choice}, _Everything(self._settings)
        later = [plan for plan in list(self._capture.plans.values()) if id(plan) not in chosen]
        return [
            (plan, selection.reason("" if plan.is_root else plan.path.removeprefix(f"{plan.root.name}/"), module))
            for plan in later
            if (module := plan.ref()) is not None
        ]

    def paths(self) -> set[str]:
        """The path of every plan."""
        return {plan.path for plan in [*self._capture.plans.values(), *self._capture.named]}

    @property
    def wants_inputs(self) -> bool:
        """Whether any module's inputs are asked for."""
        return not self._settings.kinds.isdisjoint(("input", "input_grad"))

    def make_boundary(self, plan: Plan) -> None:
        """A compiled region's root is captured even where the patterns leave it out: it speaks for all inside."""
        if plan.path in self._capture.regions:
            return
        self._capture.regions.append(plan.path)
        if plan.skipped_by:
            plan.kinds = self._settings.kinds & _BOUNDARY_KINDS
            plan.wants_output = bool(plan.kinds)
            plan.skipped_by = ""

    def _departed(self, key: int, _: object) -> None:
        """A module is gone; what is known of it stays."""
        plan = self._capture.plans.pop(key, None)
        if plan is not None:
            self._capture.departed.append(plan)

    # -- finding ----------------------------------------------------------------------------------------------------

    def found(self, module: nn.Module) -> None:
        """A module without a plan is about to run: a new model, a new part of a known one, or nothing of ours."""
        if torch._C._get_tracing_state():
            return  # a trace numbers what is looked at; the module is found at its next real call
        known = self._ignored.get(id(module))
        if known is not None and known() is module:
            return
        key, ignored = id(module), self._ignored
        ignored[key] = weakref.ref(module, lambda _: ignored.pop(key, None))
        if is_dynamo_graph(module):
            return
        for root in self.roots:
            top = root.ref()
            if top is not None and any(child is module for _, child in walk(top)):
                self._extend(root, top)
                return
        if self.discovers and "_is_replica" not in module.__dict__:
            with self._lock:  # two threads may meet two models of one name
                self._discover(self._topmost(unwrap(module)))

    def _discover(self, top: nn.Module) -> None:
        """Watch a model that began to run. Losses and metrics, which own no parameter, are none."""
        if id(top) in self._capture.plans or next(parameters_of(top), None) is None:
            return
        try:
            self.add(top, unique_root_name(type(top).__name__, {root.name for root in self.roots}))
        except PatternError as error:
            self.refused = str(error)  # the patterns were meant for another model

    def _extend(self, root: Root, top: nn.Module) -> None:
        """Plan what was added to a known model after its first plan."""
        selection = _Everything(self._settings)
        modules = {clean_path(path): child for path, child in walk(top)}
        self._plan_all(root, {path: (child, selection.reason(path, child)) for path, child in modules.items()})
        self._changed()

    def _topmost(self, module: nn.Module) -> nn.Module:
        seen = {id(module)}
        while (known := self._owners.get(id(module))) is not None:
            child, owner = known[0](), known[1]()
            if child is not module or owner is None or id(owner) in seen:
                break
            seen.add(id(owner))
            module = owner
        return module

    def saw_registration(self, owner: nn.Module, name: str, child: Any) -> None:
        """torch's module registration hook: who is part of whom."""
        try:
            if isinstance(child, nn.Module) and type(owner).__name__ != "OptimizedModule":
                key, owners = id(child), self._owners
                owners[key] = (weakref.ref(child, lambda _: owners.pop(key, None)), weakref.ref(owner))
        except Exception as error:
            self._capture.failed("registration hook", error)

    # -- reading ----------------------------------------------------------------------------------------------------

    def records(self) -> list[ModuleRecord]:
        """The tree of every watched model."""
        plans = self._capture.plans
        return [record for root in self.roots for record in _tree(root, plans)]

    def coverage(self) -> list[Coverage]:
        """Every module: captured, or not and why."""
        plans = [*self._capture.departed, *self._capture.plans.values()]
        regions = list(self._capture.regions)
        if self._settings.compiled == "boundary":
            regions += [plan.path for plan in plans if (module := plan.ref()) is not None and is_region(module)]
        return [_coverage_of(plan, regions, self._capture) for plan in [*plans, *self._capture.named]]


class _Everything:
    """Selects modules that came later: the patterns hold for them, but none of them has to match."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def reason(self, path: str, module: nn.Module) -> str:
        leaves = set() if module._modules else {path}
        try:
            return select({path: module}, leaves, self._settings.include, self._settings.exclude, strict=False).reason(
                path
            )
        except PatternError:
            return "matched by no include pattern"


def _tree(root: Root, plans: Mapping[int, Plan]) -> Iterator[ModuleRecord]:
    top = root.ref()
    if top is None:
        return
    aliases: dict[int, list[str]] = {}
    for path, module in walk(top, every_path=True):
        aliases.setdefault(id(module), []).append(_joined(root.name, clean_path(path)))
    for path, module in walk(top):
        clean = clean_path(path)
        sizes = [
            (p.numel(), p.requires_grad) for p in parameters_of(module) if not isinstance(p, nn.UninitializedParameter)
        ]
        full, *others = dict.fromkeys(aliases[id(module)])
        yield ModuleRecord(
            path=full,
            type=type(module).__name__,
            parent=None if clean == "" else _joined(root.name, clean.rpartition(".")[0]),
            parameters=sum(size for size, _ in sizes),
            trainable=sum(size for size, trainable in sizes if trainable),
            aliases=tuple(others),
            shapes=_shapes_of(module, plans.get(id(module))),
        )


def _shapes_of(module: nn.Module, plan: Plan | None) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Of its own parameters, and of what went in and came out first."""
    known: dict[str, tuple[int, ...]] = {}
    for name, parameter in dict(module._parameters).items():
        if parameter is not None and not isinstance(parameter, nn.UninitializedParameter):
            known[name] = tuple(parameter.shape)
    return (*known.items(), *(dict(plan.shapes).items() if plan else ()))


def _modules_of(root: Root) -> dict[str, nn.Module]:
    top = root.ref()
    return {} if top is None else {clean_path(path): child for path, child in walk(top)}


def _leaves(modules: dict[str, nn.Module]) -> set[str]:
    return {path for path, child in modules.items() if not child._modules}


def _joined(root: str, path: str) -> str:
    return f"{root}/{path}" if root and path else root or path


def _coverage_of(plan: Plan, regions: list[str], capture: Capture) -> Coverage:
    slots = {key: slot for key, slot in plan.taps.items() if slot >= 0 and key[0] in plan.kinds}
    filled = {key[0] for key, slot in slots.items() if capture.numbers[slot] in capture.filled}
    reasons = list(plan.reasons)
    if "output" in filled and "output_grad" not in filled and any(key[0] == "output_grad" for key in slots):
        reasons.append("no gradient came: its output is unused, detached, or a view that was changed in place")
    reason = plan.skipped_by or "; ".join(reasons)
    if not reason and not plan.seen:
        reason = _why_unseen(plan, regions)
    elif not reason and not filled:
        reason = "no step has ended since it ran"
    # A module whose parameters alone were seen is not captured where its activations were asked for.
    asked = plan.kinds & _MODULE_KINDS or plan.kinds
    return Coverage(plan.path, plan.type_name, not filled.isdisjoint(asked), tuple(sorted(filled)), reason)


def _why_unseen(plan: Plan, regions: list[str]) -> str:
    for path in regions:
        if path != plan.path and (path == "" or plan.path.startswith(f"{path}.")):
            return f"inside the compiled region {path or '(the whole model)'}, whose boundary is captured"
    return "never called (or by .forward(), which no hook sees)"
