"""Names that aren't valid Unicode or plain `str`: the run arrives complete, and the names are shown escaped."""

from __future__ import annotations

import enum
import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hookcore
from hookcore.delivery.archive import read_archive
from hookcore.records import Coverage, Event, HookRecord, ModuleRecord, Tap, escaped_in, plain, text_of, wire
from tests.build import make_info
from tests.receiver import DEADLINE_S, Receiver, a_frame, serving
from tests.serving import (
    make_batch,
    make_world,
)
from tests.waiting import wait_for

ODD = "odd\udcff"
SHOWN = "odd\\udcff"


class Name(str, enum.Enum):
    LOSS = "loss"


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def url(receiver: Receiver) -> Iterator[str]:
    with serving(receiver) as address:
        yield address


def _odd_model() -> nn.Module:
    model = nn.Module()
    model.add_module(ODD, nn.Linear(3, 1))
    model.forward = lambda inputs: dict(model.named_children())[ODD](inputs)  # type: ignore[method-assign]
    return model


def _let_keepers_end() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("hookcore-keeper"):
            thread.join(DEADLINE_S)


def _train(model: nn.Module, watcher: hookcore.Watcher, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        watcher.log(**{ODD: float(step), Name.LOSS: 1.0, np.str_("numpy"): 2.0, "größe": 3.0})
        optimizer.step()


def test_a_run_full_of_odd_names_arrives_at_the_server_complete(
    receiver: Receiver, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"/home/{ODD}/train.py"])
    model = _odd_model()
    with hookcore.watch(model, server=url, name=ODD, budget=None, memory="8MB") as watcher:
        _train(model, watcher)
        assert watcher.flush(30.0)
        counters = watcher.delivery
        assert counters is not None
        assert counters.acknowledged == counters.produced
        assert not counters.dropped
        assert not watcher.errors
    (run,) = receiver.runs.all()
    assert (run.info.name, run.info.script) == (SHOWN, f"/home/{SHOWN}/train.py")
    assert {"", SHOWN} == {module.path for module in run.store.modules()}
    assert any(tap.module == SHOWN for tap in run.store.taps().taps)
    assert set(run.store.scalar_names()) >= {SHOWN, "loss", "numpy", "größe"}
    events = [event for event in run.store.events_after(0)[1] if event.name == "name-escaped"]
    assert len(events) == 1
    assert SHOWN in events[0].message


def test_a_store_in_the_process_has_the_same_names_as_a_server(tmp_path: Path) -> None:
    model = _odd_model()
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/kept\xff"))
    with hookcore.watch(model, server=None, name=ODD, keep=folder, budget=None) as watcher:
        _train(model, watcher)
    assert SHOWN in watcher.store.scalar_names()
    _let_keepers_end()
    (kept,) = folder.iterdir()
    archive = read_archive(kept)
    assert archive.info.name == SHOWN
    assert not archive.damages
    assert {SHOWN, "loss"} <= {name for frame in archive.frames() for name in frame.scalars}
    json.dumps([module.path for module in watcher.store.modules()]).encode()


def test_a_server_gets_the_exact_folder_for_a_run() -> None:
    for folder in ("/runs", "/größe", "/odd \udcff%20/x", "relative"):
        text = wire.keep_text(folder)
        assert text.encode()
        assert wire.keep_folder(text) == folder


