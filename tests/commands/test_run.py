"""`hookcore run`: a script runs as under plain Python, ends with the same weights, and is watched."""

from __future__ import annotations

import re
import runpy
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from hookcore.delivery.archive import Archive, read_archive
from hookcore.records.vocabulary import FOUND_LOSS, is_loss
from hookcore_app import cli
from tests.commanding import PATIENCE_S, PLAIN, SCRIPTS, WATCHED, assert_same_weights, run
from tests.serving import TOKEN, served
from tests.waiting import wait_for
from tests.warm import python


def watch(folder: Path, source: str, *arguments: str, **environment: str) -> Any:
    """Return the result of a script under `hookcore run`."""
    script = folder / "script.py"
    script.write_text(source)
    return run([*WATCHED, script, *arguments], folder, **environment)


def both(folder: Path, source: str, *arguments: str, **environment: str) -> tuple[Any, Any]:
    """Return the results of a script under Python and under `hookcore run`."""
    watched = watch(folder, source, *arguments, **environment)
    return run([*PLAIN, folder / "script.py", *arguments], folder, **environment), watched


def kept_in(folder: Path) -> Archive:
    (found,) = folder.iterdir()
    return read_archive(found)


# The trained modules and the number of steps of each script, and the losses that hookcore finds without any `log`.
CASES = {
    "loop": ({"Sequential/0", "Sequential/3"}, 12, {FOUND_LOSS}),
    "gan": ({"Generator/net.0", "Discriminator/net.2"}, 20, {f"{FOUND_LOSS} Generator", f"{FOUND_LOSS} Discriminator"}),
    "accumulation": ({"Sequential/0", "Sequential/2"}, 5, {FOUND_LOSS}),
    "encoder": ({"Tagger/encoder.layers.1.linear2", "Tagger/head"}, 6, {FOUND_LOSS}),
    "compiled": ({"Sequential"}, 8, {FOUND_LOSS}),
    "huggingface": (
        {"GPT2LMHeadModel/transformer.h.0.mlp.c_fc", "GPT2LMHeadModel/lm_head"},
        4,
        {FOUND_LOSS, "train_loss"},
    ),
    "lightning_trainer": ({"Lit/net.0", "Lit/net.2"}, 8, {"loss"}),
    "workers": ({"Model/net.0", "Model/net.2"}, 4, {FOUND_LOSS}),
}


# Scripts that run as several processes.
OF_RANKS = {"elastic", "parallel", "ranks", "ranks_lightning"}


# Scripts that differ only in how they train. The command runs `loop`. After torch is imported, the others behave in
# the same way, so these are started without the import.
TRAINED_ALIKE = {"gan", "accumulation", "encoder"}
ONCE_TORCH_IS_HERE = (
    "import runpy, sys\n"
    "from hookcore.commands.run import watch_script\n"
    "del sys.argv[0]\n"
    "assert watch_script()\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')\n"
)


def test_every_script_is_run_here_or_by_the_tests_of_ranks() -> None:
    names = {file.stem for file in SCRIPTS.glob("*.py")} - {"__init__"}
    assert names == {*CASES, *OF_RANKS}


def run_plainly(script: Path, result: Path, patch: pytest.MonkeyPatch) -> None:
    """Run a script unwatched, for its result. Unless it starts processes, it runs here, where torch is imported."""
    if script.stem == "workers":  # spawned processes import the main script
        plain = run([python(), script, result], result.parent)
        assert plain.returncode == 0, plain.stderr
        return
    patch.setattr(sys, "argv", [str(script), str(result)])
    patch.chdir(result.parent)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as `run` does, because sums of several threads differ in their last bits
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_path(str(script), run_name="__main__")
    finally:
        torch.set_num_threads(threads)


def run_watched(script: Path, result: Path, kept: Path) -> Any:
    if script.stem in TRAINED_ALIKE:
        given = {"HOOKCORE_KEEP": str(kept), "HOOKCORE_BUDGET": "none"}
        return run([python(), "-c", ONCE_TORCH_IS_HERE, script, result], result.parent, **given)
    return run([*WATCHED, "--keep", kept, "--budget", "none", script, result], result.parent)


