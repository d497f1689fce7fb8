"""The loss of a script that logs none: the value that `backward()` was called on, compared with the script's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

import hookcore
from hookcore import Watcher
from hookcore.findings import findings_of
from hookcore.findings.keyfigures import course_of, key_figures_of
from hookcore.recorder.clock import clock
from hookcore.records.vocabulary import ELAPSED, FOUND_LOSS, is_loss, losses_among
from tests.inside import module_of, recorder_of

SCALARS: Any = module_of("FoundLoss")
FIRST_STEPS = SCALARS.FIRST_STEPS

STEPS = 6
SECOND = f"{FOUND_LOSS}2"
Loop = Callable[[nn.Module, torch.optim.Optimizer], Iterator[Any]]


def loss_of(model: nn.Module) -> Tensor:
    inputs = torch.randn(4, 8)
    return functional.cross_entropy(model(inputs), inputs.argmax(1) % 3)


def trained(loop: Loop, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD) -> tuple[Watcher, list[Any]]:
    """Return a closed watcher of a loop that yields its own loss after each step."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    with hookcore.watch(model, server=None, budget=None) as watcher:
        return watcher, list(loop(model, optimizer(model.parameters(), lr=0.1)))


def found_in(watcher: Watcher, name: str = FOUND_LOSS) -> dict[int, float]:
    if name not in watcher.store.scalar_names():
        return {}
    series = watcher.store.scalars(name)
    return dict(zip(series.last_step.tolist(), series.mean.tolist(), strict=True))


def assert_found(watcher: Watcher, own: list[float], first: int = 0) -> None:
    assert found_in(watcher) == pytest.approx(dict(list(enumerate(own))[first:]), rel=1e-6)
    assert own


def test_the_loss_is_the_tensor_on_which_backward_was_called() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[float]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            yield loss.item()

    assert_found(*trained(loop))


def test_micro_batches_add_up() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[float]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            losses = [loss_of(model) / 4 for _ in range(4)]
            for loss in losses:
                loss.backward()
            optimizer.step()
            yield sum(loss.item() for loss in losses)

    assert_found(*trained(loop))


@pytest.mark.parametrize("is_alone", [False, True])
def test_passes_whose_gradients_were_thrown_away_do_not_count(monkeypatch: pytest.MonkeyPatch, is_alone: bool) -> None:
    if is_alone:  # with a single optimizer, it doesn't matter which pass reached it
        monkeypatch.setattr(clock, "FIRST_STEPS", 1)

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[float]:
        for step in range(STEPS):
            (loss_of(model) * float("inf")).backward()  # a bad batch; the first pass of SAM or of FGSM
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            losses = [loss_of(model) / 2 for _ in range(2)]
            for loss in losses:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield sum(loss.item() for loss in losses)

    alone, let_go = [], clock.Clock.let_go
    monkeypatch.setattr(clock.Clock, "let_go", lambda self: (alone.append(self.alone is not None), let_go(self)))
    watcher, own = trained(loop)
    assert alone == [is_alone]
    assert_found(watcher, own, first=1)  # in the first one, it isn't known yet who steps


def test_the_loss_is_unknown_if_the_gradients_of_some_parameters_were_thrown_away() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss_of(model).backward()
            model[0].zero_grad()
            loss_of(model).backward()
            yield optimizer.step()

    assert not found_in(trained(loop)[0])


def test_the_scale_of_a_scaler_is_divided_out() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[float]:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            yield loss.item()

    assert_found(*trained(loop))


def test_weights_that_are_given_to_backward_count_and_several_tensors_add_up() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[float]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            one, two = loss_of(model), model(torch.ones(1, 8)).mean()
            torch.autograd.backward([one, two], [torch.tensor(3.0), torch.tensor(0.5)])
            optimizer.step()
            yield 3 * one.item() + two.item() / 2

    assert_found(*trained(loop))


