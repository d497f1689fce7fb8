"""Commands from readers to the trainer: checked on arrival, and carried out between two steps."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import hookcore
from hookcore import hooks
from hookcore.config import Settings
from hookcore.delivery.sinks import StoreSink
from hookcore.hooks import internals
from hookcore.recorder import Recorder
from hookcore.records import Command, Coverage, Event, HookRecord, ModuleRecord, Tap
from hookcore.store import Store
from tests.harness import process_state, watch
from tests.inside import module_of, recorder_of
from tests.waiting import wait_for


class Training:
    """A small model, its optimizer, and the commands to its recorder."""

    def __init__(self, watcher: hookcore.Watcher, model: nn.Module) -> None:
        self.watcher, self.model = watcher, model
        self.recorder = recorder_of(watcher)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.number = 0

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.optimizer.zero_grad()
            self.model(torch.randn(3, 4)).square().sum().backward()
            self.optimizer.step()

    def change(self, **changes: Any) -> None:
        self.number += 1
        self.recorder.on_command(Command(self.number, "settings", changes=changes))

    def events(self, name: str) -> list[Event]:
        assert self.watcher.flush()
        assert self.watcher.errors == []
        return [event for event in self.watcher.store.events() if event.name == name]

    def steps_of(self, module: str, kind: str = "output") -> list[int]:
        assert self.watcher.flush()
        taps = self.watcher.store.taps()
        for number, tap in zip(taps.numbers, taps.taps, strict=True):
            if (tap.module, tap.kind) == (module, kind):
                counts = self.watcher.store.series(int(number), "count")
                return [int(step) for step, count in zip(counts.first_step, counts.mean, strict=True) if count == count]
        return []


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@contextmanager
def training(**settings: Any) -> Iterator[Training]:
    model = net()
    with watch(model, **settings) as watcher:
        yield Training(watcher, model)
        assert watcher.errors == []


@pytest.mark.parametrize("attach", ["global", "module"])
def test_excluding_and_including_take_effect_at_the_next_step(attach: str) -> None:
    with training(attach=attach) as run:
        run.step(2)
        run.change(exclude=["0", "type:ReLU"])
        run.step(2)
        assert {row.path: row.reason for row in run.watcher.coverage()}["0"] == "excluded by '0'"
        assert not {row.path: row.captured for row in run.watcher.coverage()}["1"]
        run.change(exclude=None)
        run.step(2)
        assert run.steps_of("0") == [0, 1, 2, 5]
        assert run.steps_of("0", "output_grad") == [0, 1, 2, 5]
        assert run.steps_of("0", "param_grad") == [0, 1, 2, 5]
        assert run.steps_of("2") == [0, 1, 2, 3, 4, 5]
        assert recorder_of(run.watcher).context.settings.exclude == ()
        assert {row.path: row.captured for row in run.watcher.coverage()}["0"]


@pytest.mark.parametrize("attach", ["global", "module"])
def test_kinds_can_be_added_and_removed(attach: str) -> None:
    with training(attach=attach, kinds="output") as run:
        run.step()
        run.change(kinds=["input", "param", "update"], include="is:leaf")
        run.step(2)
        run.change(kinds=["output"])
        run.step(2)
        assert run.steps_of("2") == [0, 1, 4]
        assert run.steps_of("2", "input") == [2, 3]
        assert run.steps_of("2", "param") == [2, 3]
        assert run.steps_of("2", "update") == [2, 3]
        changed = run.events("settings-changed")
    assert 'kinds: ["output"] -> ["input", "param", "update"]; include: [] -> ["is:leaf"]' in changed[0].message


def test_the_cadence_and_the_budget_can_be_changed() -> None:
    with training(every=1) as run:
        run.step(3)
        run.change(every=4)
        run.step(9)
        run.change(every=1, budget=0.5)
        run.change(budget=None)
        run.step(2)
        assert run.steps_of("0") == [0, 1, 2, 3, 4, 8, 12, 13]
        assert run.recorder.context.settings.every == 1
        messages = [event.message for event in run.events("settings-changed")]
    assert messages[0] == "every: 1 -> 4"
    assert messages[1].startswith("every: 4 -> 1; budget: null -> 0.5")
    assert messages[2:] == ["budget: 0.5 -> null"][: len(messages) - 2]


def test_a_step_captured_off_schedule_says_why_in_an_event() -> None:
    with training(every=2) as run:
        for step in range(40):
            run.watcher.log(loss=1.0 + step % 2 / 100 if step != 30 else 9.0)
            run.step()
        captured = run.steps_of("0")
        (event,) = [event for event in run.watcher.store.events() if event.name == "out-of-turn"]
    assert event.step in captured
    assert [step for step in captured if step % 2] == [event.step]
    assert event.message == f"step {event.step} was captured outside the cadence, because loss jumped to 9"


def test_pause_and_resume_take_effect_at_the_next_step() -> None:
    with training() as run:
        run.step(2)
        run.change(paused=True)
        run.step(3)
        assert run.recorder.capture.control.current_settings()["paused"] is True
        run.change(paused=False)
        run.step(2)
        assert run.steps_of("0") == [0, 1, 2, 6]
        assert not run.watcher.paused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"every": 0}, "every=0 is invalid: every must be an integer of 1 or more"),
        ({"budget": "much"}, "For five percent, write 0.05"),
        ({"include": ["encoder.*"]}, "'encoder.*' matches no module"),
        ({"exclude": "re:(?=a)"}, "Lookaround and backreferences are not supported"),
        ({"kinds": ["outputs"]}, "Did you mean 'output'?"),
        ({"paused": 1}, "paused=1 is invalid: paused must be true or false"),
        ({"memory": "1GB"}, "'memory' can't be changed during the training; these settings can: "),
    ],
)
def test_an_invalid_value_changes_nothing_and_is_explained(changes: dict[str, Any], said: str) -> None:
    with training() as run:
        before = run.recorder.capture.control.current_settings()
        run.change(**{"every": 5, **changes})
        run.step(2)
        assert run.recorder.capture.control.current_settings() == before
        assert not run.events("settings-changed")
        (event,) = run.events("settings-refused")
    assert said in event.message
    assert event.message.startswith(", ".join({"every": 5, **changes}) + ": ")  # the settings of the command


def test_a_repeated_command_is_carried_out_once() -> None:
    with training() as run:
        for _ in range(3):
            run.recorder.on_command(Command(7, "settings", changes={"every": 2}))
        run.recorder.on_command(Command(6, "settings", changes={"every": 3}))
        run.step(2)
        run.step(2)
        assert [event.message for event in run.events("settings-changed")] == ["every: 1 -> 2"]


def test_the_outcome_of_each_command_is_reported_with_its_number() -> None:
    with training() as run:
        run.step()
        run.change(include=["0"], kinds="output")
        run.change(include=["nothing"])
        run.change(include=["2"])
        run.change(include=["2"], exclude=["0"])  # the same value again replaces nothing
        run.step(2)
        run.recorder.on_command(Command(5, "snapshot", Tap("2", "output")))
        run.recorder.on_command(Command(6, "snapshot", Tap("nothing", "output")))
        run.step(2)
        run.watcher.request_snapshot("2")  # the script's own, which no reader waits for
        run.step(2)
        assert run.watcher.flush()
        wait_for(lambda: {"command": 5, "outcome": "applied"} in _abouts(run))
        outcomes = [about for about in _abouts(run) if about["outcome"] != "received"]
        assert outcomes == [
            {"command": 2, "outcome": "refused"},
            {"command": 1, "outcome": "superseded", "replaced_by": 4},
            {"command": 3, "outcome": "applied"},
            {"command": 4, "outcome": "applied"},
            {"command": 6, "outcome": "refused"},
            {"command": 5, "outcome": "applied"},
        ]
        message = run.events("settings-changed")[0].message
    assert message.startswith('include: [] -> ["0"]; kinds: ')
    assert message.endswith(' -> ["output"]. A later change replaced it before a step used it')


def test_a_command_of_which_a_part_waits_for_a_step_is_not_applied_before() -> None:
    with training() as run:
        run.step()
        run.change(every=3, include=["0"])
        run.change(every=4)
        wait_for(lambda: len(run.events("settings-waiting")) == 1)
        assert {"command": 1, "outcome": "received"} in _abouts(run)
        assert {"command": 2, "outcome": "applied"} in _abouts(run)
        run.step()
        wait_for(lambda: len(run.events("settings-changed")) == 3)
        assert _abouts(run)[-1]["command"] == 1
        assert _abouts(run)[-1]["outcome"] in ("superseded", "applied")  # the second one was read with it, or later


def _abouts(run: Training) -> list[dict[str, Any]]:
    return [event.about for event in run.watcher.store.events() if "command" in event.about]


def test_the_current_settings_are_json() -> None:
    with training(exclude=[nn.ReLU]) as run:
        shown = run.recorder.capture.control.current_settings()
        assert json.loads(json.dumps(shown, allow_nan=False)) == shown
        assert {"every", "budget", "include", "exclude", "kinds", "paused", "stride", "cost"} <= shown.keys()


def test_cadence_and_pause_can_be_changed_without_steps() -> None:
    with training() as run:
        run.step()
        handles = process_state()
        run.change(every=3, paused=True, include=["0"])
        wait_for(lambda: run.watcher.paused and run.recorder.context.settings.every == 3)
        wait_for(lambda: run.events("settings-waiting"))
        assert not run.recorder.context.settings.include  # hooks read it, and a forward may be running
        assert process_state() == handles
        run.step()
        assert run.recorder.context.settings.include == ("0",)


def test_a_long_forward_keeps_its_settings_until_it_ends() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.set()
            assert go_on.wait(60)
            return x

    model = nn.Sequential(nn.Linear(4, 4), Slow(), nn.Linear(4, 4))
    with watch(model) as watcher:
        run = Training(watcher, model)
        thread = threading.Thread(target=run.step)
        thread.start()
        assert inside.wait(60)
        run.change(exclude=["2"], paused=True)
        wait_for(lambda: watcher.paused)
        go_on.set()
        thread.join(60)
        assert run.steps_of("2") == [0]
        run.step()
        assert run.steps_of("0") == [0]


def test_commands_from_many_threads_while_training_runs_do_no_harm() -> None:
    torch.manual_seed(0)
    expected = _losses(None)
    torch.manual_seed(0)
    with training() as run:
        stop = threading.Event()

        def command(thread: int) -> None:
            numbers = iter(range(thread, 10**9, 4))
            while not stop.is_set():
                number = next(numbers)
                run.recorder.on_command(Command(number, "settings", changes=_CHANGES[number % len(_CHANGES)]))
                run.recorder.on_command(Command(number, "inventory"))
                time.sleep(0.001)

        threads = [threading.Thread(target=command, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            torch.manual_seed(0)
            seen = _losses(run)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        run.step()
        assert run.events("settings-changed")
    assert seen == expected


_CHANGES: list[dict[str, Any]] = [
    {"every": 2},
    {"exclude": ["0"]},
    {"kinds": ["input", "output", "update"]},
    {"paused": True},
    {"paused": False, "exclude": None},
    {"kinds": ["output_grad"], "every": 1},
]


def _losses(run: Training | None) -> list[float]:
    model: nn.Module = net()
    if run is not None:
        run.model.load_state_dict(model.state_dict())
        model = run.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.skipif(not internals.SEES_INSIDE, reason="this torch can't trace the hooks into its graphs")
def test_inside_compiled_graphs_modules_can_be_left_out_and_come_back_without_a_new_graph() -> None:
    model = net()
    graphs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(1)
        return graph.forward

    compiled: Any = torch.compile(model, backend=backend)
    with watch(model, compiled="inside", exclude=["1"]) as watcher:
        run = Training(watcher, model)
        run.model = compiled
        run.step(2)
        before = len(graphs)
        run.change(exclude=["0", "1"])
        run.step(2)
        run.change(exclude=None)
        run.step(2)
        assert len(graphs) == before
        run.step()
        assert run.steps_of("0") == [0, 1, 2, 5, 6]
        (event,) = run.events("settings-limited")
    assert event.message.startswith("1 module can't be captured")


# --- The inventory --------------------------------------------------------------------------------------------------


def test_hooks_are_listed_at_the_start_and_on_request() -> None:
    with training() as run:
        wait_for(lambda: run.watcher.store.hooks())
        assert any(record.ours for record in run.watcher.store.hooks())

        def mine(module: nn.Module, args: Any, output: Any) -> None: ...

        run.model.get_submodule("2").register_forward_hook(mine)
        run.recorder.on_command(Command(1, "inventory"))
        wait_for(lambda: any(record.function.endswith("mine") for record in run.watcher.store.hooks()))
        (found,) = [record for record in run.watcher.store.hooks() if record.function.endswith("mine")]
    assert (found.owner, found.point, found.ours) == ("2", "forward", False)


def test_the_number_of_listed_hooks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of("Describer"), "MAX_HOOKS", 7)
    model = net()
    handles = [hooks.on_forward(model[0], lambda *_: None) for _ in range(20)]
    with watch(model) as watcher:
        assert len(module_of("Describer").list_hooks(recorder_of(watcher).context.plans.roots, ())) == 7
    for handle in handles:
        handle.remove()


class Telling(StoreSink):
    """Records the subscribers, and the thread that described the hooks."""

    def __init__(self) -> None:
        super().__init__(Store(4_000_000))
        self.on_command: Callable[[Command], None] | None = None
        self.threads: set[str] = set()

    def subscribe(self, on_command: Callable[[Command], None]) -> None:
        assert self.on_command is None
        self.on_command = on_command

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        if coverage:
            self.threads.add(threading.current_thread().name)
        super().describe(modules, coverage, hooks)


def test_the_first_list_of_hooks_is_made_after_they_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, alive = Recorder(Settings.of({}, server=None), Telling()), []
    attach = recorder.capture.placement.attach

    def attach_and_note(*arguments: Any) -> None:
        attach(*arguments)
        alive.append([thread.name for thread in threading.enumerate() if thread.name == "hookcore-recorder"])

    monkeypatch.setattr(recorder.capture.placement, "attach", attach_and_note)
    recorder.capture.models.add(net())
    recorder.attach()
    recorder.close()
    assert alive == [[]]


def test_the_recorder_listens_and_lists_hooks_in_its_own_thread() -> None:
    model, sink = net(), Telling()
    settings = Settings.of({}, server=None)
    recorder = Recorder(settings, sink)
    recorder.capture.models.add(model)
    recorder.attach()
    try:
        assert sink.on_command is not None
        wait_for(lambda: sink.store.hooks())
        assert sink.threads == {"hookcore-recorder"}
        sink.on_command(Command(1, "settings", changes={"budget": 0.2}))
        wait_for(lambda: recorder.context.settings.budget == 0.2)
    finally:
        recorder.close()
    sink.on_command(Command(2, "settings", changes={"budget": 0.3}))
    assert recorder.context.settings.budget == 0.2