@pytest.mark.slow
@pytest.mark.rota
@pytest.mark.parametrize("name", CASES)
def test_an_unmodified_script_ends_with_the_same_weights_and_is_captured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, (modules, steps, losses) = SCRIPTS / f"{name}.py", CASES[name]
    run_plainly(script, tmp_path / "plain", monkeypatch)
    watched = run_watched(script, tmp_path / "watched", tmp_path / "kept")
    assert watched.returncode == 0, watched.stderr
    assert_same_weights(torch.load(tmp_path / "plain"), torch.load(tmp_path / "watched"))
    archive = kept_in(tmp_path / "kept")
    assert modules <= {tap.module for tap in archive.taps() if tap.kind == "output_grad"}
    assert {frame.step for frame in archive.frames()} == set(range(steps))
    assert {logged for frame in archive.frames() for logged in frame.scalars if is_loss(logged)} == losses


def test_a_script_has_the_same_arguments_paths_and_environment_as_under_python(tmp_path: Path) -> None:
    source = (
        "import os, sys\n"
        "print(sys.argv, sys.path, sys.flags, __name__, __file__, __spec__, sorted(vars()))\n"
        "print(sys.orig_argv, [type(each) for each in sys.meta_path if 'hookcore' not in type(each).__module__])\n"
        "print(sorted((name, value) for name, value in os.environ.items()))\n"
        "print('sitecustomize' in sys.modules)\n"
    )
    for variables in ({}, {"PYTHONPATH": str(tmp_path)}, {"PYTHONPATH": ""}, {"PYTHONSAFEPATH": "1"}):
        plain, watched = both(tmp_path, source, "--epochs", "3", "-m", "--help", "--", "a b", **variables)
        assert (watched.returncode, watched.stdout, watched.stderr) == (0, plain.stdout, plain.stderr)


def test_a_package_runs_as_it_does_under_python(tmp_path: Path) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import sys\nfrom . import __name__ as name\nprint(sys.argv, __spec__.name, name)\n"
    )
    plain = run([*PLAIN, "-m", "trainer", "--lr", "1"], tmp_path)
    watched = run([*WATCHED, "--every", "2", "-m", "trainer", "--lr", "1"], tmp_path)
    assert (watched.returncode, watched.stdout, watched.stderr) == (0, plain.stdout, plain.stderr)
    assert "trainer.__main__" in plain.stdout


def test_the_users_own_sitecustomize_is_still_imported(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.mine = __file__\n")
    plain, watched = both(tmp_path, "import sys, sitecustomize\nprint(sys.mine)\n", PYTHONPATH=str(tmp_path))
    assert (watched.stdout, watched.stderr) == (plain.stdout, plain.stderr)
    assert plain.stdout.strip() == str(tmp_path / "sitecustomize.py")


def test_a_pattern_that_matches_nothing_is_said_at_once(tmp_path: Path) -> None:
    source = (
        "import time, torch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "optimizer.step()\n"
        "time.sleep(1)\n"
        "print('still training', file=__import__('sys').stderr, flush=True)\n"
    )
    told = watch(tmp_path, source, HOOKCORE_INCLUDE="blocs.*").stderr
    said = "hookcore: nothing is captured: a running model is not watched. Sequential: 'blocs.*' matches no module."
    assert said in told
    assert told.index(said) < told.index("still training")


def test_child_processes_of_a_script_are_not_watched(tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()  # the test waits for this name
    source = (
        "import subprocess, sys\n"
        "code = 'import sys, torch; print(\"hookcore.watcher\" in sys.modules)'\n"
        "print(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout)\n"
    )
    watched = watch(tmp_path, source)
    assert (watched.stdout.strip(), watched.stderr) == ("False", "")


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nsys.exit(3)\n",
        "import sys\nsys.exit('no data')\n",
        "import os\nos._exit(7)\n",
        "def broken(:\n",
        "import a_module_that_is_not_there\n",
        "raise KeyboardInterrupt\n",
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    ],
)
def test_a_script_ends_as_under_python_with_its_own_traceback(source: str, tmp_path: Path) -> None:
    plain, watched = both(tmp_path, source)
    assert plain.returncode != 0
    assert (watched.returncode, watched.stdout, watched.stderr) == (plain.returncode, plain.stdout, plain.stderr)


