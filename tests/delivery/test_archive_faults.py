"""Crashes, restarts, and damaged files never cause duplicate rows or unreported losses in saved runs."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

from hookcore.delivery.archive import Archive, ArchiveWriter, load_into, read_archive
from hookcore.delivery.archive import folder as archive_files
from hookcore.delivery.archive import folder as archive_folder
from hookcore.delivery.archive.folder import TABLES, schemas
from hookcore.errors import ArgumentError
from hookcore.records import Event, ModuleRecord
from hookcore.records.wire import EndItem
from hookcore.store import Store
from hookcore_app.runs import Runs
from hookcore_app.runs.keep import Keeper
from hookcore_app.runs.saved import show
from hookcore_app.settings import ServerSettings
from tests.archive_world import STORE_BYTES, make_info, plain_frame
from tests.inside import module_of
from tests.waiting import wait_for

READER: Any = module_of("Archive", "delivery.archive")

TAPS = 4
NO_SPACE = OSError(28, "No space left on device")


def writer(parent: Path) -> tuple[ArchiveWriter, Store]:
    store = Store(STORE_BYTES)
    return ArchiveWriter(parent, make_info(), store, retry_s=0, start=False), store


def write_each(kept: ArchiveWriter, store: Store, steps: Iterable[int]) -> None:
    """Write each step as a separate part."""
    for step in steps:
        frame = plain_frame(step, TAPS, first=not store.taps_announced)
        store.append(frame)
        kept.take(frame)
        kept.write()


def read(folder: Path) -> tuple[Store, Archive]:
    store, archive = Store(STORE_BYTES), read_archive(folder)
    load_into(store, archive)
    return store, archive


def require_each_once(store: Store, steps: Iterable[int]) -> None:
    series = store.series(0, "mean")
    assert series.mean.tolist() == [float(step) for step in steps]
    assert store.series(0, "count").mean.tolist() == [1.0] * len(series.mean)


def test_a_run_continued_after_a_restart_loses_no_step_when_its_parts_are_merged(tmp_path: Path) -> None:
    for first in (0, 10):
        kept, store = writer(tmp_path)
        write_each(kept, store, range(first, first + 10))
        kept.close()
    found, archive = read(kept.folder)
    assert not archive.damages
    require_each_once(found, range(20))


def test_an_event_saved_before_its_frame_is_not_duplicated_when_the_frame_is_resent(tmp_path: Path) -> None:
    """The server was killed between two files, or before its queue of frames was empty."""
    kept, store = writer(tmp_path)
    write_each(kept, store, range(5))
    late = Event(6, 1.5, "settings-changed", "paused: true -> false")
    store.append(replace(plain_frame(6, TAPS), events=(late,)))  # not passed to the writer
    kept.write()
    found, _ = read(kept.folder)
    assert (found.steps().newest, list(found.events())) == (4, [late])
    for step in (5, 6, 7):
        again = (late,) if step == 6 else (replace(late, step=7),) if step == 7 else ()
        found.append(replace(plain_frame(step, TAPS), events=again))
    assert [event.step for event in found.events()] == [6, 7]


@pytest.mark.parametrize("before", [9, 13, 21])
def test_a_run_whose_parts_are_merged_while_it_is_read_is_whole(
    tmp_path: Path, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hookcore open` can read a run while its server is still writing it."""
    monkeypatch.setattr(archive_files, "MERGE_AT", 100)
    kept, store = writer(tmp_path)
    write_each(kept, store, range(6))
    for step in range(6):
        store.add_event(Event(step, 0.0, "told", f"number {step}"))
        kept.write()
    kept.close()
    monkeypatch.setattr(archive_files, "MERGE_AT", 4)
    found, archive = Store(STORE_BYTES), read_archive(kept.folder)
    opened = READER.open_regular
    reads = iter(range(100))

    def merging(path: Path, limit: int) -> Any:
        if next(reads) == before:
            for name in TABLES:
                assert archive_files.merge_parts(kept.folder / name) is not None
        return opened(path, limit)

    monkeypatch.setattr(READER, "open_regular", merging)
    load_into(found, archive)
    assert next(reads) > before
    assert not archive.damages
    require_each_once(found, range(6))
    assert [event.message for event in found.events()] == [f"number {step}" for step in range(6)]


