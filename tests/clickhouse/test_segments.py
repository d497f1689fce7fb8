"""Segments for ClickHouse: the same values as in a store, correct sums of buckets, and the same bytes each time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookcore.errors import ArgumentError
from hookcore.records import STATS, Event, Frame, SketchBlock, Snapshot, Tap
from hookcore.records.sketch import BINS
from hookcore.records.wire import EndItem, FrameItem, Item, frame_item, frame_of, snapshot_item
from hookcore.store import STAT_NAMES, Store
from hookcore_app.clickhouse.client import PASSWORD, ClusterAddress, without_password
from hookcore_app.clickhouse.native import Answer, FormatError, Lists, decode, encode
from hookcore_app.clickhouse.runpast import all_sketches_of
from hookcore_app.clickhouse.schema import (
    BOTH,
    EVENTS,
    ITEMS,
    LEVELS,
    MARK,
    MERGED,
    PART,
    ROLLUPS_IN,
    ROWS,
    RUNS,
    SKETCH_LEVELS,
    SKETCH_ROLLUPS,
    SKETCHES,
    Inlet,
    Table,
    lane_of_scalar,
    number_of_run,
    rank_shards,
)
from hookcore_app.clickhouse.writing import Piece, blocks_of, head_of, item_of
from hookcore_app.collector.cutter import Job
from hookcore_app.collector.feed import Cut, Cuts, Share, ranges_of
from hookcore_app.collector.sending import ShardSlot
from tests.build import frame
from tests.lanes import examples

TAPS = tuple(Tap(f"layers.{number}", "output") for number in range(4))


# -- the format --------------------------------------------------------------------------------------------------------


def test_columns_of_all_types_are_the_same_after_a_round_trip() -> None:
    columns = {
        "small": ("UInt8", np.array([0, 1, 255], np.uint8)),
        "large": ("UInt64", np.array([0, 1, 2**64 - 1], np.uint64)),
        "signed": ("Int32", np.array([-1, 0, 5], np.int32)),
        "real": ("Float64", np.array([math.nan, math.inf, -0.1])),
        "day": ("Date", np.array([0, 20_000, 65_535], np.uint16)),
        "text": ("String", [b"", b"x" * 300, "Größe".encode()]),
        "lists": ("Array(UInt16)", Lists(np.array([0, 2, 2, 5]), np.array([1, 2, 3, 4, 5], np.uint16))),
    }
    found = decode(encode(columns))  # type: ignore[arg-type]
    for name, (kind, values) in columns.items():
        if kind == "String":
            assert found.texts(name) == values
        elif isinstance(values, Lists):
            assert found.lists(name).starts.tolist() == values.starts.tolist()
            assert found.lists(name).values.tolist() == values.values.tolist()
        else:
            assert found.numbers(name).tobytes() == np.asarray(values).tobytes()


def test_several_blocks_of_an_answer_are_joined_and_empty_ones_are_ignored() -> None:
    def block(numbers: list[int]) -> bytes:
        lists = Lists(np.arange(len(numbers) + 1), np.array(numbers, np.uint32))
        texts = [str(number).encode() for number in numbers]
        return encode(
            {
                "n": ("UInt32", np.array(numbers, np.uint32)),
                "t": ("String", texts),
                "l": ("Array(UInt32)", lists),
            }
        )

    found = decode(block([]) + block([1, 2]) + block([]) + block([3]))
    assert found.numbers("n").tolist() == [1, 2, 3]
    assert found.texts("t") == [b"1", b"2", b"3"]
    assert (found.lists("l").starts.tolist(), found.lists("l").values.tolist()) == ([0, 1, 2, 3], [1, 2, 3])
    assert decode(b"").numbers("n").tolist() == []
    assert decode(block([])).one("n") == 0


@pytest.mark.parametrize("cut", [1, 5, 20, 40])
def test_an_answer_that_is_cut_off_is_an_error(cut: int) -> None:
    whole = encode({"n": ("UInt64", np.arange(5)), "t": ("String", [b"text"] * 5)})
    with pytest.raises(FormatError, match="can't be read"):
        decode(whole[:-cut])


@pytest.mark.parametrize(
    ("ends", "bins", "count_ends", "words"),
    [
        ([2, 3], [7, 9, 8], [2, 3], ""),
        ([2, 3], [7, 9, 8], [2, 2], "histogram with 1 bins and 0 counts"),
        ([2, 3], [7, 9, 8], [1, 3], "histogram with 2 bins and 1 counts"),
        ([3, 2], [7, 9, 8], [3, 2], "arrays that end before they begin"),
        ([2, 3], [7, BINS, 8], [2, 3], f"histogram with bin {BINS} of {BINS}"),
        ([2, 3], [9, 7, 8], [2, 3], "histogram with bins that do not ascend"),
        ([2, 3], [7, 7, 8], [2, 3], "histogram with bins that do not ascend"),
    ],
)
def test_stored_histograms_whose_parts_do_not_fit_are_an_error_that_says_what_is_wrong(
    ends: list[int], bins: list[int], count_ends: list[int], words: str
) -> None:
    counts = np.arange(1, count_ends[-1] + 1, dtype=np.uint64)
    columns = {
        **{name: ("UInt64", np.array([0, 1], np.uint64)) for name in ("lane", "first", "last", "steps")},
        "bins": ("Array(UInt16)", Lists(np.array([0, *ends]), np.array(bins, np.uint16)[: ends[-1]])),
        "counts": ("Array(UInt64)", Lists(np.array([0, *count_ends]), counts)),
    }
    with pytest.raises(FormatError, match=words) if words else nullcontext():
        one, two = all_sketches_of(decode(encode(columns)), 2)
        assert (one.bins.tolist(), two.bins.tolist()) == ([7, 9], [8])
        assert (one.counts.tolist(), two.counts.tolist()) == ([1, 2], [3])


# -- the address -------------------------------------------------------------------------------------------------------


def test_an_address_names_shards_replicas_user_and_database() -> None:
    address = ClusterAddress.of("clickhouse://me:p%40ss%3Aword@a:1234,b;[::1]:9/runs?quorum=2", {})
    assert [[node.name for node in shard] for shard in address.shards] == [["a:1234", "b:8123"], ["[::1]:9"]]
    assert (address.user, address.password, address.database) == ("me", "p@ss:word", "runs")
    assert (address.replicated, address.quorum, address.encrypted) == (True, 2, False)
    assert address.name == "clickhouse://me@a:1234,b:8123;[::1]:9/runs"
    assert "p@ss" not in repr(address)


def test_a_secret_comes_from_a_file_or_a_variable(tmp_path: Any) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    by_file = ClusterAddress.of(f"clickhouses://me@a/runs?password_file={tmp_path}/secret", {PASSWORD: "other"})
    assert (by_file.password, by_file.encrypted, by_file.shards[0][0].port) == ("from a file", True, 8443)
    assert ClusterAddress.of("clickhouse://a", {PASSWORD: "given"}).password == "given"
    assert ClusterAddress.of("clickhouse://a", {}).database == "hookcore"
    assert without_password("clickhouse://me:secret@a:1/b") == "clickhouse://me@a:1/b"
    assert without_password("me:secret@a:1/b") == "me@a:1/b"
    for odd in ("se/cret", "se?cret", "se#cret", "sec?ret=1@x"):
        with pytest.raises(ArgumentError) as raised:
            ClusterAddress.of(f"clickhouse://me:{odd}@h/db")
        assert "cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://a", "not an address of ClickHouse"),
        ("clickhouse://", "in place of a server"),
        ("clickhouse://a:port", "in place of a server"),
        ("clickhouse://me:secret@a/b?colour=red", "option 'colour'"),
        ("clickhouse://a,b?replicated=0", "several replicas"),
        ("clickhouse://a?quorum=many", "number of replicas"),
        ("clickhouse://a?password_file=/nowhere", "can't be read"),
    ],
)
def test_a_wrong_address_is_refused_without_showing_its_password(url: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        ClusterAddress.of(url, {})
    assert "secret" not in str(caught.value)


def test_a_shard_that_is_added_takes_only_its_share_of_the_runs() -> None:
    runs = [f"run-{number}" for number in range(600)]
    before, after = ([rank_shards(run, shards)[0] for run in runs] for shards in (3, 4))
    assert min(Counter(before).values()) > 150
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {3}
    assert 100 < len(moved) < 200


# -- rows and their sums -----------------------------------------------------------------------------------------------


def a_piece(items: list[Item], taps: int = len(TAPS), before: int = -1, run: str = "run") -> Piece:
    return Piece(number_of_run(run), 20_000, 3, 1, taps, before, items)


def table_of(pieces: list[Piece], table: Table | Inlet, segment: int = 7) -> Answer:
    """Return a table's block without its mark."""
    block = blocks_of("spool", segment, pieces)[table]
    return decode(block)


