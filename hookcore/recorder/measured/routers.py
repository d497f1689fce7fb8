"""Routers of mixtures of experts: which modules choose experts, and how the tokens of a step are spread over them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcore.config.patterns import select
from hookcore.errors import ArgumentError
from hookcore.hooks.checks import walk
from hookcore.observe.plain import make_plain, unseen
from hookcore.observe.reference import wide_type
from hookcore.recorder.calls.plans import Call, Plan
from hookcore.recorder.context import Context
from hookcore.recorder.measured.snapshots import ChannelColumns
from hookcore.records import PROBE, Tap
from hookcore.records.vocabulary import EXPERT_DROPPED, EXPERT_LOAD, EXPERT_OWNED, ROUTER_ENTROPY

# A router is found by its structure: it is next to its experts, and has a weight with a row for each of them.

MAX_EXPERTS: Final = 4096
MAX_ROUTERS: Final = 1024
_MAX_PARTS: Final = 8  # modules in a router
_CHOICES: Final = (  # what models call the number of experts that a token chooses
    *("top_k", "topk", "moe_top_k", "num_experts_per_tok", "n_activated_experts", "num_selected_experts"),
)
# Or of groups, of which only some are chosen from.
_GROUPS: Final = ("n_group", "num_group", "num_groups", "n_groups", "num_expert_group")
_AXES: Final = frozenset(("ep", "expert", "expert_parallel"))  # what the axis of a mesh is called that splits experts
UNOWNED: Final = "which of its experts this rank has isn't known, so the loads of ranks aren't compared"
UNKNOWN: Final = (
    "its choice of experts isn't known: its output has neither the numbers of experts nor a mask, and nothing says "
    "that it chooses the largest logits. Pass the module to watcher.router(module, top_k=...)"
)
UNSEEN: Final = "its choice of experts isn't known: in a compiled graph, the tensors of its output come one by one"
TOO_MANY: Final = f"its choice of experts isn't counted: there are more than {MAX_EXPERTS:,} experts"


class Router(NamedTuple):
    """A module that may choose experts. `top_k`: how many a token chooses, if it's the largest logits that decide."""

    experts: int
    top_k: int | None
    parts: tuple[nn.Module, ...] = ()  # the experts, if each is a module
    is_sure: bool = True  # whether more than its structure says so
    owned: range | None = None  # the experts that this rank has, if it has some of them, and which is known
    is_split: bool = False  # whether it has only some of them


class _Experts(NamedTuple):
    """Experts that a module has."""

    number: int
    widths: frozenset[int]  # of what they may take
    parts: tuple[nn.Module, ...] = ()


def routers_in(block: nn.Module) -> Iterator[tuple[nn.Module, Router]]:
    """Yield the routers among a module's children, by what is next to them."""
    children = [child for child in list(block._modules.values()) if child is not None]
    known = [_experts_in(child) for child in children]
    found = [
        (child, router)
        for child, experts in zip(children, known, strict=True)
        if experts is None and (router := _router_of(block, child, [each for each in known if each is not None]))
    ]
    for child, router in found:  # if several have as many outputs, such as a head, the output must say more
        local, owned = vars(block).get("num_local_experts"), _owned_by(block, router.experts)
        is_split = owned is not None or (type(local) is int and local < router.experts)
        only = router if len(found) == 1 else Router(router.experts, None, is_sure=False)
        yield child, only._replace(owned=owned, is_split=is_split)


def _owned_by(block: nn.Module, experts: int) -> range | None:
    """Return the experts that this rank has, as Megatron lists them, or as a mesh of ranks says."""
    known = vars(block).get("local_expert_indices")
    if isinstance(known, list | tuple) and 0 < len(known) < experts and all(type(each) is int for each in known):
        owned = range(known[0], known[0] + len(known))
        return owned if list(known) == list(owned) and owned.start >= 0 and owned.stop <= experts else None
    stacked = (each for child in list(block._modules.values()) if child is not None for each in _own(child))
    for weight in stacked:
        placements, mesh = getattr(weight, "placements", ()), getattr(weight, "device_mesh", None)
        if mesh is None or weight.dim() < 3 or weight.shape[0] != experts:
            continue
        axes = [axis for axis, name in enumerate(mesh.mesh_dim_names or ()) if name in _AXES]
        if len(axes) == 1 and placements[axes[0]].is_shard(0) and experts % mesh.size(axes[0]) == 0:
            many = experts // mesh.size(axes[0])
            first = mesh.get_local_rank(axes[0]) * many
            return range(first, first + many) if many < experts else None
    return None