@pytest.mark.slow
def test_tracebacks_of_a_script_with_torch_are_the_same_as_under_python(tmp_path: Path) -> None:
    source = (
        "import sys, traceback\n"
        "try:\n    from torch import a_name_that_is_not_there\nexcept ImportError:\n    traceback.print_exc()\n"
        "import torch\n"
        "try:\n    torch.nn.Linear(2, 3)(torch.ones(1, 4))\n"
        "except RuntimeError:\n    traceback.print_exc(file=sys.stdout)\n"
        "def train():\n    raise KeyError('epoch')\n\ntrain()\n"
    )
    plain, watched = both(tmp_path, source)
    assert (watched.returncode, watched.stderr) == (plain.returncode, plain.stderr) == (1, plain.stderr)
    assert plain.stderr.count("Traceback") == 2
    # The traceback of an error in a model has no line of hookcore.
    assert "hookcore" not in watched.stdout
    # If there are hooks, torch takes another path through its own functions.
    for line in (0, 1, 2, -1):
        assert watched.stdout.splitlines()[line] == plain.stdout.splitlines()[line]


@pytest.mark.rota
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_training_does_what_it_does_under_python(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "try:\n"
        "    while True:\n"
        "        model(torch.ones(1, 2)).sum().backward()\n"
        "        optimizer.step()\n"
        "        print('step', flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "    raise SystemExit(5)\n"
    )
    with subprocess.Popen([*WATCHED, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == "step\n"
            process.send_signal(number)
            told = process.stdout.read().replace("step\n", "")
            ended = (process.wait(PATIENCE_S), told)
        finally:
            process.kill()
    assert ended == ((5, "interrupted\n") if number == signal.SIGINT else (-number, ""))


def test_a_script_that_never_imports_torch_never_waits_for_it(tmp_path: Path) -> None:
    source = "import sys\nprint({'torch', 'numpy', 'hookcore.watcher'} & set(sys.modules))\n"
    watched = watch(tmp_path, source)
    assert watched.stdout.strip() == "set()"


@pytest.mark.slow
def test_checking_whether_torch_is_installed_watches_nothing(tmp_path: Path) -> None:
    source = (
        "import importlib.util, sys\n"
        "assert importlib.util.find_spec('torch')\n"
        "print('hookcore.watcher' in sys.modules)\n"
        "import torch\n"
        "print('hookcore.watcher' in sys.modules, 'exec_module' in vars(torch.__spec__.loader))\n"
    )
    watched = watch(tmp_path, source)
    assert watched.stdout.splitlines() == ["False", "True False"]


@pytest.mark.slow
def test_a_failure_of_watching_is_reported_and_does_not_reach_the_script(tmp_path: Path) -> None:
    source = "import os\nos.environ['HOOKCORE_EVERY'] = 'often'\nimport torch\nprint('trained')\n"
    watched = watch(tmp_path, source)
    assert (watched.returncode, watched.stdout) == (0, "trained\n")
    assert watched.stderr.startswith("hookcore: this run is not watched: HOOKCORE_EVERY='often' is invalid")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to run"),
        (["-m"], "nothing to run"),
        (["--every", "0", "train.py"], "HOOKCORE_EVERY='0' is invalid|HOOKCORE_EVERY=0 is invalid"),
        (["--evry", "2", "train.py"], "unrecognized arguments"),
        (["--evry", "2", "train.py"], "Did you mean '--every'"),
        (["--url", "http://box:8642", "train.py"], "Did you mean '--server'"),
        (["--url=http://box:8642", "train.py"], "Did you mean '--server'"),
        (["--epochs", "2", "train.py"], "Flags come before the script, the script's arguments"),
    ],
)
def test_the_error_for_an_invalid_command_says_what_to_change(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = cli.main(["run", *arguments])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert re.search(words, capsys.readouterr().err)


ARGPARSE = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("-w", "--width", type=int, default=4)
parser.add_argument("--betas", type=float, nargs=2, default=[0.9, 0.99])
parser.add_argument("--seed", type=int, default=3)
options = parser.parse_args()
model = torch.nn.Linear(2, options.width)
optimizer = torch.optim.Adam(model.parameters(), lr=options.lr, betas=options.betas)
for _ in range(3):
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
"""

HYDRA = """
import time
import hydra, torch

@hydra.main(version_base=None, config_path=".", config_name="options")
def train(options):
    model = torch.nn.Linear(2, options.model.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    for _ in range(3):
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
    time.sleep(1)  # a training lasts; when the function has returned, Hydra has forgotten its configuration

train()
"""


@pytest.mark.rota
@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "arguments", "config"),
    [
        (ARGPARSE, ["-w", "8", "--betas", "0.5", "0.6"], {"lr": 0.1, "width": 8, "betas": "[0.5, 0.6]", "seed": 3}),
        (HYDRA, ["model.width=8"], {"model.width": 8, "model.depth": 2, "lr": 0.5, "twice": 8}),
    ],
)
def test_the_options_that_a_script_has_read_are_its_configuration(
    source: str, arguments: list[str], config: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "options.yaml").write_text("lr: 0.5\nmodel: {width: 4, depth: 2}\ntwice: ${model.width}\n")
    result = watch(tmp_path, source, *arguments, HOOKCORE_KEEP=str(tmp_path / "kept"))
    assert result.returncode == 0, result.stderr
    assert kept_in(tmp_path / "kept").info.config == config


def test_a_server_has_every_loss_of_a_script_that_raises_in_its_58th_step_although_it_logs_none(tmp_path: Path) -> None:
    source = (
        "import torch\n"
        "torch.manual_seed(3)\n"
        "model = torch.nn.Linear(8, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for step in range(100):\n"
        "    loss = model(torch.randn(16, 8)).square().mean()\n"
        "    if step == 57:\n"
        "        raise RuntimeError('no more data')\n"
        "    loss.backward()\n"
        "    print(loss.item())\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    with served() as server:
        watched = watch(tmp_path, source, HOOKCORE_SERVER=server.url, HOOKCORE_TOKEN=TOKEN)
        (found,) = server.runs.all()
        wait_for(lambda: found.state == "crashed")
        series = found.store.scalars(FOUND_LOSS)
    assert watched.returncode == 1
    own = [float(line) for line in watched.stdout.split()]
    assert series.last_step.tolist() == list(range(57))
    assert series.mean.tolist() == pytest.approx(own, rel=1e-6)


BROKEN_AT_5 = """
import sys
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    inputs = torch.randn(16, 4)
    if step == 5 and "nan" in sys.argv:
        inputs[0, 0] = float("nan")
    model(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
if "crash" in sys.argv:
    raise ValueError("its own")
print("the end")
"""


@pytest.mark.slow
def test_until_an_incident_ends_a_script_with_a_code_and_a_sentence(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BROKEN_AT_5)
    given = [*WATCHED, "--until-incident", "--keep", tmp_path / "kept", script]
    done = run([*given, "1000000", "nan"], tmp_path)
    assert done.returncode == 3, done.stderr
    assert "hookcore: stopped in step" in done.stderr
    assert "NaN first appeared in the activation of Sequential/0, at step 5." in done.stderr
    assert "Traceback" not in done.stderr
    archive = kept_in(tmp_path / "kept")
    assert (archive.state, archive.failure) == ("ended", None)


@pytest.mark.all
def test_until_an_incident_leaves_the_code_and_the_errors_of_other_scripts_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BROKEN_AT_5)
    given = [*WATCHED, "--until-incident", script]
    done = run([*given, "20"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "the end\n")
    done = run([*given, "20", "crash"], tmp_path)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: its own")