def frames(seed: int) -> list[Frame]:
    """Return frames as a trainer may send them: with gaps, parts of steps, late frames, and non-finite values."""
    random = np.random.default_rng(seed)
    found, step = [], int(random.integers(0, 5000))
    for number in range(int(random.integers(1, 40))):
        step = max(0, step + int(random.choice([0, 0, 1, 1, 1, 3, 100, -1])))
        numbers = np.flatnonzero(random.random(len(TAPS)) < 0.7)
        stats = random.normal(0, 10.0 ** random.integers(-3, 4), (len(numbers), len(STATS)))
        stats[random.random(stats.shape) < 0.1] = random.choice([0.0, math.nan, math.inf, -math.inf])
        stats[:, :4] = random.integers(1, 9, (len(numbers), 4)) * [1, 0, 0, 1]
        stats[:, 1:3] = random.choice([0, 0, 0, 1], (len(numbers), 2))
        stats[:, 10:12] = 1, 8
        stats[random.random(len(numbers)) < 0.1, 0] = math.nan  # which a store drops
        lengths = random.integers(0, 4, len(numbers))
        bins = [np.sort(random.choice(BINS, length, replace=False)) for length in lengths]
        flat = np.concatenate([np.empty(0, np.uint16), *bins]).astype(np.uint16)
        block = SketchBlock(np.append(0, np.cumsum(lengths)).astype(np.uint32), flat, np.full(len(flat), 2**31, "<u4"))
        odd = [1.0, 0.0, math.nan, -math.inf]
        scalars = {name: float(random.choice(odd)) for name in ("loss", "lr", "acc") if random.random() < 0.5}
        scale = 2.0 if random.random() < 0.5 else None
        found.append(
            frame(step, stats, numbers=numbers, sketches=block, scalars=scalars, grad_scale=scale, time_s=number)
        )
    return found


