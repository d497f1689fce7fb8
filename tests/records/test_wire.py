"""Records in transit between processes: they arrive as they were sent, and damaged ones are rejected."""

from __future__ import annotations

import contextlib
import dataclasses
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hookcore.errors import HookcoreError, WireError
from hookcore.records import (
    KINDS,
    STAT_COLUMN,
    STATS,
    Command,
    Coverage,
    Event,
    Frame,
    HookRecord,
    ModuleRecord,
    SketchBlock,
    Snapshot,
    Tap,
    is_shared,
)
from hookcore.records.flow import Flow, FlowCall
from hookcore.records.sketch import BINS
from hookcore.records.wire import (
    DTYPES,
    SCHEMA,
    Batch,
    DeliveryCounters,
    Description,
    EndItem,
    FrameItem,
    Place,
    Receipt,
    RunInfo,
    SnapshotItem,
    decode_answer,
    decode_batch,
    encode,
    frame_item,
    frame_of,
    snapshot_item,
    snapshot_of,
    weigh,
)
from tests.build import frame, stats_of
from tests.lanes import examples

INFO = RunInfo(id="run-1", key="secret", name="a run")
texts = st.text(max_size=20)
taps = st.builds(Tap, texts, st.sampled_from(KINDS), texts, st.integers(0, 9), st.sampled_from(["train", "eval"]))
events = st.builds(
    Event,
    st.integers(0, 2**40),
    st.floats(allow_nan=False),
    texts,
    texts,
    st.sampled_from(["info", "warning", "error"]),
    texts,
    st.integers(0, 99),
    st.dictionaries(texts, st.one_of(st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False), texts)),
)


