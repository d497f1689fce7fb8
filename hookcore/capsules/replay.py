"""The replay of a capsule: runs its step again, finds the operator that made a non-finite value, and says so."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import torch
from torch import Tensor, nn

from hookcore import hooks
from hookcore.capsules.calls import set_numbers, versions
from hookcore.capsules.content import as_main, digest_of, needs_main, read_step
from hookcore.capsules.operators import GRADIENT, OperatorTracer, Suspect
from hookcore.capsules.shares import Sharing
from hookcore.delivery.dashboard.capsules import read_about
from hookcore.errors import ArgumentError, CapsuleError
from hookcore.hooks.internals import next_node_number, node_number
from hookcore.observe.plain import generators_kept, make_plain, set_generators, unseen
from hookcore.reading.answers import SampleShares, TensorFacts
from hookcore.recorder.known.roots import find_tensors
from hookcore.records.flow import MAX_LAYERS, ReplayedTap

_FED: Final = 2  # finite tensors right before the first bad one of a pass


class Layers:
    """Hooks on all modules of a model, for one run of it."""

    def __init__(self, model: nn.Module) -> None:
        self._seen: list[ReplayedTap] = []
        self._running: list[str] = []
        self._calls: dict[str, int] = {}
        self._nodes: list[
            tuple[int, int, str]
        ] = []  # the numbers of autograd's nodes that a call made; inner ones first
        self._begun: list[int] = []
        self._handles: list[hooks.HookHandle] = []
        for path, module in model.named_modules():
            try:
                self._handles += [
                    hooks.on_forward_pre(module, partial(self._enter, path)),
                    hooks.on_forward(module, partial(self._leave, path)),
                ]
            except (RuntimeError, AttributeError):  # a scripted module takes no hook
                continue

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def module_of(self, node: Any) -> str:
        """Return the innermost module that runs now, or that made a node of autograd."""
        if node is None:
            return self._running[-1] if self._running else ""
        number = node_number(node)
        return next((path for first, last, path in self._nodes if first <= number < last), "")

    def found(self) -> tuple[ReplayedTap, ...]:
        """Return all affected tensors in their order, each pass with the finite ones right before its first."""
        chosen: list[ReplayedTap] = []
        for kind in ("output", "output_grad"):
            taps = [each for each in self._seen if each.kind == kind]
            first = next((place for place, each in enumerate(taps) if each.is_bad), None)
            if first is not None:
                chosen += taps[max(0, first - _FED) : first]
                chosen += [tap for tap in taps[first:] if tap.is_bad]
        return tuple(chosen[:MAX_LAYERS])

    def _enter(self, path: str, *_: Any) -> None:
        self._running.append(path)
        self._begun.append(_next_number())

    def _leave(self, path: str, _module: nn.Module, _args: Any, output: Any) -> None:
        while self._running and self._running.pop() != path:  # modules that raised
            self._begun.pop()
        self._nodes.append((self._begun.pop() if self._begun else 0, _next_number(), path))
        call = self._calls[path] = self._calls.get(path, -1) + 1
        for index, tensor in find_tensors(output):
            if type(tensor) is not Tensor:  # to read an attribute of a subclass may run the user's code
                continue
            self._add(path, "output", index, call, tensor)
            if tensor.requires_grad and tensor.grad_fn is not None:
                self._handles.append(hooks.on_gradient(tensor, partial(self._saw_gradient, path, index, call)))

    def _saw_gradient(self, path: str, index: str, call: int, gradient: Tensor | None) -> None:
        if gradient is None:  # of a tensor that the results don't depend on
            return
        self._add(path, "output_grad", index, call, gradient)

    def _add(self, path: str, kind: str, index: str, call: int, tensor: Tensor) -> None:
        with unseen():
            plain = make_plain(tensor)
            if isinstance(plain, Tensor) and plain.numel():
                self._seen.append(ReplayedTap(path, kind, index, call, _measured(plain)))


def _measured(tensor: Tensor) -> tuple[float, ...]:
    values = (tensor.abs() if tensor.is_complex() else tensor).detach().reshape(-1).to("cpu", torch.float64)
    finite = values[torch.isfinite(values)]
    counts = values.numel(), int(values.isnan().sum()), int(values.isinf().sum()), int((values == 0).sum())
    if not finite.numel():
        return (*map(float, counts), *[float("nan")] * 6)
    mean, square = float(finite.mean()), float((finite * finite).mean())
    std, norm = float(finite.std(unbiased=False)), float(finite.norm())
    return (*map(float, counts), mean, std, float(finite.min()), float(finite.max()), square**0.5, norm)


def _next_number() -> int:
    return 0 if next_node_number is None else next_node_number()


_MAX_OTHERS: Final = 8
_IN_LOSS: Final = "non-finite values in the loss"  # why the step was saved
_OUTSIDE: Final = (
    " What the model returned was finite, so look at how the loss is computed from it, and at the targets. If the step "
    "calls the model several times, this is the newest call."
)


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay."""

    about: dict[str, Any]
    culprit: Suspect | None  # the first operator behind the results that are non-finite or above the limit
    others: tuple[Suspect, ...]  # further origins of non-finite values; most reach no result
    bad_results: tuple[str, ...]  # the results of the step that are non-finite
    operators: int
    differences: tuple[str, ...]  # differences from the training, and things that couldn't be compared
    error: str = ""  # the exception that the step raised
    above: float | None = None  # greater magnitudes count as bad, too
    layers: tuple[ReplayedTap, ...] = ()  # the affected activations and gradients, and the finite ones before them
    shares: SampleShares | None = None  # of a step whose loss jumped

    @property
    def exact(self) -> bool:
        """Whether the outputs match those of the training, bit for bit."""
        return not self.differences

    @property
    def sentence(self) -> str:
        """The result in a sentence, or some."""
        if self.shares is not None and self.culprit is None:
            return self.shares.sentence
        if self.culprit is None:
            large = "" if self.above is None else f", and nothing above {self.above:.3g}"
            was_loss = str(self.about.get("reason", "")).startswith(_IN_LOSS)
            outside = _OUTSIDE if was_loss and self.exact and self.above is None else ""
            return f"The replay found nothing non-finite in the results{large}.{outside}"
        return self.culprit.sentence

    def as_dict(self) -> dict[str, Any]:
        """Return everything in types that JSON has."""
        layers = [{**msgspec.to_builtins(layer), "values": _in_json(layer.values)} for layer in self.layers]
        return {**msgspec.to_builtins(self), "layers": layers, "sentence": self.sentence, "exact": self.exact}


