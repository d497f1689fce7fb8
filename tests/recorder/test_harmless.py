# mypy: disable-error-code="no-untyped-call"
"""Watching changes nothing: each case of the zoo is watched in several ways and compared with an unwatched run."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import hookcore
from hookcore.hooks.tracing import Trace
from hookcore.records import TENSOR_KINDS
from tests.harness import STEPS, Attach, Outcome, process_state, run_case, seed_all, watch
from tests.zoo import CASES, Case, Trial

Watchers = list[hookcore.Watcher]


def _watch_all(trial: Trial, **settings: Any) -> Watchers:
    return [watch(model, **settings) for model in (trial.model, *trial.others)]


def _attached(trial: Trial) -> Watchers:
    return _watch_all(trial)


def _all_kinds(trial: Trial) -> Watchers:
    return _watch_all(trial, kinds=TENSOR_KINDS, phases={"train", "eval"})


def _per_module(trial: Trial) -> Watchers:
    return _watch_all(trial, attach="module")


def _discovered(trial: Trial) -> Watchers:
    return [watch()]


def _sampled(trial: Trial) -> Watchers:
    return _watch_all(trial, every=2)


def _by_budget(trial: Trial) -> Watchers:
    return _watch_all(trial, budget=0.05)


def _paused(trial: Trial) -> Watchers:
    watchers = _watch_all(trial)
    for watcher in watchers:
        watcher.pause()
    return watchers


def _closed(trial: Trial) -> Watchers:
    watchers = _watch_all(trial)
    for watcher in watchers:
        watcher.close()
    return watchers


def _coming_and_going(trial: Trial) -> Watchers:
    """Capture step 0, pause in step 1, and close in step 2."""
    watchers, step = _watch_all(trial), trial.step

    def stepped(number: int) -> Any:
        for watcher in watchers:
            if number == 1:
                watcher.pause()
            elif number == 2:
                watcher.resume()
                watcher.close()
        return step(number)

    trial.step = stepped
    return watchers


WAYS: Final[dict[str, Callable[[Trial], Watchers]]] = {
    "attached": _attached,
    "all-kinds": _all_kinds,
    "per-module": _per_module,
    "discovered": _discovered,
    "sampled": _sampled,
    "by-budget": _by_budget,
    "paused": _paused,
    "closed": _closed,
    "coming-and-going": _coming_and_going,
}
ALWAYS: Final = ("all-kinds", "per-module", "discovered", "coming-and-going")
# In these ways, each step is either captured or not, as in the ways above. They differ only in who decides that, and
# when. So each case runs in one of these ways, and each way runs many cases.
IN_TURN: Final = ("attached", "sampled", "by-budget", "paused", "closed")


def _cases() -> list[Any]:
    return [
        pytest.param(case, way, id=f"{name}-{way}")
        for number, (name, case) in enumerate(CASES.items())
        for way in (*ALWAYS, IN_TURN[number % len(IN_TURN)])
    ]


@functools.cache
def _unwatched(name: str) -> Outcome:
    return run_case(CASES[name])


def _watched(way: Callable[[Trial], Watchers], watchers: Watchers) -> Attach:
    @contextlib.contextmanager
    def attach(trial: Trial) -> Iterator[None]:
        watchers.extend(way(trial))
        try:
            yield
        finally:
            for watcher in watchers:
                watcher.flush()
                watcher.close()

    return attach


@pytest.mark.rota("case", of="zoo")
@pytest.mark.parametrize(("case", "way"), _cases())
def test_watching_changes_no_bit_and_leaves_nothing(case: Case, way: str) -> None:
    expected = _unwatched(case.name)
    before, watchers = process_state(), Watchers()
    seen = run_case(case, _watched(WAYS[way], watchers))
    for number in range(STEPS):
        assert seen.steps[number] == expected.steps[number], f"step {number}"
    if way == "per-module":
        seen.hooks = expected.hooks  # that is their purpose; afterward, they are gone
    assert seen == expected
    assert not seen.warnings - expected.warnings
    assert process_state() == before
    assert [event.message for watcher in watchers for event in watcher.errors] == []
    assert sum(watcher.error_count for watcher in watchers) == 0


@contextlib.contextmanager
def _traced(trial: Trial, traces: list[Trace]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for model in (trial.model, *trial.others):
            with contextlib.suppress(hookcore.TraceError):  # raised if the model is compiled as a whole and in place
                traces.append(stack.enter_context(hookcore.trace(model)))
        yield


@pytest.mark.rota("case", of="zoo")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_tracing_changes_no_bit_and_leaves_nothing(case: Case) -> None:
    traces: list[Trace] = []
    before, expected = process_state(), _unwatched(case.name)
    seen = run_case(case, lambda trial: _traced(trial, traces))
    seen.hooks = expected.hooks  # that is their purpose; afterward, they are gone
    assert seen == expected
    assert not seen.warnings - expected.warnings
    assert process_state() == before
    assert [call.problem for trace in traces for path in trace for call in trace[path].calls if call.problem] == []


# --- Nothing lives longer -------------------------------------------------------------------------------------------


class Canary:
    """An object that dies with a node of the autograd graph."""


class Census:
    """Weak references to everything that a training creates: outputs, their graph, and the model."""

    def __init__(self) -> None:
        self.born: list[weakref.ref[Any]] = []

    def saw(self, module: nn.Module, args: Any, output: Any) -> None:
        outputs = output if type(output) is tuple else (output,)
        for tensor in outputs:
            if type(tensor) is Tensor:
                self.born.append(weakref.ref(tensor))
                if tensor.grad_fn is not None:
                    metadata: Any = tensor.grad_fn.metadata
                    canary = metadata.setdefault("canary", Canary())
                    self.born.append(weakref.ref(canary))

    def count(self, watchers: Watchers) -> tuple[int, int]:
        """Return how many were created, and how many are alive while hookcore's thread, which reads models, is idle."""
        for watcher in watchers:
            watcher.flush()
        return len(self.born), sum(reference() is not None for reference in self.born)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # older objects don't matter here, so no later collection needs to visit them
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _take_census(case: Case, watched: bool) -> list[tuple[int, int]]:
    """Return the numbers of created and live objects: after each step, without the model, and after a collection."""
    seed_all()
    census, watchers = Census(), Watchers()
    with _without_collector(), register_module_forward_hook(census.saw):
        trial = case.build()
        if watched:
            watchers = _watch_all(trial, kinds=TENSOR_KINDS)
        counts = []
        for number in range(STEPS):
            trial.step(number)
            counts.append(census.count(watchers))
        census.born += [weakref.ref(part) for model in (trial.model, *trial.others) for part in model.modules()]
        del trial
        counts.append(census.count(watchers))
        gc.collect()
        counts.append(census.count(watchers))
        for watcher in watchers:
            watcher.close()
    return counts