def counted(stats: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return any numbers, with counts in the columns of counts. A row whose count is NaN may contain anything."""
    for name in COUNTS:
        column = stats[:, STAT_COLUMN[name]]
        with np.errstate(invalid="ignore"):
            wrong = ~((column >= 0) & (column <= 2**53)) & ~np.isnan(stats[:, 0])
        column[wrong] = 0 if name != "count" else np.nan
    return stats


def _stats(numbers: dict[str, float]) -> bytes:
    """Return one row of stats as it is sent."""
    row = np.zeros((1, len(STATS)))
    for name, number in numbers.items():
        row[0, STAT_COLUMN[name]] = number
    return row.tobytes()


COUNTS = ("count", "nan", "inf", "zero", "parts", "sketched")


@st.composite
def flows(draw: st.DrawFn, step: int) -> Flow:
    many = draw(st.integers(1, 4))
    places = st.lists(st.integers(0, many - 1), max_size=3).map(tuple)
    how = st.sampled_from(["graph", "identity", "order"])
    call = st.builds(FlowCall, texts, st.integers(0, 9), st.sampled_from(["train", "eval"]), places, places, how)
    return Flow(step, tuple(draw(call) for _ in range(many)), draw(st.floats(0, 9)))


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    step = draw(st.integers(0, 2**50))
    rows = draw(st.integers(0, 5))
    bins = [draw(st.lists(st.integers(0, BINS - 1), unique=True, max_size=6).map(sorted)) for _ in range(rows)]
    flat = np.array([each for row in bins for each in row], np.uint16)
    return frame(
        step,
        draw(hnp.arrays(np.float64, (rows, len(STATS))).map(counted)),
        time_s=draw(st.floats(0, 2e9)),
        numbers=draw(hnp.arrays(np.uint32, rows, unique=True)),
        sketches=SketchBlock(
            np.cumsum([0, *map(len, bins)]).astype(np.uint32), flat, draw(hnp.arrays(np.uint32, len(flat)))
        ),
        events=tuple(draw(st.lists(events, max_size=3))),
        scalars=draw(st.dictionaries(texts, st.floats(), max_size=3)),
        micro_batches=draw(st.integers(0, 9)),
        grad_scale=draw(st.none() | st.floats(allow_nan=False)),
        labels=draw(st.dictionaries(texts, texts, max_size=3)),
        elapsed_s=draw(st.floats(0, 1e6)),
        flow=draw(st.none() | flows(step)),
        owners=draw(st.none() | hnp.arrays(np.int32, rows, elements=st.integers(-1, 2**20))),
    )


def arrive(item: FrameItem | SnapshotItem | EndItem) -> Any:
    """Return an item as the receiver sees it."""
    return decode_batch(encode(Batch(run=INFO, items=(item,)))).items[0]


def same(left: Frame, right: Frame) -> bool:
    """Return whether records are equal in every field, to the bit. NaN equals itself."""
    for field in dataclasses.fields(Frame):
        one, other = getattr(left, field.name), getattr(right, field.name)
        if isinstance(one, np.ndarray):
            if one.tobytes() != other.tobytes() or one.shape != other.shape:
                return False
        elif isinstance(one, SketchBlock):
            pairs = ((getattr(one, name), getattr(other, name)) for name in ("start", "bins", "counts"))
            if not all(np.array_equal(*pair) for pair in pairs):
                return False
        elif repr(one) != repr(other):
            return False
    return True


@settings(deadline=None)
@given(frames(), st.integers(0, 2**40))
def test_a_frame_arrives_as_it_was_sent(frame: Frame, number: int) -> None:
    item = arrive(frame_item(number, frame))
    assert item.number == number
    assert same(frame_of(item), frame)


@settings(deadline=None)
@given(
    st.sampled_from(sorted(DTYPES)).flatmap(
        lambda kind: hnp.arrays(np.dtype(kind), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    ),
    taps,
    st.integers(-1, 2**50),
)
def test_a_snapshot_arrives_as_it_was_sent(values: np.ndarray[Any, Any], tap: Tap, number: int) -> None:
    snapshot = Snapshot(tap, 7, 1.5, "float32", values.shape, values, number=number)
    seen = snapshot_of(arrive(snapshot_item(3, snapshot)))
    assert seen.values.tobytes() == np.ascontiguousarray(values).tobytes()
    assert (seen.values.dtype, seen.values.shape) == (values.dtype, values.shape)
    assert (seen.tap, seen.step, seen.dtype, seen.number, seen.truncated) == (tap, 7, "float32", number, False)


@pytest.mark.parametrize(("many", "kept"), [(30, (3, 10)), (7, (7,))], ids=["rows", "part of a row"])
def test_a_truncated_snapshot_keeps_its_original_shape_and_has_rows(many: int, kept: tuple[int, ...]) -> None:
    values = np.arange(many, dtype=np.float32)
    snapshot = Snapshot(Tap("a", "output"), 0, 0.0, "float32", (10, 10), values, True)
    seen = snapshot_of(arrive(snapshot_item(0, snapshot)))
    assert seen.shape == (10, 10)
    assert np.array_equal(seen.values, values.reshape(kept))


def test_values_that_are_not_numbers_are_refused() -> None:
    item = snapshot_item(0, Snapshot(Tap("a", "output"), 0, 0.0, "object", (1,), np.zeros(1)))
    with pytest.raises(WireError, match="type 'object'"):
        snapshot_of(msgspec.structs.replace(item, stored="object"))


def test_fields_that_only_one_of_two_releases_knows_are_not_an_error() -> None:
    module = {"path": "a", "type": "Linear", "parent": None}
    described = msgspec.msgpack.encode({"version": 1, "modules": [module | {"of a later release": [1]}]})
    assert msgspec.msgpack.decode(described, type=Description).modules == (ModuleRecord("a", "Linear", None),)
    later = ModuleRecord("a", "Linear", None, placements=(("weight", "Shard(0) over dp, 4 ranks"),))
    known = msgspec.defstruct("Earlier", [("path", str), ("type", str), ("parent", str | None)])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(later), type=known) == known(**module)


def test_all_other_parts_of_a_batch_arrive() -> None:
    batch = Batch(
        run=msgspec.structs.replace(INFO, place=Place(job="j", rank=1, world=4, axes={"data": (1, 2)})),
        taps_from=3,
        taps=(Tap("a.b", "output_grad", "0", 1, "eval"),),
        description=Description(
            4,
            (ModuleRecord("a", "Linear", "", 3, 3, ("b",), (("weight", (3, 1)),)),),
            (Coverage("a", "Linear", False, (), "why"),),
            (HookRecord("module", "a", "forward", "f", "x.py:1", False),),
        ),
        items=(EndItem(9, 100),),
        counters=DeliveryCounters(10, 8, {"queue-full": 1}, 1, 0),
        commands_done=5,
    )
    assert decode_batch(encode(batch)) == batch


@settings(deadline=None)
@given(taps, st.dictionaries(texts, st.none() | st.floats(allow_nan=False) | texts | st.lists(texts, max_size=2)))
def test_an_answer_contains_commands(tap: Tap, changes: dict[str, Any]) -> None:
    commands = (Command(1, "snapshot", tap), Command(2, "settings", changes=changes))
    answer = Receipt(acknowledged=4, taps=2, described=-1, commands=commands)
    assert decode_answer(encode(answer)) == answer


@settings(max_examples=examples(300), deadline=None)
@given(frames(), st.data())
def test_damage_is_refused_or_harmless_but_never_another_error(frame: Frame, data: st.DataObject) -> None:
    sent = bytearray(encode(Batch(run=INFO, items=(frame_item(0, frame),))))
    place = data.draw(st.integers(0, len(sent) - 1))
    sent[place] ^= data.draw(st.integers(1, 255))
    try:
        batch = decode_batch(bytes(sent[: data.draw(st.integers(1, len(sent)))]))
        for item in batch.items:
            if isinstance(item, FrameItem):
                seen = frame_of(item)
                assert seen.stats.shape == (len(seen.taps), len(STATS))
    except HookcoreError:
        pass


def test_frames_of_the_same_taps_share_one_array_by_which_a_store_knows_them() -> None:
    one, two, other = (frame_of(frame_item(0, frame(0, stats_of(many)))).taps for many in (2, 2, 3))
    assert one is two
    assert is_shared(one)
    assert one.tolist() == [0, 1]
    assert other.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"taps": b"\0" * 8}, "a tap twice"),
        ({"taps": np.array([0, 1], "<u4").tobytes()}, "stats for 2 taps"),
        ({"taps": b"\0" * 3}, "3 bytes of taps"),
        ({"stats": b""}, "0 stats"),
        ({"start": b"\0" * 4}, "1 starts"),
        ({"start": np.array([0, 9], "<u4").tobytes()}, "said"),
        ({"start": np.array([1, 2], "<u4").tobytes()}, "ascend"),
        ({"bins": np.array([5, 5], "<u2").tobytes()}, "bins that do not ascend"),
        ({"bins": np.array([0, BINS], "<u2").tobytes()}, f"bin {BINS}"),
        ({"step": -1}, "step -1"),
        ({"step": 2**60}, "step"),
        ({"micro_batches": -1}, "micro-batches"),
        ({"time_s": 1e13}, "time of"),
        ({"time_s": float("nan")}, "time of"),
        ({"elapsed_s": -1.0}, "step of -1.0 s"),
        ({"elapsed_s": float("inf")}, "step of inf s"),
        ({"owners": b"\0" * 8}, "2 owners of 1 taps"),
        ({"owners": np.array([-2], "<i4").tobytes()}, "an owner that is rank -2"),
        ({"flow": Flow(0, ())}, "a flow that is too large"),
        ({"flow": Flow(0, (FlowCall("a", fed_by=(1,)),))}, "refers to calls that it doesn't contain"),
        ({"flow": Flow(0, (FlowCall("a"),) * 20_001)}, "a flow that is too large"),
        ({"flow": Flow(3, (FlowCall("a"),))}, "a flow of step 3 in step 0"),
        ({"flow": Flow(0, (FlowCall("a"),), float("nan"))}, "a flow that took nan s"),
        *(
            ({"stats": _stats({"count": 8.0, name: number})}, "a count that")
            for name in COUNTS
            for number in (-1.0, 1e300, float("inf"), float("-inf"))
        ),
        *(({"stats": _stats({"count": 8.0, name: float("nan")})}, "a count that") for name in COUNTS[1:]),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(change: dict[str, Any], words: str) -> None:
    block = SketchBlock(np.array([0, 2], np.uint32), np.array([3, 4], np.uint16), np.array([1, 1], np.uint32))
    item = frame_item(0, frame(0, stats_of(1), sketches=block))
    with pytest.raises(WireError, match=words):
        frame_of(msgspec.structs.replace(item, **change))


@pytest.mark.parametrize(
    ("shape", "holds"),
    [
        ((0, 2**52), True),
        ((3, 0, 5), True),
        ((0, 2**53), False),
        ((2**52, 2**52, 0), False),
        ((2**30, 2**30, 0), False),
        ((0,) * 65, False),
        ((0, -1), False),
    ],
)
def test_shapes_of_empty_tensors_are_checked_size_by_size(shape: tuple[int, ...], holds: bool) -> None:
    item = snapshot_item(0, Snapshot(Tap("a", "output"), 0, 0.0, "float32", (0,), np.zeros(0, np.float32)))
    changed = msgspec.structs.replace(item, shape=shape)
    if holds:
        assert snapshot_of(changed).values.shape == shape
    else:
        with pytest.raises(WireError, match="tensor of"):
            snapshot_of(changed)


EMPTY_MAPS = b"\xdd\x00\x60\x00\x00" + b"\x80" * 0x600000
HOSTILE = {
    "settings of empty maps": {"run": {"id": "a", "key": "k", "name": "", "settings": {"x": msgspec.Raw(EMPTY_MAPS)}}},
    "shapes of nothing": {"description": {"version": 1, "modules": msgspec.Raw(EMPTY_MAPS)}},
    "a field nobody knows": {"strange": msgspec.Raw(EMPTY_MAPS)},
    "scalars that are long lists": {"items": msgspec.Raw(EMPTY_MAPS)},
    "one long text": {"run": {"id": "a", "key": "k", "name": "\N{OWL}" * 2_000_000}},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_batch_that_would_take_much_memory_is_refused_before_it_is_decoded(case: str) -> None:
    run = {"id": "a", "key": "k", "name": "n"}
    data = msgspec.msgpack.encode({"schema": SCHEMA, "run": run, **HOSTILE[case]})
    assert len(data) > 6_000_000
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode_batch(data, 100_000_000)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(texts, inner, max_size=20),
    max_leaves=60,
)


@settings(deadline=None)
@given(plain_values)
def test_the_estimated_size_of_a_message_is_at_least_that_of_its_values(value: Any) -> None:
    data = msgspec.msgpack.encode(value)
    assert weigh(data, 2**40) >= sum(40 for _ in _leaves(value))
    with pytest.raises(WireError):
        weigh(data[:-1], 2**40)
    with pytest.raises(WireError, match="exceeds 1 bytes"):
        weigh(msgspec.msgpack.encode([value]), 1)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
    yield value


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_have_an_estimated_size_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(WireError):
        assert weigh(data, 10**6) <= 10**6


def test_another_schema_is_named() -> None:
    batch = msgspec.structs.replace(Batch(run=INFO), schema=SCHEMA + 1)
    with pytest.raises(WireError, match=f"schema {SCHEMA + 1}"):
        decode_batch(encode(batch))


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"{}", b"\xdd\xff\xff\xff\xff", b"\x91" * 5000, b"\xdb\xff\xff\xff\xffabc"]
)
def test_anything_but_a_message_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_batch(data)


def test_frames_share_their_taps_unless_these_are_many() -> None:
    for many, same in ((3, True), (100_000, False)):
        stats = np.zeros((many, len(STATS)))
        item = frame_item(0, frame(0, stats))
        first, second = (frame_of(msgspec.structs.replace(item, step=step)).taps for step in (0, 1))
        assert (first is second) is same
        np.testing.assert_array_equal(first, np.arange(many))