def _router_of(block: nn.Module, module: nn.Module, beside: Sequence[_Experts]) -> Router | None:
    """Return what a module chooses from, if it is a router."""
    local = vars(block).get("num_local_experts")  # of one rank, as in Megatron
    for rows, width in _matrices_of(module):
        for experts in beside:
            if rows == experts.number and width in experts.widths:
                said = _said_of(block, module, rows)
                is_largest = said is not None and not experts.parts and _chooses_largest(block, module, rows)
                return Router(rows, said if is_largest else None, experts.parts, said is not None)
        if type(local) is int and local > 0 and rows % local == 0:
            return Router(rows, None, is_sure=False)
    return None


def router_of(module: nn.Module, experts: int | None, top_k: int | None) -> Router:
    """Return what a user says about a router. Raises ArgumentError if the number of experts isn't clear."""
    for name, given in (("experts", experts), ("top_k", top_k)):
        if given is not None and (type(given) is not int or given < 1):
            raise ArgumentError(f"{name}={given!r} is invalid: use an integer of 1 or more, or None")
    rows = {count for count, _ in _matrices_of(module)}
    if experts is None and len(rows) != 1:
        raise ArgumentError(
            f"the number of experts of {type(module).__name__} isn't clear: its weights have "
            f"{' or '.join(map(str, sorted(rows))) or 'no'} rows. Give it: watcher.router(module, experts=8)"
        )
    count = experts or rows.pop()
    if not 2 <= count <= MAX_EXPERTS or (top_k or 1) > count:
        raise ArgumentError(
            f"experts={count} with top_k={top_k} is invalid: use 2 to {MAX_EXPERTS:,} experts, and at most as many "
            "choices"
        )
    return Router(count, top_k)


def _experts_in(module: nn.Module) -> _Experts | None:
    """Return the experts of a module: stacked in its weights, or as a list of modules; None if it has none."""
    stacked = [each for each in _own(module) if each.dim() >= 3]
    counts = {each.shape[0] for each in stacked}
    if len(counts) == 1 and max(counts) > 1 and not type(module).__module__.startswith("torch.nn."):
        return _Experts(counts.pop(), frozenset(size for each in stacked for size in each.shape[1:]))
    for each in (module, *(child for child in list(module._modules.values()) if child is not None)):
        parts = [part for part in list(each._modules.values()) if part is not None]
        is_list = isinstance(each, (nn.ModuleList, nn.ModuleDict)) and not each._parameters
        if is_list and len(parts) > 1 and len({type(part) for part in parts}) == 1:
            widths = (weight.shape[-1] for _, part in walk(parts[0]) for weight in _own(part) if weight.dim() == 2)
            return _Experts(len(parts), frozenset(islice(widths, 1)), tuple(parts))
    return None


def _own(module: nn.Module) -> list[nn.Parameter]:
    """Return a module's own parameters, without those of a lazy module, which have no shape yet."""
    return [each for each in list(module._parameters.values()) if each is not None and not is_lazy(each)]


def _matrices_of(module: nn.Module) -> Iterator[tuple[int, int]]:
    """Yield the rows and columns of the matrices of a small module."""
    parts = [child for _, child in walk(module)]
    for part in parts if len(parts) <= _MAX_PARTS else ():
        for parameter in _own(part):
            if parameter.dim() == 2 and parameter.shape[0] > 1:
                yield int(parameter.shape[0]), int(parameter.shape[1])


def _said_of(block: nn.Module, router: nn.Module, experts: int) -> int | None:
    """Return how many experts a token chooses, as an attribute says; None if none does."""
    found = (vars(owner).get(name) for owner in (router, block) for name in _CHOICES)
    return next((each for each in found if type(each) is int and 1 <= each <= experts), None)


def _chooses_largest(block: nn.Module, router: nn.Module, experts: int) -> bool:
    """Return whether neither a bias that balances the load nor groups speak against a choice of the largest logits."""
    for owner in (router, block):
        biases = (buffer for buffer in list(owner._buffers.values()) if buffer is not None)
        groups = (vars(owner).get(name) for name in _GROUPS)
        if any(buffer.shape == (experts,) for buffer in biases) or any(type(n) is int and n > 1 for n in groups):
            return False
    return True


# What a call's output says.


_INTEGERS: Final = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))


class Choice(NamedTuple):
    """How many tokens chose each expert, what a router could choose at most, and its logits or probabilities."""

    counts: Tensor | None  # [expert]; None if the output doesn't say it
    offered: Tensor | None  # None if no choice can have been dropped, as far as the output shows
    logits: Tensor | None  # [token, expert]


