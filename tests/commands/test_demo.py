"""The demo really trains, and each of its failures is what its name says."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hookcore.commands.demo import CALLED, MODELS, TROUBLES, Demo, train
from hookcore.errors import ArgumentError
from hookcore.reading import Client
from hookcore.records import Kind, Tap
from hookcore.store import Store
from hookcore_app import cli
from hookcore_app.cli import training as command
from tests.serving import TOKEN, run_named, served
from tests.waiting import wait_for
from tests.warm import python

AT, STEPS = 24, 64
BOTH = pytest.mark.parametrize("model", MODELS)
PATIENCE_S = 120


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore torch's number of threads, which the demo sets."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def troubled(model: str, trouble: str) -> Store:
    """Return the data of a training that fails at step `AT`."""
    return train(Demo(model, trouble, AT, STEPS, most_per_s=0), lambda _: None).store


def values(store: Store, module: str, kind: Kind, stat: str, index: str = "") -> np.ndarray:
    """Return a stat at every step."""
    series = store.series(Tap(module, kind, index), stat)
    assert series.first_step.tolist() == list(range(STEPS))
    return np.asarray(series.mean)


def first_of(model: str) -> str:
    return "stem" if model == "cnn" else "embed"


@pytest.mark.slow
@pytest.mark.rota
@pytest.mark.parametrize(("model", "least"), [("cnn", 94), ("transformer", 85)])
def test_the_demo_learns_to_recognize_unseen_digits(model: str, least: float) -> None:
    told: list[str] = []
    watcher = train(Demo(model, steps=300, most_per_s=0), told.append)
    progress = [line for line in told if line.startswith("step")]
    assert [int(line.split()[1]) for line in progress] == list(range(50, 301, 50))
    assert float(progress[-1].partition("right")[2].partition("%")[0]) > least
    losses = np.asarray(watcher.store.scalars("loss").mean)
    assert losses[-20:].mean() < losses[:20].mean() / 3
    assert watcher.error_count == 0


@BOTH
def test_a_nan_starts_in_the_layer_that_divides_by_zero(model: str) -> None:
    store = troubled(model, "nan")
    taps = store.taps(kind="output").taps
    nans = {tap.module: values(store, tap.module, "output", "nan", tap.index) for tap in taps}
    assert not any(found[:AT].any() for found in nans.values())
    assert 0 < nans["standardize"][AT] < 64 * 64  # one image of the batch
    assert all(found[AT] for found in nans.values())
    assert np.isnan(np.asarray(store.scalars("loss").mean)[AT:]).all()


@BOTH
def test_gradients_vanish_on_their_way_to_the_first_layer(model: str) -> None:
    store = troubled(model, "vanishing")
    first, last = (values(store, name, "output_grad", "norm") for name in (first_of(model), "head"))
    assert (first[:AT] / last[:AT]).min() > 1e-3
    assert first[-1] / last[-1] < 1e-6
    assert last[-1] > 1e-3


@BOTH
def test_gradients_and_layers_explode_and_stay_finite(model: str) -> None:
    store = troubled(model, "exploding")
    gradients, outputs = (values(store, first_of(model), "output_grad", "norm"), values(store, "head", "output", "rms"))
    assert gradients[-1] > 1e4 * gradients[:AT].max()
    assert outputs[-1] > 1e4 * outputs[:AT].max()
    for tap in store.taps().taps:
        assert not any(np.asarray(store.series(tap, stat).mean).any() for stat in ("nan", "inf"))


@BOTH
def test_a_dead_relu_never_fires_again(model: str) -> None:
    store = troubled(model, "dead-relu")
    dead, alive = (values(store, f"blocks.{number}.relu", "output", "zero_fraction") for number in (1, 0))
    assert dead[:AT].max() < 0.9
    assert dead[AT:].min() > 0.999
    assert alive.max() < 0.9


@BOTH
def test_a_spike_appears_in_loss_and_gradients_and_then_passes(model: str) -> None:
    store = troubled(model, "spike")
    for found in (np.asarray(store.scalars("loss").mean), values(store, "head", "output_grad", "norm")):
        usual = np.median(found[AT - 10 : AT])
        assert found[AT] > 10 * usual
        assert found[AT + 1 :].max() < 10 * usual


def test_the_command_has_the_options_of_the_demo() -> None:
    assert tuple(MODELS) == tuple(CALLED) == command.MODELS
    assert tuple(TROUBLES) == command.TROUBLES


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ArgumentError, match="pip install scikit-learn"):
        train(Demo(steps=1))


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--model", "rnn", "invalid choice"),
        ("--trouble", "boredom", "invalid choice"),
        ("--steps", "-1", "use an integer of 0 or more"),
        ("--most-per-s", "nan", "use a number of 0 or more"),
    ],
)
def test_the_error_for_an_invalid_flag_lists_the_valid_ones(
    flag: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["demo", flag, value])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_prints_its_address_then_its_progress_and_exits_cleanly_on_ctrl_c(tmp_path: Path) -> None:
    command = [python(), "-m", "hookcore_app.cli", "demo", "--server", "thread", "--most-per-s", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout
        try:
            assert re.fullmatch(r"hookcore: http://127\.0\.0\.1:\d+/runs/\S+\n", process.stdout.readline())
            assert any(line.startswith("step") for line in process.stdout)
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    assert re.search(r"\nStopped after \d+ steps\.\n$", rest)
    assert "Traceback" not in rest


@pytest.mark.slow
def test_the_step_that_the_demo_saves_is_explained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as server:
        for name, value in {"SERVER": server.url, "TOKEN": TOKEN, "EXPLAIN": "auto", "NAME": "explained once"}.items():
            monkeypatch.setenv(f"HOOKCORE_{name}", value)
        train(Demo("cnn", "nan", AT, STEPS, most_per_s=20), lambda _: None)
        run = run_named(server, "explained once")
        with Client(server.url, TOKEN) as client:
            wait_for(lambda: [each.state for each in client.capsules(run.id)] == ["explained"], "no replay runs")
        assert [each.name for each in run.store.events()].count("explained") == 1
