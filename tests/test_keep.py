"""Runs that a server keeps: written as they come, only where it may, and shown again."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hookcore.archive import read_archive
from hookcore.errors import HookcoreError
from hookcore.wire import Batch, EndItem, RunInfo, frame_item
from hookcore_app.keep import Keeper, show
from hookcore_app.runs import Run, Runs
from hookcore_app.settings import ServerSettings
from tests.test_archive import TAPS, make_frame

INFO = RunInfo(id="run-1", key="secret", name="../../a/run", memory=20_000_000)
STEPS = 12


def until(holds: Callable[[], bool]) -> None:
    """Waits for something that another thread does."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def train(runs: Runs, keeper: Keeper, info: RunInfo = INFO, may_name_folder: bool = False, ends: bool = True) -> Run:
    """A trainer that sends some frames and ends."""
    run = runs.open(info)
    assert run is not None
    keeper.opened(run, may_name_folder)
    items = tuple(frame_item(step, make_frame(step)) for step in range(STEPS))
    run.take(Batch(run=info, taps=TAPS, items=items))
    if ends:
        run.take(Batch(run=info, taps_from=len(TAPS), items=(EndItem(STEPS, STEPS - 1),)))
    return run


def kept_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.hookcore"))


def state_of(folder: Path) -> str:
    found = kept_in(folder)
    try:
        return read_archive(found[0]).state if found else "not there"
    except HookcoreError:
        return "not there yet"


def test_a_server_keeps_its_runs_and_shows_them_after_a_restart(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    runs = Runs(settings)
    keeper = Keeper(runs, settings)
    run = train(runs, keeper)
    until(lambda: state_of(tmp_path) == "ended")
    assert [folder.parent for folder in kept_in(tmp_path)] == [tmp_path]  # whatever the run is called
    keeper.close()

    again = Runs(settings)
    Keeper(again, settings).close()
    until(lambda: again.get(INFO.id) is not None)
    shown = again.get(INFO.id)
    assert shown is not None
    assert (shown.state, shown.name) == ("kept", INFO.name)
    for tap in range(len(TAPS)):
        one, other = run.store.series(tap, "mean"), shown.store.series(tap, "mean")
        assert np.array_equal(one.mean, other.mean, equal_nan=True)


def test_closing_the_server_writes_what_is_left(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    runs = Runs(settings)
    keeper = Keeper(runs, settings)
    train(runs, keeper, ends=False)
    keeper.close()
    archive = read_archive(kept_in(tmp_path)[0])
    assert len(list(archive.frames())) == STEPS
    assert archive.state == "lost"


def test_only_this_users_own_trainers_may_name_a_folder(tmp_path: Path) -> None:
    settings = ServerSettings()
    runs = Runs(settings)
    keeper = Keeper(runs, settings)
    wanted = tmp_path / "wanted"
    info = RunInfo(id="run-2", key="k", name="r", memory=20_000_000, keep=str(wanted))
    foreign = train(runs, keeper, info)
    assert [event.name for event in foreign.store.events()] == ["not-kept"]
    assert not wanted.exists()
    own = RunInfo(id="run-3", key="k", name="r", memory=20_000_000, keep=str(wanted))
    train(runs, keeper, own, may_name_folder=True)
    until(lambda: state_of(wanted) == "ended")
    keeper.close()


def test_nothing_is_written_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ServerSettings()
    runs = Runs(settings)
    keeper = Keeper(runs, settings)
    train(runs, keeper)
    keeper.close()
    assert not list(tmp_path.iterdir())


def test_the_limit_counts_what_was_kept_before(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path), keep_limit=1000)
    (tmp_path / "old-1.hookcore").mkdir()
    (tmp_path / "old-1.hookcore" / "filler.parquet").write_bytes(b"\0" * 2000)
    runs = Runs(settings)
    keeper = Keeper(runs, settings)
    run = train(runs, keeper)
    until(lambda: bool(run.store.events()))
    keeper.close()
    assert "keep-stopped" in [event.name for event in run.store.events()]
    assert not list(tmp_path.glob("*/steps/*.parquet"))


def test_a_kept_run_is_opened_by_its_folder_or_a_file_in_it(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    keeper = Keeper(Runs(settings), settings)
    train(Runs(settings), keeper)
    keeper.close()
    until(lambda: state_of(tmp_path) == "ended")
    folder = kept_in(tmp_path)[0]
    for path in (folder, folder / "run.json", next(folder.glob("stats/*.parquet"))):
        runs = Runs(ServerSettings())
        assert show(runs, path).store.steps().count == STEPS
        assert show(runs, path) is runs.get(INFO.id)


def test_a_damaged_part_of_a_kept_run_is_told_on_its_page(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    keeper = Keeper(Runs(settings), settings)
    train(Runs(settings), keeper)
    keeper.close()
    until(lambda: state_of(tmp_path) == "ended")
    next(kept_in(tmp_path)[0].glob("sketches/*.parquet")).write_bytes(b"not Parquet")
    run = show(Runs(ServerSettings()), kept_in(tmp_path)[0])
    assert run.store.steps().count == STEPS
    assert any(event.name == "damaged" and "sketches" in event.message for event in run.store.events())


def keeper_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("hookcore-keeper")]


def test_runs_that_never_end_share_one_thread_and_leave_nothing_behind(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path), max_runs=8, lost_after_s=0.0)
    now = itertools.count()
    runs = Runs(settings, clock=lambda: float(next(now)))
    keeper = Keeper(runs, settings)
    stores = []
    for number in range(40):
        run = train(runs, keeper, RunInfo(id=f"run-{number}", key="k", name="r", memory=4_000_000), ends=False)
        stores.append(weakref.ref(run.store))
        assert len(keeper_threads()) == 1
    del run
    until(lambda: len(kept_in(tmp_path)) == 40)
    for name in [each.id for each in runs.all()]:
        runs.remove(name)
    until(lambda: not keeper_threads())
    gc.collect()
    assert [store for store in stores if store() is not None] == []
    keeper.close()
    for folder in kept_in(tmp_path):
        assert len(list(read_archive(folder).frames())) == STEPS
