"""Runs that a server saves: as they arrive, only in allowed places, and shown again."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import threading
import weakref
from html import unescape
from pathlib import Path

import msgspec
import numpy as np
import pytest

from hookcore.config import NO_FOLDER
from hookcore.delivery.archive import ArchiveWriter, read_archive
from hookcore.errors import HookcoreError
from hookcore.records import Failure, ModuleRecord
from hookcore.records.wire import Batch, DeliveryCounters, Description, EndItem, RunInfo, frame_item
from hookcore.store import StepRange
from hookcore_app.runs import AwayError, Run, Runs, keep, saved
from hookcore_app.runs import memory as removed_module
from hookcore_app.runs import shelf as views_module
from hookcore_app.runs.keep import Keeper
from hookcore_app.runs.saved import show, show_all
from hookcore_app.runs.shelf import bytes_below
from hookcore_app.serving.server import with_folder
from hookcore_app.settings import ServerSettings
from tests.archive_world import TAPS, make_frame
from tests.keep_world import INFO, batch, start, stop, threads_of, wait_for_end, writer_of
from tests.serving import World, make_world
from tests.waiting import wait_for

STEPS = 12


def train(runs: Runs, keeper: Keeper, info: RunInfo = INFO, may_name_folder: bool = False, ends: bool = True) -> Run:
    """Send some frames and end, like a trainer."""
    run: Run = wait_for(lambda: runs.open(info), "room for the run, once others are on disk")
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


def test_no_other_user_can_write_to_the_files_of_a_server_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        world = make_world(keep=str(tmp_path / "new" / "runs"))
        world.take(batch(INFO, range(3), first=True))
        world.client.put("/api/v1/views", json={"name": "mine", "query": "sort=loss"})
        world.client.patch("/api/v1/runs/run-1", json={"tags": ["early"]})
        stop(world)
    finally:
        os.umask(before)
    found = [path for path in tmp_path.rglob("*") if path.stat().st_mode & 0o022 and path.parent.stat().st_mode & 0o011]
    assert found == []


def test_an_edit_is_saved_although_the_page_file_is_just_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(keep=str(tmp_path))
    world.take(batch(INFO, range(3), first=True))
    world.client.patch("/api/v1/runs/run-1", json={"tags": ["early"]})
    run = world.runs.get("run-1")
    assert run is not None
    write = saved.write_page

    def writing(folder: Path, said: dict[str, object]) -> None:
        write(folder, said)
        run.edits.notes = "just now"  # by a reader, in another thread, which writes it next

    with monkeypatch.context() as busy:
        busy.setattr(saved, "write_page", writing)
        world.app.state.keeper.pages.write(run)
    run.edited()
    assert run.edits.notes == "just now"
    (page,) = tmp_path.glob("*.hookcore/page.json")
    assert json.loads(page.read_text())["notes"] == "just now"
    stop(world)


def test_two_servers_over_one_folder_keep_the_edits_of_both(tmp_path: Path) -> None:
    first = make_world(keep=str(tmp_path))
    first.take(batch(INFO, range(3), first=True))
    first.client.patch("/api/v1/runs/run-1", json={"tags": ["early"]})
    wait_for(lambda: list(tmp_path.glob("*.hookcore/run.json")))
    second = make_world(keep=str(tmp_path))
    wait_for(lambda: second.runs.get("run-1") is not None)
    for step in range(6):
        for number, world in enumerate((first, second)):
            given = {"run": "run-1", "step": 2 * step + number, "text": f"by {number}"}
            assert world.client.post("/api/v1/annotations", json=given).is_success
    for world, edit in ((first, {"name": "renamed"}), (second, {"tags": ["early", "late"]}), (first, {"notes": "n"})):
        assert world.client.patch("/api/v1/runs/run-1", json=edit).is_success
    stop(first)
    stop(second)
    third = make_world(keep=str(tmp_path))
    wait_for(lambda: third.runs.get("run-1") is not None)
    for world in (first, third):
        run = world.runs.get("run-1")
        assert run is not None
        assert sorted(run.edits.annotations) == [*range(12)]
        assert (run.name, run.edits.tags, run.edits.notes) == ("renamed", ("early", "late"), "n")
    stop(third)


def test_a_server_saves_its_runs_and_shows_them_after_a_restart(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    runs = Runs(settings)
    keeper = Keeper(runs, settings)
    run = train(runs, keeper)
    wait_for(lambda: state_of(tmp_path) == "ended")
    assert [folder.parent for folder in kept_in(tmp_path)] == [tmp_path]  # whatever the run is called
    keeper.close()

    again = Runs(settings)
    Keeper(again, settings).close()
    wait_for(lambda: again.get(INFO.id) is not None)
    listed = again.get(INFO.id)
    assert listed is not None
    assert (listed.state, listed.name, listed.loaded) == ("ended", INFO.name, False)
    assert listed.store.steps() == StepRange(0, STEPS - 1, STEPS)
    shown = again.find(INFO.id)
    assert shown is listed
    assert shown.loaded
    for tap in range(len(TAPS)):
        one, other = run.store.series(tap, "mean"), shown.store.series(tap, "mean")
        assert np.array_equal(one.mean, other.mean, equal_nan=True)


def test_closing_the_server_writes_the_rest(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    runs = Runs(settings)
    keeper = Keeper(runs, settings)
    train(runs, keeper, ends=False)
    keeper.close()
    archive = read_archive(kept_in(tmp_path)[0])
    assert len(list(archive.frames())) == STEPS
    assert archive.state == "lost"


def test_only_this_users_own_trainers_can_choose_a_folder(tmp_path: Path) -> None:
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
    wait_for(lambda: state_of(wanted) == "ended")
    keeper.close()


def test_runs_report_an_unwritable_data_folder(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    settings, trouble = with_folder(ServerSettings(), {"XDG_DATA_HOME": str(tmp_path / "data")})
    assert not settings.keeps
    runs = Runs(settings)
    keeper = Keeper(runs, settings, trouble=trouble)
    (event,) = train(runs, keeper).store.events()
    assert (event.name, event.severity) == ("not-kept", "warning")
    assert "in memory only" in event.message
    assert "data" in event.message
    refused = RunInfo(id="run-4", key="k", name="r", memory=20_000_000, keep=NO_FOLDER)
    assert not train(runs, keeper, refused).store.events()
    assert with_folder(ServerSettings(keep=""), {}) == (ServerSettings(keep=""), "")


def test_nothing_is_written_unless_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ServerSettings()
    runs = Runs(settings)
    keeper = Keeper(runs, settings)
    train(runs, keeper)
    keeper.close()
    assert not list(tmp_path.iterdir())


def test_the_limit_includes_earlier_runs(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path), keep_limit=1000)
    (tmp_path / "old-1.hookcore").mkdir()
    (tmp_path / "old-1.hookcore" / "filler.parquet").write_bytes(b"\0" * 2000)
    runs = Runs(settings)
    keeper = Keeper(runs, settings)
    run = train(runs, keeper)
    wait_for(lambda: bool(run.store.events()))
    keeper.close()
    assert "keep-stopped" in [event.name for event in run.store.events()]
    assert not list(tmp_path.glob("*/steps/*.parquet"))


def test_a_saved_run_is_opened_by_its_folder_or_a_file_in_it(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    keeper = Keeper(Runs(settings), settings)
    train(Runs(settings), keeper)
    keeper.close()
    wait_for(lambda: state_of(tmp_path) == "ended")
    folder = kept_in(tmp_path)[0]
    for path in (folder, folder / "run.json", next(folder.glob("stats/*.parquet"))):
        runs = Runs(ServerSettings())
        assert show(runs, path).store.steps().count == STEPS
        assert show(runs, path) is runs.get(INFO.id)


def test_a_run_that_another_process_is_writing_says_so_when_it_is_opened(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    keeper = Keeper(Runs(settings), settings)
    train(Runs(settings), keeper, ends=False)
    wait_for(lambda: any(tmp_path.glob("*/stats/*.parquet")))
    opened = [show(Runs(ServerSettings()), kept_in(tmp_path)[0])]
    keeper.close()
    opened.append(show(Runs(ServerSettings()), kept_in(tmp_path)[0]))
    assert ["being-written" in [event.name for event in run.store.events()] for run in opened] == [True, False]


def test_a_damaged_part_of_a_saved_run_is_reported_on_its_page(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    keeper = Keeper(Runs(settings), settings)
    train(Runs(settings), keeper)
    keeper.close()
    wait_for(lambda: state_of(tmp_path) == "ended")
    next(kept_in(tmp_path)[0].glob("sketches/*.parquet")).write_bytes(b"not Parquet")
    run = show(Runs(ServerSettings()), kept_in(tmp_path)[0])
    assert run.store.steps().count == STEPS
    assert any(event.name == "damaged" and "sketches" in event.message for event in run.store.events())


def test_a_saved_run_with_old_histogram_bins_says_so_and_raises_no_alert(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    runs = Runs(settings)
    keeper = Keeper(runs, settings)
    train(runs, keeper)
    wait_for(lambda: state_of(tmp_path) == "ended")
    keeper.close()
    file = kept_in(tmp_path)[0] / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 1}))
    later = Runs(settings)
    show(later, kept_in(tmp_path)[0])
    events = {event.name: event.severity for event in later.all()[0].store.events()}
    assert events["no-histograms"] == "info"
    assert "damaged" not in events


def test_runs_that_never_end_share_one_thread_and_leave_nothing_behind(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path), max_runs=8, lost_after_s=0.0)
    now = itertools.count()
    runs = Runs(settings, clock=lambda: float(next(now)))
    keeper = Keeper(runs, settings)
    stores, others = [], {*threading.enumerate()}
    for number in range(40):
        run = train(runs, keeper, RunInfo(id=f"run-{number}", key="k", name="r", memory=4_000_000), ends=False)
        stores.append(weakref.ref(run.store))
        (thread,) = (each for each in {*threading.enumerate()} - others if each.name.startswith("hookcore-keeper"))
    del run
    wait_for(lambda: len(kept_in(tmp_path)) == 40)
    for name in [each.id for each in runs.all()]:
        runs.remove(name)
    wait_for_end([thread])
    gc.collect()
    assert [store for store in stores if store() is not None] == []
    keeper.close()
    for folder in kept_in(tmp_path):
        assert len(list(read_archive(folder).frames())) == STEPS


def die(world: World) -> None:
    """Leave a server as if it had been killed: with parts on disk, and without a lock."""
    keeper = world.app.state.keeper
    threads = threads_of(keeper)
    for scribe in keeper.scribes.values():
        writers = [*scribe.writers]
        scribe.writers.clear()
        for writer in writers:
            scribe.poke(writer)
    for _, writer in keeper.writers.values():
        writer.files.release()
    wait_for_end(threads)


def test_a_folder_that_hangs_does_not_stop_the_saving_of_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release, write = threading.Event(), threading.Event(), ArchiveWriter.write

    def hang(self: ArchiveWriter) -> None:
        if self.folder.parent.name == "hung":
            entered.set()
            release.wait()
        write(self)

    monkeypatch.setattr(ArchiveWriter, "write", hang)
    runs = Runs(ServerSettings(keep=str(tmp_path / "kept")))
    keeper = Keeper(runs, runs.settings)
    train(runs, keeper, msgspec.structs.replace(INFO, id="hung", keep=str(tmp_path / "hung")), may_name_folder=True)
    try:
        assert entered.wait(30.0)
        train(runs, keeper)
        wait_for(lambda: state_of(tmp_path / "kept") == "ended")
    finally:
        release.set()
    threads = threads_of(keeper)
    keeper.close()
    wait_for_end(threads)


@pytest.mark.parametrize("is_listed", [True, False], ids=["listed before", "trainer first"])
def test_a_run_whose_server_was_killed_continues_as_one_run(tmp_path: Path, is_listed: bool) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    world = start(settings, 0)
    world.take(batch(INFO, range(10), first=True))
    writer = writer_of(world)
    wait_for(lambda: writer.progress.written > 0)  # by the thread, which now waits for the next part
    writer.write()
    world.take(batch(INFO, range(10, 13)))  # accepted, but not on disk when the server dies
    die(world)

    world = start(settings, 1) if is_listed else make_world(keep=str(tmp_path))
    answer = world.take(
        Batch(run=INFO, taps_from=len(TAPS), counters=DeliveryCounters(produced=15, acknowledged=13, waiting=2))
    )
    assert (answer.acknowledged, answer.taps, answer.described) == (9, len(TAPS), -1)
    again = batch(INFO, range(13, 15))
    world.take(again)
    assert world.take(again).acknowledged == 14  # sent twice, stored once
    run = world.runs.find(INFO.id)
    assert run is not None
    assert (run.state, len(world.runs.all())) == ("live", 1)
    expected = [*range(10), 13, 14]
    assert run.store.series(0, "mean").first_step.tolist() == expected
    (said,) = (event for event in run.store.events() if event.name == "reconnected")
    assert "3 records" in said.message
    assert said.count == 3
    world.take(Batch(run=INFO, taps_from=len(TAPS), items=(EndItem(15, 14),)))
    stop(world)
    archive = read_archive(kept_in(tmp_path)[0])
    assert archive.state == "ended"
    assert [frame.step for frame in archive.frames()] == expected


def test_the_list_shows_all_steps_on_disk_of_a_run_whose_server_was_killed(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    world = start(settings, 0)
    world.take(batch(INFO, range(10), first=True))
    writer = writer_of(world)
    (folder,) = wait_for(lambda: [each for each in kept_in(tmp_path) if (each / "page.json").exists()])
    for steps in ((10, 11, 12), (20, 21)):  # after the summary, which is written again only later
        world.take(batch(INFO, steps))
        writer.write()
    assert json.loads((folder / "page.json").read_bytes())["summary"]["steps"] <= 10
    world.take(batch(INFO, (30,)))  # not on disk
    die(world)
    again = start(settings, 1)
    (run,) = again.client.get("/api/v1/runs").json()["runs"]
    assert (run["in_memory"], run["steps"], run["first_step"], run["newest_step"]) == (False, 15, 0, 21)
    noted = json.loads((folder / "page.json").read_bytes())["summary"]["newest_step"]
    assert f"at step {noted}</span>" in again.client.get("/").text, "the loss and the alerts are older"
    again.runs.find(INFO.id)
    assert "at step" not in again.client.get("/").text
    assert json.loads((folder / "page.json").read_bytes())["summary"]["newest_step"] == 21
    assert "at step" not in start(settings, 1).client.get("/").text


def test_only_the_trainer_that_started_a_run_can_continue_it(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    world = start(settings, 0)
    world.take(batch(INFO, range(3), first=True))
    stop(world)
    world = start(settings, 1)
    other = msgspec.structs.replace(INFO, key="of somebody else")
    assert world.post(batch(other, range(3, 5))).status_code == 403
    assert world.take(batch(INFO, range(3, 5))).acknowledged == 4
    assert b"secret" not in (kept_in(tmp_path)[0] / "run.json").read_bytes()
    stop(world)


def test_names_notes_and_acknowledgements_survive_a_restart(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    world = start(settings, 0)
    world.take(batch(INFO, range(3), first=True))
    world.take(
        Batch(run=INFO, taps_from=len(TAPS), items=(EndItem(3, 2, Failure("crashed", 3, "OSError: no", "trace")),))
    )
    world.client.patch(f"/api/v1/runs/{INFO.id}", json={"name": "baseline", "notes": "lr 0.1"})
    world.client.post("/api/v1/acknowledgements", json={"run": INFO.id, "key": "a:b"})
    run = world.runs.get(INFO.id)
    assert run is not None
    run.acknowledge("a:b")
    world.client.post("/api/v1/annotations", json={"run": INFO.id, "step": 2, "text": "why?"})
    stop(world)

    world = start(settings, 1)
    said = world.client.get("/api/v1/runs").json()["runs"][0]
    assert (said["name"], said["notes"], said["state"], said["steps"]) == ("baseline", "lr 0.1", "crashed", 3)
    failure = {"outcome": "crashed", "step": 3, "error": "OSError: no", "traceback": "trace"}
    assert failure.items() <= said["failure"].items()
    assert not said["in_memory"]
    page = world.client.get("/").text
    assert "on disk" in page
    assert "OSError: no" in page
    opened = world.client.get(f"/runs/{INFO.id}").text
    assert "The training crashed in step 3" in opened
    run = world.runs.get(INFO.id)
    assert run is not None
    assert run.loaded
    assert run.edits.quiet.acknowledged == {"a:b": 2}
    assert run.edits.annotations == {2: "why?"}
    stop(world)


def finish(world: World, number: int) -> None:
    info = RunInfo(id=f"run-{number}", key="k", name=f"r{number}", memory=4_000_000, started_s=float(number + 1))
    world.take(batch(info, range(STEPS), first=True))
    world.take(Batch(run=info, taps_from=len(TAPS), items=(EndItem(STEPS, STEPS - 1),)))
    run = world.runs.get(info.id)
    assert run is not None
    wait_for(lambda: world.app.state.keeper.is_whole(run))


def test_a_run_deleted_before_its_last_part_is_written_is_restored_completely(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    world = start(settings, 0)
    for number in range(5):
        info = RunInfo(id=f"run-{number}", key="k", name=f"r{number}", memory=4_000_000)
        world.take(batch(info, range(STEPS), first=True))
        world.take(Batch(run=info, taps_from=len(TAPS), items=(EndItem(STEPS, STEPS - 1),)))
        assert world.client.delete(f"/api/v1/runs/run-{number}").status_code == 204  # immediately
    stop(world)

    world = start(settings, 0)
    wait_for(lambda: len(world.runs.gone()) == 5)
    for number in range(5):
        assert world.client.post(f"/api/v1/removed-runs/run-{number}/restore").status_code == 200
        run = world.runs.find(f"run-{number}")
        assert run is not None
        assert run.store.steps().count == STEPS
    stop(world)


def test_a_run_stays_in_memory_while_its_trainer_sends_and_accepts_nothing_after_leaving_it(tmp_path: Path) -> None:
    world = start(ServerSettings(keep=str(tmp_path)), 0)
    finish(world, 0)
    run = world.runs.get("run-0")
    assert run is not None
    with run.lock:
        assert not world.runs.memory.leave(run)
    assert world.runs.memory.leave(run)
    with pytest.raises(AwayError):
        run.take(batch(run.info, range(STEPS, STEPS + 2)))
    assert world.take(batch(run.info, range(STEPS, STEPS + 2))).acknowledged == STEPS + 1
    assert run.store.steps().count == STEPS + 2
    stop(world)


def test_a_deleted_run_is_restored_by_undo_even_after_a_restart(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    world = start(settings, 0)
    finish(world, 0)
    finish(world, 1)
    for number in (0, 1):
        assert world.client.delete(f"/api/v1/runs/run-{number}").status_code == 204
    assert kept_in(tmp_path) == []
    gone = world.client.get("/runs/run-0", headers={"Accept": "text/html"})
    assert gone.status_code == 404
    assert "was deleted at" in gone.text
    assert "Undo" in gone.text
    assert world.client.post("/api/v1/removed-runs/run-0/restore").json()["steps"] == STEPS
    assert world.client.post("/api/v1/removed-runs/run-0/restore").status_code == 404
    stop(world)

    world = start(settings, 1)
    wait_for(lambda: bool(world.runs.gone()))
    (removed,) = world.client.get("/api/v1/removed-runs").json()["runs"]
    assert (removed["id"], removed["why"], removed["restorable"]) == ("run-1", "deleted", True)
    assert "run-1" in world.client.get("/").text
    assert world.client.post("/api/v1/removed-runs/run-1/restore").status_code == 200
    run = world.runs.find("run-1")
    assert run is not None
    assert run.store.steps().count == STEPS
    assert len(kept_in(tmp_path)) == 2
    stop(world)


def test_the_oldest_runs_are_removed_first_when_the_disk_is_full_and_this_is_reported(tmp_path: Path) -> None:
    world = start(ServerSettings(keep=str(tmp_path)), 0)
    finish(world, 0)
    size = bytes_below(kept_in(tmp_path)[0])
    stop(world)
    world = start(ServerSettings(keep=str(tmp_path), keep_limit=int(size * 3.9)), 1)
    for number in range(1, 6):
        finish(world, number)
        world.app.state.keeper.make_room(world.app.state.keeper.shelf_of(tmp_path / "any"))
    left = sorted(run.id for run in world.runs.all())
    assert left == [f"run-{number}" for number in range(6 - len(left), 6)]
    assert 2 <= len(left) <= 4
    assert sum(map(bytes_below, [*kept_in(tmp_path), *kept_in(tmp_path / ".trash")])) <= int(size * 3.9)
    gone = world.client.get("/api/v1/removed-runs").json()["runs"]
    assert {each["why"] for each in gone} == {"disk"}
    assert len(gone) == 6 - len(left)
    assert "removed to make room on disk" in world.client.get("/").text
    assert "It can&#39;t be restored" in world.client.get("/runs/run-0", headers={"Accept": "text/html"}).text
    stop(world)


def test_a_trainer_can_opt_out_of_saving(tmp_path: Path) -> None:
    world = start(ServerSettings(keep=str(tmp_path)), 0)
    world.take(batch(msgspec.structs.replace(INFO, keep="none"), range(3), first=True))
    stop(world)
    assert not kept_in(tmp_path)
    run = world.runs.get(INFO.id)
    assert run is not None
    assert run.store.events() == []


def test_a_folder_of_runs_is_opened_with_all_of_them(tmp_path: Path) -> None:
    world = start(ServerSettings(keep=str(tmp_path)), 0)
    finish(world, 0)
    finish(world, 1)
    stop(world)
    (tmp_path / "damaged.hookcore").mkdir()
    world = make_world(keep="")
    assert {run.id for run in show_all(world.runs, tmp_path)} == {"run-0", "run-1"}
    assert world.client.get("/api/v1/series", params={"run": "run-1", "tap": 0, "stat": "mean"}).status_code == 200
    with pytest.raises(HookcoreError):
        show_all(world.runs, tmp_path / "damaged.hookcore")


def test_memory_is_assigned_by_use_and_runs_on_disk_leave_it_first(tmp_path: Path) -> None:
    now, limit = [0.0], 140_000  # room for about five of these runs
    world = make_world(lambda: now[0], keep=str(tmp_path), memory=limit)
    sizes = []
    for number in range(12):
        now[0] += 1000.0
        finish(world, number)
        sizes.append(world.runs.used_bytes)
    assert max(sizes) <= limit
    assert max(sizes) > limit // 2  # the room is used
    assert len(world.runs.all()) == 12
    assert world.runs.removed == 0
    assert not all(run.loaded for run in world.runs.all())
    for run in world.runs.all():
        found = world.runs.find(run.id)
        assert found is not None
        assert found.store.series(0, "mean").first_step.tolist() == list(range(STEPS))
    stop(world)


def test_without_a_disk_idle_runs_become_coarser_before_one_is_removed() -> None:
    now = [0.0]
    world = make_world(lambda: now[0], keep="", memory=8_000_000)
    used = []
    for number in range(4):
        now[0] += 1000.0
        info = RunInfo(id=f"run-{number}", key="k", name="r", memory=100_000_000, started_s=float(number))
        world.take(batch(info, range(300), first=True))
        world.take(Batch(run=info, taps_from=len(TAPS), items=(EndItem(300, 299),)))
        used.append(world.runs.used_bytes)
    assert max(used) <= 8_000_000
    assert world.runs.removed == 0
    assert [run.store.steps().count for run in world.runs.all()] == [300] * 4


def test_compare_finds_two_runs_of_one_model_after_a_restart(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    world = start(settings, 0)
    for number, model in enumerate(("Linear", "Linear", "Conv2d")):
        info = RunInfo(id=f"run-{number}", key="k", name=f"r{number}", memory=4_000_000, started_s=float(number + 1))
        described = Description(1, (ModuleRecord("", model, None),))
        world.take(batch(info, range(STEPS), first=True, description=described))
        world.take(Batch(run=info, taps_from=len(TAPS), items=(EndItem(STEPS, STEPS - 1),)))
    stop(world)

    world = start(settings, 3)
    page = world.client.get("/compare").text
    assert re.findall(r'<option value="(run-.)" selected', page) == ["run-1", "run-0"]
    page = world.client.get("/compare?a=run-0").text
    assert re.findall(r'<option value="(run-.)" selected', page) == ["run-0", "run-1"]
    stop(world)


def test_a_server_remembers_a_limited_number_of_removed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removed_module, "MAX_GONE", 2)
    world = make_world(keep="", max_runs=1)
    for number in range(5):
        info = RunInfo(id=f"run-{number}", key="k", name="r", started_s=float(number))
        world.take(batch(info, range(3), first=True))
        world.take(Batch(run=info, taps_from=len(TAPS), items=(EndItem(3, 2),)))
    assert {gone.id for gone in world.runs.gone()} == {"run-2", "run-3"}
    assert world.runs.removed == 4


def test_runs_that_are_too_many_or_damaged_are_named_and_links_to_the_former_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    world = start(settings, 0)
    for number in range(4):
        finish(world, number)
    stop(world)
    for age, path in enumerate(reversed(kept_in(tmp_path))):
        os.utime(path, (1e9 - age, 1e9 - age))
    newest = kept_in(tmp_path)[-1]
    (newest / "run.json").write_text("{")
    monkeypatch.setattr(keep, "MAX_LISTED", 3)
    world = start(settings, 2)
    wait_for(lambda: "1 older saved run is not listed" in world.runs.unlisted.words)
    for said in (unescape(world.client.get("/").text), world.client.get("/api/v1/runs").json()["partial"]):
        assert "1 older saved run is not listed, but its link works." in said
        assert f"1 saved run can't be read: {newest}" in said
    assert world.client.get("/runs/run-0").status_code == 200
    assert world.client.get("/runs/run-").status_code == 404
    assert "older saved" not in world.runs.unlisted.words
    assert len(world.runs.all()) == 3
    stop(world)


def test_a_run_whose_trainer_was_killed_frees_memory_but_stays_in_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, gate, write = [0.0], threading.Event(), ArchiveWriter.write_part
    monkeypatch.setattr(ArchiveWriter, "write_part", lambda writer: gate.wait(30.0) and write(writer))
    world = make_world(lambda: now[0], keep=str(tmp_path), max_runs=2)
    infos = [RunInfo(id=f"run-{number}", key="k", name="r", started_s=float(number)) for number in range(3)]
    for info in infos[:2]:
        world.take(batch(info, range(STEPS), first=True))
    now[0] += 1000.0
    assert world.post(batch(infos[2], range(STEPS), first=True)).status_code == 429
    gate.set()
    wait_for(lambda: world.post(batch(infos[2], range(STEPS), first=True)).status_code == 200)
    assert {run.id for run in world.runs.all()} == {"run-0", "run-1", "run-2"}
    assert world.runs.removed == 0
    stop(world)


def test_a_change_that_cannot_be_saved_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    world = start(ServerSettings(keep=str(tmp_path)), 0)
    finish(world, 0)
    monkeypatch.setattr(saved, "write_page", refuse)
    assert world.client.patch("/api/v1/runs/run-0", json={"name": "better"}).status_code == 200
    events = world.client.get("/api/v1/events?run=run-0&name=not-kept").json()["events"]
    assert "No space left on device" in events[0]["message"]
    monkeypatch.setattr(views_module, "write_json", refuse)
    answer = world.client.put("/api/v1/views", json={"name": "v", "query": "f=x"})
    assert (answer.status_code, "No space left on device" in answer.json()["error"]) == (400, True)
    assert world.client.get("/api/v1/views").json()["views"] == []
    monkeypatch.undo()
    stop(world)
