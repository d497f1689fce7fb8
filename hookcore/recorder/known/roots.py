"""The models under watch: their names, their modes, the tensors that they take and return, and the names of a batch."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from threading import get_ident
from typing import Any, Final

import torch
from torch import Tensor, nn

from hookcore.config.flat import cut_text
from hookcore.errors import ArgumentError
from hookcore.hooks.internals import active_wrapper, current_graph_task, is_wrapped, keywords_of
from hookcore.observe.copies import Copy, take_copy
from hookcore.observe.plain import unseen
from hookcore.records import GRADIENT_KINDS, Names, Phase, text_of

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


def first_tensors(value: Any, many: int) -> Iterator[torch.Tensor]:
    """Yield the first tensors, unless many other objects come before them."""
    visits = count(MAX_VISITS - 16 * many)
    return (tensor for _, tensor in islice(_walk(value, (), visits), many))


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
        self._threads: set[int] = set()  # those that have called one of them with gradients in this step
        self._is_shared = False  # whether a thread has stepped it while another one may have been setting gradients
        self.evaluated = -1  # the newest captured step with an evaluation, if evaluations are captured
        self.rehearses = False  # whether it is running, and its values mean nothing
        self.samples = 0  # rows that it was given in its newest captured step, with gradients enabled; 0 if unknown
        self.tokens = 0  # of these rows, if they are integers, as in a language model
        self._given = self._tokens_given = 0  # in the running step
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

    def note_call(self) -> None:
        """Note that it or a part of it, as the training calls them, is about to run."""
        self.called = True
        if torch.is_grad_enabled() and current_graph_task() == -1:
            self._threads.add(get_ident())

    def meets_others(self) -> bool:
        """Return whether it was ever about to be stepped after another thread had called it in the same step."""
        self._is_shared = self._is_shared or bool(self._threads - {get_ident()})
        return self._is_shared

    def note_batch(self, module: nn.Module, args: Any) -> Tensor | None:
        """Add the first dimension of its first tensor to what the model was given with gradients in this step.

        Return that tensor; None if it isn't known.
        """
        try:
            first = args[0] if args and type(args[0]) is Tensor else _first_tensor(args, module)
            if first is None or not (dimensions := first.dim()) or type(rows := first.size(0)) is not int:
                return None
            self._given += rows
            if dimensions == 2 and not (first.dtype.is_floating_point or first.dtype.is_complex):
                self._tokens_given += first.numel()
            if self.batch is None:
                self.batch = tuple(map(int, first.shape)), str(first.dtype).removeprefix("torch.")
            return first
        except Exception:  # a tensor of the user's own class may not say its size
            return None

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
        self._threads.clear()
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


# The names of a batch: of its tokens and of its samples, given by the script, or read from its ids.

OF_BATCHES: Final = frozenset({"input", "output", "input_grad", "output_grad"})
MAX_NAME: Final = 100  # characters
MAX_NAMED_BYTES: Final = 1 << 20  # of the tokens of a snapshot, and of its labels
_OF_TEXT: Final = 56  # bytes of a Python string in addition to its characters

Rows = tuple[tuple[Any, ...], ...]


class BatchNames:
    """The names of the running batch.

    They are those of the next outermost pass of a model in the same thread, and of its gradients. Whatever may be of
    another batch has none: later passes, calls outside of any model, and gradients of a step with several passes.
    """

    def __init__(self) -> None:
        self._tokens: Rows = ()
        self._shared = False
        self._labels: tuple[Any, ...] = ()
        self._step = -1
        self._thread = 0
        self._used = False  # a pass has begun that has them
        self._carried = False  # into another step
        self._inside = 0  # the models that are running
        self._passes = 0  # of this step
        self._mixed = False  # whether gradients may be of several batches
        self._ids: Copy | None = None  # of the tokens, if the script gives none and a tensor may be captured

    def give_tokens(self, tokens: Any, step: int) -> None:
        """Name the positions: of each sample, or of all samples alike."""
        rows = _list_of("tokens", tokens)
        nested = [isinstance(row, Iterable) and not isinstance(row, str | bytes) for row in rows]
        if any(nested) != all(nested):
            raise ArgumentError(
                "tokens mixes names and lists: give a list of names, or a list of such lists, one for each sample"
            )
        shared = not any(nested)
        given: Rows = (tuple(rows),) if shared else tuple(tuple(_list_of("tokens", row)) for row in rows)
        self._begin(step)
        self._tokens, self._shared = given, shared

    def give_labels(self, labels: Any, step: int) -> None:
        """Name the samples."""
        given = tuple(_list_of("labels", labels))
        self._begin(step)
        self._labels = given

    def _begin(self, step: int) -> None:
        self._mixed |= self._passes > 0
        thread = get_ident()
        if self._used or self._step != step or self._thread != thread:
            self._drop()
        self._step, self._thread, self._carried = step, thread, False

    def _drop(self) -> None:
        self._tokens, self._shared, self._labels = (), False, ()
        self._used, self._ids = False, None

    @property
    def has_tokens(self) -> bool:
        """Whether the script has given tokens."""
        return bool(self._tokens)

    def saw_batch(self, args: Any, keywords: dict[str, Any] | None, step: int) -> None:
        """Keep the ids that the outermost model is about to get, as a copy."""
        if self._inside == 1 and current_graph_task() == -1:
            with unseen():
                ids = _ids_in(args, keywords or {})
            copy = "" if ids is None else take_copy(ids)
            if isinstance(copy, Copy):
                self._ids, self._used = copy, True
                self._step, self._thread = step, get_ident()

    @property
    def has_any(self) -> bool:
        """Whether the script has given names."""
        return bool(self._tokens or self._labels)

    def enters(self) -> None:
        """Note that a model is about to run."""
        if current_graph_task() != -1:  # a checkpoint repeats a pass
            return
        self._inside += 1
        if self._inside > 1:
            return
        self._passes += 1
        self._mixed |= self._passes > 1
        if self._used or ((self._tokens or self._labels) and self._thread != get_ident()):
            self._drop()
        self._used, self._ids = bool(self._tokens or self._labels), None

    def leaves(self) -> None:
        """Note that a model has returned."""
        if current_graph_task() == -1:
            self._inside -= self._inside > 0

    def saw_call(self) -> None:
        """Note the call of a module: outside of a model, it is of an unknown batch."""
        self._mixed |= not self._inside

    def begin_step(self, step: int, captured: bool) -> None:
        """Start a step; `captured`: whether passes of the last one were seen.

        The end of a step may be noticed only when the next one runs: names from in between are the next one's.
        """
        if (self._tokens or self._labels) and (self._used or self._carried or not captured):
            self._drop()
        self._carried = bool(self._tokens or self._labels)
        self._ids = None
        self._step, self._inside, self._passes, self._mixed = step, 0, 0, False

    def of(self, kind: str, step: int) -> Names | None:
        """Return the names that a tensor has which is captured now. They are converted when they are sent."""
        if not (self._tokens or self._labels) or not self._are_of(kind, step):
            return None
        return Names(self._tokens, self._shared, self._labels)

    def ids_of(self, kind: str, step: int) -> Copy | None:
        """Return the ids of the tokens of such a tensor, if the script has given no tokens."""
        return self._ids if not self._tokens and self._are_of(kind, step) else None

    def _are_of(self, kind: str, step: int) -> bool:
        """Return whether a tensor that is captured now is of the running batch."""
        if not self._used or step != self._step or kind not in OF_BATCHES:
            return False
        # Gradients arrive in other threads, after the pass.
        return not self._mixed if kind in GRADIENT_KINDS else self._inside > 0 and self._thread == get_ident()


def _list_of(what: str, given: Any) -> Sequence[Any]:
    """Return some names as a list that the script can't change anymore."""
    if isinstance(given, torch.Tensor | str | bytes) or not isinstance(given, Iterable):
        raise ArgumentError(f"{what} has the type {type(given).__name__}: give a list of names, such as ['the', 'cat']")
    names = list(given)
    if any(isinstance(name, torch.Tensor) for name in names):
        raise ArgumentError(f"{what} contains tensors: give a list of names; tensor.tolist() makes a list of numbers")
    return names