seeds = st.integers(0, 2**32)


def as_items(made: list[Frame], first: int = 0) -> list[Item]:
    return [frame_item(first + place, each) for place, each in enumerate(made)]


def a_store(made: list[Frame]) -> Store:
    store = Store(64_000_000)
    store.announce(TAPS)
    for each in made:
        store.append(each)
    return store


def by_step(answer: Answer, lane: int) -> dict[int, dict[str, float]]:
    """Return the values of a lane by step, as queries see them."""
    seen = (answer.numbers("lane") == lane) & (answer.numbers("role") != PART)
    steps = answer.numbers("step")[seen].tolist()
    assert len(set(steps)) == len(steps), "a step counts once"
    columns = {stat: answer.numbers(stat)[seen] for stat in STATS}
    return {step: {stat: float(columns[stat][place]) for stat in STATS} for place, step in enumerate(steps)}


@settings(max_examples=examples(60))
@given(seeds)
def test_each_lane_has_the_same_value_per_step_as_a_store(seed: int) -> None:
    made = frames(seed)
    store, answer = a_store(made), table_of([a_piece(as_items(made))], ROWS)
    for number in range(len(TAPS)):
        stored = by_step(answer, number)
        for stat in STATS:
            rows = store.rows(np.array([number]), stat)
            present = rows.present[:, 0] > 0
            expected = dict(zip(rows.first[present].tolist(), rows.mean[present, 0].tolist(), strict=True))
            found = {step: _finite(value[stat]) for step, value in stored.items()}
            assert _same(found, expected), (stat, found, expected)
    for name in store.scalar_names():
        series = store.scalars(name, points=10_000)
        expected = dict(zip(series.first_step.tolist(), series.mean.tolist(), strict=True))
        found = {step: _finite(value["mean"]) for step, value in by_step(answer, lane_of_scalar(name)).items()}
        assert _same(found, expected), name


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan


def _same(one: dict[int, float], other: dict[int, float]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key], equal_nan=True) for key in one)


@settings(max_examples=examples(20))  # each has hundreds of buckets, with every stat
@given(seeds)
def test_buckets_on_all_levels_have_the_sums_of_the_steps_in_them(seed: int) -> None:
    made = frames(seed)
    store, answer = a_store(made), table_of([a_piece(as_items(made))], ROLLUPS_IN)
    level, lane, bucket = (answer.numbers(name) for name in ("level", "lane", "bucket"))
    for place in np.flatnonzero(lane < len(TAPS)).tolist():
        first = int(bucket[place]) << int(level[place])
        last = first + (1 << int(level[place])) - 1
        for stat in STAT_NAMES:
            rows = store.rows(np.array([int(lane[place])]), stat, first, last)
            mean = rows.mean[:, 0]
            known = ~np.isnan(mean)
            told = [answer.numbers(f"{stat}_{letter}")[place] for letter in "sclh"]
            assert told[1] == known.sum()
            assert np.isclose(told[0], mean[known].sum(), rtol=1e-12, atol=1e-6)
            assert np.array_equal(told[2:], [np.fmin.reduce(mean), np.fmax.reduce(mean)], equal_nan=True)
        assert answer.numbers("steps")[place] == rows.present.sum()
        assert answer.numbers("bad_steps")[place] == rows.nonfinite.sum()
    for each in LEVELS:
        captured = {(int(lane[at]), int(bucket[at])) for at in np.flatnonzero((level == each) & (lane < len(TAPS)))}
        everything = store.rows(np.arange(len(TAPS)), "count")
        assert captured == {
            (tap, int(step) >> each)
            for row, step in enumerate(everything.first)
            for tap in range(len(TAPS))
            if everything.present[row, tap]
        }


@settings(max_examples=examples(60))
@example(2451)  # its only sketches are of rows that a store drops
@given(seeds)
def test_sketches_of_all_levels_count_every_value_that_a_store_has(seed: int) -> None:
    made = frames(seed)
    store = a_store(made)
    items = as_items(made)
    # A store drops rows without a count, and there is no table of sketches if no other row has one.
    pieces = [a_piece(items)]
    answer = table_of(pieces, SKETCH_ROLLUPS) if SKETCH_ROLLUPS in blocks_of("spool", 7, pieces) else None
    counted: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for entry in store.parts.sketches.entries(None, None):
        for tap in entry.taps.tolist():
            row = entry.row(tap)
            for level in SKETCH_LEVELS if row else ():
                assert row is not None
                for number, count in zip(*(each.tolist() for each in row), strict=True):
                    counted[level, tap << 40 | entry.first >> level][number] += count
    if answer is None:
        assert not counted
        return
    lists, sums = answer.lists("sumsMap.bin"), answer.lists("sumsMap.count").values
    found = {}
    for place in range(len(lists)):
        key = (
            int(answer.numbers("level")[place]),
            int(answer.numbers("lane")[place]) << 40 | int(answer.numbers("bucket")[place]),
        )
        part = slice(lists.starts[place], lists.starts[place + 1])
        if answer.numbers("lane")[place] != MARK:
            found[key] = dict(zip(lists.values[part].tolist(), sums[part].tolist(), strict=True))
    assert found == counted


