"""What readers see when a server is killed and restarted beneath live trainings, on the same folder and port."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from hookcore.records import Failure
from hookcore.records.wire import Batch, EndItem, Place
from hookcore.store import Store
from hookcore_app.runs import Runs, keep
from hookcore_app.runs.saved import show
from hookcore_app.settings import ServerSettings
from tests.keep_world import INFO, SERVER_SETTINGS, TAPS, ServerProcess, batch, start, stop
from tests.live_world import Message
from tests.processes import start as start_process
from tests.serving import BEARER, PATIENCE_S, World, make_world, served
from tests.waiting import wait_for

TRAINER = "tests.browser.trainer"


class Trainings:
    """A server, and trainings that send to it, each in a process."""

    def __init__(self, folder: Path) -> None:
        self.server, self.folder = ServerProcess(folder), folder
        self.trainers: list[BaseProcess] = []

    def train(self, name: str, *arguments: str) -> tuple[BaseProcess, str]:
        """Start a training, and return its process and the id of its run."""
        environment, log = {**os.environ, **SERVER_SETTINGS}, self.folder / f"{name}.log"
        given = (self.server.url, "--name", name, "--pause", "0.02", *arguments)
        trainer = start_process(TRAINER, *given, environment=environment, log=log)
        self.trainers.append(trainer)
        with self.server.client() as client:
            ids = wait_for(lambda: [each.id for each in client.runs() if each.name == name], f"the run {name}")
        wait_for(lambda: [*self.server.folder.glob(f"*{ids[0]}*/steps/*.parquet")], f"steps of {name} on disk")
        return trainer, ids[0]

    def stop(self) -> None:
        for each in self.trainers:
            each.kill()
            each.join()
        self.server.kill()


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainings]:
    monkeypatch.setenv("HOOKCORE_LOST_AFTER_S", "300")  # only the end of a process shows that it is lost
    made = Trainings(tmp_path)
    try:
        made.server.start()
        yield made
    finally:
        made.stop()


def connect_to(url: str) -> ClientConnection:
    address = f"{url.replace('http', 'ws')}/api/v1/socket"
    return connect(address, compression=None, proxy=None, additional_headers=BEARER, open_timeout=PATIENCE_S)


def next_message(socket: ClientConnection) -> Message:
    """Return the next message, and acknowledge it."""
    data = socket.recv(PATIENCE_S)
    assert isinstance(data, bytes)
    message = Message.read(data)
    socket.send(json.dumps({"op": "ack", "id": message.subscription, "sequence": message.sequence}))
    return message


@contextmanager
def states_of(url: str, *runs: str) -> Iterator[dict[str, list[str]]]:
    """Yield all states of some runs in their order, as a page hears them that connects again as soon as it can."""
    seen: dict[str, list[str]] = {run: [] for run in runs}
    over = threading.Event()

    def listen() -> None:
        while not over.is_set():
            try:
                with connect_to(url) as socket:
                    socket.send(json.dumps({"op": "subscribe", "id": 1, "view": "runs", "hz": 30}))
                    while not over.is_set():
                        told = {each["run"]: each["state"] for each in next_message(socket).json["runs"]}
                        for run, states in seen.items():
                            if states[-1:] != [state := told.get(run, "absent")]:
                                states.append(state)
            except (OSError, EOFError, TimeoutError, WebSocketException):
                over.wait(0.01)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_the_states_of_runs_whose_server_is_killed_and_restarted(trainings: Trainings) -> None:
    server = trainings.server
    _, ended = trainings.train("ended", "--steps", "5")
    dead, lost = trainings.train("lost")
    live, run = trainings.train("live")
    with server.client() as client, states_of(server.url, ended, lost, run) as seen:
        wait_for(lambda: [each[-1:] for each in seen.values()] == [["ended"], ["live"], ["live"]])
        assert live.pid is not None
        os.kill(live.pid, signal.SIGSTOP)  # so that it comes back only when it may
        server.kill()
        dead.kill()
        dead.join()
        server.start()
        wait_for(lambda: seen[run][-1] == "waiting")
        os.kill(live.pid, signal.SIGCONT)
        wait_for(lambda: seen[run][-1] == "live")
        until = (client.run(run).newest_step or 0) + 10
        wait_for(lambda: (client.run(run).newest_step or 0) > until, "the training continues")
    assert seen == {ended: seen[ended], lost: ["live", "lost"], run: ["live", "waiting", "live"]}
    assert seen[ended][-1:] == ["ended"]
    assert seen[ended] in (["ended"], ["live", "ended"])


def restarted(folder: Path, ends: bool = False, **settings: Any) -> World:
    """Return a server with a run of the server before it, which has three steps."""
    world = start(ServerSettings(keep=str(folder)), 0)
    world.take(batch(INFO, range(3), first=True))
    if ends:
        world.take(Batch(run=INFO, taps_from=len(TAPS), items=(EndItem(3, 2),)))
    stop(world)
    world = make_world(keep=str(folder), **settings)
    wait_for(world.runs.all)
    return world


def test_a_run_that_was_read_at_the_start_waits_for_its_trainer_before_it_is_lost(tmp_path: Path) -> None:
    now = 100.0
    world = restarted(tmp_path, clock=lambda: now, lost_after_s=15.0)
    run = world.runs.get(INFO.id)
    assert run is not None

    def states() -> list[str]:
        """Return its state, as REST, the list of runs, a search, and its page show it."""
        (listed,) = world.client.get("/api/v1/runs").json()["runs"]
        found = world.client.get("/api/v1/runs", params={"query": f"state:{run.state}"}).json()["runs"]
        hooks = unescape(world.client.get(f"/runs/{INFO.id}/capture").text)
        told = {"waiting": "hasn't reconnected to this server yet", "lost": "isn't responding"}.get(run.state, "")
        assert told in hooks
        assert f"{run.state} \u00b7 step " in hooks
        return [run.state, listed["state"], *(each["state"] for each in found)]

    assert states() == ["waiting"] * 3
    page = re.sub("<[^>]*>", "", world.client.get(f"/runs/{INFO.id}").text)
    assert "Waiting for the trainer: steps 0 to 2" in page
    assert world.client.post(f"/api/v1/hooks?run={INFO.id}").status_code == 409
    assert 'hookcore_runs{state="waiting"} 1.0' in world.client.get("/metrics").text
    now += 15.1
    assert states() == ["lost"] * 3
    world.take(batch(INFO, range(3, 5)))
    assert states() == ["live"] * 3
    now += 15.1
    assert states() == ["lost"] * 3
    stop(world)


def test_a_run_is_live_while_it_is_read_for_its_trainer(tmp_path: Path) -> None:
    now = 100.0
    world = restarted(tmp_path, clock=lambda: now, lost_after_s=15.0)
    run = world.runs.get(INFO.id)
    assert run is not None
    now += 14.0
    seen, load = [], world.runs.disk.load  # type: ignore[union-attr]

    def load_slowly(given: Any) -> None:
        nonlocal now
        seen.append(run.state)
        now += 14.0
        load(given)

    world.runs.disk.load = load_slowly  # type: ignore[union-attr, method-assign]
    run.changes.tell = lambda: seen.append(run.state)  # type: ignore[method-assign]
    world.take(batch(INFO, range(3, 5)))
    assert list(dict.fromkeys(seen)) == ["waiting", "live"]
    stop(world)


def test_a_run_that_ended_before_a_restart_stays_ended(tmp_path: Path) -> None:
    world = restarted(tmp_path, ends=True)
    assert [run.state for run in world.runs.all()] == ["ended"]


def test_a_saved_run_that_is_opened_or_found_later_has_no_trainer_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep, "MAX_LISTED", 0)
    world = start(ServerSettings(keep=str(tmp_path)), 0)
    world.take(batch(INFO, range(3), first=True))
    stop(world)
    world = start(ServerSettings(keep=str(tmp_path)), 0)
    wait_for(lambda: world.runs.unlisted.too_many)
    assert world.client.get(f"/api/v1/runs/{INFO.id}").json()["state"] == "lost"
    (folder,) = tmp_path.glob("*.hookcore")
    assert show(Runs(ServerSettings()), folder).state == "lost"


def test_a_training_waits_while_one_of_its_ranks_may_come_back(tmp_path: Path) -> None:
    now = 100.0
    infos = [
        msgspec.structs.replace(INFO, id=f"run-{rank}", place=Place(job="job", rank=rank, world=2)) for rank in (0, 1)
    ]
    world = start(ServerSettings(keep=str(tmp_path)), 0)
    for info in infos:
        world.take(batch(info, range(3), first=True))
    crash = Failure("crashed", 2, "RuntimeError", "")
    world.take(Batch(run=infos[0], taps_from=len(TAPS), items=(EndItem(3, 2, crash),)))
    stop(world)
    world = make_world(clock=lambda: now, keep=str(tmp_path))
    wait_for(lambda: len(world.runs.every()) == 3)
    (joint,) = world.runs.all()
    assert joint.state == "waiting"
    now += 100.0
    assert joint.state == "crashed"


def test_a_page_that_stayed_open_gets_all_steps_again(tmp_path: Path) -> None:
    """Live views begin with everything that is on disk, and again if the run is read again."""
    before = start(ServerSettings(keep=str(tmp_path)), 0)
    before.take(batch(INFO, range(3), first=True))
    stop(before)
    with served(keep=str(tmp_path)) as server:
        run = wait_for(lambda: server.runs.get(INFO.id))
        assert not run.loaded
        with connect_to(server.url) as socket:
            asked = {"op": "subscribe", "id": 1, "run": INFO.id, "view": "scalars", "stats": ["loss"], "from": 0}
            socket.send(json.dumps(asked))

            def next_steps() -> tuple[bool, list[int]]:
                while (said := next_message(socket).json)["type"] != "scalars":
                    pass
                return said["snapshot"], said["scalars"][0]["first_step"]

            assert next_steps() == (True, [0, 1, 2])
            server.app.state.take(batch(INFO, range(3, 5)), bytearray(), False)
            seen: list[int] = []
            while len(seen) < 2:  # in one message or in two
                snapshot, steps = next_steps()
                assert not snapshot
                seen += steps
            assert seen == [3, 4]
            run.swap(Store.outline(run.store.steps()), loaded=False)  # as if its memory were needed
            server.runs.read(run)
            wait_for(lambda: run.loaded)
            snapshot, steps = next_steps()
            assert snapshot
            assert steps[:3] == [0, 1, 2]