def plain_names(names: Names) -> tuple[Names, str]:
    """Return names as strings, as many as there is room for, and a description of what was left out."""
    room = MAX_NAMED_BYTES
    rows: list[tuple[str, ...]] = []
    for row in names.tokens:
        texts = tuple(map(_text_of, row))
        room -= _size_of(texts)
        if room < 0:
            break
        rows.append(texts)
    labels = tuple(map(_text_of, names.labels))
    labels = labels if _size_of(labels) <= MAX_NAMED_BYTES else ()
    left = [
        f"{len(names.tokens) - len(rows)} of {len(names.tokens)} samples without tokens"
        * (len(rows) < len(names.tokens)),
        "too many labels" * (len(labels) < len(names.labels)),
    ]
    return Names(tuple(rows), names.shared, labels), ", ".join(filter(None, left))


# The words of ids, by what is in the process: a tokenizer, or a table of the script. Nothing is fetched or imported.

MAX_IDS: Final = 1 << 14
MAX_SEARCHES: Final = 4  # for tokenizers, each of which holds the interpreter for some milliseconds
OF_IDS: Final = "ids of the batch"
_KEYS: Final = ("idx", "ids", "tokens", "x")  # of arguments
_TABLES: Final = ("itos", "id2token", "id_to_token", "idx_to_token", "idx2char", "ix_to_char", "int_to_char", "id2word")
_Decoder = tuple[str, Callable[[int], Any]]  # what it is, and what gives the word of an id