def choice_of(router: Router, tensors: Sequence[Tensor]) -> Choice:
    """Read which experts a call has chosen from its outputs. Waits for no device."""
    wide = [each for each in tensors if each.dim() > 1]
    with_row = [each for each in wide if each.shape[-1] == router.experts]
    logits = [each.reshape(-1, router.experts) for each in with_row if each.is_floating_point()]
    masks = [each for each in with_row if each.dtype == torch.bool] or [
        each for each in with_row if each.dtype in _INTEGERS and router.top_k != router.experts
    ]
    if masks and len(logits) < 2:
        mask = masks[0].reshape(-1, router.experts)
        has_logits = logits and masks[0].dtype != torch.bool  # with a mask of this type, they are masked, too
        kept = mask.sum(dim=0, dtype=wide_type(mask.device))
        most = mask.sum(dim=1).amax() * len(mask) if len(mask) else kept.sum()
        return Choice(kept, most, logits[0] if has_logits else None)
    last = logits[-1] if logits else None
    indices = [each for each in wide if each.dtype in _INTEGERS and each.shape[-1] <= router.experts]
    if indices and not masks:
        return Choice(_counted(indices[0], router.experts), None, last)
    if last is not None and router.top_k is not None:
        return Choice(_counted(last.topk(router.top_k, dim=-1).indices, router.experts), None, last)
    return Choice(None, None, last)


def _counted(indices: Tensor, experts: int) -> Tensor:
    """Count indices. Those of no expert, which stand for "none", don't count."""
    flat = indices.reshape(-1).long()  # "none" may be too large for the type of indices
    flat = torch.where((flat < 0) | (flat > experts), experts, flat)
    if flat.is_cpu:
        return torch.bincount(flat, minlength=experts + 1)[:experts].to(torch.float64)
    # Deterministic, and without a wait, unlike `bincount` on a GPU.
    edges = torch.arange(experts + 1, device=flat.device, dtype=flat.dtype)
    return torch.searchsorted(flat.sort().values, edges).diff().to(wide_type(flat.device))


def entropy_of(logits: Tensor) -> Tensor:
    """Return the sum over tokens of the entropy of their probabilities, as a share of the largest possible."""
    if not logits.numel():
        return logits.new_zeros((), dtype=wide_type(logits.device))
    wide = logits.float()
    sums = (wide.sum(dim=-1) - 1).abs().amax() < 1e-2
    probabilities = torch.where(sums & (wide.amin() >= 0), wide, wide.softmax(dim=-1))
    entropy: Tensor = torch.special.entr(probabilities).sum(dtype=wide_type(wide.device)) / math.log(logits.shape[-1])
    return entropy


# The observer.

ROUTERS_EVERY: Final = 10  # steps


@dataclass(slots=True)
class _Sums:
    """What a router has chosen in this step."""

    plan: Plan
    rows: list[int]  # that each expert was called with, if each is a module
    counts: Tensor | None = None
    offered: Tensor | None = None
    entropy: Tensor | None = None
    tokens: int = 0  # with logits

    def add(self, choice: Choice) -> None:
        """Add a call."""
        self.counts, self.offered = _sum(self.counts, choice.counts), _sum(self.offered, choice.offered)
        if choice.logits is not None:
            self.entropy = _sum(self.entropy, entropy_of(choice.logits))
            self.tokens += len(choice.logits)

    def chosen(self) -> Tensor | None:
        """Return how many tokens chose each expert; None if nothing shows it."""
        if self.counts is not None or len(set(self.rows)) == 1:
            return self.counts  # or all experts got as many rows: all tokens, or a capacity that is filled up
        return torch.tensor(self.rows, dtype=torch.float64)


def _sum(known: Tensor | None, more: Tensor | None) -> Tensor | None:
    return more if known is None else known if more is None else known + more


