"""The server benchmarks run with a real server process. Their results mean something only on idle machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import python

ROOT = Path(__file__).parents[2]


def _run(*command: str) -> str:
    """Return the output of a benchmark, which runs in its own session, so that none of its processes remains.

    Its server isn't a fork, because the benchmark reads the processor time of the process that it starts.
    """
    started = subprocess.Popen(
        [python(), "-m", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HOOKCORE_SERVER": "none", "PYTHON_EXEC": sys.executable},
    )
    try:
        said, _ = started.communicate(timeout=200)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
    assert started.returncode == 0, said
    return said


@pytest.mark.slow
@pytest.mark.all
@pytest.mark.parametrize("part", ["sender", "training"])
def test_every_step_of_a_paced_trainer_is_seen_by_a_reader_in_another_process(part: str) -> None:
    said = _run("benchmarks.live", "--taps", "24", "--seconds", "1", "--only", part)
    assert "0 steps did not arrive" in said


@pytest.mark.slow
@pytest.mark.all
def test_queries_are_answered_while_frames_arrive_and_clients_follow() -> None:
    said = _run("benchmarks.serve", "--quick", "--only", "questions", "hour")
    held = next(line for line in said.splitlines() if "live clients held" in line)
    assert held.endswith("met")
    assert "stat values a second of one core" in said


@pytest.mark.slow
@pytest.mark.all
def test_sixteen_trainers_at_once_lose_and_duplicate_no_frame() -> None:
    said = _run("benchmarks.serve", "--quick", "--only", "trainers")
    judged = [line for line in said.splitlines() if "target <= 0" in line]
    assert len(judged) == 3
    assert all(line.endswith("met") for line in judged), said
