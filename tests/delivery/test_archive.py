"""Saved runs are read as they were written, and a crash, a full disk, or a damaged file never loses a whole run."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookcore.delivery.archive import SUFFIX, ArchiveSink, ArchiveWriter, Scribe, folder_name, load_into, read_archive
from hookcore.delivery.archive import folder as archive_files
from hookcore.delivery.archive.folder import MERGE_AT, TABLES, parts_in, schemas
from hookcore.errors import ArgumentError, HookcoreError
from hookcore.records import STATS, Coverage, Event, Frame, HookRecord, ModuleRecord, Snapshot
from hookcore.records.wire import EndItem
from hookcore.store import Store
from tests.archive_world import INFO, TAPS, make_frame
from tests.inside import module_of
from tests.lanes import examples
from tests.waiting import wait_for
from tests.warm import python

ROOT = Path(__file__).parents[2]
MODULE = ModuleRecord(
    "a",
    "Linear",
    None,
    3,
    3,
    ("x",),
    (("weight", (3, 1)), ("output", ())),
    placements=(("weight", "Shard(0) over dp, 4 ranks"),),
)


class Kept:
    """A store and its writer, without the writer's thread."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.store = Store(20_000_000)
        self.told: list[tuple[str, str]] = []
        self.now = 0.0
        settings = {"tell": lambda *words: self.told.append(words), "clock": lambda: self.now, **settings}
        self.writer = ArchiveWriter(folder, INFO, self.store, start=False, **settings)
        self.store.announce(TAPS)

    def take(self, *records: Frame | Snapshot) -> None:
        for record in records:
            (self.store.append if isinstance(record, Frame) else self.store.add_snapshot)(record)  # type: ignore[operator]
            self.writer.take(record)

    def read(self) -> Store:
        store = Store(20_000_000)
        archive = read_archive(self.writer.folder)
        load_into(store, archive)
        assert not archive.damages
        return store


def assert_same(left: Store, right: Store) -> None:
    """Assert that two stores give the same answer to every query."""
    assert left.taps().taps == right.taps().taps
    assert left.steps() == right.steps()
    for tap in range(len(left.taps().taps)):
        for stat in STATS:
            one, other = left.series(tap, stat), right.series(tap, stat)
            for field in dataclasses.fields(one):
                assert np.array_equal(getattr(one, field.name), getattr(other, field.name)) or (
                    np.array_equal(getattr(one, field.name), getattr(other, field.name), equal_nan=True)
                ), (tap, stat, field.name)
        assert np.array_equal(left.histograms(tap).counts, right.histograms(tap).counts)
    assert left.scalar_names() == right.scalar_names()
    for name in left.scalar_names():
        assert np.array_equal(left.scalars(name).mean, right.scalars(name).mean, equal_nan=True)
    assert left.events() == right.events()
    assert (left.modules(), left.coverage(), left.hooks()) == (right.modules(), right.coverage(), right.hooks())
    assert left.labels() == right.labels()
    assert len(left.snapshots()) == len(right.snapshots())
    for snapshot, same in zip(left.snapshots(), right.snapshots(), strict=True):
        assert snapshot.values.tobytes() == same.values.tobytes()
        for name in ("tap", "step", "time_s", "dtype", "shape", "truncated", "number"):
            assert getattr(snapshot, name) == getattr(same, name)


@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12), st.integers(0, 99))
def test_a_run_is_read_as_it_was_saved(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[int, bool]], seed: int
) -> None:
    kept = Kept(tmp_path_factory.mktemp("kept"))
    kept.store.describe(
        [MODULE],
        [Coverage("a", "Linear", False, ("output",), "why")],
        [HookRecord("module", "a", "forward", "f", "x.py:1", True, options=("with kwargs",))],
    )
    step = 0
    for number, (ahead, writes) in enumerate(plan):
        step += ahead  # 0: another part of the same step
        kept.take(make_frame(step, seed + number))
        kept.store.add_event(Event(step, float(number), "note", "<b>é</b>", "warning", "a", 2))
        if writes:
            kept.writer.write()
    kept.take(Snapshot(TAPS[0], step, 1.0, "bfloat16", (2, 3), np.arange(6, dtype=np.float32).reshape(2, 3), number=7))
    kept.writer.write()
    assert kept.writer.progress.written == kept.writer.progress.taken == len(plan) + 1
    assert_same(kept.store, kept.read())


