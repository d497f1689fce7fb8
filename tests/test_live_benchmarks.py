"""The benchmarks of the server run, with a real server process; their figures are for quiet machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _run(*command: str) -> str:
    """What a benchmark prints. It has a session of its own, so that nothing of it can be left."""
    started = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HOOKCORE_SERVER": "none"},
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
@pytest.mark.parametrize("part", ["sender", "training"])
def test_every_step_of_a_paced_trainer_is_seen_by_a_reader_in_another_process(part: str) -> None:
    said = _run("benchmarks.live", "--taps", "24", "--seconds", "1", "--only", part)
    assert "0 steps did not arrive" in said


@pytest.mark.slow
def test_questions_are_answered_while_frames_arrive_and_clients_follow() -> None:
    said = _run("benchmarks.serve", "--quick", "--only", "questions", "hour")
    held = next(line for line in said.splitlines() if "live clients held" in line)
    assert held.endswith("met")
    assert "stat values a second of one core" in said


@pytest.mark.slow
def test_sixteen_trainers_at_once_lose_no_frame_and_none_is_taken_twice() -> None:
    said = _run("benchmarks.serve", "--quick", "--only", "trainers")
    judged = [line for line in said.splitlines() if "target <= 0" in line]
    assert len(judged) == 3
    assert all(line.endswith("met") for line in judged), said