def replay(path: str | os.PathLike[str], above: float | None = None, *, definitions: bool = False) -> Replay:
    """Run a capsule's step again, and return what went wrong in it. Opening a capsule runs code from it.

    `definitions`: if the model is defined in the main script, run only the script's imports and definitions.
    `above`: also report values of a greater magnitude, not only non-finite ones. If the step was saved after an
    incident of a magnitude, the capsule contains the threshold, and in which pass it counts.
    """
    if above is not None and not above > 0:
        raise ArgumentError(f"above={above!r} is invalid: use a number above 0")
    about, phase = read_about(path), ""
    if above is None:
        above, phase = _threshold_of(about)
    with as_main(about["main"], needs_main(path), definitions), generators_kept():
        try:
            step = read_step(path)
            model = _model_of(step)
        except CapsuleError:
            raise
        except Exception as error:
            raise CapsuleError(f"{path} can't be opened here: {type(error).__name__}: {error}") from error
        return _Run(about, step, model, above, phase).result()


def _threshold_of(about: dict[str, Any]) -> tuple[float | None, str]:
    occasion = about.get("occasion") or {}
    return occasion.get("above"), occasion.get("phase", "")


def _model_of(step: dict[str, Any]) -> nn.Module:
    model: nn.Module
    if "model" in step:
        model = step["model"]
    else:
        module, _, name = step["constructor"].partition(":")
        model = getattr(importlib.import_module(module), name)()
        model.load_state_dict(step["state_dict"])
    modules, buffers = dict(model.named_modules()), dict(model.named_buffers())
    set_numbers(model, step.get("numbers", []))
    for path, training in step["training"].items():
        modules[path].training = training
    with torch.no_grad():
        for path, buffer in step["buffers"].items():
            buffers[path].copy_(buffer)
        for parameter in model.parameters():
            parameter.grad = None
    return model