def test_a_run_from_a_release_without_placements_is_read(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.store.describe([MODULE])
    kept.take(make_frame(0))
    kept.writer.write()
    file = kept.writer.folder / "modules.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["placements"]), file)
    archive = read_archive(kept.writer.folder)
    assert archive.modules() == [dataclasses.replace(MODULE, placements=())]
    assert not archive.damages


def test_many_parts_are_merged_into_few_files_with_the_same_rows(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for step in range(MERGE_AT * MERGE_AT + 3):
        kept.take(make_frame(step))
        kept.writer.write()
    assert len(list((kept.writer.folder / "stats").iterdir())) < 3 * MERGE_AT
    assert_same(kept.store, kept.read())


def test_large_parts_are_merged_only_when_there_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_files, "LEFT_BYTES", 1)
    monkeypatch.setattr(archive_files, "LEFT_PARTS", 3 * MERGE_AT)
    kept, most = Kept(tmp_path), 0
    for step in range(8 * MERGE_AT):
        kept.take(make_frame(step))
        kept.writer.write()
        parts = len(parts_in(kept.writer.folder / "stats"))
        assert parts == step + 1 or step >= 2 * MERGE_AT
        most = max(most, parts)
    assert 2 * MERGE_AT < most <= 5 * MERGE_AT
    assert_same(kept.store, kept.read())


def test_parts_are_merged_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(tmp_path)
    monkeypatch.setattr(archive_files, "PORTION_BYTES", 1)
    for step in range(MERGE_AT):
        kept.take(make_frame(step))
        kept.writer.write()
    (part,) = (kept.writer.folder / "stats").iterdir()
    about = pq.ParquetFile(part).metadata
    assert about.num_row_groups == MERGE_AT
    assert_same(kept.store, kept.read())


ARRAYS = """
import sys
import numpy as np
from hookcore.delivery.archive.arrow import leave_out_pandas, pa
leave_out_pandas()
print("pyarrow" in sys.modules)
print(pa.array(np.arange(2)).to_pylist(), pa.array(["a"]).to_pylist(), "pandas" in sys.modules)
import pandas
print(len(pandas.Series([1])))
"""


def test_a_server_that_writes_runs_needs_no_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", ARRAYS], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["False", "[0, 1] ['a'] False", "1"]


def with_duckdb(folder: Path) -> list[tuple[int, float]]:
    query = f"select step, rms from '{folder}/stats/*.parquet' where module = 'a.b' and call = 1 order by step"
    return duckdb.connect().execute(query).fetchall()


def with_pandas(folder: Path) -> list[tuple[int, float]]:
    table = pandas.read_parquet(folder / "stats")
    chosen = table[(table["module"] == "a.b") & (table["call"] == 1)].sort_values("step")
    return list(zip(chosen["step"], chosen["rms"], strict=True))


def with_polars(folder: Path) -> list[tuple[int, float]]:
    table = polars.scan_parquet(f"{folder}/stats/*.parquet")
    chosen = table.filter((polars.col("module") == "a.b") & (polars.col("call") == 1)).sort("step")
    return chosen.select("step", "rms").collect().rows()


@pytest.mark.parametrize("read", [with_duckdb, with_pandas, with_polars])
def test_other_programs_read_the_parts_as_one_table(
    tmp_path: Path, read: Callable[[Path], list[tuple[int, float]]]
) -> None:
    kept = Kept(tmp_path)
    for step in range(10):
        kept.take(make_frame(step))
        kept.writer.write()
    rows = read(kept.writer.folder)
    column = STATS.index("rms")
    assert [step for step, _ in rows] == list(range(10))
    assert np.array_equal(
        [value for _, value in rows], [make_frame(n).stats[1, column] for n in range(10)], equal_nan=True
    )


@pytest.mark.parametrize("operation", [*range(1, 20), 30, 40, 50])
def test_a_crash_between_any_two_operations_loses_no_written_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: int
) -> None:
    """The writer dies at its n-th rename or removal. All earlier data is still readable, without duplicates."""
    kept = Kept(tmp_path)
    for step in range(MERGE_AT - 1):
        kept.take(make_frame(step))
        kept.writer.write()
    kept.take(make_frame(MERGE_AT - 1))
    left = operation

    def die(real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left <= 0:
                raise SystemExit
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die(Path.replace))
        patch.setattr(Path, "unlink", die(Path.unlink))
        with contextlib.suppress(SystemExit):
            kept.writer.write()
    kept.writer.close()  # as the kernel does for a dead process
    store = kept.read()
    assert store.steps().newest in (MERGE_AT - 2, MERGE_AT - 1)
    assert store.steps().count == store.steps().newest + 1
    again = ArchiveWriter(tmp_path, INFO, kept.store, start=False)
    again.write()  # cleans up
    for name in TABLES:
        left_over = set((again.folder / name).iterdir()) - {path for _, _, path in parts_in(again.folder / name)}
        assert not left_over


