"""A saved and reloaded store answers every query as the original did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookcore.delivery.archive import load_into, read_archive
from hookcore.delivery.archive.folder import joined
from hookcore.records import Event
from hookcore.store import Store
from tests.archive_world import (
    COVERAGE,
    HOOKS,
    MODULES,
    SECRET,
    STORE_BYTES,
    Trainer,
    keep,
    kept_in,
    make_info,
    plain_frame,
    require_same,
)
from tests.lanes import examples

FEW = settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
DTYPES = ("float32", "float16", "float64", "int64", "uint8", "bool", "complex64")


def reload(folder: Path) -> Store:
    store, archive = Store(STORE_BYTES), read_archive(kept_in(folder))
    load_into(store, archive)
    assert not archive.damages
    return store


@FEW
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 20), st.integers(1, 3))
def test_every_query_is_answered_as_before(
    tmp_path_factory: pytest.TempPathFactory, seed: int, taps: int, steps: int, parts: int
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    trainer = Trainer(np.random.default_rng(seed))
    sink, store = keep(folder)
    sink.describe(MODULES, COVERAGE, HOOKS)
    for number in range(steps):
        for frame in trainer.next_step(taps if number == 0 else int(number % 7 == 6), parts, sketched=number % 4 != 3):
            sink.send(frame)
        if number % 10 == 0:
            for dtype in DTYPES:
                sink.send(trainer.snapshot(dtype))
    sink.close()
    require_same(store, reload(folder))


def test_the_last_description_of_modules_is_the_one_read(tmp_path: Path) -> None:
    sink, store = keep(tmp_path)
    sink.describe(MODULES[:1])
    sink.send(plain_frame(0))
    sink.describe(MODULES, COVERAGE, HOOKS)
    sink.close()
    require_same(store, reload(tmp_path))


def test_a_run_without_frames_can_be_saved_and_read(tmp_path: Path) -> None:
    sink, store = keep(tmp_path)
    sink.close()
    require_same(store, reload(tmp_path))


def test_owners_of_rows_are_kept_and_missing_in_parts_of_older_releases(tmp_path: Path) -> None:
    frames = [plain_frame(step) for step in range(4)]
    given = [replace(frames[0], owners=np.full(len(frames[0].taps), -1, np.int32)), frames[1]]
    given += [replace(each, owners=np.arange(len(each.taps), dtype=np.int32)) for each in frames[2:]]
    sink, _ = keep(tmp_path)
    for frame in given:
        sink.send(frame)
    sink.close()
    assert owners_in(tmp_path) == [None if each.owners is None else each.owners.tolist() for each in given]
    # On a slow machine, there are several parts.
    for part in (kept_in(tmp_path) / "stats").glob("*.parquet"):
        table = pq.read_table(part)
        older, newer = table.slice(0, len(table) // 2).drop_columns(["owner"]), table.slice(len(table) // 2)
        assert joined([older, newer])["owner"].null_count >= len(older)
        pq.write_table(table.drop_columns(["owner"]), part)
    assert owners_in(tmp_path) == [None] * 4


def test_the_facts_of_an_event_are_kept_and_missing_in_parts_of_older_releases(tmp_path: Path) -> None:
    about = {"found": "loss", "previous": 6, "late": False, "name": None, "share": 0.25}
    events = Event(7, 7.0, "told", "words", about=about), Event(8, 8.0, "told", "others")
    sink, _ = keep(tmp_path)
    sink.send(replace(plain_frame(8), events=events))
    sink.close()
    assert list(reload(tmp_path).events()) == list(events)
    assert events[0].key == replace(events[0], about={}).key  # so that older acknowledgements still count
    for part in (kept_in(tmp_path) / "events").glob("*.parquet"):
        table = pq.read_table(part)
        joined([table.drop_columns(["about"]), table])  # both kinds may be parts of one run
        pq.write_table(table.drop_columns(["about"]), part)
    assert [event.about for event in reload(tmp_path).events()] == [{}, {}]


def owners_in(folder: Path) -> list[list[int] | None]:
    archive = read_archive(kept_in(folder))
    found = [None if each.owners is None else each.owners.tolist() for each in archive.frames()]
    assert not archive.damages
    return found


def test_the_secret_of_a_run_is_in_none_of_its_files(tmp_path: Path) -> None:
    sink, _ = keep(tmp_path)
    sink.send(plain_frame(0))
    sink.close()
    files = [path for path in kept_in(tmp_path).rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("name", ["../../up", "/etc/x", "a\0b", "..", "", "x" * 5000, "\u202e<b>", "a/b\\c"])
def test_nothing_is_written_outside_the_folder_whatever_the_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "inner" / "runs"
    sink, _ = keep(folder, make_info(name=name))
    sink.send(plain_frame(0))
    sink.close()
    assert kept_in(folder).parent == folder
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert [path.name for path in folder.parent.iterdir()] == ["runs"]
