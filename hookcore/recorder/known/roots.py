"""The models under watch: their names, whether each trains or evaluates, and the tensors that they take and return."""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter
from collections.abc import Container, Iterator
from itertools import count, islice
from threading import get_ident
from typing import Any, Final

import torch
from torch import Tensor, nn

from hookcore.hooks.internals import active_wrapper, keywords_of
from hookcore.records import Phase

MAX_DEPTH: Final = 8
MAX_TENSORS: Final = 256
MAX_VISITS: Final = 4096  # of any objects, tensors or not


def find_tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Return each tensor with its place: "" for a single one, else "0", "past.1", "hidden_states.3".

    Tensors, dicts, lists, tuples, and dataclass fields are read from their builtin storage. Generators and unknown
    objects are left alone, because looking into them would consume or run what belongs to the user.
    """
    if issubclass(type(value), torch.Tensor):
        yield "", value
        return
    found = list(islice(_walk(value, (), count(1)), MAX_TENSORS))
    places = [".".join(map(str, keys)) for keys, _ in found]
    times = Counter(places)
    for number, (keys, tensor) in enumerate(found):
        place = places[number]
        if times[place] > 1:  # keys 1 and "1", or a key "a.b" and a key "b" below "a"
            place = ".".join(str(key) if isinstance(key, int) else repr(key) for key in keys)
        yield place, tensor


def _walk(value: Any, keys: tuple[Any, ...], visits: Iterator[int]) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        yield keys, value
    elif len(keys) < MAX_DEPTH:
        for name, item in _items(value, kind):
            if next(visits) > MAX_VISITS:
                return
            yield from _walk(item, (*keys, name), visits)


def _items(value: Any, kind: type) -> list[tuple[Any, Any]]:
    if issubclass(kind, dict):
        return list(islice(dict.items(value), MAX_VISITS))
    if issubclass(kind, tuple):
        names = next((base.__dict__["_fields"] for base in kind.__mro__ if "_fields" in base.__dict__), None)
        items = list(islice(tuple.__iter__(value), MAX_VISITS))
        return list(zip(names, items, strict=True)) if names and len(names) == len(items) else list(enumerate(items))
    if issubclass(kind, list):
        return list(enumerate(islice(list.__iter__(value), MAX_VISITS)))
    if dataclasses.is_dataclass(kind):
        return [(field.name, _stored(value, field.name)) for field in dataclasses.fields(kind)]
    return []


def _stored(value: Any, name: str) -> Any:
    """Return a field as it is stored, without running a property or a __getattr__ of the user."""
    try:
        descriptor = type.__getattribute__(type(value), name)
    except AttributeError:
        descriptor = None
    if isinstance(descriptor, property):
        return None
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


def _first_tensor(args: Any, module: nn.Module) -> Tensor | None:
    """Return the first tensor among the arguments of a call that begins."""
    first = next(find_tensors(args), None) or next(find_tensors(keywords_of(module)), None)
    return None if first is None else first[1]


class Root:
    """A model: the outermost module of a tree."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.ref = weakref.ref(module)
        self.name = name
        self.trained: bool | None = None  # whether it trains in training mode; None if unknown
        self.passed_in_training: bool | None = None  # its mode in the last backward pass of the running step
        self.entered_with_grad = False  # whether it is running, and was called with gradients enabled
        self.depth = 0  # at which its modules are called by the training: 1 if that calls parts, never the whole
        # The `DistributedDataParallel`s that have called it or parts of it, the newest first.
        self.wrappers: tuple[weakref.ref[object], ...] = ()
        self.called = False  # whether one of them was, in this captured step
        self.rehearses = False  # whether it is running, and its values mean nothing
        self.samples = 0  # rows that it was given in its newest captured step, with gradients enabled; 0 if unknown
        self.tokens = 0  # of these rows, if they are integers, as in a language model
        self._given = self._tokens_given = 0  # in the running step
        self.given: tuple[int, int] | None = None  # where that is in memory, and in which thread, in its newest call
        self.batch: tuple[tuple[int, ...], str] | None = None  # shape and dtype of the first tensor it trained with

    @property
    def evaluates(self) -> bool:
        """Whether it trains in training mode, and is not in it now."""
        module = self.ref()
        return self.trained is True and module is not None and not module.training

    def enter(self) -> bool:
        """Handle the start of a call of the model. Return whether gradients are enabled."""
        self.entered_with_grad = torch.is_grad_enabled()
        return self.entered_with_grad

    def note_batch(self, module: nn.Module, args: Any) -> None:
        """Add the first dimension of its first tensor to what the model was given with gradients in this step."""
        try:
            first = args[0] if args and type(args[0]) is Tensor else _first_tensor(args, module)
            if first is None or not (dimensions := first.dim()) or type(rows := first.size(0)) is not int:
                return
            self._given += rows
            self.given = first.untyped_storage().data_ptr(), get_ident()
            if dimensions == 2 and not (first.dtype.is_floating_point or first.dtype.is_complex):
                self._tokens_given += first.numel()
            if self.batch is None:
                self.batch = tuple(map(int, first.shape)), str(first.dtype).removeprefix("torch.")
        except Exception:  # a tensor of the user's own class may not say its size
            return

    def note_wrapper(self) -> None:
        """Remember which `DistributedDataParallel` is calling it, or a part of it."""
        wrapper = active_wrapper()
        if wrapper is not None and all(each() is not wrapper for each in self.wrappers):
            others = (each for each in self.wrappers if each() is not None)
            self.wrappers = (weakref.ref(wrapper), *others)

    def leave(self) -> None:
        """Handle the end of the call."""
        self.entered_with_grad = False

    def note_pass(self) -> None:
        """Record that a backward pass reached its weights."""
        module = self.ref()
        if module is not None:
            self.passed_in_training = module.training

    def note_step(self) -> None:
        """Handle the end of a step. A model whose gradients arrived in evaluation mode trains in that mode.

        This uses data of every step, captured or not, so that a call's phase doesn't depend on the captured steps.
        """
        if self._given:
            self.samples, self.tokens = self._given, self._tokens_given
            self._given = self._tokens_given = 0
        if self.passed_in_training is not None:
            self.trained, self.passed_in_training = self.passed_in_training, None

    def phase(self, requires_grad: bool) -> Phase:
        """Return training or evaluation, by the root's own mode.

        A model that was never in training mode but builds a graph is being trained in eval mode, as in many fine-tuning
        scripts. Once its passes have shown that, the same is true for its parts that need no gradient.
        """
        module = self.ref()
        if module is None or module.training:
            self.trained = True
            return "train"
        graph = requires_grad or (self.trained is False and torch.is_grad_enabled())
        return "train" if graph and not self.trained else "eval"


def joined(root: str, path: str) -> str:
    """Return a module's path in the run: below the name of its root, if it has one."""
    return f"{root}/{path}" if root and path else root or path


def unique_root_name(type_name: str, taken: Container[str]) -> str:
    """Return `type_name`, with "#2", "#3", ... appended if it is taken."""
    if type_name not in taken:
        return type_name
    return next(name for number in count(2) if (name := f"{type_name}#{number}") not in taken)