@pytest.mark.filterwarnings("ignore")
@pytest.mark.rota("case", of="zoo")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_no_tensor_graph_or_model_lives_longer_because_it_is_watched(case: Case) -> None:
    expected, seen = _take_census(case, watched=False), _take_census(case, watched=True)
    assert expected[0][0] > 0
    assert [born for born, _ in seen] == [born for born, _ in expected]
    # When torch does something for the first time in a process, it keeps some objects until a collection.
    living = [(mine, torchs) for (_, mine), (_, torchs) in zip(seen, expected, strict=True)]
    assert [pair for pair in living if pair[0] > pair[1]] == [], living


def test_a_closed_watcher_releases_a_graph_that_still_lives() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    watcher = watch(model, kinds=TENSOR_KINDS)
    loss = model(torch.ones(2, 3)).sum()
    watcher.close()
    gone = weakref.ref(watcher)
    loss.backward()
    del watcher
    gc.collect()
    assert loss.grad_fn is not None
    assert all(parameter.grad is not None for parameter in model.parameters())
    del loss
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("steps", [2, 70])  # in the first 64 steps, more gradients are compared
@pytest.mark.parametrize("closes", [True, False])
def test_no_parameter_outlives_its_model_because_the_watcher_is_kept(steps: int, closes: bool) -> None:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    gone = [weakref.ref(parameter) for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model) as watcher:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        assert watcher.flush()  # the recorder's thread may be looking at the model just now
        if closes:
            watcher.close()
        del model, optimizer
        gc.collect()
        assert [ref() for ref in gone] == [None] * 6
        assert watcher.errors == []


def test_optimizers_that_raised_leave_no_copies_of_the_weights() -> None:
    class Full(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("out of memory")

    model = nn.Linear(13, 17, bias=False)
    with watch(model, kinds={"update"}) as watcher:
        for _ in range(3):
            optimizer = Full(model.parameters(), 0.1)
            model(torch.ones(2, 13)).sum().backward()
            with pytest.raises(RuntimeError):
                optimizer.step()
            del optimizer
            model.zero_grad()
        gc.collect()
        alike = [each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter) and each.shape == (17, 13)]
        assert len(alike) == 1
        assert watcher.errors == []


class Shows(nn.Module):
    """Keeps the watcher, and passes it a tensor inside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.watcher: hookcore.Watcher | None = None

    def forward(self, x: Tensor) -> Any:
        out = self.inner(x)
        return out if self.watcher is None else self.watcher.observe("shown", out)


def _by_pickle(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))


def _by_save(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copier", [copy.deepcopy, _by_pickle, _by_save])
def test_a_model_that_holds_its_watcher_can_still_be_copied(copier: Callable[[Any], Any]) -> None:
    model = Shows()
    with watch(model) as watcher:
        model.watcher = watcher
        twin = copier(model)
        assert torch.equal(twin(torch.ones(2, 6)), model(torch.ones(2, 6)))
        twin.watcher.log(loss=1.0)
        twin.watcher.step()
        assert watcher.errors == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strict", [False, True])
def test_a_model_is_exported_as_if_unwatched(strict: bool) -> None:
    def graph() -> list[str]:
        return [f"{node.op} {node.target}" for node in torch.export.export(model, (inputs,), strict=strict).graph.nodes]

    model, inputs = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)).eval(), torch.ones(2, 6)
    expected = graph()
    with watch(model, kinds=TENSOR_KINDS, phases={"train", "eval"}) as watcher:
        with hookcore.detached() if strict else contextlib.nullcontext():
            assert graph() == expected
        assert watcher.errors == []
    assert graph() == expected
