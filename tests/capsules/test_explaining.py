"""A server explains a saved step in a separate process, and reports why if it can't."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import hookcore
from hookcore.delivery.dashboard import capsules as folder
from hookcore.errors import CapsuleError, ServerError
from hookcore.reading import Client
from hookcore.reading.answers import Capsule, Explanation
from hookcore.reading.replaying import Kept, Replaying
from hookcore.records import Command
from hookcore_app.runs import alerts
from hookcore_app.runs.alerts import Explainer
from hookcore_app.runs.parts import End
from tests.archive_world import make_info
from tests.inside import recorder_of, run_id_of
from tests.serving import READ_TOKEN, TOKEN, Served, make_world, served
from tests.waiting import wait_for
from tests.warm import python

pytestmark = pytest.mark.slow
PYTHON = sys.executable
LAYERS = """
import time
from pathlib import Path
from torch import nn


class Standardize(nn.Module):
    def forward(self, x):
        print("what a model prints is no part of the answer")
        return x / x.std()  # guilty


class Slow(nn.Module):
    def __init__(self, flag):
        super().__init__()
        self.flag, self.layer = str(flag), nn.Linear(4, 4)

    def forward(self, x):
        if Path(self.flag).exists():
            Path(self.flag).with_suffix(".began").touch()
            time.sleep(600)
        return self.layer(x)


class Dies(nn.Module):
    def forward(self, x):
        if __import__("os").environ.get("HOOKCORE_SERVER") == "none" and "replay" in __import__("sys").argv:
            __import__("os").kill(__import__("os").getpid(), 9)
        return x * 2
"""


@pytest.fixture(autouse=True)
def quick_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run replays as forks of a Python that has already imported torch."""
    monkeypatch.setattr(sys, "executable", python())


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "guilty_layers.py").write_text(LAYERS)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("guilty_layers")
    sys.modules.pop("guilty_layers", None)


@pytest.fixture
def server() -> Iterator[Served]:
    with served(read_token=READ_TOKEN, lost_after_s=10_000.0) as found:
        yield found


def save(model: nn.Module, batch: torch.Tensor) -> str:
    """Train one step, save it, and return the id of the run."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if list(model.parameters()) else None
    with hookcore.watch(model, server=None, budget=None, capsule="error") as watcher:
        watcher.capsule()
        model(batch.requires_grad_()).sum().backward()
        optimizer.step() if optimizer is not None else watcher.step()
        watcher.flush()
        return run_id_of(watcher)


def replays_of(run: str) -> list[str]:
    """Return the processes that replay a capsule of a run."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = each.read_text(errors="replace")
            found += [command] if run in command and "replay" in command else []
    return found


def explained(client: Client, run: str) -> Capsule:
    """Explain the only capsule of a run, and return it afterward."""
    (found,) = client.capsules(run)
    assert client.explain(found.id, run).state == "running"
    return wait_for(
        lambda: next((each for each in client.capsules(run) if each.state != "running"), None), "it is explained"
    )


def test_a_saved_step_is_explained_and_stays_so_after_a_restart(layers: Any, server: Served) -> None:
    run = save(nn.Sequential(nn.Linear(4, 4), layers.Standardize()), torch.full((8, 4), 3.0) * 0)
    server.runs.open(make_info(run))
    with Client(server.url, TOKEN) as client:
        (before,) = client.capsules(run)
        assert (before.state, before.step, before.explanation) == ("saved", 0, None)
        found = explained(client, run)
        assert found.explanation is not None, found.failure
        assert found.explanation.exact, found.explanation.differences
        event = wait_for(lambda: next(iter(client.events(run=run, name="explained").events), None), "the event")
        assert (event.step, event.message) == (0, found.explanation.sentence)
    with served() as again, Client(again.url, TOKEN) as client:
        again.runs.open(make_info(run))
        assert client.capsules(run) == [found]


