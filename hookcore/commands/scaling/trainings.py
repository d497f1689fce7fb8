"""Trainings of a model in several sizes: what its layers get, return, and learn."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from hookcore.commands.doctor.training import made_by
from hookcore.config import Settings
from hookcore.delivery.delivery import say_page
from hookcore.errors import ArgumentError
from hookcore.hooks import on_forward, on_forward_pre
from hookcore.hooks.internals import TorchDispatchMode, tree_iter, tree_map
from hookcore.records import ROOT
from hookcore.watcher import Watcher, detached

Axis = Literal["width", "depth"]
Values = dict[tuple[str, str], list[float]]  # of a quantity and a layer, by step

# What a function of the user makes, and what its trainings have in common.


@dataclass(frozen=True, slots=True)
class Made:
    """A model with what trains it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]

    @classmethod
    def of(cls, name: str, seed: int, given: Mapping[str, float]) -> Made:
        """Call `module:callable` with these keywords."""
        _seed(seed)
        made = made_by(name, "the function", **given)
        if not (isinstance(made, tuple) and len(made) == 3 and isinstance(made[0], nn.Module)):
            raise ArgumentError(
                f"{name!r} returned a {type(made).__name__}: it must return a model, its optimizer, and a batch for "
                "which the model returns the loss, or a function without arguments that returns the loss"
            )
        model, optimizer, last = made
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(f"{name!r} returned a {type(optimizer).__name__} as optimizer: use one of torch.optim")
        is_function = callable(last) and not isinstance(last, Tensor)
        return cls(model, optimizer, last if is_function else lambda: _loss_of(model, last, name))

    def step(self, seed: int, factor: float = 1.0) -> float:
        """Train one step. What torch draws, such as the batch, is the same in each step."""
        _seed(seed)
        self.optimizer.zero_grad()
        loss = self.loss()
        (loss * factor).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.detach())


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.setstate(random.Random(seed).getstate())
    np.random.seed(seed)


def _loss_of(model: nn.Module, batch: Any, name: str) -> Tensor:
    if isinstance(batch, Mapping):
        output = model(**batch)
    else:
        output = model(*batch) if isinstance(batch, tuple | list) else model(batch)
    loss = output["loss"] if isinstance(output, Mapping) and "loss" in output else getattr(output, "loss", output)
    if not (isinstance(loss, Tensor) and loss.numel() == 1):
        raise ArgumentError(
            f"the model of {name!r} returned no single number for its batch: return the loss from it, or let the "
            "function return a function that computes the loss, as in `return model, optimizer, lambda: loss_of(model)`"
        )
    return loss


# One pass after each step: what the layers get, and what their weights would have made of it before the first step.


@dataclass(frozen=True, slots=True)
class _Call:
    args: Any
    kwargs: Any
    output: Any

    @property
    def tensor(self) -> Tensor | None:
        """The first tensor of floats that was returned."""
        return next((each for each in tree_iter(self.output) if _is_float(each)), None)


