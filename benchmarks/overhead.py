"""What watching costs a training step, as ratios taken within one run.

python -m benchmarks.overhead                                  # four models, about seven minutes
python -m benchmarks.overhead --model mlp --model narrow       # some of them
python -m benchmarks.overhead --model resnet-gpu --model gpt-gpu   # on a GPU
python -m benchmarks.overhead --variant every --threads 1 --clock cpu   # on a machine that others use too
python -m benchmarks.overhead --model gpt --parts   # what each measurement of its own adds to a step that has it
python -m benchmarks.overhead --model moe --parts   # the same, with what routers of experts add

Every variant trains the same model in turns of a few steps. A turn's time is compared with that of the untouched
turn of the same round, and the median of these ratios is shown with its quartiles. "untouched, again" is the
untouched training against itself: how far it is from 1 tells what the other figures are good for.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizers

import hookcore
from benchmarks.models import BY_NAME, MODELS, Training
from benchmarks.timing import Length, Seconds, Spread, describe_machine, no_collection, take_turns
from hookcore.probes import MicroBatches, attention, logit_lens, outliers, spectrum
from hookcore.watcher import parts_of

UNTOUCHED: Final = "untouched"
FLOOR: Final = "floor"
DEFAULT: Final = "default"
BUDGETED: Final = (DEFAULT, "spent")  # they need long turns
TURN_S: Final = 0.4  # minimum length of a turn; hookcore's own thread looks for work every 0.1 s
MIN_STEPS: Final = 2
SETTLE_STEPS: Final = 48  # the first steps under a budget alternate to learn the cost
LONG_STEPS: Final = 16  # of a turn under a budget: captured and skipped steps in their real proportion
EVERY_STEP: Final[dict[str, Any]] = {
    "include": "is:leaf",
    "kinds": {"output", "output_grad"},
    "every": 1,
    "budget": None,
    "server": None,
}


NONE: Final[dict[str, Any]] = {}


class Variant:
    """A way to train. `on` and `off` are called before and after a turn, outside of the measured time."""

    def on(self) -> None:
        """Prepare for a turn."""

    def off(self) -> None:
        """Clean up after a turn."""

    def after_step(self) -> None:
        """Run after every step, inside the measured time."""

    def finish(self) -> None:
        """Do what the steps have left to other threads, inside the measured time."""

    def close(self) -> None:
        """Clean up at the end."""


class ModuleHooks(Variant):
    """A forward hook on every leaf module, and a tensor hook on its output."""

    def __init__(self, model: nn.Module) -> None:
        self._leaves = [module for module in model.modules() if next(module.children(), None) is None]
        self._handles: list[Any] = []

    def on(self) -> None:
        """Register the forward hooks."""
        self._handles = [leaf.register_forward_hook(self.saw_output) for leaf in self._leaves]

    def off(self) -> None:
        """Remove the forward hooks."""
        for handle in self._handles:
            handle.remove()

    def saw_output(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        """Handle an output."""
        output.register_hook(self.saw_gradient)  # type: ignore[no-untyped-call]

    def saw_gradient(self, gradient: Tensor) -> None:
        """Handle a gradient."""


class Floor(ModuleHooks):
    """One torch.sum of every output and output gradient: the minimum of a watcher with torch's operators."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._sums: list[Tensor] = []

    def saw_output(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        """Handle an output."""
        self._sums.append(torch.sum(output.detach()))
        output.register_hook(self.saw_gradient)  # type: ignore[no-untyped-call]

    def saw_gradient(self, gradient: Tensor) -> None:
        """Handle a gradient."""
        self._sums.append(torch.sum(gradient))

    def after_step(self) -> None:
        """Release the step's sums."""
        self._sums.clear()


class Watched(Variant):
    """One watcher for the whole run. Between its turns, none of its hooks is registered.

    `routes`: whether the choices of experts are counted in each captured step or in none; None as it comes by itself.
    """

    def __init__(
        self,
        model: nn.Module,
        pause: bool = False,
        probes: Mapping[str, Mapping[str, Any]] = NONE,
        routes: bool | None = None,
        **settings: Any,
    ) -> None:
        self.watcher = hookcore.watch(model, **settings)
        self._routes, self._routers = routes, parts_of(self.watcher).recorder.capture.observers.routers
        self.after_step()
        for name, probe in probes.items():
            self.watcher.probe(name, **probe)
        if pause:
            self.watcher.pause()
        self._aside = ExitStack()
        self._aside.enter_context(hookcore.detached())

    def on(self) -> None:
        """Register its hooks again."""
        self._aside.close()

    def after_step(self) -> None:
        """Choose whether to look at routers in the next step."""
        if self._routes is not None:
            self._routers.due_at = 0 if self._routes else 10**9

    def finish(self) -> None:
        """Wait for its thread, so that the next turn doesn't pay for its work."""
        self.watcher.flush()

    def off(self) -> None:
        """Remove its hooks."""
        self._aside.enter_context(hookcore.detached())

    def close(self) -> None:
        """Close the watcher and check for errors, which would make the figures worthless."""
        self._aside.close()
        self.watcher.close()
        if self.watcher.error_count:
            print(self.watcher.errors[0].message, file=sys.stderr)
            raise RuntimeError(f"hookcore counted {self.watcher.error_count} errors: its figures say nothing")


class Closed(Variant):
    """A watcher that captured a step and was closed before anything is timed."""

    def __init__(self, training: Training) -> None:
        before = _process_state()
        with hookcore.watch(training.model, **EVERY_STEP):
            training.step()
        self.left = [name for name, value in _process_state().items() if value != before[name]]


def _process_state() -> dict[str, object]:
    """Return everything that torch keeps for the whole process, and the threads."""
    state: dict[str, object] = {
        name: list(value)
        for place in (torch_modules, torch_optimizers)
        for name, value in vars(place).items()
        if name.startswith("_global") and name.endswith(("hooks", "always_called", "with_kwargs"))
    }
    return state | {"threads": sorted(thread.name for thread in threading.enumerate())}


VARIANTS: Final[dict[str, tuple[str, Callable[[Training], Variant]]]] = {
    UNTOUCHED: ("untouched", lambda training: Variant()),
    "again": ("untouched, again", lambda training: Variant()),
    "empty": ("empty hooks", lambda training: ModuleHooks(training.model)),
    FLOOR: ("floor: one torch.sum each", lambda training: Floor(training.model)),
    "every": ("every step", lambda training: Watched(training.model, **EVERY_STEP)),
    "eighth": (
        "every step, every 8th with histograms",
        lambda training: Watched(training.model, **EVERY_STEP, sketches=8),
    ),
    "all": (
        "every step, all values sketched",
        lambda training: Watched(training.model, **EVERY_STEP, sketch_values=None),
    ),
    DEFAULT: ("default, budget 0.05", lambda training: Watched(training.model, server=None)),
    "spent": (
        "default, its allowance used up",
        lambda training: Watched(training.model, server=None, allowance=0),
    ),
    "paused": ("paused", lambda training: Watched(training.model, pause=True, server=None)),
    "closed": ("closed", Closed),
}


# What is measured by itself only in rare steps, or on request: here in each step, and one at a time. A probe of one of
# hookcore's functions that hardly looks at anything takes the place of the one that comes by itself.
WHOLE: Final[dict[str, Any]] = {"every": 1, "budget": None, "server": None}
CAPTURED: Final[dict[str, Any]] = WHOLE | {"state_every": 10**9, "routes": False}
RARE: Final[dict[str, Any]] = CAPTURED | {"state_every": 1}
ACTIVATIONS: Final = ("output", "output_grad")
NOWHERE: Final[dict[str, Any]] = {"include": "is:root", "every": 10**9}
WITHOUT: Final = {each.__name__: {"function": each, **NOWHERE} for each in (attention, outliers)}


def _probed(function: Any, include: str, **how: Any) -> Callable[[Training], Variant]:
    probes = WITHOUT | {
        getattr(function, "__name__", "lens"): {"function": function, "include": include, "every": 1, **how}
    }
    return lambda training: Watched(training.model, probes=probes, **CAPTURED)


def _with_lens(training: Training) -> Variant:
    model: Any = training.model
    return _probed(logit_lens(model.norm, model.head), "type:Block")(training)


PARTS: Final[dict[str, tuple[str, Callable[[Training], Variant]]]] = {
    "activations": (
        "activations and their gradients",
        lambda training: Watched(training.model, probes=WITHOUT, **CAPTURED, kinds=ACTIVATIONS),
    ),
    "stream": (
        "the same, with residual streams",
        lambda training: Watched(training.model, probes=WITHOUT, **RARE, kinds=ACTIVATIONS),
    ),
    "captured": (
        "captured: with gradients of weights",
        lambda training: Watched(training.model, probes=WITHOUT, **CAPTURED),
    ),
    "state": (
        "captured, with streams and optimizer state",
        lambda training: Watched(training.model, probes=WITHOUT, **RARE),
    ),
    "outliers": ("captured, with outliers of blocks", _probed(outliers, "type:Block")),
    "attention": ("captured, with heads of attention", _probed(attention, "*")),
    "lens": ("captured, with a logit lens of blocks", _with_lens),
    "spectrum": ("captured, with spectra of weights", _probed(spectrum, "type:Linear", kinds="param")),
    "routers": (
        "captured, with routers of experts",
        lambda training: Watched(training.model, probes=WITHOUT, **WHOLE, state_every=10**9, routes=True),
    ),
    "micro": ("captured, with micro-batches", _probed(MicroBatches, "*")),
    "rare": (
        "captured, with all that is rare",
        lambda training: Watched(training.model, **WHOLE, state_every=1, routes=True),
    ),
}
VARIANTS |= PARTS


@dataclass(frozen=True, slots=True)
class Target:
    """The limit of a ratio."""

    variant: str
    most: float
    base: str = UNTOUCHED
    models: frozenset[str] = frozenset(MODELS)


TARGETS: Final = (
    Target("every", 1.10, models=frozenset({"resnet", "gpt"})),
    Target("every", 1.10, FLOOR),
    Target("all", 1.20, models=frozenset({"resnet", "gpt"})),
    Target("all", 1.20, FLOOR),
    Target(DEFAULT, 1.05),
    Target("paused", 1.01),
)


@dataclass(slots=True)
class Result:
    """One model's figures: seconds per step, by variant and round."""

    model: str
    short: dict[str, Seconds] = field(default_factory=dict)
    # Of turns under a budget, and of untouched ones with the same length.
    long: dict[str, Seconds] = field(default_factory=dict)
    captured: dict[str, float] = field(default_factory=dict)  # share of the steps that each of these captured
    left: list[str] = field(default_factory=list)  # remains of a closed watcher

    def ratio(self, variant: str, base: str = UNTOUCHED) -> Spread | None:
        """Return a variant's time divided by another one's of the same rounds; None if one of them was not run."""
        figures = self.long if variant in BUDGETED else self.short
        if variant not in figures or base not in figures:
            return None
        return Spread.of(figures[variant] / figures[base])


class Bench:
    """One model and the variants that train it."""

    def __init__(self, name: str, variants: Sequence[str], clock: Callable[[], float]) -> None:
        self.result = Result(name)
        self._training = (MODELS | BY_NAME)[name]()
        self._clock = clock
        for _ in range(3):
            self._training.step()
        self._variants = {name: VARIANTS[name][1](self._training) for name in variants}
        self._step_s = min(self._time_steps(Variant(), 2) for _ in range(2))

    def run(self, seconds: float, rounds: int | None) -> Result:
        """Time every variant, for about this many seconds or for an exact number of rounds."""
        try:
            self._run_long(seconds * 0.45, rounds)
            self._run_short(seconds * 0.55, rounds)
        finally:
            for variant in self._variants.values():
                variant.close()
        return self.result

    def _run_short(self, seconds: float, rounds: int | None) -> None:
        variants = {name: variant for name, variant in self._variants.items() if name not in BUDGETED}
        steps = max(MIN_STEPS, math.ceil(TURN_S / self._step_s))
        warm_up = 1 + steps // 8
        tasks = {name: self._turn(variant, steps, warm_up) for name, variant in variants.items()}
        self.result.short = take_turns(tasks, Length(seconds, rounds=rounds))
        closed = self._variants.get("closed")
        self.result.left = closed.left if isinstance(closed, Closed) else []

    def _run_long(self, seconds: float, rounds: int | None) -> None:
        budgeted = {name: each for name in BUDGETED if isinstance(each := self._variants.get(name), Watched)}
        if not budgeted:
            return
        started = time.perf_counter()
        for each in budgeted.values():
            self._turn(each, SETTLE_STEPS, 0)()
        seconds -= time.perf_counter() - started
        before = {name: (each.watcher.store.captured(), each.watcher.current_step) for name, each in budgeted.items()}
        steps = max(LONG_STEPS, math.ceil(2 * TURN_S / self._step_s))
        tasks = {name: self._turn(self._variants[name], steps, 1) for name in (UNTOUCHED, *budgeted)}
        self.result.long = take_turns(tasks, Length(seconds, least=3, rounds=rounds))
        for name, each in budgeted.items():
            captured, seen = before[name]
            many = each.watcher.store.captured() - captured
            self.result.captured[name] = many / (each.watcher.current_step - seen)

    def _turn(self, variant: Variant, steps: int, warm_up: int) -> Callable[[], float]:
        def turn() -> float:
            variant.on()
            try:
                with no_collection():
                    self._time_steps(variant, warm_up)
                    return self._time_steps(variant, steps)
            finally:
                variant.off()

        return turn

    def _time_steps(self, variant: Variant, steps: int) -> float:
        """Return the mean time of a step. A mean, because occasional work of hookcore's thread counts."""
        step, after_step = self._training.step, variant.after_step
        self._training.finish()
        started = self._clock()
        for _ in range(steps):
            step()
            after_step()
        self._training.finish()
        variant.finish()
        return (self._clock() - started) / max(1, steps)


def print_result(result: Result) -> None:
    """Print a table of ratios, then the targets."""
    step_ms = float(np.median(result.short[UNTOUCHED])) * 1e3
    print(f"\n{result.model}: {step_ms:.2f} ms a step untouched, {len(result.short[UNTOUCHED])} rounds")
    print(f"  {'':42} {'to untouched':>26} {'to the floor':>26}")
    for name, (title, _) in VARIANTS.items():
        spread, to_floor = result.ratio(name), result.ratio(name, FLOOR)
        if spread and name != UNTOUCHED:
            beside = str(to_floor) if to_floor and name in ("every", "all") else ""
            print(f"  {title:42} {spread!s:>26} {beside:>26}")
    for name, share in result.captured.items():
        print(f"  {VARIANTS[name][0]}: {share:.0%} of the steps were captured")
    for one in check_targets(result):
        print(f"  {'met    ' if one['met'] else 'NOT MET'}  {one['what']}: {one['ratio']:.3f}, target {one['target']}")


def check_targets(result: Result) -> list[dict[str, Any]]:
    """Return each target for this model, with the ratio reached."""
    checked = []
    for target in TARGETS:
        spread = result.ratio(target.variant, target.base)
        if spread and result.model in target.models:
            what = f"{VARIANTS[target.variant][0]}, to {VARIANTS[target.base][0]}"
            checked.append(
                {"what": what, "ratio": spread.median, "target": target.most, "met": spread.median <= target.most}
            )
    if "closed" in result.short:
        count = len(result.left)
        what = f"closed, hooks and threads left {result.left or ''}".rstrip()
        checked.append({"what": what, "ratio": count, "target": 0, "met": not count})
    return checked


def as_json(result: Result) -> dict[str, Any]:
    """Return everything about one model, for a file."""
    ratios = {
        f"{name}/{base}": spread.as_dict()
        for name in VARIANTS
        for base in (UNTOUCHED, FLOOR)
        if name != base and (spread := result.ratio(name, base))
    }
    return {
        "model": result.model,
        "step_s": float(np.median(result.short[UNTOUCHED])),
        "ratios": ratios,
        "captured": result.captured,
        "targets": check_targets(result),
    }


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS | BY_NAME, help="only this one; may be repeated")
    parser.add_argument(
        "--variant", action="append", choices=VARIANTS, help="only this one, untouched and the floor; may be repeated"
    )
    parser.add_argument("--parts", action="store_true", help="what each measurement adds, instead; for gpt and moe")
    parser.add_argument("--seconds", type=float, default=80.0, help="time for each model, about (default: 80)")
    parser.add_argument("--rounds", type=int, help="so many rounds instead")
    parser.add_argument("--threads", type=int, help="torch's threads")
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: the processor time of this process, for a machine that others use too; with --threads 1 only",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything to this file as well")
    chosen = parser.parse_args(arguments)
    if chosen.clock == "cpu" and chosen.threads != 1:
        parser.error("--clock cpu counts the threads that wait for each other: it needs --threads 1")
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the requested parts and print the figures."""
    chosen = read_arguments(arguments)
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    wanted = {UNTOUCHED, FLOOR, *chosen.variant} if chosen.variant else set(VARIANTS) - set(PARTS)
    wanted = {UNTOUCHED, "again", DEFAULT, *PARTS} if chosen.parts and not chosen.variant else wanted
    variants = [name for name in VARIANTS if name in wanted]
    machine = describe_machine()
    print(f"{machine}; clock: {chosen.clock}")
    results = []
    for name in chosen.model or MODELS:
        bench = Bench(name, variants, time.process_time if chosen.clock == "cpu" else time.perf_counter)
        results.append(bench.run(chosen.seconds, chosen.rounds))
        print_result(results[-1])
    if chosen.json:
        document = {"machine": machine, "clock": chosen.clock, "models": [as_json(result) for result in results]}
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)


if __name__ == "__main__":
    main()