class _Run:
    """One run of a step under the tracer."""

    def __init__(
        self, about: dict[str, Any], step: dict[str, Any], model: nn.Module, above: float | None, phase: str
    ) -> None:
        self._about, self._step, self._model, self._above = about, step, model, above
        self._layers = Layers(model)
        self._tracer = OperatorTracer(above, _Run.result.__code__, phase, self._layers.module_of)
        self._differences: list[str] = _other_versions(about["versions"])
        self._outputs: list[tuple[str, Tensor]] = []
        self._handles: list[hooks.HookHandle] = []
        self._error = ""

    def result(self) -> Replay:
        """Run the step and return the result."""
        self._give()
        set_generators(self._step["generators"])
        try:
            with self._conditions(), self._tracer:
                self._run()
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"
            own = [each for each in traceback.extract_tb(error.__traceback__) if each.filename != __file__]
            if own:
                self._error += f" (in {own[-1].filename}, line {own[-1].lineno})"
        finally:
            for handle in self._handles:
                handle.remove()
            self._layers.close()
        return self._conclude()

    def _give(self) -> None:
        give = self._tracer.give
        for name, parameter in self._model.named_parameters():
            give(f"weight {name}", parameter)
        for name, buffer in self._model.named_buffers():
            give(f"buffer {name}", buffer)
        for place, tensor in find_tensors((self._step["args"], self._step["kwargs"])):
            give(f"argument {place.partition('.')[2]}", tensor)

    @contextlib.contextmanager
    def _conditions(self) -> Iterator[None]:
        """Restore the settings in effect when the model was called."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and importing it takes seconds
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(torch.autograd.detect_anomaly(check_nan=False))
            stack.enter_context(torch.set_grad_enabled(self._step["grad_enabled"]))
            yield

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            for device, dtype in self._step["autocast"].items():
                stack.enter_context(torch.autocast(device, dtype=dtype))
            output = self._model(*self._step["args"], **self._step["kwargs"])
        self._outputs = list(find_tensors(output))
        gradients = self._step["gradients"]
        reached = [(place, tensor) for place, tensor in self._outputs if place in gradients and tensor.requires_grad]
        for place, tensor in reached:
            # The gradient that arrived is the sum of those from outside and from other outputs, so it replaces them.
            self._handles.append(hooks.on_gradient(tensor, _always(gradients[place])))
        with unseen():  # gradients arrived after the whole forward pass
            for place, gradient in gradients.items():
                self._tracer.give(f"{GRADIENT} {place}".rstrip(), gradient)
        if reached:
            torch.autograd.backward([tensor for _, tensor in reached], [gradients[place] for place, _ in reached])

    def _conclude(self) -> Replay:
        suspects = self._tracer.suspects
        found = {name: self._tracer.behind(tensor) for name, tensor in self._results()}
        bad = {name: behind for name, behind in found.items() if behind}
        behind = set(range(len(suspects))) if self._above is not None else set().union(*bad.values())
        order = sorted(behind, key=lambda each: (suspects[each].on_purpose, suspects[each].number))
        culprit = suspects[order[0]] if order else None
        others = [suspects[each] for each in order[1:]]
        others += [each for number, each in enumerate(suspects) if number not in behind]
        self._compare()
        return Replay(
            self._about,
            culprit,
            tuple(others[:_MAX_OTHERS]),
            tuple(bad),
            self._tracer.count,
            tuple(self._differences),
            self._error,
            self._above,
            self._layers.found(),
            self._shares(),
        )

    def _shares(self) -> SampleShares | None:
        """Divide a loss that jumped among the samples."""
        if "jump" not in self._step:
            return None
        if self._error:
            return SampleShares("the replay of the step failed", "loss", None)
        outputs = {place: each.detach().clone() for place, each in self._outputs}
        return Sharing(self._step, outputs, self._norm(), self._again).result()

    def _norm(self) -> float:
        found = [each.grad.double().norm() for each in self._model.parameters() if each.grad is not None]
        return float(torch.stack(found).norm()) if found else 0.0

    def _again(self, args: Any, kwargs: Any, gradients: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        """Run the step with other arguments and gradients. Return its outputs, and the norm of all gradients."""
        for parameter in self._model.parameters():
            parameter.grad = None
        set_numbers(self._model, self._step.get("numbers", []))
        set_generators(self._step["generators"])
        self._step = {**self._step, "args": args, "kwargs": kwargs, "gradients": gradients}
        with self._conditions():
            self._run()
        for handle in self._handles:
            handle.remove()
        return {place: each.detach() for place, each in self._outputs}, self._norm()

    def _results(self) -> Iterator[tuple[str, Tensor]]:
        for place, tensor in self._outputs:
            yield f"activation {place}".rstrip(), tensor
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                yield f"gradient of {name}", parameter.grad
        for name, buffer in self._model.named_buffers():
            yield f"buffer {name}", buffer

    def _compare(self) -> None:
        recorded = self._step["outputs"]
        seen = dict(self._outputs)
        self._differences += [
            f"activation {place}: different values".replace(" :", ":")
            for place, digest in recorded.items()
            if place not in seen or digest_of(seen[place]) != digest
        ]
        if not recorded:
            self._differences.append("the activations were not recorded, so they can't be compared")
        self._differences += [f"not kept: {what}" for what in self._about.get("unkept", ())]
        self._differences += [f"changed before the capsule was written: {name}" for name in self._about["changed"]]
        if self._about["weights"] != "before the update":
            self._differences.append(f"the weights are those {self._about['weights']}")


def _in_json(values: Iterable[float]) -> list[float | None]:
    return [each if math.isfinite(each) else None for each in values]


def _always(gradient: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _: gradient


def _other_versions(recorded: dict[str, str]) -> list[str]:
    here = versions()
    return [
        f"{name} is {here[name]} here, and was {value} in the training"
        for name, value in recorded.items()
        if name in ("torch", "device", "threads") and here[name] != value
    ]


def as_text(found: Replay) -> str:
    """Return the sentences and tables of a replay."""
    return "\n".join(_lines(found))


def _lines(found: Replay) -> Iterator[str]:
    about = found.about
    yield f"step {about['step']} of {about['model']}: {about['reason']}"
    yield found.sentence
    if found.culprit is not None:
        yield from _culprit(found.culprit)
    if found.bad_results:
        more = f", and {len(found.bad_results) - 3} more" if len(found.bad_results) > 3 else ""
        kind = "non-finite" if found.above is None else f"non-finite or too large (above {found.above:.3g})"
        yield f"{kind} results: {', '.join(found.bad_results[:3])}{more}"
    for other in found.others:
        where = "" if other.line is None else f", {other.line.file}:{other.line.line}"
        yield f"another origin: {other.operator} ({other.origin}, {other.phase or 'before the step'}{where})"
    if found.error:
        yield f"the step raised {found.error}"
    yield f"{found.operators} operators; " + (
        "activations match the training, bit for bit" if found.exact else "may not match the training:"
    )
    yield from (f"  {difference}" for difference in found.differences)
    yield from about.get("notes", ())
    if steps := about.get("frames"):
        span = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
        yield f"earlier steps in the capsule, for hookcore.capsules.read_frames: {len(steps)} ({span})"


def _culprit(culprit: Suspect) -> Iterator[str]:
    if culprit.phase:
        of_node = f", in {culprit.node}, which belongs to the forward call below" if culprit.node else ""
        yield f"  operator {culprit.number}, {culprit.phase}{of_node}"
    if culprit.line is not None:
        line = culprit.line
        yield f"  {line.file}, line {line.line}, in {line.function}"
        for number, source in enumerate(line.source, line.first):
            yield f"  {'>' if number == line.line else ' '} {number:4} {source}"
        yield from (f"  called from {each.file}, line {each.line}" for each in reversed(culprit.stack[:-1]))
    for facts in (*culprit.inputs, culprit.output):
        if facts is not None:
            yield f"  {_facts(facts)}"
    if culprit.elements:
        many = "1 element" if culprit.bad == 1 else f"{culprit.bad:,} elements"
        yield f"  {many}, first {', '.join(map(str, culprit.elements[:3]))}"


def _facts(facts: TensorFacts) -> str:
    shape = f"{facts.name}: {facts.dtype} {list(facts.shape)}, strides {list(facts.strides)}, {facts.device}"
    finite = "" if facts.min is None else f", min {facts.min:.6g}, max {facts.max:.6g}, mean {facts.mean:.6g}"
    values = f", values {', '.join(facts.values[:3])}" if facts.values else ""
    return f"{shape}, {facts.nan} NaN, {facts.inf} infinite{finite}{values}"