class Routers:
    """Counts the choices of routers: an observer of calls in the first captured step of every ten."""

    wants_inputs = False

    def __init__(self, context: Context, channels: ChannelColumns) -> None:
        self._context, self._plans, self._statistics = context, context.plans, context.statistics
        self._current, self._channels = context.current, channels
        self.due = False
        self.due_at = 0  # the first captured step from this one on
        self._given: dict[int, tuple[weakref.ref[nn.Module], Router]] = {}  # by the user
        self._routers: dict[int, tuple[Plan, Router]] = {}  # by the id of the plan, which it keeps
        self._parts: dict[int, tuple[Plan, int]] = {}  # by the id of the plan of an expert: its router, and its number
        self._looked_at: object = None
        self._sums: dict[int, _Sums] = {}

    def add(self, module: nn.Module, router: Router) -> bool:
        """Take a module as a router. Return False if it isn't part of a watched model."""
        if id(module) not in self._plans.by_id:
            return False
        self._given[id(module)] = weakref.ref(module), router
        self._looked_at, self.due_at = None, 0
        return True

    def begin_step(self, step: int, captured: bool) -> bool:
        """Choose whether to look at a step. Return whether that changed who observes calls."""
        before, self.due = self.due, False
        self._sums = {}
        if captured and step >= self.due_at and "train" in self._statistics.phases:
            self._find()
            self.due = bool(self._routers)
            self.due_at = step + ROUTERS_EVERY if self.due else 0
        return before or self.due

    @property
    def next_at(self) -> float:
        """The next step to look at; infinite if no router is known."""
        return self.due_at if self._routers else math.inf

    def _search(self, block: nn.Module) -> list[tuple[nn.Module, Router]]:
        """Return the routers among a module's children. What a class of the user answers must not end the training."""
        try:
            return list(routers_in(block))
        except Exception as error:
            self._context.errors.record("search for routers", error)
            return []

    def _find(self) -> None:
        """Look for routers if models have changed."""
        plans, settings = self._plans, self._context.settings
        now = len(plans.by_id), plans.changes, plans.roots, settings.exclude
        if now == self._looked_at:
            return
        self._looked_at = now
        modules = [module for plan in plans.live() if (module := plan.ref()) is not None]
        found = [(id(module), router) for block in modules for module, router in self._search(block)][:MAX_ROUTERS]
        given = [(key, router) for key, (ref, router) in self._given.items() if ref() is not None]
        self._routers, self._parts = {}, {}
        for key, router in [*found, *given]:
            plan = plans.by_id.get(key)
            module = None if plan is None else plan.ref()
            if plan is None or module is None or _is_excluded(plan, module, settings.exclude):
                continue
            if router.experts > MAX_EXPERTS:
                plan.note_reason(TOO_MANY)
                continue
            self._routers[id(plan)] = plan, router._replace(parts=())  # which would live as long
            parts = ((number, plans.by_id.get(id(part))) for number, part in enumerate(router.parts))
            self._parts |= {id(part): (plan, number) for number, part in parts if part is not None}

    # Calls

    def wants(self, plan: Plan) -> bool:
        """Return whether it is a router, or one of the experts of a router."""
        return self.due and (id(plan) in self._routers or id(plan) in self._parts)

    def saw_inputs(self, call: Call) -> None:
        """Do nothing: outputs say what was chosen."""

    def saw_outputs(self, call: Call) -> None:
        """Count what a router has chosen. What a checkpoint repeats is counted already."""
        if not self.due or call.again or call.phase != "train":
            return
        plan, number = self._parts.get(id(call.plan), (call.plan, -1))
        _, router = self._routers.get(id(plan), (plan, None))
        if router is None:
            return
        if call.traced:
            plan.note_reason(UNSEEN)
            return
        sums = self._sums.setdefault(id(plan), _Sums(plan, [0] * router.experts))
        with unseen():
            plain = [each for _, tensor in call.tensors if isinstance(each := _plain(tensor), Tensor)]
            if number < 0:
                sums.add(choice_of(router, plain))
            elif plain:
                sums.rows[number] += plain[0].shape[:-1].numel()

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Do nothing."""

    # The end of a step

    def end_step(self) -> None:
        """Add the numbers of the step to the rows of its routers."""
        held, self._sums = self._sums, {}
        for sums in held.values():
            with unseen():
                self._add_all(sums)
        if held:
            self._channels.end_step()

    def _add_all(self, sums: _Sums) -> None:
        counts = sums.chosen()
        if counts is None:
            if self._routers[id(sums.plan)][1].is_sure:
                sums.plan.note_reason(UNKNOWN)
            return
        if sums.entropy is not None and sums.tokens:
            self._add(sums.plan, ROUTER_ENTROPY, sums.entropy / sums.tokens)
        router = self._routers[id(sums.plan)][1]
        if router.owned is not None:
            self._add(sums.plan, EXPERT_OWNED, torch.tensor(router.owned, dtype=torch.float64))
        elif router.is_split:
            sums.plan.note_reason(UNOWNED)
        total = counts.sum()
        tap = self._add(sums.plan, EXPERT_LOAD, counts / total.clamp(min=1))
        if tap is not None:
            self._channels.note(tap, self._current.number, len(counts), counts.float())
        if sums.offered is not None:
            self._add(sums.plan, EXPERT_DROPPED, 1 - total / sums.offered.clamp(min=1))

    def _add(self, plan: Plan, name: str, values: Tensor) -> Tap | None:
        tap = Tap(plan.path, PROBE, name)
        slot = self._statistics.table.add(tap)
        if slot < 0:
            return None
        self._statistics.add(plan, values, slot)
        return tap


def _plain(tensor: Tensor) -> Tensor | str:
    """Return a tensor whose values can be counted, or why there is none."""
    if tensor.is_floating_point() or type(tensor) is not Tensor:
        return make_plain(tensor.detach())
    return tensor.detach()


def _is_excluded(plan: Plan, module: nn.Module, exclude: Any) -> bool:
    leaves = set() if module._modules else {plan.path}
    return bool(exclude and select({plan.path: module}, leaves, (), exclude, strict=False).reason(plan.path))
