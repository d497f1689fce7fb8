"""Notices of runs: an announced run is listed even if its process is killed before the dashboard has started."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import hookcore
from hookcore.delivery.dashboard import process
from hookcore.delivery.dashboard.process import find, post_notice, stop_dashboard, take_orphans
from hookcore.errors import ServerError
from hookcore.records.wire import RunInfo
from hookcore_app.runs import undelivered
from hookcore_app.runs.undelivered import list_orphan
from tests.build import make_info
from tests.receiver import a_run
from tests.serving import (
    make_batch,
    make_world,
)
from tests.waiting import wait_for
from tests.warm import python


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a separate user."""
    return {"HOOKCORE_HOME": str(tmp_path / "home")}


def test_a_notice_is_an_orphan_when_its_lock_is_free(environment: dict[str, str]) -> None:
    notice = post_notice(a_run("one"), environment)
    (file,) = Path(environment["HOOKCORE_HOME"]).iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert take_orphans(environment) == []
    notice.leave()
    assert take_orphans(environment) == [a_run("one")]
    assert take_orphans(environment) == []


def test_an_answered_notice_disappears(environment: dict[str, str]) -> None:
    notice = post_notice(a_run("one"), environment)
    notice.remove()
    notice.remove()
    assert not list(Path(environment["HOOKCORE_HOME"]).iterdir())
    assert take_orphans(environment) == []


def test_a_forked_child_neither_keeps_nor_releases_the_notice_of_its_parent(environment: dict[str, str]) -> None:
    notice = post_notice(a_run("one"), environment)
    child = os.fork()
    if not child:
        notice.leave()
        os._exit(len(take_orphans(environment)))
    assert os.waitpid(child, 0)[1] == 0
    assert take_orphans(environment) == []
    notice.leave()
    assert take_orphans(environment) == [a_run("one")]


def test_damaged_notices_are_removed_when_they_are_old_and_hide_no_other(environment: dict[str, str]) -> None:
    post_notice(a_run("one"), environment).leave()
    home = Path(environment["HOOKCORE_HOME"])
    for name, content in (("begun-a.json", b"{"), ("begun-b.json", b"[" * 60_000), ("begun-c.json", b'{"id": 7}')):
        (home / name).write_bytes(content)
        (home / name).chmod(0o600)
    os.utime(home / "begun-a.json", (0, 0))
    os.mkfifo(home / "begun-d.json")
    assert take_orphans(environment) == [a_run("one")]
    assert sorted(path.name for path in home.iterdir()) == ["begun-b.json", "begun-c.json", "begun-d.json"]


def test_notices_are_bounded(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_NOTICES", 2)
    for name in ("one", "two"):
        post_notice(a_run(name), environment).leave()
    with pytest.raises(ServerError, match="holds 2 notices"):
        post_notice(a_run("three"), environment)
    assert {run.id for run in take_orphans(environment)} == {"one", "two"}


def test_an_orphan_is_shown_as_lost_with_the_reason_and_kept_on_disk(tmp_path: Path) -> None:
    world = make_world(keep=str(tmp_path))
    list_orphan(world.runs, world.app.state.keeper, make_info("one", pid=77))
    (run,) = world.client.get("/api/v1/runs").json()["runs"]
    assert (run["id"], run["state"]) == ("one", "lost")
    found = world.runs.get("one")
    assert found is not None
    (event,) = found.store.events()
    assert (event.name, event.severity) == ("never-arrived", "warning")
    assert "(77) ended before this dashboard answered" in event.message
    assert world.client.get("/runs/one").status_code == 200
    world.app.state.keeper.close()
    later = make_world(keep=str(tmp_path))
    wait_for(lambda: later.runs.get("one") is not None)
    (kept,) = later.runs.read(later.runs.all()[0]).store.events()
    assert kept.message == event.message
    later.app.state.keeper.close()


def test_an_orphan_whose_run_arrives_after_all_is_unchanged() -> None:
    world = make_world()
    world.take(make_batch(make_info("one"), [0, 1]))
    list_orphan(world.runs, world.app.state.keeper, make_info("one"))
    (run,) = world.runs.all()
    assert run.state == "live"
    assert run.store.steps().count == 2


@pytest.mark.slow
def test_a_training_that_is_killed_while_its_dashboard_starts_is_listed(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HOOKCORE_HOME": str(tmp_path / "home"),
        "HOOKCORE_PORT": "0",
        "HOOKCORE_SERVER": "auto",
    }
    code = (
        "import hookcore, torch, os, signal\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "hookcore.watch(model, name='short')\n"
        "model(torch.ones(2, 4)).sum().backward()\n"
        "optimizer.step()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ran = subprocess.run([python(), "-c", code], env=environment, capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL
    try:
        dashboard = find(environment)
        assert dashboard is not None
        client = hookcore.Client(dashboard.url, dashboard.token)
        listed = wait_for(client.runs, "a list of runs")
        ((name, state),) = [(run.name, run.state) for run in listed]
        assert (name, state) == ("short", "lost")
    finally:
        stop_dashboard(environment)


def test_a_temporarily_unreadable_folder_does_not_end_the_search(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([OSError("stale file handle"), OSError("stale file handle"), []])
    state = SimpleNamespace(stopping=False, undelivered=SimpleNamespace(look=lambda: None))

    def look() -> list[RunInfo]:
        found = next(answers)
        if isinstance(found, OSError):
            raise found
        state.stopping = True
        return found

    monkeypatch.setattr(undelivered, "take_orphans", look)
    monkeypatch.setattr(undelivered, "LOOK_EVERY_S", 0.0)
    undelivered.follow(state)
    assert caplog.text.count("stale file handle") == 1
