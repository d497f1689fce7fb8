"""This process among the ranks of a training, and which rows of a frame repeat the values of another rank."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hookcore.delivery.facts import completed, place_by_launcher, place_in_group
from hookcore.hooks.checks import parameters_of, walk
from hookcore.hooks.distributed import reduces_whole_group
from hookcore.hooks.internals import default_store
from hookcore.recorder.calls.plans import Plan
from hookcore.recorder.context import Context
from hookcore.recorder.known.roots import Root
from hookcore.recorder.measured.statistics import Layout, axes_of, is_shard
from hookcore.records import ACTIVATION_KINDS, GRADIENT_KINDS, PARAMETER_KINDS, UNKNOWN_OWNER, Kind, Tap

if TYPE_CHECKING:
    from hookcore.records.wire import Place

# This process among the ranks of a distributed training. Nothing here waits for another rank or sends it anything.

MAX_AXES: Final = 16
_HAS_GROUPS: Final = dist.is_available()


class Ranks:
    """The place of this process, as far as it is known. The process group may be created long after the watch."""

    def __init__(self, watch: str = "") -> None:
        self._watch = watch
        self.axes: dict[str, tuple[int, int]] = {}  # replaced, never changed, as other threads read it
        self.place: Place | None = place_by_launcher(watch)
        self._decided = self.place is not None
        self._sent = self.look()

    def look(self) -> Place | None:
        """Return the place if it is known by now."""
        if not self._decided:
            rank, world = rank_and_world()
            if world > 1:
                self._decided, self.place = True, place_in_group(self._watch, rank, world, meeting())
        return self.place

    def news(self, device: Callable[[], str]) -> Place | None:
        """Return the place if more of it is known than at the last call. `device` says where the model is, or ""."""
        place = self.look()
        if place is not None and (not place.device or self.axes != place.axes):
            place = self.place = completed(place, device(), self.axes)
        if place == self._sent:
            return None
        self._sent = place
        return place

    def saw_axes(self, axes: dict[str, tuple[int, int]]) -> None:
        """Add axes of a device mesh: this rank's coordinate on each, and its size."""
        if not axes.items() <= self.axes.items():
            merged = axes | self.axes
            self.axes = dict(list(merged.items())[:MAX_AXES])


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank in the default process group, and the number of ranks; (0, 1) without a group."""
    try:
        if _HAS_GROUPS and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
    except (RuntimeError, ValueError):  # the training destroys it at this moment
        pass
    return 0, 1


def meeting() -> tuple[str, ...]:
    """Return where the processes of the default group met, or nothing if that is unknown. Asks only this process."""
    try:
        store = default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if hasattr(store, "host"):
            return "tcp", str(store.host), str(store.port)
        if hasattr(store, "path"):
            return "file", str(store.path)
    except Exception:
        pass
    return ()


_NONE: Final = np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class _Reducer:
    """A `DistributedDataParallel`, and the tensors that it keeps equal on the ranks of its group."""

    ref: weakref.ref[DistributedDataParallel]
    owner: int
    ranks: int
    parameters: set[int]  # by id
    modules: set[int]  # by id
    syncs: bool  # whether ranks also wait for each other in the forward pass
    gradients: list[int] = field(default_factory=list)  # slots
    weights: list[int] = field(default_factory=list)  # slots of parameters and their updates

    @property
    def reduces(self) -> bool:
        """Whether it reduces gradients over its group, as far as is known."""
        module = self.ref()
        return module is not None and reduces_whole_group(module)

    @property
    def local(self) -> list[int]:
        """The slots whose values may differ between its ranks."""
        module = self.ref()
        if not self.reduces:
            return self.gradients + self.weights
        # Its last training pass leaves each rank its own gradients under `no_sync`.
        return [] if module is not None and module.require_forward_param_sync else self.gradients


@dataclass(slots=True)
class _Tree:
    """The facts that one model's parameters show."""

    is_sharded: bool = False  # whether torch has split any of them
    largest: int = 0  # mesh, in ranks
    splits_batch: bool = False  # whether they are split by `fully_shard`, and only by it


_NO_TREE: Final = _Tree()