def test_a_gradient_penalty_is_part_of_the_loss_but_the_argument_of_grad_is_not() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[float]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model)
            (slope,) = torch.autograd.grad(loss, [model[0].weight], create_graph=True)
            loss = loss + slope.square().mean()
            loss.backward()
            optimizer.step()
            yield loss.item()

    assert_found(*trained(loop))


def test_a_backward_pass_that_reaches_no_watched_parameter_is_not_the_loss() -> None:
    other = nn.Linear(2, 1)

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[float]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            other(torch.ones(1, 2)).sum().backward()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            yield loss.item()

    assert_found(*trained(loop))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_loss_is_read_in_any_precision(dtype: torch.dtype) -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[float]:
        model.to(dtype)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8, dtype=dtype)).square().mean()
            loss.backward()
            optimizer.step()
            yield loss.item()

    assert_found(*trained(loop))


def test_nothing_is_found_if_the_script_logs_a_loss_or_it_is_unknown() -> None:
    def logging(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            yield watcher.log(train_loss=loss)

    def vector(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            yield model(torch.randn(4, 8)).backward(torch.ones(4, 3))
            optimizer.step()

    def closure(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        def compute() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            return loss

        for _ in range(STEPS):
            optimizer.step(compute)  # type: ignore[arg-type]
            yield

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    with hookcore.watch(model, server=None, budget=None) as watcher:
        list(logging(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    assert [name for name in watcher.store.scalar_names() if is_loss(name)] == ["train_loss"]
    assert not found_in(trained(vector)[0])
    assert not found_in(trained(closure, torch.optim.LBFGS)[0])


def test_an_occasionally_logged_loss_does_not_end_the_found_loss() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            yield watcher.log(**({"loss": 1.0} if step == STEPS - 2 else {"lr": 0.1, "val_loss": 2.0}))

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    with hookcore.watch(model, server=None, budget=None) as watcher:
        list(loop(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    assert list(found_in(watcher)) == list(range(STEPS))


def test_a_pass_that_reaches_nothing_but_a_parameter_counts_and_a_closure_without_a_pass_hides_nothing() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    model.register_parameter("temperature", nn.Parameter(torch.tensor(2.0)))
    groups = model[0].parameters(), model[2].parameters(), [model.temperature]
    optimizers = [torch.optim.SGD(group, lr=0.1) for group in groups]
    own: list[float] = []
    with hookcore.watch(model, server=None, budget=None) as watcher:
        for _ in range(STEPS):
            for optimizer in optimizers:
                outputs = model(torch.ones(1, 8))
                is_last = optimizer is optimizers[-1]
                loss = model.temperature * outputs.detach().sum() if is_last else outputs.square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step(lambda loss=loss: loss)  # as Lightning calls it, with its own backward pass before it
                own.append(loss.item())
    found = [found_in(watcher, f"{FOUND_LOSS} {label}") for label in ("0", "2", "temperature")]
    assert found[0] | found[1] | found[2] == pytest.approx(dict(enumerate(own)), rel=1e-6)
    assert [len(each) for each in found] == [STEPS] * 3


def test_two_optimizers_have_separate_losses_of_which_no_course_is_expected() -> None:
    torch.manual_seed(3)
    maker, judge = nn.Sequential(nn.Linear(4, 2)), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (judge, maker)]
    own: list[list[float]] = [[], []]
    with hookcore.watch(server=None, budget=None) as watcher:
        for _ in range(STEPS):
            made, real = maker(torch.randn(8, 4)), torch.randn(8, 2)
            losses = [functional.softplus(judge(made.detach())).mean(), functional.softplus(-judge(real)).mean()]
            for loss in losses:
                loss.backward()
            optimizers[0].step()
            own[0].append(sum(loss.item() for loss in losses))
            loss = functional.softplus(-judge(made)).mean()
            loss.backward()
            optimizers[1].step()
            own[1].append(loss.item())
            for optimizer in optimizers:
                optimizer.zero_grad()
    for name, place in ((f"{FOUND_LOSS} Linear", 0), (f"{FOUND_LOSS} Sequential", 1)):
        assert list(found_in(watcher, name).values()) == pytest.approx(own[place], rel=1e-6)
    assert losses_among(watcher.store.scalar_names()) == [f"{FOUND_LOSS} Linear", f"{FOUND_LOSS} Sequential"]
    assert course_of(watcher.store, ()).reason.startswith("several optimizers have a loss")
    figures = key_figures_of(watcher.store)
    assert [each.name for each in figures.losses] == losses_among(watcher.store.scalar_names())


def test_a_validation_loss_beside_them_leaves_their_course_unknown() -> None:
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in model]
    with hookcore.watch(model, server=None, budget=None) as watcher:
        for step in range(STEPS):
            model[step % 2](torch.ones(4, 2)).square().mean().backward()
            optimizers[step % 2].step()
            optimizers[step % 2].zero_grad()
            watcher.log(val_loss=1 / (1 + step))
    assert course_of(watcher.store, ()).reason.startswith("several optimizers have a loss")


def test_the_course_is_that_of_the_optimizer_that_took_over() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    phases = [torch.optim.Adam(parameters, lr=0.02) for parameters in (model[2].parameters(), model.parameters())]
    with hookcore.watch(model, server=None, budget=None) as watcher:
        for optimizer, steps in zip(phases, (60, 180), strict=True):
            for step in range(steps):
                if optimizer is phases[1] and step == 60:  # phases may also alternate
                    assert course_of(watcher.store, ()).word == "unknown"
                inputs = torch.randn(32, 4)
                functional.mse_loss(model(inputs), inputs[:, :1]).backward()
                optimizer.step()
                model.zero_grad()
    first, second = losses_among(watcher.store.scalar_names())
    assert max(found_in(watcher, first)) < min(found_in(watcher, second))
    course = course_of(watcher.store, ())
    assert course.word != "unknown"
    assert course.loss == second


def run_two(optimizers: list[Optimizer], loss_of: Callable[[], Tensor], turns: list[list[int]]) -> list[str]:
    with hookcore.watch(server=None, budget=None) as watcher:
        for turn in turns:
            loss_of().backward()
            for place in turn:
                optimizers[place].step()
            for each in optimizers:
                each.zero_grad()
    return losses_among(watcher.store.scalar_names())


def test_a_loss_has_its_name_from_the_first_step_although_the_other_optimizer_steps_much_later() -> None:
    model = nn.ModuleDict({"maker": nn.Linear(4, 2), "judge": nn.Linear(2, 1)})
    optimizers: list[Optimizer] = [torch.optim.SGD(model[name].parameters(), lr=0.01) for name in ("judge", "maker")]
    with hookcore.watch(model, server=None, budget=None) as watcher:
        for step in range(12):
            model["judge"](model["maker"](torch.ones(3, 4))).sum().backward()
            optimizers[step % 6 == 5].step()
            for each in optimizers:
                each.zero_grad()
    assert {len(found_in(watcher, f"{FOUND_LOSS} {name}")) for name in ("judge", "maker")} == {10, 2}
    assert len(losses_among(watcher.store.scalar_names())) == 2


def test_optimizers_that_step_after_the_same_pass_share_one_loss() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    optimizers: list[Optimizer] = [torch.optim.SGD(each.parameters(), lr=0.01) for each in model]
    assert run_two(optimizers, lambda: model(torch.ones(3, 4)).sum(), [[0, 1]] * STEPS) == [FOUND_LOSS]


def test_what_cannot_be_told_apart_by_a_path_has_a_number() -> None:
    model = nn.Linear(4, 2)
    optimizers: list[Optimizer] = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(2)]
    names = run_two(optimizers, lambda: model(torch.ones(3, 4)).sum(), [[0], [1]] * STEPS)
    assert names == [FOUND_LOSS, SECOND]


def test_a_non_finite_loss_of_one_of_several_optimizers_is_found() -> None:
    model = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in model]
    with hookcore.watch(model, server=None, budget=None) as watcher:
        for step in range(2 * STEPS):
            place = step % 2
            (model[place](torch.ones(3, 4)).sum() * (float("nan") if step > STEPS and place else 1.0)).backward()
            optimizers[place].step()
            optimizers[place].zero_grad()
    found = [each for each in findings_of(watcher.store) if each.rule == "loss"]
    assert [each.message.partition(" has")[0] for each in found] == ["loss 1"]  # as pages call it
    assert course_of(watcher.store, ()).word == "broken"


@pytest.mark.parametrize("updates_once", [False, True])
def test_the_loss_of_a_step_skipped_by_a_scaler_belongs_to_its_optimizer(updates_once: bool) -> None:
    torch.manual_seed(3)
    maker, judge = nn.Linear(4, 2), nn.Linear(2, 1)
    scaler, own = torch.amp.GradScaler("cpu", init_scale=8.0), []
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (judge, maker)]
    with hookcore.watch(nn.ModuleList([maker, judge]), server=None, budget=None) as watcher:
        for turn in range(STEPS):
            for place, optimizer in enumerate(optimizers):
                for model in (maker, judge):
                    model.zero_grad()
                is_bad, total = (turn, place) in ((3, 1), (4, 0)), 0.0
                for weight in (1.0, float("inf") if is_bad else 2.0):  # two micro-batches
                    loss = judge(maker(torch.randn(8, 4))).mean() * weight
                    scaler.scale(loss).backward()
                    total += loss.item()
                    watcher.log(turn=turn)
                scaler.step(optimizer)
                if place or not updates_once:
                    scaler.update()
                own.append(float("nan") if is_bad else total)
    found = [found_in(watcher, f"{FOUND_LOSS} {label}") for label in ("1", "0")]
    for step in range(FIRST_STEPS, 2 * STEPS):
        assert found[step % 2][step] == pytest.approx(own[step], rel=1e-6, nan_ok=True)
        assert step not in found[1 - step % 2]
    assert [event.step for event in watcher.store.events(name="skipped-step")] == [7, 8]


def test_a_loss_without_data_or_inside_a_transform_is_unknown() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss_of(model).backward()
            yield optimizer.step()

    watcher, _ = trained(loop)
    finder = recorder_of(watcher).capture.collector.loss
    finder.begin_pass([torch.empty((), device="meta")], [torch.ones(())])
    finder.end_pass(counts=True)
    assert finder.take(FIRST_STEPS, None) is None
    finder.begin_pass([torch.ones(())], [None])
    finder.end_pass(counts=True)
    assert finder.take(FIRST_STEPS, None) is None


def test_a_scale_of_zero_loses_no_frame() -> None:
    assert SCALARS.Sum([3.0, 1.0]).resolve(0.0) == 4.0


def test_passes_of_another_model_do_not_affect_the_loss_between_captured_steps() -> None:
    torch.manual_seed(3)
    model, stranger = nn.Linear(8, 3), nn.Linear(8, 1)
    optimizer, own = torch.optim.SGD(model.parameters(), lr=0.1), []
    with hookcore.watch(model, server=None, every=4, budget=None) as watcher:
        for _ in range(120):
            optimizer.zero_grad()
            stranger(torch.randn(2, 8)).sum().add(1000.0).backward()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            own.append(loss.item())
    found = found_in(watcher)
    assert found == pytest.approx(dict(enumerate(own)), rel=1e-6)


def test_a_pass_from_an_edge_of_the_graph_has_an_unknown_loss_and_does_no_harm() -> None:
    torch.manual_seed(3)
    model = nn.Linear(8, 3)
    first, second = (torch.optim.SGD([weight], lr=0.1) for weight in model.parameters())
    with hookcore.watch(model, server=None, budget=None) as watcher:
        for _ in range(STEPS):
            edge = torch.autograd.graph.get_gradient_edge(loss_of(model))
            torch.autograd.backward([edge])
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()
        assert watcher.current_step == STEPS
        assert watcher.errors == []
    assert found_in(watcher) == {}


def test_no_mode_of_the_user_sees_the_reading_of_logged_numbers() -> None:
    seen: list[str] = []

    class Notes(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **kwargs or {})

    value = torch.tensor(1.5)
    with Notes():
        assert SCALARS.scalar_of(value) == 1.5
    assert seen == []


def train_alone(steps: int, **settings: Any) -> tuple[Watcher, list[float]]:
    torch.manual_seed(3)
    model, own = nn.Linear(8, 3), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hookcore.watch(model, server=None, **settings) as watcher:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            own.append(loss.item())
    return watcher, own


@pytest.mark.parametrize("settings", [{"every": 64, "budget": None}, {"budget": 1e-9}, {"every": 7, "budget": None}])
def test_every_step_has_its_loss_and_its_time_captured_or_not(settings: dict[str, Any]) -> None:
    watcher, own = train_alone(300, **settings)
    assert found_in(watcher) == pytest.approx(dict(enumerate(own)), rel=1e-6)
    assert list(found_in(watcher, ELAPSED)) == list(range(1, 300))  # the first step has no step before it


def test_no_operator_of_hookcore_is_in_the_profile_of_an_uncaptured_step() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()

    def profile_of_a_step() -> dict[str, int]:
        for _ in range(5):
            step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            step()
        return {each.key: each.count for each in profiler.key_averages()}

    alone = profile_of_a_step()
    with hookcore.watch(model, server=None, every=1000, budget=None) as watcher:
        assert profile_of_a_step() == alone
    assert found_in(watcher)[5] != 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_number_is_read_from_memory_as_torch_reads_it(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -1.5, 3.1415926, 1e-7, 6e4, float("inf"), float("nan")], dtype=dtype)
    for value in values:  # each a view with an offset of its own
        assert SCALARS.read_memory(value) == pytest.approx(value.item(), rel=0, abs=0, nan_ok=True)
    assert SCALARS.read_memory(values.to(torch.complex64)[1].conj().imag) is None  # its memory holds the negative


def test_the_loss_of_every_step_is_found_if_the_script_ends_steps_or_the_optimizer_steps_inside_the_pass() -> None:
    model, own = nn.Linear(8, 3), []
    with hookcore.watch(model, server=None, every=50, budget=None) as watcher:
        for _ in range(120):
            model.zero_grad()
            loss = loss_of(model)
            loss.backward()
            with torch.no_grad():
                for weight in model.parameters():
                    weight -= 0.1 * weight.grad
            own.append(loss.item())
            watcher.step()
    assert_found(watcher, own)
    optimizers = {weight: torch.optim.SGD([weight], lr=0.1) for weight in model.parameters()}

    def step(weight: Tensor) -> None:
        optimizers[weight].step()
        optimizers[weight].zero_grad()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(step)
    own = []
    with hookcore.watch(model, server=None, every=50, budget=None) as watcher:
        for _ in range(120):
            loss = loss_of(model)
            loss.backward()
            own.append(loss.item())
    assert_found(watcher, own)


def test_a_pause_records_no_loss() -> None:
    watcher, _ = train_alone(3)
    finder = recorder_of(watcher).capture.collector.loss
    finder.begin_step(paused=True)
    assert not finder.reads


def test_a_loss_that_waits_for_the_next_step_has_the_time_of_its_own() -> None:
    loss = SCALARS.FoundLoss()
    loss.begin_pass([torch.tensor(2.0)], [torch.tensor(1.0)])
    loss.end_pass(counts=True)
    before = time.time()
    assert loss.take(0, None, None) is None
    after = time.time()
    held = loss.take_held()
    assert held is not None
    assert before <= held.time_s <= after
