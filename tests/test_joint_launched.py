"""Real trainings under torchrun, and a real server: attempts of one training, and a server that is away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from hookcore_app.runs import JointRun
from tests.commanding import SCRIPTS, WATCHED, assert_same_weights, run
from tests.serving import TOKEN, Served, served
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

STEPS = 4
TORCHRUN: list[str | Path] = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def joint_in(server: Served) -> JointRun:
    (found,) = server.runs.all()
    assert isinstance(found, JointRun)
    return found


def test_the_attempts_of_a_torchrun_are_one_run(tmp_path: Path) -> None:
    with served(lambda: 1000.0) as server:  # no rank is late, however busy the machine is
        command = [*TORCHRUN, "--max-restarts", "1", SCRIPTS / "elastic.py", str(STEPS), tmp_path]
        done = run(command, tmp_path, HOOKCORE_SERVER=server.url, HOOKCORE_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr
        joint = joint_in(server)
        wait_for(lambda: joint.state == "ended")
        assert (joint.name, joint.world, joint.missing()) == ("elastic", 2, [])
        assert sorted((each.place.rank, each.place.attempt) for each in joint.members.values()) == [
            (0, 0),
            (0, 1),
            (1, 0),
            (1, 1),
        ]
        assert [each.place.attempt for each in joint.current()] == [1, 1]
        # What comes after the last step, such as a sample of the machine, may begin one more, which rank 1 never does.
        assert joint.shift >= STEPS
        steps = [*range(STEPS), *range(joint.shift, joint.shift + STEPS)]
        assert joint.store.series(0, "count").first_step.tolist() == steps
        assert joint.assembly.incomplete <= 1
        (event,) = [each for each in joint.store.events() if each.name == "restarted"]
        assert f"its steps continue from {joint.shift} here" in event.message


def test_a_server_that_is_away_is_said_once_by_each_rank_and_changes_no_weight(tmp_path: Path) -> None:
    script = SCRIPTS / "parallel.py"
    plain = run([*TORCHRUN, script, tmp_path / "plain"], tmp_path)
    assert plain.returncode == 0, plain.stderr
    command = [*TORCHRUN, "--no-python", *WATCHED, script, tmp_path / "watched"]
    away = run(command, tmp_path, HOOKCORE_SERVER="http://127.0.0.1:9", HOOKCORE_TOKEN=TOKEN)
    assert away.returncode == 0, away.stderr
    said = away.stderr.count("the server isn't accepting frames"), away.stderr.count("did not reach the server")
    assert sum(said) == 2, away.stderr  # while it trains, if it lasts; else at its end
    for rank in "01":
        assert_same_weights(torch.load(tmp_path / f"plain{rank}"), torch.load(tmp_path / f"watched{rank}"))