def _ids_in(args: Any, keywords: dict[str, Any]) -> Tensor | None:
    """Return what may be ids of tokens, [sample, position], the first ones."""
    first = args[:1] if isinstance(args, tuple) else ()
    named = (keywords.get("input_ids"), *first, *map(keywords.get, _KEYS))
    found = next((each for each in named if each is not None), None)
    if isinstance(found, Mapping):
        found = found.get("input_ids")
    if type(found) is not Tensor or found.dim() != 2 or found.dtype not in (torch.int32, torch.int64):
        return None
    if found.is_nested or found.layout is not torch.strided or is_wrapped(found):
        return None
    rows = min(len(found), MAX_IDS // max(1, found.shape[1]))
    return found.detach()[:rows] if rows and found.numel() else None


class Words:
    """Finds the words of ids. If tokenizers disagree, nothing says which one is right, and ids stay ids."""

    def __init__(self, instances_of: Callable[[type], list[Any]]) -> None:
        self._instances_of = instances_of
        self._tokenizers: list[weakref.ref[Any]] = []
        self._searches = 0

    def name(self, ids: Copy, labels: tuple[str, ...]) -> Names:
        """Return the names of a batch. Waits for the ids, on the recorder's thread."""
        rows: list[list[int]] = ids.finish().tolist()
        distinct = sorted({each for row in rows for each in row})
        found = [(what, words) for what, decode in self._decoders() if (words := _words_of(distinct, decode))]
        if len({tuple(words.values()) for _, words in found}) == 1:
            what, words = found[0]
            origin = f"{OF_IDS}, read by {what}"
        else:
            words, origin = {each: str(each) for each in distinct}, OF_IDS
        tokens = tuple(tuple(words[each] for each in row) for row in rows)
        return Names(tokens, labels=labels, origin=origin)

    def _decoders(self) -> Iterator[_Decoder]:
        script = vars(sys.modules.get("__main__", sys))
        for name in _TABLES:
            table = script.get(name)
            if type(table) is dict or type(table) is list:
                yield f"{name} of the script", table.__getitem__
        for tokenizer in self._found():
            yield type(tokenizer).__name__, tokenizer.convert_ids_to_tokens
        kind = getattr(sys.modules.get("tokenizers"), "Tokenizer", None)
        for value in list(script.values()):
            if kind is not None and type(value) is kind:
                yield "Tokenizer", value.id_to_token

    def _found(self) -> list[Any]:
        """Return the tokenizers of transformers, also those that only a trainer or a data loader knows."""
        base = getattr(sys.modules.get("transformers.tokenization_utils_base"), "PreTrainedTokenizerBase", None)
        if base is not None and self._searches < MAX_SEARCHES:
            self._searches += 1
            known = [each for each in self._instances_of(base) if type(each).__module__.startswith("transformers.")]
            self._tokenizers = [weakref.ref(each) for each in known]
        return [each for ref in self._tokenizers if (each := ref()) is not None]


def _words_of(ids: list[int], decode: Callable[[int], Any]) -> dict[int, str] | None:
    """Return the words of all ids; None if one of them has none, because the ids are others then."""
    try:
        words = {each: decode(each) for each in ids if each >= 0}
    except Exception:  # as of a list that is too short
        return None
    fine = len(words) == len(ids) and all(isinstance(each, str) for each in words.values())
    return {each: _text_of(word) for each, word in words.items()} if fine else None


def _size_of(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) + _OF_TEXT for text in texts)


def _text_of(name: Any) -> str:
    try:
        return cut_text(text_of(name if isinstance(name, str) else str(name)), MAX_NAME)
    except Exception:  # of the script's own class
        return f"({type(name).__name__})"