class Replicas:
    """Decides per row. Everything is called by the training thread."""

    def __init__(self, context: Context, ranks: Ranks) -> None:
        self._plans, self._errors, self._ranks = context.plans, context.errors, ranks
        self._table, self._shards = context.statistics.table, context.statistics.shards
        self._state: tuple[object, ...] = ()
        self._owners = _NONE  # by slot; replaced, never changed
        self._reducers: list[_Reducer] = []
        self._trees: dict[int, _Tree] = {}  # by id of the root
        self._by_path: dict[str, Plan] = {}

    def owners(self) -> NDArray[np.int32] | None:
        """Return the owner of each slot's values, or None if this process is alone or its place is not known."""
        place = self._ranks.look()
        if place is None:
            return None
        try:
            return self._decide(place)
        except Exception as error:  # never a reason to lose a frame
            self._errors.record("owners of rows", error)
            return np.full(len(self._table.taps), UNKNOWN_OWNER, np.int32)

    @property
    def is_alone(self) -> bool:
        """Whether this process is no known rank of a training."""
        return self._ranks.look() is None

    @property
    def only_reduces(self) -> bool:
        """Whether ranks wait for each other when gradients are reduced, and nowhere else, as far as is known."""
        if not self._reducers or any(tree.is_sharded for tree in self._trees.values()):
            return False
        return not any(reducer.syncs for reducer in self._reducers)

    @property
    def reduces(self) -> bool:
        """Whether gradients are reduced over all ranks of their groups, as far as is known."""
        return all(reducer.reduces for reducer in self._reducers)

    def reducing(self) -> Iterator[DistributedDataParallel]:
        """Yield the modules that reduce gradients."""
        for reducer in self._reducers:
            if (module := reducer.ref()) is not None:
                yield module

    def _decide(self, place: Place) -> NDArray[np.int32]:
        roots = {id(root): root for root in self._plans.roots}
        state = (len(self._plans.by_id), self._shards.version, *map(_state_of, roots.values()))
        if state != self._state:
            self._state = state
            self._look_again(roots)
        known, count = len(self._owners), len(self._table.taps)
        if known < count:
            fresh = [self._owner(slot, self._table.taps[slot], place) for slot in range(known, count)]
            self._owners = np.concatenate([self._owners, np.array(fresh, np.int32)])
        local = [slot for reducer in self._reducers for slot in reducer.local]
        if not local:
            return self._owners
        owners: NDArray[np.int32] = self._owners.copy()
        owners[local] = UNKNOWN_OWNER
        return owners

    def _look_again(self, roots: dict[int, Root]) -> None:
        self._owners = _NONE
        self._by_path = {plan.path: plan for plan in [*self._plans.named, *self._plans.live()]}
        self._reducers = [_reducer_of(module) for module in self._find_reducers(roots)]
        self._trees = {key: self._tree_of(root) for key, root in roots.items()}
        for module in self.reducing():
            if (mesh := getattr(module, "device_mesh", None)) is not None:
                self._ranks.saw_axes(axes_of(mesh))

    def _find_reducers(self, roots: dict[int, Root]) -> Iterator[DistributedDataParallel]:
        found: dict[int, Any] = {}
        around = [wrapper() for root in roots.values() for wrapper in root.wrappers]
        for module in [*around, *(plan.ref() for plan in self._plans.live())]:
            if isinstance(module, DistributedDataParallel):
                found[id(module)] = module
        yield from found.values()

    def _tree_of(self, root: Root) -> _Tree:
        tree, module = _Tree(), root.ref()
        if module is None:
            return tree
        layouts = [self._shards.layout_of(parameter) for parameter in parameters_of(module) if is_shard(parameter)]
        for layout in layouts:
            self._ranks.saw_axes(layout.axes)
        tree.is_sharded = bool(layouts)
        tree.largest = max((layout.ranks for layout in layouts), default=0)
        by_torch = any(_is_fully_sharded(child) for _, child in walk(module))
        tree.splits_batch = by_torch and all(layout.splits_batch for layout in layouts)
        return tree

    def _owner(self, slot: int, tap: Tap, place: Place) -> int:
        plan = self._by_path.get(tap.module)
        module = None if plan is None else plan.ref()
        if plan is None or module is None:
            return UNKNOWN_OWNER
        tree, layout = self._trees.get(id(plan.root), _NO_TREE), self._shards.by_slot.get(slot)
        if layout is not None:
            return layout.owner if _is_whole(layout, tree, place.world, tap.kind) else UNKNOWN_OWNER
        if tap.kind in PARAMETER_KINDS:
            return self._owner_of_parameter(slot, tap, module._parameters.get(tap.index.partition(".")[0]))
        if tap.kind not in ACTIVATION_KINDS:
            return UNKNOWN_OWNER
        reduced = any(reducer.ranks == place.world and id(module) in reducer.modules for reducer in self._reducers)
        own = tree.splits_batch or (reduced and not tree.is_sharded)
        return place.rank if own else UNKNOWN_OWNER

    def _owner_of_parameter(self, slot: int, tap: Tap, parameter: Tensor | None) -> int:
        for reducer in self._reducers:
            if id(parameter) in reducer.parameters:
                (reducer.gradients if tap.kind in GRADIENT_KINDS else reducer.weights).append(slot)
                return reducer.owner
        return UNKNOWN_OWNER


def _state_of(root: Root) -> tuple[object, ...]:
    """Return what changes when a model is wrapped or split; `fully_shard` gives it another class."""
    return id(root), tuple(id(wrapper()) for wrapper in root.wrappers), type(root.ref())


def _reducer_of(module: DistributedDataParallel) -> _Reducer:
    ranks = dist.get_process_group_ranks(module.process_group)
    ignored = module.parameters_to_ignore
    names = module.module.named_parameters(remove_duplicate=False)
    parameters = {id(parameter) for name, parameter in names if name not in ignored}
    inside = [child for _, child in walk(module)]
    syncs = any(isinstance(child, nn.SyncBatchNorm) for child in inside)
    return _Reducer(weakref.ref(module), min(ranks), len(ranks), parameters, {id(child) for child in inside}, syncs)


def _is_whole(layout: Layout, tree: _Tree, world: int, kind: Kind) -> bool:
    """Return whether no rank outside of the tensor's mesh can hold the same values.

    `fully_shard` repeats a parameter only on axes of its own mesh; if the model is also split in other ways, only the
    largest mesh has all axes.
    """
    if layout.ranks == world:
        return True
    return kind in PARAMETER_KINDS and tree.splits_batch and layout.ranks == tree.largest


def _is_fully_sharded(module: nn.Module) -> bool:
    return any(each.__name__ == "FSDPModule" for each in type(module).__mro__)
