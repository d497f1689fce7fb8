"""Real trainings under torchrun, and a real server: attempts of one training, and a server that can't be reached."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hookcore.delivery.archive import read_archive
from hookcore_app.runs import Joint, ranks_in
from tests.commanding import SCRIPTS, WATCHED, assert_same_weights, run
from tests.serving import TOKEN, Served, served
from tests.waiting import wait_for
from tests.warm import python

pytestmark = [pytest.mark.slow, pytest.mark.all]

STEPS = 4
PARALLEL = SCRIPTS / "parallel.py"
# Runs a script unchanged, watched from its first line.
SCRIPT_WATCHED = """
import runpy, sys
import hookcore
hookcore.watch()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def joint_in(server: Served) -> Joint:
    (run,) = server.runs.all()
    found = ranks_in(run)
    assert found is not None
    return found


def test_the_attempts_of_a_torchrun_are_one_run(tmp_path: Path) -> None:
    with served(lambda: 1000.0) as server:  # so that no rank is late, however busy the machine is
        command = [sys.executable, *TORCHRUN, "--max-restarts", "1", SCRIPTS / "elastic.py", str(STEPS), tmp_path]
        done = run(command, tmp_path, HOOKCORE_SERVER=server.url, HOOKCORE_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr
        joint = joint_in(server)
        wait_for(lambda: joint.run.state == "ended")
        assert (joint.run.name, joint.rounds.world, joint.rounds.missing()) == ("elastic", 2, [])
        assert sorted((each.place.rank, each.place.attempt) for each in joint.rounds.members.values()) == [
            (0, 0),
            (0, 1),
            (1, 0),
            (1, 1),
        ]
        assert [each.place.attempt for each in joint.rounds.current()] == [1, 1]
        # Data after the last step, such as a sample of the machine, may begin another step, which rank 1 never has.
        assert joint.sum.shift >= STEPS
        steps = [*range(STEPS), *range(joint.sum.shift, joint.sum.shift + STEPS)]
        assert joint.run.store.series(0, "count").first_step.tolist() == steps
        assert joint.sum.assembly.absences.incomplete <= 1
        (event,) = [each for each in joint.run.store.events() if each.name == "restarted"]
        assert f"its steps continue from {joint.sum.shift} here" in event.message


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the weights of each rank of an unwatched training."""
    folder = tmp_path_factory.mktemp("plain")
    done = run([python(), *TORCHRUN, PARALLEL, folder / "weights"], folder)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"weights{rank}") for rank in "01"]


def test_torchrun_watches_every_rank_and_changes_no_weight(plain: list[Any], tmp_path: Path) -> None:
    command = [*TORCHRUN, "--no-python", *WATCHED, "--keep", tmp_path / "kept", PARALLEL, tmp_path / "weights"]
    done = run([python(), *command], tmp_path)
    assert done.returncode == 0, done.stderr
    for rank, weights in enumerate(plain):
        assert_same_weights(weights, torch.load(tmp_path / f"weights{rank}"))
    names = {read_archive(folder).info.name for folder in (tmp_path / "kept").iterdir()}
    assert names == {"parallel rank 0", "parallel rank 1"}


def test_each_rank_reports_an_absent_server_and_no_weight_changes(plain: list[Any], tmp_path: Path) -> None:
    (tmp_path / "watched.py").write_text(SCRIPT_WATCHED)
    command = [python(), *TORCHRUN, tmp_path / "watched.py", PARALLEL, tmp_path / "weights"]
    away = run(command, tmp_path, HOOKCORE_SERVER="http://127.0.0.1:9", HOOKCORE_TOKEN=TOKEN)
    assert away.returncode == 0, away.stderr
    assert away.stderr.count("did not reach the server") == 2, away.stderr  # how much was lost, for each rank
    assert away.stderr.count("the server isn't accepting frames") in (0, 2), away.stderr  # if the outage lasts
    for rank, weights in enumerate(plain):
        assert_same_weights(weights, torch.load(tmp_path / f"weights{rank}"))