class _Look(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first call of each module, and the largest scores that attention in it could have."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[str, _Call] = {}
        self.scores: dict[str, float] = {}
        self._products: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        self._began: dict[str, Any] = {}
        self._within = [""]

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Look at the calls in a block."""
        with ExitStack() as stack:
            for path, module in model.named_modules():
                stack.callback(on_forward_pre(module, self._enter(path), with_kwargs=True).remove)
                stack.callback(on_forward(module, self._leave(path)).remove)
            stack.enter_context(self)
            yield

    def _enter(self, path: str) -> Callable[..., None]:
        def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
            self._within.append(path)
            if path not in self.calls:
                self._began[path] = tree_map(_copy, (args, kwargs))

        return enter

    def _leave(self, path: str) -> Callable[..., None]:
        def leave(_module: nn.Module, _args: Any, output: Any) -> None:
            self._within.pop()
            if path in self._began:
                args, kwargs = self._began.pop(path)
                self.calls[path] = _Call(args, kwargs, tree_map(_copy, output))

        return leave

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, path, output = func.name().partition("::")[2], self._within[-1], func(*args, **(kwargs or {}))
        if name.startswith("_scaled_dot_product") and path not in self.scores:
            scale = (kwargs or {}).get("scale")
            self.scores[path] = _largest(args[0], args[1], args[0].shape[-1] ** -0.5 if scale is None else scale)
        elif name.startswith("bmm"):
            self._products[path] = args[0], args[1].transpose(1, 2), output
        elif name.startswith(("_softmax", "_safe_softmax")) and path in self._products and path not in self.scores:
            query, key, product = self._products[path]
            if product.numel() == args[0].numel():
                ratios = args[0].flatten() / product.flatten()
                self.scores[path] = _largest(query, key, float(ratios[ratios.isfinite()].median()))
        return output


def _largest(query: Tensor, key: Tensor, scale: float) -> float:
    """Return what the scores of attention would be if queries and keys pointed the same way."""
    return abs(scale) * query.shape[-1] * _rms(query) * _rms(key)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _rms(tensor: Tensor | None) -> float:
    return math.nan if tensor is None else float(tensor.double().square().mean().sqrt())


def _again(module: nn.Module, call: _Call, weights: dict[str, Tensor]) -> Tensor | None:
    with torch.random.fork_rng(enabled=True):
        output = functional_call(module, weights, call.args, call.kwargs)
    return next((each for each in tree_iter(output) if _is_float(each)), None)


def _measure(made: Made, start: Mapping[int, Tensor], seed: int, deep: bool) -> dict[tuple[str, str], float]:
    """Return how far each weight's change since the start changes what its layer returns, for what it gets now."""
    look, found = _Look(), dict[tuple[str, str], float]()
    buffers = [(each, each.clone()) for each in made.model.buffers()]
    with torch.no_grad(), look.on(made.model):
        _seed(seed)
        made.loss()
    with torch.no_grad():
        for path, call in look.calls.items():
            module = made.model.get_submodule(path)
            found["inputs", path] = float(sum(each.numel() for each in tree_iter(call.args) if _is_float(each)))
            found["outputs", path] = 0.0 if call.tensor is None else float(call.tensor.numel())
            found |= _changes(path, module, look.calls, start)
            if path in look.scores:
                found["scores", path] = look.scores[path]
            if deep and re.search(r"\d+$", path):
                found |= _branches(path, module, look.calls, start)
        for buffer, before in buffers:
            buffer.copy_(before)
    return found


def _changes(
    path: str, module: nn.Module, calls: Mapping[str, _Call], start: Mapping[int, Tensor]
) -> dict[tuple[str, str], float]:
    named = [each for each in module.named_parameters() if each[1].requires_grad]
    own = {name: weight for name, weight in named if _layer_of(f"{path}.{name}".lstrip("."), calls) == path}
    now = _again(module, calls[path], {}) if own else None
    found = dict[tuple[str, str], float]()
    for name, weight in own.items():
        before = _again(module, calls[path], {name: start[id(weight)]})
        found["change", f"{path} {name}"] = _rms(None if now is None or before is None else now - before)
        found["dimensions", f"{path} {name}"] = weight.dim()
    return found


def _layer_of(name: str, calls: Mapping[str, _Call]) -> str:
    """Return the innermost layer that was called and has this parameter, which may be in a module that wasn't."""
    while name not in calls and name:
        name = name.rpartition(".")[0]
    return name


def _branches(
    path: str, block: nn.Module, calls: Mapping[str, _Call], start: Mapping[int, Tensor]
) -> dict[tuple[str, str], float]:
    """Return what each child adds to the residual stream, and how much its own weights have changed that."""
    call, prefix = calls[path], f"{path}." if path else ""
    children = {name: (child, calls[prefix + name]) for name, child in block.named_children() if prefix + name in calls}
    stream = next((each for each in tree_iter(call.args) if _is_float(each)), None)

    def with_zeros(zeros: set[str]) -> Tensor | None:
        with ExitStack() as stack:
            for name, (child, its) in children.items():
                output = tree_map(lambda each: each * 0 if _is_float(each) else each, its.output)
                output = output if name in zeros else its.output
                stack.callback(on_forward(child, lambda _m, _a, _o, output=output: output).remove)
            return _again(block, call, {})

    whole, none = with_zeros(set()), with_zeros(set(children))
    if whole is None or none is None or stream is None or stream.shape != none.shape or not children:
        return {}
    if not torch.allclose(stream, none, rtol=1e-4, atol=1e-6):
        return {}
    found = dict[tuple[str, str], float]()
    for name, (child, its) in children.items():
        without = with_zeros({name})
        added, size = (math.nan if without is None else _rms(whole - without)), _rms(its.tensor)
        if added > 0:
            found["branch", prefix + name] = added
            before = _again(child, its, {key: start[id(each)] for key, each in child.named_parameters()})
            if before is not None and its.tensor is not None:
                found["branch change", prefix + name] = _rms(its.tensor - before) * added / size
    return found


# Trainings, one for each size and seed.

_FIXED: Final = ("inputs", "outputs", "dimensions")  # not measured
FACTOR: Final = 16.0  # of the loss, to learn whether an optimizer's steps follow the size of gradients
OF_WATCHER: Final = ("output", "input", "output_grad", "param_grad")


@dataclass(frozen=True, slots=True)
class Trained:
    """What was measured in one training."""

    size: int
    seed: int
    values: Values
    shapes: dict[str, int]  # the dimensions of each parameter
    losses: list[float]
    unseen: list[str]  # parameters of layers that weren't called


def train(
    made: Made, axis: Axis, size: int, seed: int, steps: int, watcher: Watcher | None, factor: float = 1.0
) -> Trained:
    """Train some steps, watched or not."""
    start = {id(each): each.detach().clone() for each in made.model.parameters()}
    values, losses = Values(), list[float]()
    for step in range(steps):
        losses.append(made.step(seed, factor))
        with detached():
            found = _measure(made, start, seed, axis == "depth")
        for key, value in found.items():
            values.setdefault(key, [math.nan] * step).append(value)
        if watcher is not None:
            logged = {f"{what}/{layer or ROOT}": value for (what, layer), value in found.items() if what not in _FIXED}
            watcher.log(**logged)
    if watcher is not None:
        watcher.flush()
        values |= _sizes(watcher, steps)
    shapes = {name: int(found[0]) for (what, name), found in values.items() if what == "dimensions"}
    measured = {name.replace(" ", ".").lstrip(".") for name in shapes}
    trained = [name for name, weight in made.model.named_parameters() if weight.requires_grad]
    unseen = [name for name in trained if name not in measured]
    return Trained(size, seed, values, shapes, losses, unseen)


# Short trainings with several learning rates.

NO_SIZE: Final = 0
_ERRORS: Final = 3.0  # standard deviations, of which the median difference of two losses is about one


@dataclass(frozen=True, slots=True)
class Tried:
    """The losses of a short training with a learning rate, until one is non-finite."""

    rate: float
    seed: int
    losses: list[float]

    @property
    def result(self) -> float:
        """The mean of the last tenth of the losses."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(last) / len(last)

    @property
    def noise(self) -> float:
        """By how much two losses usually differ only because of their batches, if the rate is low."""
        jumps = np.abs(np.diff(self.losses))
        return float(np.median(jumps[np.isfinite(jumps)])) if np.isfinite(jumps).any() else 0.0


@dataclass(frozen=True, slots=True)
class RatesOf:
    """What the trainings of one size say about learning rates."""

    axis: Axis
    size: int
    tried: tuple[Tried, ...]

    def has_diverged(self, tried: Tried) -> bool:
        """Return whether a loss isn't finite, or the last ones are above the first one by more than the noise."""
        calmest = min((each for each in self.tried if each.seed == tried.seed), key=lambda each: each.rate)
        first = tried.losses[0]
        limit = first + min(_ERRORS * calmest.noise, abs(first))  # the lowest rate may be too high, too
        return not (math.isfinite(tried.result) and tried.result <= limit)

    def _diverged(self, rate: float) -> list[Tried]:
        return [each for each in self.tried if each.rate == rate and self.has_diverged(each)]

    @property
    def rates(self) -> list[float]:
        """All that were tried."""
        return sorted({each.rate for each in self.tried})

    @property
    def stable(self) -> tuple[float | None, float | None]:
        """The largest rate up to which no training diverged, and the next one, with which one did."""
        unstable = next((rate for rate in self.rates if self._diverged(rate)), None)
        return max((rate for rate in self.rates if unstable is None or rate < unstable), default=None), unstable

    @property
    def best(self) -> dict[int, float]:
        """The best rate of each seed, between those tried; NaN if it may be beyond them."""
        found = dict[int, float]()
        for seed in sorted({each.seed for each in self.tried}):
            whole = sorted((each for each in self.tried if each.seed == seed), key=lambda each: each.rate)
            results = [math.inf if self.has_diverged(each) else each.result for each in whole]
            place = int(np.argmin(results))
            inner = 0 < place < len(whole) - 1 and math.isfinite(results[place])
            found[seed] = _lowest(whole[place - 1 : place + 2], results[place - 1 : place + 2]) if inner else math.nan
        return found

    @property
    def sentence(self) -> str:
        """What is known, and what was tried."""
        best, (stable, unstable) = list(self.best.values()), self.stable
        at = f"{self.axis} {self.size}: " if self.size != NO_SIZE else ""
        edge = "unknown, because the lowest loss is at the end of what was tried: try other rates"
        known = all(map(math.isfinite, best))
        seeds = f"{min(best):.3g} to {max(best):.3g}, by seed" if known else edge
        limit = f"is at least {stable:.3g}" if stable is not None else f"is below {unstable:.3g}"
        limit += f", and below {unstable:.3g}" if None not in (stable, unstable) else ""
        limit += ", and none that was tried diverged" if unstable is None else ""
        words = [f"{at}the best rate is {seeds}; the largest stable rate {limit}"]
        for rate in self.rates:
            if bad := self._diverged(rate):
                of = sum(each.rate == rate for each in self.tried)
                words.append(
                    f"{rate:.3g} diverged in {len(bad)} of {of} (after {min(len(each.losses) for each in bad)} steps)"
                )
        return "; ".join(words)


def _lowest(tried: Sequence[Tried], results: Sequence[float]) -> float:
    """Return the lowest point of the parabola through three results, by the logarithm of the rate."""
    if not all(map(math.isfinite, results)) or min(results) <= 0:
        return tried[1].rate
    (a, b, c), (u, v, w) = ([math.log(each.rate) for each in tried], [math.log(each) for each in results])
    up, down = (b - a) * (v - w), (b - c) * (v - u)
    return tried[1].rate if up == down else math.exp(b - ((b - a) * up - (b - c) * down) / (2 * (up - down)))


def try_rate(made: Made, rate: float, seed: int, steps: int) -> Tried:
    """Train with a learning rate. Each step has its own seed, which is that of other trainings, too."""
    losses = list[float]()
    for step in range(steps):
        losses.append(made.step(seed * 1_000_003 + step))
        if not math.isfinite(losses[-1]):
            break
    return Tried(rate, seed, losses)


def watched(model: nn.Module, **about: Any) -> Watcher:
    """Watch a training without lines about it in the terminal: the first one prints the page of all."""
    watcher = Watcher(model, Settings.of(**about), speaks=False)
    if (page := page_of(watcher)) is not None:
        say_page(page)
    return watcher


def page_of(watcher: Watcher) -> str | None:
    """Return the page of a run's group."""
    if watcher.url is None:
        return None
    return f"{watcher.url.partition('/runs/')[0]}/group?f={quote(f'group={watcher.settings.group}')}"


def _sizes(watcher: Watcher, steps: int) -> Values:
    """Return what the watcher has captured: the root mean square of each layer's tensors."""
    found, reader = Values(), watcher.reader()
    for kind in OF_WATCHER:
        map_ = reader.heatmap(kind, "rms", columns=steps)
        for row, values in zip(map_.rows, np.asarray(map_.worst), strict=True):
            if row.call == 0:
                name = f"{row.module}.{row.index.strip('[]')}".lstrip(".") if kind == "param_grad" else row.module
                found.setdefault((kind, name), values.tolist())
    return found
