"""A model's weights and buffers: as they are, and as they were when one of the last calls on a device began."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from hookcore.hooks.internals import is_wrapped, version_of
from hookcore.observe.copies import Standing

SMALL_BYTES: Final = 1 << 16  # of a buffer: the operator of BatchNorm changes its own without counting versions
STATISTICS: Final = ("running_mean", "running_var", "num_batches_tracked")
_PLAIN: Final = frozenset((Tensor, nn.Parameter))


class Members:
    """A model's weights and buffers, found through its modules, so that nothing is kept alive.

    A weak reference to a weight would make `torch.utils.swap_tensors` raise.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.named_modules())
        self._modules = [(path, weakref.ref(module)) for path, module in modules]
        self._weights = list(_places(modules, lambda module: module.named_parameters(recurse=False)))
        self._buffers = list(_places(modules, lambda module: module.named_buffers(recurse=False)))

    def weights(self) -> list[Tensor | None]:
        """Return the weights as they are now; None for one that is gone."""
        try:
            return [ref().__dict__["_parameters"].get(name) for _, ref, name in self._weights]
        except (AttributeError, KeyError):  # a module that is gone, or a scripted one
            return [_member(ref(), "_parameters", name) for _, ref, name in self._weights]

    def first_weight(self) -> Tensor | None:
        """Return the first weight, which is usually where the others are."""
        _, ref, name = self._weights[0] if self._weights else ("", lambda: None, "")
        return _member(ref(), "_parameters", name)

    def named_weights(self) -> list[tuple[str, Tensor]]:
        """Return the weights that are there now, by path. Tied ones have several."""
        weights = self.weights()
        return [(path, each) for (path, _, _), each in zip(self._weights, weights, strict=True) if each is not None]

    def modes(self) -> list[tuple[str, bool]]:
        """Return which modules are in training mode now."""
        return [(path, module.training) for path, ref in self._modules if (module := ref()) is not None]

    def versions(self) -> list[tuple[int, int]]:
        """Return a state that differs if a weight is changed or replaced."""
        return [state_of(weight) for weight in self.weights()]

    def buffers(self, that_count: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Return the buffers as they are now; of those that count, no result depends on the others.

        The others are the running statistics of batch norms in training mode.
        """
        for path, ref, name in self._buffers:
            module = ref()
            skips = that_count and name in STATISTICS and module is not None and is_tracking(module, module.training)
            if not skips and (buffer := _member(module, "_buffers", name)) is not None:
                yield path, buffer


def state_of(tensor: Tensor | None) -> tuple[int, int]:
    """Return a state that differs if a tensor is changed in place or replaced: its identity and version counter."""
    return (0, -1) if tensor is None else (id(tensor), version_of(tensor))


def _places(
    modules: Iterable[tuple[str, nn.Module]], members: Callable[[nn.Module], Iterable[tuple[str, Tensor]]]
) -> Iterator[tuple[str, weakref.ref[nn.Module], str]]:
    """Yield the path of each weight or buffer, its module, and its name there."""
    for path, module in modules:
        for name, _ in members(module):
            yield f"{path}.{name}" if path else name, weakref.ref(module), name


def _member(module: nn.Module | None, table: str, name: str) -> Tensor | None:
    # A user's module may compute any attribute; a scripted one has no usual dictionary.
    known = getattr(module, table, None)
    found = known.get(name) if type(known) is dict else getattr(module, name, None)
    return found if isinstance(found, Tensor) else None


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the memory that tensors take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


_NORMS: Final = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)


def is_tracking(module: nn.Module, is_training: bool) -> bool:
    """Return whether a module is a batch norm that changes its running statistics in training mode."""
    return is_training and isinstance(module, _NORMS) and module.track_running_stats


# How a model was when a call began, on a device that tells late whether the call was finite.


def check_plain(sources: Iterable[Tensor]) -> None:
    """Raise NotCopiedError for a tensor whose class may keep its values elsewhere."""
    for source in sources:
        if type(source) not in _PLAIN or source.layout is not torch.strided or is_wrapped(source):
            text = f"one of its weights is a {type(source).__name__}, which isn't copied"
            raise NotCopiedError(Reason("tensor-class", text))


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a step can't be repeated: a word for programs, and a sentence."""

    code: str
    text: str


class NotCopiedError(Exception):
    """A model's weights can't be copied."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


class Slot:
    """Memory for the copies of one model's weights, and the entries that use it."""

    __slots__ = ("copies", "ids", "shapes", "users")

    def __init__(self, sources: list[Tensor]) -> None:
        self.ids, self.shapes = [id(source) for source in sources], [source.shape for source in sources]
        self.copies = Standing(sources)
        self.users: weakref.WeakSet[AtEntry] = weakref.WeakSet()

    def fits(self, sources: list[Tensor]) -> bool:
        """Return whether it is of these tensors."""
        ids, shapes = [id(source) for source in sources], [source.shape for source in sources]
        return self.ids == ids and self.shapes == shapes


class AtEntry:
    """A model as it was when a call began: what its steps change as copies, the rest by version.

    Whoever holds it keeps the copies. Once nobody does, another call uses their memory.
    """

    __slots__ = ("__weakref__", "_copied", "_places", "_rest", "_slot", "_states", "_updates", "modes")

    def __init__(self, members: Members, updates: int) -> None:
        self.modes = members.modes()
        self._updates = updates  # of any weights by optimizers, before the call
        self._copied: list[tuple[str, int]] = []  # path, and id of what was copied
        self._places: dict[int, int] = {}  # among the copies, by that id
        self._states: list[tuple[int, int]] = []
        self._rest: list[tuple[str, tuple[int, int]]] = []
        self._slot: Slot | None = None

    def sources(self, members: Members) -> list[Tensor]:
        """Note the versions of all tensors. Return those to copy, each once."""
        found: list[Tensor] = []
        places, copied = self._places, self._copied
        for path, each in members.named_weights():
            if each.requires_grad:
                key = id(each)
                if key not in places:
                    places[key] = len(found)
                    found.append(each)
                copied.append((path, key))
            else:
                self._rest.append((path, state_of(each)))
        for path, each in members.buffers(that_count=True):
            if bytes_of((each,)) > SMALL_BYTES:
                self._rest.append((path, state_of(each)))
            elif (key := id(each)) not in places:
                places[key] = len(found)
                found.append(each)
                copied.append((path, key))
        self._states = [state_of(each) for each in found]
        return found

    def is_as(self, other: AtEntry) -> bool:
        """Return whether nothing that is copied has changed between the two."""
        return self._updates == other._updates and self._states == other._states

    def share(self, other: AtEntry) -> None:
        """Use the copies of another entry."""
        assert other._slot is not None
        self._slot = other._slot
        self._slot.users.add(self)

    def fill(self, slot: Slot, sources: list[Tensor]) -> None:
        """Copy the tensors into this memory."""
        self._slot = slot
        slot.users.add(self)
        slot.copies.renew(sources)

    @property
    def copies(self) -> dict[str, Tensor]:
        """The copies by path."""
        assert self._slot is not None
        return {path: self._slot.copies.tensors[self._places[key]] for path, key in self._copied}

    def copy_of(self, tensor: Tensor) -> Tensor | None:
        """Return the copy of a tensor; None if it wasn't copied."""
        place = self._places.get(id(tensor))
        return None if place is None or self._slot is None else self._slot.copies.tensors[place]

    def changed(self, members: Members) -> list[str]:
        """Return the tensors that were not copied and have changed since."""
        now = {path: state_of(each) for path, each in (*members.named_weights(), *members.buffers())}
        return [path for path, state in self._rest if now.get(path) != state]