def test_a_merge_without_disk_space_duplicates_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, store = writer(tmp_path)
    write_each(kept, store, range(archive_files.MERGE_AT - 1))
    whole, failed = archive_files.write_table, []

    def full_while_merging(path: Path, table: object) -> int:
        failed.append(path)
        raise NO_SPACE

    with monkeypatch.context() as patch:
        # Merging finds the function under this name; the writer has its own.
        patch.setattr(archive_files, "write_table", full_while_merging)
        write_each(kept, store, [archive_files.MERGE_AT - 1])
    assert failed
    assert archive_files.write_table is whole
    write_each(kept, store, range(archive_files.MERGE_AT, archive_files.MERGE_AT + 3))
    steps = range(archive_files.MERGE_AT + 3)
    require_each_once(read(kept.folder)[0], steps)
    rows = pyarrow.dataset.dataset(kept.folder / "stats", format="parquet").to_table().num_rows
    assert rows == TAPS * len(steps)


def test_the_size_of_a_run_is_that_of_its_files_after_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, store = writer(tmp_path)
    write_each(kept, store, range(2))
    whole = archive_folder.write_table

    def full_at_the_end(path: Path, table: pyarrow.Table) -> int:
        if path.parent.name == "steps":
            raise NO_SPACE
        return whole(path, table)

    with monkeypatch.context() as patch:
        patch.setattr(archive_folder, "write_table", full_at_the_end)
        write_each(kept, store, range(2, 12))
    assert kept.progress.stopped
    store.describe([ModuleRecord("layer", "Linear", None)])
    write_each(kept, store, range(12, 16))
    files = [path for path in kept.folder.rglob("*") if path.is_file()]
    assert kept.progress.nbytes == sum(path.stat().st_size for path in files)


def test_a_damaged_part_neither_stops_writing_nor_raises_on_reading(tmp_path: Path) -> None:
    kept, store = writer(tmp_path)
    write_each(kept, store, range(3))
    sorted((kept.folder / "stats").iterdir())[1].write_bytes(b"noise")
    write_each(kept, store, range(3, 20))
    found, archive = read(kept.folder)
    assert archive.damages
    require_each_once(found, [step for step in range(20) if step != 1])


def test_an_unfinished_file_is_not_read_by_duckdb_or_polars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, store = writer(tmp_path)
    write_each(kept, store, range(2))
    before = set((kept.folder / "stats").iterdir())

    def die(path: Path, target: Path) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:  # a killed process cleans up nothing
        patch.setattr("os.replace", die)
        patch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
        with pytest.raises(SystemExit):
            archive_files.write_whole(kept.folder / "stats" / "part-000009-000009.parquet", lambda file: None)
    assert set((kept.folder / "stats").iterdir()) - before
    every = f"{kept.folder}/stats/*.parquet"
    assert duckdb.sql(f"select count(*) from '{every}'").fetchall() == [(2 * TAPS,)]
    assert len(polars.scan_parquet(every).collect()) == 2 * TAPS


@pytest.mark.parametrize("run_id", ["../../up", "<script>", "", "a b", "x" * 5000])
def test_an_id_that_is_unsafe_in_a_url_is_refused_on_reading(tmp_path: Path, run_id: str) -> None:
    kept, store = writer(tmp_path)
    write_each(kept, store, range(1))
    file = kept.folder / "run.json"
    content = json.loads(file.read_text())
    content["run"]["id"] = run_id
    file.write_text(json.dumps(content))
    with pytest.raises(ArgumentError, match="id"):
        read_archive(kept.folder)


def _is_a_pipe(path: Path) -> None:
    os.mkfifo(path)


def _has_no_end(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _is_a_folder(path: Path) -> None:
    path.mkdir()


def _is_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


NO_FILES = pytest.mark.parametrize("put", [_is_a_pipe, _has_no_end, _is_a_folder, _is_huge])


@NO_FILES
@pytest.mark.parametrize(
    "name", ["stats/part-000001-000001.parquet", "taps.parquet", "events/part-000000-000000.parquet"]
)
def test_a_part_that_is_not_a_regular_file_is_skipped_and_the_rest_is_read(
    tmp_path: Path, put: Callable[[Path], None], name: str
) -> None:
    kept, store = writer(tmp_path)
    store.add_event(Event(0, 0.0, "note", "something"))
    write_each(kept, store, range(3))
    path = kept.folder / name
    path.unlink()
    put(path)
    found, archive = read(kept.folder)
    assert any(name.rpartition("/")[2] in each for each in archive.damages)
    if name.startswith("stats"):
        require_each_once(found, [0, 2])


@NO_FILES
def test_a_folder_without_a_readable_run_file_does_not_hide_other_runs(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    kept, store = writer(tmp_path)
    write_each(kept, store, range(3))
    other = tmp_path / "other.hookcore"
    other.mkdir()
    put(other / "run.json")
    with pytest.raises(ArgumentError, match=r"run\.json"):
        read_archive(other)
    runs = Runs(ServerSettings(keep=str(tmp_path)))
    with suppress(ArgumentError):
        show(runs, other)
    assert show(runs, kept.folder).store.steps().count == 3


def _crafted(schema: pa.Schema, rows: int, text: str) -> pa.Table:
    """Return rows that repeat one text: a few kilobytes on disk."""
    columns = []
    for field in schema:
        if pa.types.is_list(field.type) or pa.types.is_map(field.type):
            columns.append(pa.nulls(rows, field.type))
        elif pa.types.is_string(field.type) or pa.types.is_dictionary(field.type):
            words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))
            columns.append(words)
        else:
            columns.append(pa.array(np.zeros(rows, np.int8)).cast(field.type))
    return pa.table(columns, schema.names)