WRITES = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.archive_world import INFO, TAPS, make_frame
from hookcore.delivery.archive import ArchiveWriter
from hookcore.records.wire import EndItem
from hookcore.store import Store
store = Store(20_000_000)
store.announce(TAPS)
writer = ArchiveWriter({folder!r}, INFO, store, part_s=0.02)
for step in range(10**6):
    frame = make_frame(step)
    store.append(frame)
    writer.take(frame)
    if step == 5:
        print("writing", flush=True)
    time.sleep(0.002)
"""


@pytest.mark.slow
@pytest.mark.rota
@pytest.mark.parametrize("delay", [0.05, 0.2, 0.37, 0.8, 1.3])
def test_a_killed_process_leaves_every_finished_part(tmp_path: Path, delay: float) -> None:
    code = WRITES.format(root=str(ROOT), folder=str(tmp_path))
    with subprocess.Popen([python(), "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        folder = tmp_path / folder_name(INFO.name, INFO.id)
        wait_for(lambda: list(folder.glob("steps/part-*.parquet")), "the first part")
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
    archive = read_archive(folder)
    assert archive.state == "lost"
    frames = list(archive.frames())
    assert not archive.damages
    assert [frame.step for frame in frames] == list(range(len(frames)))
    assert frames
    for frame in frames[:: max(1, len(frames) // 10)]:
        assert frame.stats.tobytes() == make_frame(frame.step).stats.tobytes()


def test_a_full_disk_stops_writing_and_is_reported_once_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path)
    kept.take(make_frame(0))
    kept.writer.write()
    with monkeypatch.context() as patch:
        patch.setattr(archive_files.os, "fsync", _no_space)
        for step in range(1, 4):
            kept.take(make_frame(step))
            kept.writer.write()
            kept.now += 31
    assert [name for name, _ in kept.told] == ["keep-stopped"]
    assert os.strerror(errno.ENOSPC) in kept.told[0][1]
    assert kept.writer.progress.stopped
    kept.writer.write()
    assert not kept.writer.progress.stopped
    assert kept.writer.progress.lost == 0  # they waited
    assert_same(kept.store, kept.read())


def _no_space(_number: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a disk of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount; the test above fakes the full disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full_stops_only_the_writing(small_disk: Path) -> None:
    kept = Kept(small_disk)
    kept.take(make_frame(0))
    kept.writer.write()
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(b"\0" * 4_000_000)
    kept.take(make_frame(1))
    kept.writer.write()
    assert "No space left" in kept.writer.progress.stopped
    assert kept.read().steps().newest == 0
    filler.unlink()
    kept.now += 31
    kept.writer.write()
    assert_same(kept.store, kept.read())
    kept.writer.close()


def test_the_disk_limit_is_kept_and_reported(tmp_path: Path) -> None:
    kept = Kept(tmp_path, limit_bytes=100_000)
    for step in range(200):
        kept.take(make_frame(step))
        kept.writer.write()
        kept.now += 31
    size = sum(path.stat().st_size for path in kept.writer.folder.rglob("*") if path.is_file())
    assert size < 200_000
    assert kept.told[0][0] == "keep-stopped"
    assert "keep_limit" in kept.told[0][1]


def test_a_folder_that_does_not_respond_is_reported_once_until_it_does(tmp_path: Path) -> None:
    class Stuck(Scribe):
        """Accepts a writer, but never writes."""

        def add(self, writer: Any) -> None: ...

        def poke(self, writer: Any) -> None: ...

    now, told, store = [0.0], [], Store(20_000_000)
    writer = ArchiveWriter(
        tmp_path, INFO, store, tell=lambda *words: told.append(words), clock=lambda: now[0], scribe=Stuck()
    )
    store.announce(TAPS)
    for expected in (1, 2):
        writer.take(make_frame(0))
        assert len(told) == expected - 1
        now[0] += 31
        writer.take(make_frame(1))
        writer.take(make_frame(2))
        assert len(told) == expected
        assert told[-1][0] == "keep-stopped"
        assert f"{tmp_path}" in told[-1][1]
        writer.write_part()  # it responds again


def test_runs_are_written_in_turn_and_an_urgent_one_alone() -> None:
    class Part:
        """A run with a part to write, followed by its last part."""

        def __init__(self, name: str) -> None:
            self.name, self.is_last = name, False

        def write_part(self) -> bool:
            written.append(self.name)
            return not self.is_last

    written: list[str] = []
    slow, quick = Scribe(3600.0), Scribe(0.0)
    first, second = Part("first"), Part("second")
    for each in (first, second):
        slow.add(each)
        each.is_last = True
    slow.poke(second)
    slow.poke(first)
    wait_for(lambda: len(written) == 2)
    assert written == ["second", "first"]

    written.clear()
    waits = [Part(str(number)) for number in range(3)]
    for each in waits:
        quick.add(each)
    wait_for(lambda: len(written) >= 12)
    for each in waits:
        each.is_last = True
    turns = written[6:12]  # by then, all three have been added
    assert turns[:3] == turns[3:]
    assert sorted(turns[:3]) == ["0", "1", "2"]


@pytest.mark.parametrize(("patience_s", "looks"), [(3600.0, 3), (0.0, 1)])
def test_a_part_waits_for_a_pause_but_not_forever(
    monkeypatch: pytest.MonkeyPatch, patience_s: float, looks: int
) -> None:
    class Part:
        def write_part(self) -> bool:
            written.append(len(looked))
            return False

    def is_busy() -> bool:
        looked.append(1)
        return len(looked) < 3 or not patience_s

    written: list[int] = []
    looked: list[int] = []
    monkeypatch.setattr(module_of("ArchiveWriter", "delivery.archive"), "PATIENCE_S", patience_s)
    Scribe(0.0, is_busy).add(Part())
    wait_for(lambda: bool(written))
    assert written == [looks]


def test_records_that_the_disk_cannot_keep_up_with_are_lost_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_of("ArchiveWriter", "delivery.archive"), "MAX_QUEUE_BYTES", 20_000)
    kept = Kept(tmp_path)
    kept.take(*map(make_frame, range(100)))
    assert 0 < kept.writer.progress.lost < 100
    kept.writer.write()
    assert kept.writer.progress.written + kept.writer.progress.lost == kept.writer.progress.taken == 100
    ((name, sentence),) = kept.told
    assert name == "not-kept"
    assert sentence.startswith(f"{kept.writer.progress.lost} frames and snapshots were lost")
    kept.writer.close()
    kept.writer.write_part()
    assert not kept.writer.is_complete
    assert f"{kept.writer.progress.lost} frames" in kept.writer.given_up


def test_a_writer_has_room_while_its_disk_keeps_up_or_takes_nothing_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_of("ArchiveWriter", "delivery.archive"), "UNSAVED_BYTES", 10_000)
    kept, steps = Kept(tmp_path), itertools.count()

    def fill() -> int:
        many = 0
        while many < 100 and kept.writer.room_for([record := make_frame(next(steps))]):
            kept.take(record)
            many += 1
        return many

    assert 2 < fill() < 20
    assert kept.writer.room_for([EndItem(100, 100)])
    kept.writer.write()
    a_huge = make_frame(next(steps), taps=1000)
    assert kept.writer.room_for([a_huge, a_huge]) == 1  # or it would never be taken
    with monkeypatch.context() as patch:
        patch.setattr(archive_files.os, "fsync", _no_space)
        kept.take(a_huge)
        assert not fill()
        kept.writer.write()
    assert kept.writer.progress.stopped
    assert fill() == 100
    kept.now += 31
    kept.writer.write()
    assert not kept.writer.progress.lost
    assert 2 < fill() < 20


@pytest.mark.parametrize("table", ["steps", "stats", "sketches", "scalars", "events"])
@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "foreign"])
def test_a_damaged_part_loses_only_itself(tmp_path: Path, table: str, damage: str) -> None:
    kept = Kept(tmp_path)
    for step in range(4):
        kept.take(make_frame(step))
        kept.store.add_event(Event(step, 0.0, "note", "text"))
        kept.writer.write()
    part = parts_in(kept.writer.folder / table)[1][2]
    data = part.read_bytes()
    if damage == "foreign":
        pq.write_table(pyarrow.table({"x": [1]}), part)
    else:
        part.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "noise": os.urandom(len(data))}[damage])
    archive = read_archive(kept.writer.folder)
    store = Store(20_000_000)
    load_into(store, archive)
    assert any(table in sentence for sentence in archive.damages)
    assert store.steps().newest == 3
    assert store.steps().count >= 3


@pytest.mark.parametrize("change", [{"format": 99}, {"run": 3}, {"run": {}}, {"labels": [1]}, {"last_step": "x"}])
def test_an_invalid_run_file_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    kept = Kept(tmp_path)
    kept.take(make_frame(0))
    kept.writer.write()
    file = kept.writer.folder / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ArgumentError, match=r"run\.json|format"):
        read_archive(kept.writer.folder)


def test_a_run_whose_histograms_have_other_bins_is_read_without_them(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for step in range(3):
        kept.take(make_frame(step))
    kept.writer.write()
    file = kept.writer.folder / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 1}))
    archive = read_archive(kept.writer.folder)
    store = Store(20_000_000)
    load_into(store, archive)
    assert store.steps().count == 3
    assert not len(store.histograms(0).first_step)
    assert len(store.series(0, "rms").mean)
    assert not archive.has_sketches
    assert not archive.damages


def test_an_error_names_a_path_without_a_saved_run(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is not a saved run"):
        read_archive(tmp_path)


def test_impossible_numbers_are_refused_when_read(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.take(make_frame(0))
    kept.writer.write()
    part = parts_in(kept.writer.folder / "sketches")[0][2]
    table = pq.read_table(part)
    wrong = [[65535] * len(bins) for bins in table["bins"].to_pylist()]
    field = schemas()["sketches"].field("bins")
    pq.write_table(table.set_column(3, field, pyarrow.array(wrong, field.type)), part)
    archive = read_archive(kept.writer.folder)
    assert not list(archive.frames())
    assert archive.damages


@given(st.text(max_size=200), st.text(max_size=80))
def test_no_name_leads_out_of_the_folder(name: str, run_id: str) -> None:
    made = folder_name(name, run_id)
    assert Path(made).name == made
    assert made.endswith(SUFFIX)
    assert made.isascii()
    assert not made.startswith(".")


def test_a_saved_run_is_closed_to_other_users_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        kept = Kept(tmp_path / "runs")
        kept.writer.write()
    finally:
        os.umask(before)
    assert kept.writer.folder.stat().st_mode & 0o777 == 0o700


def test_neither_key_nor_folder_is_saved(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.writer.write()
    assert INFO.key not in (kept.writer.folder / "run.json").read_text()


def test_a_sink_saves_what_it_passes_on_and_marks_the_end_of_the_run(tmp_path: Path) -> None:
    sent = Store(20_000_000)
    sink = ArchiveSink(sent, str(tmp_path), INFO)
    sent.announce(TAPS)
    for step in range(5):
        sink.send(make_frame(step))
    sink.describe([ModuleRecord("a", "Linear", None)])
    sink.close()
    sink.close()
    archive = read_archive(tmp_path / folder_name(INFO.name, INFO.id))
    store = Store(20_000_000)
    load_into(store, archive)
    assert archive.state == "ended"
    assert_same(sent, store)


def test_errors_of_the_reader_are_hookcore_errors(tmp_path: Path) -> None:
    with pytest.raises(HookcoreError):
        read_archive(tmp_path / "nothing")
