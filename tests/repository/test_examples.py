"""The examples run as described in their first lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from hookcore.delivery.dashboard.process import status, stop_dashboard
from tests.warm import python

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.slow


def test_every_example_is_run_here() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == {"dashboard.py", "train.py"}


def test_the_smallest_example_prints_each_layers_numbers() -> None:
    ran = subprocess.run([python(), EXAMPLES / "train.py"], check=True, capture_output=True, text=True)
    kinds = [line.split()[1] for line in ran.stdout.splitlines()[1:-1]]
    of_weights = {"param_grad": 6, "update": 6, "exp_avg": 6, "exp_avg_sq": 6}
    assert {kind: kinds.count(kind) for kind in kinds} == {"output": 5, "output_grad": 5, **of_weights}
    assert ran.stdout.splitlines()[-1].startswith("loss: ")
    assert not ran.stderr


@pytest.mark.all
def test_the_dashboard_example_trains_serves_its_layers_and_ends_with_ctrl_c() -> None:
    command = [python(), str(EXAMPLES / "dashboard.py"), "--steps", "1500"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        try:
            address = process.stdout.readline().strip()
            trained = process.stdout.readline()
            base, _, run = address.partition("/runs/")
            latest = json.loads(_get(f"{base}/api/v1/latest?run={run}&kind=output&stat=std"))
            page = _get(address)
        finally:
            os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 0, process.stderr.read()
    assert float(trained.partition("%")[0]) > 90
    assert [tap["module"] for tap in latest["taps"]] == [*map(str, range(8)), ""]
    assert "LayerNorm" in page.replace("<wbr>", "")


# What a notebook must have said at its end.
NOTEBOOKS = {
    "quick-start": ("Learning: loss fell from", "No problems found", "data:image/png", "<iframe"),
    "nan-to-the-line": (
        "NaN first appeared in the activation of standardize, at step 38",
        "standardize.py, line 8, in forward: return (images - mean) / deviation",
    ),
    "compare-two-runs": (
        "The runs first differ at step 0, in the activation of 1.",
        "setting negative_slope: 0.01 and 0.2",
    ),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    given = {"HOME": str(tmp_path / "home"), "PORT": "0", "SERVER": "auto", "EXPLAIN": "auto"}
    for name, value in given.items():
        monkeypatch.setenv(f"HOOKCORE_{name}", value)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    yield tmp_path
    if status(os.environ).running:
        stop_dashboard(os.environ)


def test_every_notebook_is_run_here() -> None:
    assert {file.stem for file in EXAMPLES.glob("notebooks/*")} == set(NOTEBOOKS)


@pytest.mark.parametrize(
    "name", [name if name == "nan-to-the-line" else pytest.param(name, marks=pytest.mark.all) for name in NOTEBOOKS]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_notebook_runs_to_its_end_and_says_what_its_text_promises(name: str, home: Path) -> None:
    notebook = nbformat.read(EXAMPLES / f"notebooks/{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(home)}}).execute()
    told = json.dumps([cell.get("outputs") for cell in notebook.cells], ensure_ascii=False)
    for sentence in NOTEBOOKS[name]:
        assert sentence in told.replace('\\"', '"')


def _get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode())