@pytest.mark.parametrize(
    ("name", "rows", "letters"),
    [("events", 2_000_000, 4000), ("scalars", 2_000_000, 4000), ("taps", 2_000_000, 1), ("modules", 100_000, 4000)],
)
def test_a_small_file_that_unpacks_to_a_large_table_is_skipped(
    tmp_path: Path, name: str, rows: int, letters: int
) -> None:
    kept, store = writer(tmp_path)
    write_each(kept, store, range(3))
    schema = schemas()[name]
    path = kept.folder / (f"{name}/part-000001-000001.parquet" if name in TABLES else f"{name}.parquet")
    pyarrow.parquet.write_table(_crafted(schema, rows, "x" * letters), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 5_000_000
    tracemalloc.start()
    allocated = pa.default_memory_pool().max_memory()
    try:
        archive = read(kept.folder)[1]
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    assert any(path.name in each and "at most" in each for each in archive.damages)
    assert pa.default_memory_pool().max_memory() - allocated < 300_000_000


def test_many_tiny_frames_are_read_without_an_object_for_each(tmp_path: Path) -> None:
    kept, store = writer(tmp_path)
    write_each(kept, store, range(3))
    path = kept.folder / "steps" / "part-000001-000001.parquet"
    pyarrow.parquet.write_table(_crafted(schemas()["steps"], 500_000, ""), path, compression="zstd", store_schema=False)
    frames = read_archive(kept.folder).frames()
    tracemalloc.start()
    try:
        taken = [frame.step for frame, _ in zip(frames, range(5), strict=False)]
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()
    assert taken == [0] * 5


def test_late_frames_are_reported_equally_often_before_and_after_rereading(tmp_path: Path) -> None:
    kept, store = writer(tmp_path)
    write_each(kept, store, [0, 5, 3, 6])
    names = [event.name for event in store.events()]
    assert names == ["too-late"]
    assert [event.name for event in read(kept.folder)[0].events()] == names


def test_the_first_values_of_a_run_are_written_before_a_whole_part_is_full(tmp_path: Path) -> None:
    store = Store(STORE_BYTES)
    kept = ArchiveWriter(tmp_path, make_info(), store, part_s=10_000)
    frame = plain_frame(0, TAPS, first=True)
    store.append(frame)
    kept.take(frame)
    wait_for(lambda: (kept.folder / "run.json").is_file() and kept.progress.written)
    assert [each.step for each in read_archive(kept.folder).frames()] == [0]
    kept.close()


def test_a_run_is_not_called_ended_on_disk_before_all_of_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, store = writer(tmp_path)
    states: list[str] = []
    write_table = archive_folder.write_table

    def look(path: Path, table: pa.Table) -> int:
        states.append(read_archive(kept.folder).state)  # the state that a crash at this moment leaves
        return write_table(path, table)

    monkeypatch.setattr(archive_folder, "write_table", look)
    frame = plain_frame(0, TAPS, first=True)
    store.append(frame)
    kept.take(frame)
    kept.take(EndItem(1, 0))
    kept.write()
    assert len(states) > 2
    assert set(states) == {"lost"}
    assert read_archive(kept.folder).state == "ended"


def test_a_removed_run_that_sends_again_is_saved_again(tmp_path: Path) -> None:
    settings = ServerSettings(keep=str(tmp_path))
    runs = Runs(settings)
    keeper = Keeper(runs, settings)
    try:
        for _ in range(2):
            run = runs.open(make_info())
            assert run is not None
            keeper.opened(run, False)
            assert run.saved.on_record is not None
            runs.remove(run.id)
    finally:
        keeper.close()
