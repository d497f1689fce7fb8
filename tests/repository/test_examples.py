"""The examples run as described in their first lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.warm import python

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.slow


def test_every_example_is_run_here() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == {"dashboard.py", "train.py"}


def test_the_smallest_example_prints_each_layers_numbers() -> None:
    ran = subprocess.run([python(), EXAMPLES / "train.py"], check=True, capture_output=True, text=True)
    kinds = [line.split()[1] for line in ran.stdout.splitlines()[1:-1]]
    assert {kind: kinds.count(kind) for kind in kinds} == {"output": 5, "output_grad": 5, "param_grad": 6, "update": 6}
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


def _get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode())