def test_a_step_that_another_process_replays_is_not_replayed_again(
    layers: Any, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = save(nn.Sequential(nn.Linear(4, 4), layers.Standardize()), torch.full((8, 4), 3.0) * 0)
    server.runs.open(make_info(run))
    (found,) = folder.saved(folder.folder_of(run))
    began = []
    command = Replaying.command
    monkeypatch.setattr(Replaying, "command", lambda self: [began.append(self), *command(self)][1:])
    with Client(server.url, TOKEN) as client:
        with found.path.open("rb") as by_the_trainer:
            fcntl.flock(by_the_trainer, fcntl.LOCK_EX)
            assert client.explain(found.id, run).state == "running"
            by_itself = Explanation("as the trainer found", None, (), (), 0, True, (), "")
            folder.keep_explanation(found.path, msgspec.json.encode(Kept(explanation=by_itself)))
            (replaying,) = server.app.state.explainer.running.values()
            wait_for(lambda: replaying.was_elsewhere)
            assert client.capsules(run)[0].state == "running"
        (kept,) = wait_for(lambda: [each for each in client.capsules(run) if each.state != "running"])
        assert (kept.state, kept.explanation, began) == ("explained", by_itself, [])
        assert not client.events(run=run, name="explained").events, "the trainer reports it"
        assert explained(client, run).explanation != by_itself, "on request, it is replayed again"


def test_the_line_of_code_is_named(layers: Any, server: Served) -> None:
    run = save(nn.Sequential(nn.Tanh(), layers.Standardize()), torch.zeros(8, 4))
    server.runs.open(make_info(run))
    with Client(server.url, TOKEN) as client:
        found = explained(client, run)
    assert found.explanation is not None, found.failure
    culprit = found.explanation.culprit
    assert culprit is not None
    assert culprit.stack[-1].source[culprit.stack[-1].line - culprit.stack[-1].first].endswith("# guilty")
    assert found.explanation.sentence.endswith("return x / x.std()  # guilty")


def test_a_replay_that_cannot_open_the_step_says_why_and_may_be_tried_again(
    layers: Any, server: Served, tmp_path: Path
) -> None:
    run = save(nn.Sequential(nn.Tanh(), layers.Standardize()), torch.ones(8, 4))
    server.runs.open(make_info(run))
    (tmp_path / "guilty_layers.py").rename(tmp_path / "moved.py")
    with Client(server.url, TOKEN) as client:
        found = explained(client, run)
        assert (found.state, found.explanation) == ("failed", None)
        assert "guilty_layers" in found.failure
        assert client.events(run=run, name="explanation-failed").total == 1
        (tmp_path / "moved.py").rename(tmp_path / "guilty_layers.py")
        assert explained(client, run).state == "explained"


def test_a_replay_that_dies_or_takes_too_long_is_reported(layers: Any, tmp_path: Path) -> None:
    slow, dies = save(layers.Slow(tmp_path / "flag"), torch.ones(2, 4)), save(layers.Dies(), torch.ones(2, 4))
    (tmp_path / "flag").touch()
    with served(lost_after_s=10_000.0) as server, Client(server.url, TOKEN) as client:
        for run, max_s, why in ((slow, 3.0, "took more than 3 s"), (dies, 240.0, "a signal (SIGKILL)")):
            server.app.state.explainer = Explainer(max_s=max_s)
            server.runs.open(make_info(run))
            found = explained(client, run)
            assert found.state == "failed"
            assert why in found.failure


def test_a_server_that_stops_ends_its_replays(layers: Any, tmp_path: Path) -> None:
    run = save(layers.Slow(tmp_path / "flag"), torch.ones(2, 4))
    (tmp_path / "flag").touch()
    with served(lost_after_s=10_000.0) as server, Client(server.url, TOKEN) as client:
        server.runs.open(make_info(run))
        client.explain(client.capsules(run)[0].id, run)
        wait_for((tmp_path / "flag.began").exists, "the replay runs the model")
        assert replays_of(run)
    assert not replays_of(run)
    assert folder.saved(folder.folder_of(run))[0].explained is None


def test_explanations_need_the_right_token_run_and_capsule(
    layers: Any, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = save(nn.Sequential(nn.Tanh(), layers.Standardize()), torch.ones(8, 4))
    server.runs.open(make_info(run))
    server.runs.open(make_info("other"))
    with Client(server.url, TOKEN) as client, Client(server.url, READ_TOKEN) as reader:
        (capsule,) = reader.capsules(run)
        with pytest.raises(ServerError) as refused:
            reader.explain(capsule.id, run)
        assert refused.value.status in (401, 403)
        assert client.capsules("other") == []
        for id in (capsule.id, "..", f"../{run}/{capsule.id}"):
            with pytest.raises(ServerError) as unknown:
                client.explain(id, "other")
            assert unknown.value.status in (404, 405)
        monkeypatch.setattr(alerts, "MAX_RUNNING", 0)
        with pytest.raises(ServerError, match="try again") as busy:
            client.explain(capsule.id, run)
        assert busy.value.status == 409
    for name in ("..", "a/b", "", "a" * 300):
        with pytest.raises(CapsuleError):
            folder.folder_of(name)


def test_a_damaged_capsule_or_explanation_does_not_break_the_list(layers: Any, server: Served) -> None:
    run = save(nn.Sequential(nn.Tanh(), layers.Standardize()), torch.ones(8, 4))
    server.runs.open(make_info(run))
    path = folder.saved(folder.folder_of(run))[0].path
    (path.parent / "step-000000007.capsule").write_bytes(b"PK no zip")
    path.with_suffix(".json").write_bytes(b"{")
    with Client(server.url, TOKEN) as client:
        damaged, found = sorted(client.capsules(run), key=lambda each: each.id != "step-000000007")
        assert client.explain("step-000000007", run).state == "failed"  # nothing runs
    assert found.state == "failed"
    assert "can't be read" in found.failure
    assert (damaged.step, damaged.state) == (7, "failed")
    assert "not a zip file" in damaged.failure


ABOUT = {"format": 1, "step": 7, "reason": "asked for", "model": "m", "weights": "w", "time_s": 1.0}
ODD_ABOUT: dict[str, Any] = {
    "deep": "[" * 1_000_000,
    "no step": {**ABOUT, "step": "x"},
    "a step beyond all numbers": json.dumps(ABOUT).replace("7", "1e400"),
    "a step of 5,000 digits": json.dumps(ABOUT).replace("7", "1" * 4000),
    "a time that is a text": {**ABOUT, "time_s": "now"},
    "an occasion that is a list": {**ABOUT, "occasion": [1]},
    "text that is not Unicode": {**ABOUT, "reason": "x\ud800y"},
    "another machine's Python": {**ABOUT, "main": 3, "versions": 4},
}


def _zipped(path: Path, about: bytes, method: int = 0, flags: int = 0) -> None:
    """Write a capsule whose member claims a compression method and flags."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("about.json", about)
    data = bytearray(path.read_bytes())
    for place, mark in ((6, b"PK\x03\x04"), (8, b"PK\x01\x02")):
        at = data.index(mark) + place
        data[at : at + 4] = flags.to_bytes(2, "little") + method.to_bytes(2, "little")
    path.write_bytes(data)


def _odd_capsules(path: Path) -> Iterator[Path]:
    """Put one capsule after another in one place."""
    for about in ODD_ABOUT.values():
        _zipped(path, (about if isinstance(about, str) else json.dumps(about)).encode())
        yield path
    for method, flags in ((8, 0), (12, 0), (14, 0), (99, 0), (0, 1)):  # damaged, unknown, and encrypted data
        _zipped(path, json.dumps(ABOUT).encode(), method, flags)
        yield path
    path.unlink()
    os.mkfifo(path)
    yield path
    path.unlink()
    path.symlink_to("/dev/zero")
    yield path


def test_no_odd_capsule_breaks_the_pages_of_its_run() -> None:
    world = make_world()
    world.runs.open(make_info("odd"))
    folder.prepare(folder.folder_of("odd"))
    said = []
    for path in _odd_capsules(folder.path_of(folder.folder_of("odd"), 7)):
        for address in ("/runs/odd", "/api/v1/capsules?run=odd"):
            answer = world.client.get(address)
            assert answer.status_code == 200, (address, path)
        (found,) = answer.json()["capsules"]
        assert found["step"] == 7
        said.append((found["state"], bool(found["failure"])))
    assert said.count(("failed", True)) == len(said) - 1
    assert said[list(ODD_ABOUT).index("text that is not Unicode")] == ("saved", False)


def test_a_reader_can_request_the_next_step() -> None:
    model = nn.Linear(4, 4)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        recorder_of(watcher).on_command(Command(1, "capsule"))
        model(torch.ones(2, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        watcher.flush()
        assert [each.about["reason"] for each in folder.saved(folder.folder_of(run_id_of(watcher)))] == ["asked for"]


def test_rest_needs_a_live_trainer_to_save_a_step(server: Served) -> None:
    run = server.runs.open(make_info("gone"))
    assert run is not None
    with Client(server.url, TOKEN) as client:
        accepted = client.save_step("gone")
        assert [(each.number, each.name) for each in run.commands] == [(accepted.number, "capsule")]
        run.end = End(3)
        with pytest.raises(ServerError, match="no trainer"):
            client.save_step("gone")


def test_a_replay_limits_its_memory(layers: Any, tmp_path: Path) -> None:
    run = save(nn.Sequential(nn.Tanh(), layers.Standardize()), torch.ones(8, 4))
    path = folder.saved(folder.folder_of(run))[0].path
    command = [sys.executable, "-m", "hookcore_app.cli", "replay", str(path), "--json", "--memory"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = subprocess.run([*command, "16GiB"], capture_output=True, text=True, env=environment, check=True)
    assert json.loads(told.stdout)["operators"] > 0
    refused = subprocess.run([*command, "much"], capture_output=True, text=True, env=environment)
    assert refused.returncode != 0
    assert "8GiB" in refused.stderr
    command[0] = PYTHON  # a fork already has what it needs
    small = subprocess.run([*command, "1MB"], capture_output=True, text=True, env=environment)
    assert small.returncode != 0


def test_an_address_outside_of_the_folder_is_refused(server: Served) -> None:
    request = urllib.request.Request(
        f"{server.url}/api/v1/capsules/..%2F..%2Fetc/explain?run=one",
        method="POST",
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    server.runs.open(make_info("one"))
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    refused.value.close()
    assert refused.value.code == 404
