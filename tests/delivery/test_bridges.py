"""Bridges to other tools: what they write for each step. Their failures never reach the training."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hookcore
from hookcore.config import Settings
from hookcore.config.readers import BRIDGES
from hookcore.delivery import bridges
from hookcore.delivery.bridges import WRITERS, Bridge, Summary, WeightsAndBiases
from hookcore.errors import ArgumentError, PatternError
from hookcore.records import STAT_COLUMN, Frame, Tap
from tests.build import frame, stats_of
from tests.harness import digest, seed_all, watch
from tests.waiting import wait_for
from tests.zoo.case import mean_square, mlp

TAPS = (Tap("a", "output"), Tap("a", "param_grad", "weight"), Tap("b", "output"), Tap("b", "param_grad", "weight"))
PATIENCE_S = 30.0


def frame_of(step: int, rows: Mapping[int, Mapping[str, float]], **others: Any) -> Frame:
    stats = stats_of(len(rows), count=4)
    for place, row in enumerate(rows.values()):
        for name, value in row.items():
            stats[place, STAT_COLUMN[name]] = value
    return frame(step, stats, numbers=list(rows), **others)


def train(steps: int = 3, bridge: str | None = None, **settings: Any) -> tuple[nn.Module, hookcore.Watcher]:
    seed_all()
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, bridge=bridge, **settings) as watcher:
        for _ in range(steps):
            loss = mean_square(model(torch.randn(4, 6)))
            loss.backward()
            watcher.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
    return model, watcher


class Recording:
    """Records what it receives."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}
        self.closed = threading.Event()

    def write(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        self.steps[step] = dict(numbers)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed.set()


class Stuck(Recording):
    """Writes nothing until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def write(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        self.entered.set()
        self.released.wait(PATIENCE_S)
        super().write(step, time_s, numbers)


def _bridges() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == bridges.THREAD]


# -- the summary --


def test_a_step_is_summarized_with_all_its_parts_when_the_next_one_arrives() -> None:
    summary = Summary()
    gradients = {0: {"zero": 4.0}, 1: {"norm": 3.0}, 2: {"zero": 3.0}, 3: {"norm": 4.0}}
    assert list(summary.add(frame_of(0, gradients, new_taps=TAPS, elapsed_s=0.5))) == []
    assert list(summary.add(frame_of(0, {}, scalars={"loss": 2.0}))) == []
    (step,) = summary.add(frame_of(1, {2: {"nan": 1.0}, 3: {"inf": 2.0, "norm": 1.0}, 1: {"norm": 1.0}}))
    assert step == (
        0,
        0.0,
        {
            "loss": 2.0,
            "hookcore/elapsed_s": 0.5,
            "hookcore/gradient_norm": 5.0,
            "hookcore/nonfinite_modules": 0.0,
            "hookcore/zero_modules": 1.0,
        },
    )
    (step,) = summary.end()
    assert step[:2] == (1, 1.0)
    assert step[2]["hookcore/nonfinite_modules"] == 1.0
    assert math.isnan(step[2]["hookcore/gradient_norm"])
    assert list(summary.end()) == []


def test_an_uncaptured_step_has_only_its_scalars() -> None:
    summary = Summary()
    assert list(summary.add(frame_of(4, {}, scalars={"loss": 1.0}))) == []
    assert list(summary.end()) == [(4, 4.0, {"loss": 1.0})]


def test_chosen_layers_have_statistics_and_those_above_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    left_out: list[int] = []
    monkeypatch.setattr(bridges, "MAX_TENSORS", 1)
    summary = Summary(lambda: {"b"}, lambda: left_out.append(1))
    rows = {0: {"rms": 1.0}, 2: {"rms": 2.0, "mean": 0.5, "std": 1.5, "nan": 1.0, "inf": 2.0}, 3: {"rms": 9.0}}
    assert list(summary.add(frame_of(0, rows, new_taps=TAPS))) == []
    ((_, _, numbers),) = summary.end()
    own = {name: value for name, value in numbers.items() if not name.startswith("hookcore/")}
    assert own == {"b/output/rms": 2.0, "b/output/mean": 0.5, "b/output/std": 1.5, "b/output/nonfinite": 3.0}
    assert len(left_out) == 1


def test_tensorboard_gets_the_layers_that_a_pattern_chooses(tmp_path: Path) -> None:
    _, watcher = train(bridge=f"tensorboard:{tmp_path}", kinds=["output"], bridge_layers="type:Linear")
    wait_for(lambda: not _bridges())
    accumulator = import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    events = accumulator(str(tmp_path))
    events.Reload()
    linear = [module.path for module in watcher.store.modules() if module.type == "Linear"]
    names = {name for name in events.Tags()["scalars"] if "/output/" in name}
    assert names == {f"{path}/output/{stat}" for path in linear for stat in bridges.SENT}
    (number,) = (n for n, tap in enumerate(watcher.store.taps().taps) if tap == Tap(linear[0], "output"))
    found = [each.value for each in events.Scalars(f"{linear[0]}/output/rms")]
    assert found == pytest.approx(watcher.store.series(number, "rms").mean.tolist())


def test_a_pattern_of_the_bridge_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PatternError, match="nowhere"):
        train(bridge=f"tensorboard:{tmp_path}", bridge_layers="nowhere")


# -- TensorBoard --


def test_tensorboard_reads_the_values_of_the_store(tmp_path: Path) -> None:
    _, watcher = train(bridge=f"tensorboard:{tmp_path}", kinds=["output", "param_grad"])
    assert watcher.errors == []
    wait_for(lambda: not _bridges())  # on a busy machine, it takes longer than `close` waits
    accumulator = import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    events = accumulator(str(tmp_path))
    events.Reload()
    losses = events.Scalars("loss")
    assert [each.step for each in losses] == [0, 1, 2]
    assert [each.value for each in losses] == pytest.approx(watcher.store.scalars("loss").mean.tolist())
    store = watcher.store
    norms = [store.series(int(number), "norm").mean for number in store.taps(kind="param_grad").numbers]
    whole = np.sqrt(np.sum(np.square(norms), axis=0)).tolist()
    assert [each.value for each in events.Scalars("hookcore/gradient_norm")] == pytest.approx(whole)


# -- the others --


def test_mlflow_has_a_run_with_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = import_module("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tmp_path.as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    writer = WRITERS["mlflow"][2]("digits", "mine")
    for step in range(3):
        writer.write(step, 100.0 + step, {"loss": step / 2, "hookcore/gradient_norm": math.nan})
    writer.flush()
    writer.close()
    client = tracking.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    found = client.get_metric_history(run.info.run_id, "loss")
    assert [(each.step, each.value, each.timestamp) for each in found] == [
        (0, 0.0, 100_000),
        (1, 0.5, 101_000),
        (2, 1.0, 102_000),
    ]


@pytest.mark.all
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_has_its_own_run_next_to_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = import_module("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    scripts = wandb.init(project="script")
    writer = WRITERS["wandb"][2]("digits", "mine")
    for step in range(3):
        writer.write(step, 0.0, {"loss": step / 2})
    assert isinstance(writer, WeightsAndBiases)
    run = writer.run
    assert wandb.run is scripts
    assert (run.project, run.name, run.summary["loss"]) == ("digits", "mine", 1.0)
    writer.close()
    assert scripts.step == 0
    scripts.finish()
    wandb.teardown()


def test_a_bridge_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    plain, _ = train()
    bridged, _ = train(bridge=f"tensorboard:{tmp_path}")
    assert digest(list(plain.parameters())) == digest(list(bridged.parameters()))


# -- what goes wrong --


def test_a_tool_that_is_not_installed_is_reported_with_the_command_before_anything_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_nothing(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(bridges, "find_spec", find_nothing)
    for tool in BRIDGES:
        with pytest.raises(ArgumentError, match=rf"not installed: pip install {tool}$"):
            watch(mlp(), bridge=f"{tool}:x")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("tensorbord:runs", "Did you mean 'tensorboard'"),
        ("tensorboard", "Add a target: tensorboard:runs/x"),
        ("wandb: ", "Add a target: wandb:my-project"),
        (7, "tensorboard:FOLDER"),
    ],
)
def test_an_unknown_bridge_gets_the_allowed_ones(given: object, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        Settings.of(bridge=given)


def test_every_allowed_bridge_can_be_opened() -> None:
    assert set(WRITERS) == set(BRIDGES)
    assert Settings.of({"HOOKCORE_BRIDGE": "none"}).bridge is None
    assert Settings.of({"HOOKCORE_BRIDGE": "wandb:digits"}).bridge == "wandb:digits"


def test_only_rank_0_of_a_distributed_training_has_a_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    for others in ({"RANK": "1"}, {"LOCAL_RANK": "1"}, {"NODE_RANK": "1", "LOCAL_RANK": "0"}, {"SLURM_PROCID": "3"}):
        with monkeypatch.context() as changed:
            for variable, value in others.items():
                changed.setenv(variable, value)
            assert bridges.bridge_for("tensorboard:x", "run") is None
    monkeypatch.setenv("RANK", "0")
    assert bridges.bridge_for("tensorboard:x", "run") is not None


def test_a_bridge_that_cannot_be_opened_is_reported_once_and_the_run_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    with caplog.at_level(logging.WARNING, "hookcore"):
        _, watcher = train(bridge=f"tensorboard:{file}/runs")
    assert watcher.current_step == 3
    assert watcher.store.scalars("loss").first_step.tolist() == [0, 1, 2]
    assert [error.name for error in watcher.errors] == ["hook-error"]
    assert [record.message.startswith("hookcore: the bridge failed") for record in caplog.records] == [True]


def test_a_step_that_cannot_be_written_loses_no_other_step() -> None:
    class Failing(Recording):
        def write(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
            if step == 1:
                raise OSError("disk full")
            super().write(step, time_s, numbers)

    writer, told = Failing(), list[Exception]()
    made = Bridge(lambda: writer, lambda where, error: told.append(error), pytest.fail)
    for step in range(3):
        made.take(frame_of(step, {}, scalars={"loss": float(step)}))
    made.close()
    assert writer.closed.is_set()
    assert writer.steps == {0: {"loss": 0.0}, 2: {"loss": 2.0}}
    assert [str(error) for error in told] == ["disk full"]


def test_a_stuck_bridge_drops_steps_and_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridges, "MAX_WAITING", 2)
    writer, lost = Stuck(), list[str]()
    made = Bridge(lambda: writer, lambda *_: None, lambda name, *_: lost.append(name))
    for step in range(2):
        made.take(frame_of(step, {}, scalars={"loss": float(step)}))
    assert writer.entered.wait(PATIENCE_S)
    for step in range(2, 8):
        made.take(frame_of(step, {}, scalars={"loss": float(step)}))
    assert lost == ["bridge-dropped"] * 4  # step 0 is being written, 1 and 2 are waiting, 7 hasn't ended
    writer.released.set()
    wait_for(lambda: set(writer.steps) == {0, 1, 2})
    made.close()
    assert writer.closed.wait(PATIENCE_S)
    assert writer.steps == {step: {"loss": float(step)} for step in (0, 1, 2, 7)}


def test_a_dropped_step_loses_no_other_step_of_the_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridges, "MAX_WAITING", 1)
    writer = Stuck()
    made = Bridge(lambda: writer, lambda *_: None, lambda *_: None)
    for step in range(2):
        made.take(frame_of(step, {}, scalars={f"of {step}": 1.0}))
    assert writer.entered.wait(PATIENCE_S)
    for step in (2, 3):
        made.take(frame_of(step, {}, scalars={f"of {step}": 1.0}))  # 0 is being written, 1 is waiting, 2 is dropped
    writer.released.set()
    wait_for(lambda: set(writer.steps) == {0, 1})
    made.close()
    assert writer.steps == {step: {f"of {step}": 1.0} for step in (0, 1, 3)}