def test_a_dashboard_saves_a_run_in_a_folder_whose_name_is_not_unicode(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/kept\xff")
    world = make_world(token="t" * 40, dashboard=True)
    info = make_info(keep=wire.keep_text(folder))
    response = world.post(make_batch(info, [0]), Authorization=f"Bearer {'t' * 40}")
    assert response.status_code == 200
    listed = world.client.get("/api/v1/runs")
    assert listed.status_code == 200
    assert "/kept\\udcff/" in listed.json()["runs"][0]["folder"]
    for path in ("/", "/runs/one", "/api/v1/runs/one", "/api/v1/overview"):
        assert world.client.get(path).status_code == 200, path
    world.app.state.keeper.close()
    _let_keepers_end()
    assert len(os.listdir(folder)) == 1


def test_the_page_file_of_a_saved_run_with_a_name_that_is_not_unicode_breaks_no_list(tmp_path: Path) -> None:
    world = make_world(keep=str(tmp_path))
    world.take(make_batch(make_info(), [0]))
    world.app.state.keeper.close()
    _let_keepers_end()
    (folder,) = tmp_path.glob("*.hookcore")
    odd = '"\\ud800"'
    (folder / "page.json").write_text(
        f'{{"name": {odd}, "notes": {odd}, "acknowledgements": {{{odd}: 1}}, "summary": {{{odd}: 1}}}}'
    )
    later = make_world(keep=str(tmp_path))
    wait_for(lambda: later.runs.get("one") is not None)
    for path in ("/", "/runs/one", "/api/v1/runs", "/api/v1/runs/one"):
        assert later.client.get(path).status_code == 200, path
    assert later.client.get("/api/v1/runs").json()["runs"][0]["name"] == "\\ud800"
    later.app.state.keeper.close()


@pytest.mark.parametrize("name", ["name", "host", "script", "group", "notes", "tags", "config", "versions", "settings"])
def test_the_run_file_of_a_saved_run_with_text_that_is_not_unicode_breaks_no_page(tmp_path: Path, name: str) -> None:
    world = make_world(keep=str(tmp_path))
    world.take(make_batch(make_info(), [0]))
    world.app.state.keeper.close()
    _let_keepers_end()
    (file,) = tmp_path.glob("*.hookcore/run.json")
    content = json.loads(file.read_text())
    odd = "x\ud800y"
    value = content["run"].get(name, {})
    content["run"][name] = odd if isinstance(value, str) else [odd] if isinstance(value, list) else {odd: odd}
    content["labels"] = {odd: odd}
    file.write_text(json.dumps(content))
    later = make_world(keep=str(tmp_path))
    wait_for(lambda: later.runs.get("one") is not None)
    for path in ("/", "/runs/one", "/api/v1/runs", "/api/v1/runs/one", "/metrics"):
        assert later.client.get(path).status_code == 200, path
    later.app.state.keeper.close()


def test_records_hold_only_valid_text_and_two_odd_names_stay_distinct() -> None:
    class Odd(str):
        """A string that pretends to be another one."""

        def __str__(self) -> str:
            return "liar"

    assert text_of(Odd("plain")) == "plain"
    assert type(Tap(Odd("layer"), "output").module) is str
    assert {Tap(name, "output").module for name in ("a\udc80", "a\udc81", "a", "ä")} == {
        "a\\udc80",
        "a\\udc81",
        "a",
        "ä",
    }
    odd_shapes = ((ODD, (1, 2)),)
    module = ModuleRecord(ODD, ODD, None, aliases=(ODD,), shapes=odd_shapes, placements=((ODD, ODD),))
    assert (module.path, module.aliases, module.shapes) == (SHOWN, (SHOWN,), ((SHOWN, (1, 2)),))
    assert module.placements == ((SHOWN, SHOWN),)
    odd = replace(a_frame(0), scalars={ODD: 1.0}, labels={"a": ODD})
    assert (odd.scalars, odd.labels) == ({SHOWN: 1.0}, {"a": SHOWN})
    assert Event(0, 0.0, "x", ODD, module=ODD).message == SHOWN
    assert Coverage("x", "X", False, reason=ODD).reason == SHOWN
    assert HookRecord("module", ODD, "forward", ODD, ODD, False, options=(ODD,)).options == (SHOWN,)
    assert plain({"include": [ODD, {ODD: (ODD, 1, None)}]}) == {"include": [SHOWN, {SHOWN: (SHOWN, 1, None)}]}
    assert escaped_in(("plain", "größe", "C:\\users")) is None
    assert escaped_in(("plain", SHOWN)) == SHOWN