def test_parts_of_a_step_are_kept_as_received_and_merged_for_queries() -> None:
    parts = [frame(5, np.full((1, len(STATS)), float(part + 1)), time_s=part, scalars={"lr": part}) for part in (0, 1)]
    answer = table_of([a_piece(as_items(parts))], ROWS)
    roles = defaultdict(list)
    for lane, number, role in zip(*(answer.numbers(name).tolist() for name in ("lane", "number", "role")), strict=True):
        roles[lane].append((number, role))
    assert roles[0] == [(0, PART), (1, PART), (1, MERGED)]
    assert roles[lane_of_scalar("lr")] == [(0, PART), (1, BOTH)]
    assert by_step(answer, 0)[5]["count"] == 3


def test_late_frames_are_kept_but_not_counted() -> None:
    late = [frame(step, np.ones((1, len(STATS)))) for step in (4, 5, 3, 6)]
    answer = table_of([a_piece(as_items(late), before=4)], ROWS)
    assert sorted(by_step(answer, 0)) == [5, 6]
    assert sorted(answer.numbers("step")[answer.numbers("lane") == 0].tolist()) == [3, 4, 5, 6]


def test_rows_of_taps_without_names_are_kept_but_not_counted() -> None:
    unknown = frame(1, np.ones((2, len(STATS))), numbers=[0, 9])
    answer = table_of([a_piece(as_items([unknown]), taps=1)], ROWS)
    assert by_step(answer, 0).keys() == {1}
    assert by_step(answer, 9) == {}


def test_a_row_shows_its_owner_and_its_origin() -> None:
    made = frame(1, np.ones((2, len(STATS))), owners=np.array([0, -1], np.int32))
    answer = table_of([a_piece(as_items([made], 41))], ROWS)
    taps = answer.numbers("lane") < 2
    assert answer.numbers("owner")[taps].tolist() == [0, -1]
    for name, value in {"rank": 3, "attempt": 1, "number": 41, "day": 20_000}.items():
        assert set(answer.numbers(name)[taps].tolist()) == {value}
    own = table_of([a_piece(as_items([frame(1, np.ones((1, len(STATS))))]))], ROWS)
    assert own.numbers("owner")[own.numbers("lane") == 0].tolist() == [3]


def test_the_mark_of_a_segment_is_in_every_block_and_the_rows_are_sorted() -> None:
    made = [frame(step, np.ones((2, len(STATS)))) for step in range(3)]
    pieces = [a_piece(as_items(made), run=run) for run in ("b", "a", "c")]
    for table, block in blocks_of("spool", 7, pieces).items():
        answer = decode(block)
        target = table.target if isinstance(table, Inlet) else table
        marks = np.flatnonzero(answer.numbers("run") == number_of_run("spool"))
        assert answer.numbers(target.marked)[marks].tolist() == [7]
        keys = [name.strip() for name in target.order.split(",")]
        rows = list(zip(*(answer.numbers(name).tolist() for name in keys), strict=True))
        assert rows == sorted(rows) or table is ROLLUPS_IN


def test_the_same_items_make_the_same_bytes_in_any_order_of_runs() -> None:
    made = [frame(step, np.ones((2, len(STATS))), scalars={"b": 1.0, "a": 2.0}) for step in range(3)]
    pieces = [a_piece(as_items(made), run=run) for run in ("a", "b")]
    assert blocks_of("spool", 7, pieces) == blocks_of("spool", 7, pieces[::-1])
    assert blocks_of("spool", 7, pieces) != blocks_of("spool", 8, pieces)


def test_items_come_back_as_they_were_apart_from_their_arrays() -> None:
    made = frame(
        3,
        np.ones((1, len(STATS))),
        events=(Event(3, 1.0, "told", "a message", "warning"),),
        labels={"optimizer": "SGD"},
        scalars={"loss": math.nan},
        micro_batches=2,
        elapsed_s=0.5,
    )
    snapshot = Snapshot(TAPS[0], 3, 1.0, "float32", (2,), np.array([1, 2], np.float32), number=9)
    items: list[Item] = [frame_item(0, made), snapshot_item(1, snapshot), EndItem(2, 3)]
    answer = table_of([a_piece(items)], ITEMS)
    own = np.flatnonzero(answer.numbers("run") == number_of_run("run"))
    back = [item_of(answer.texts("head")[place], answer.texts("content")[place]) for place in own.tolist()]
    assert back[1:] == items[1:]
    first = back[0]
    assert isinstance(first, FrameItem)
    arrays = {name: getattr(items[0], name) for name in ("taps", "stats", "start", "bins", "counts")}
    whole = frame_of(msgspec.structs.replace(first, **arrays))
    assert (whole.events, whole.labels, whole.micro_batches, whole.elapsed_s) == (made.events, made.labels, 2, 0.5)
    assert math.isnan(whole.scalars["loss"])
    events = table_of([a_piece(items)], EVENTS)
    assert b"told" in events.texts("name")
    assert head_of(items[1])[1] == snapshot.values.tobytes()


def test_a_frame_without_values_of_tensors_is_whole_without_its_arrays() -> None:
    made = frame(3, np.empty((0, len(STATS))), scalars={"loss": 0.25})
    back = item_of(*head_of(frame_item(0, made)))
    assert isinstance(back, FrameItem)
    assert frame_of(back).scalars == made.scalars


def test_counts_of_rows_and_sketches_show_when_a_frame_is_complete() -> None:
    block = SketchBlock(np.array([0, 0, 2], np.uint32), np.array([3, 4], np.uint16), np.array([1, 1], np.uint32))
    items = as_items([frame(1, np.ones((2, len(STATS))), sketches=block)])
    answer = table_of([a_piece(items)], ITEMS)
    at = np.flatnonzero(answer.numbers("run") == number_of_run("run"))[0]
    assert (answer.numbers("rows")[at], answer.numbers("sketches")[at]) == (2, 1)
    assert np.count_nonzero(table_of([a_piece(items)], SKETCHES).numbers("run") == number_of_run("run")) == 1


# -- the items of a segment --------------------------------------------------------------------------------------------


def test_segments_have_ascending_numbers_whatever_was_finished(tmp_path: Any) -> None:
    cuts = Cuts(tmp_path)
    share = Share("run", 0, 0, 2, -1, ranges_of([1, 2, 3, 7, 9, 10]), 10)
    assert share.ranges == ((1, 3), (7, 7), (9, 10))
    first, second = cuts.cut(0, 5, [share]), cuts.cut(1, 5, [share])
    cuts.finish(first)
    again = Cuts(tmp_path)
    assert again.id == cuts.id
    assert again.unfinished() == [second]
    again.finish(second)
    assert Cuts(tmp_path).unfinished() == []
    assert Cuts(tmp_path).cut(0, 5, [share]).number == 2
    assert sum(path.suffix == ".inserted" for path in tmp_path.iterdir()) == 1


def test_a_segment_may_be_finished_twice_and_by_several_threads(tmp_path: Any) -> None:
    cuts = Cuts(tmp_path)
    made = [cuts.cut(0, 5, []) for _ in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            list(pool.map(cuts.finish, made))
    assert cuts.unfinished() == []
    assert Cuts(tmp_path).cut(0, 5, []).number == 40


def a_job(number: int) -> Job:
    return Job(cut=Cut(number, 0, 5, ()))


def test_jobs_after_a_failed_one_are_checked_too() -> None:
    slot, first, second, third = ShardSlot(), a_job(1), a_job(2), a_job(3)
    slot.put(first)
    slot.put(second)
    assert not first.is_repeated
    assert not second.is_repeated
    slot.doubt()
    assert first.is_repeated
    assert second.is_repeated
    slot.put(third)
    assert third.is_repeated


def test_a_job_that_was_prepared_while_its_predecessors_were_removed_is_removed_too() -> None:
    slot, signs = ShardSlot(), Job(signs=[(RUNS, b"")])
    slot.put(a_job(1))
    slot.lose()
    slot.put(a_job(2))
    slot.put(signs)
    assert [cut.number for cut in slot.take_lost()] == [1, 2]
    assert slot.get() is signs
