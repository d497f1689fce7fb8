"""Batches are stored once and completely, or rejected with a message. The next valid batch is always stored."""

from __future__ import annotations

import gzip
import json
import random
import re
import threading
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookcore.records import Event, Snapshot, Tap, wire
from hookcore.store import Store
from hookcore_app.runs import Run, parts
from tests.build import make_info
from tests.lanes import examples
from tests.serving import (
    BATCH,
    BEARER,
    READ_TOKEN,
    TOKEN,
    World,
    make_batch,
    make_event,
    make_frame,
    make_taps,
    make_world,
    read_all,
    served,
)
from tests.waiting import wait_for

INFO = make_info()


@pytest.fixture
def world() -> World:
    return make_world()


def _refused(world: World, batch: wire.Batch | bytes, status: int, words: str, **headers: str) -> None:
    """Assert that a batch is rejected with this message and leaves no trace: the run's next valid batch is stored."""
    response = world.post(batch, **headers)
    assert response.status_code == status, response.text
    assert words in response.json()["error"]


def test_a_batch_is_stored_and_the_answer_says_what_the_server_holds(world: World) -> None:
    answer = world.take(make_batch(INFO, [0, 1, 2]))
    assert (answer.acknowledged, answer.taps, answer.described, answer.commands) == (2, 2, -1, ())
    assert world.means() == ([0, 1, 2], [0.0, 1.0, 2.0])


def test_the_answer_says_whether_somebody_may_look_at_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world()
    assert not world.take(make_batch(INFO, [0])).followed
    run = world.runs.find("one")  # a page or a program asks for it
    assert run is not None
    assert world.take(make_batch(INFO, [1], first=False)).followed
    later = time.monotonic() + parts.FOLLOWED_S
    monkeypatch.setattr(run.signs, "clock", lambda: later)
    assert not world.take(make_batch(INFO, [2], first=False)).followed
    run.signs.follow()
    assert world.take(make_batch(INFO, [3], first=False)).followed


def test_an_empty_batch_is_a_sign_of_life_and_fetches_commands(world: World) -> None:
    world.take(make_batch(INFO, []))
    run = world.runs.get("one")
    assert run is not None
    asked = run.ask("settings", changes={"every": 5})
    assert world.take(make_batch(INFO, [], first=False)).commands == (asked,)
    done = make_batch(INFO, [], first=False, commands_done=asked.number)
    assert world.take(done).commands == ()


def test_a_trainer_accepts_commands_after_a_server_whose_clock_was_ahead(world: World) -> None:
    done = int(time.time() * 1000) + 2 * 3600 * 1000
    world.take(make_batch(INFO, [], commands_done=done))
    run = world.runs.get("one")
    assert run is not None
    asked = [run.ask("settings", changes={"every": 5}), *run.ask_snapshots(make_taps(2)), run.ask("inventory")]
    assert [command.number for command in asked] == [done + 1, done + 2, done + 3, done + 4]
    assert world.take(make_batch(INFO, [], first=False, commands_done=done)).commands == tuple(asked)
    assert world.take(make_batch(INFO, [], first=False, commands_done=done + 3)).commands == tuple(asked[3:])


def test_a_trainer_that_repeats_what_a_killed_server_had_accepts_commands_whatever_the_clock(world: World) -> None:
    done = int(time.time() * 1000) + 2 * 3600 * 1000
    world.take(make_batch(INFO, [], commands_done=done, retained=7))
    run = world.runs.get("one")
    assert run is not None
    asked = run.ask("settings", changes={"every": 5})
    assert asked.number == done + 1
    assert world.take(make_batch(INFO, [], commands_done=done)).commands == (asked,)


def test_reasons_that_a_trainer_makes_up_are_one_in_the_metrics(world: World) -> None:
    dropped = {"queue-full": 1, "spool-full": 2, **{f"{'x' * 900} {number}": 1 for number in range(90)}}
    world.take(make_batch(INFO, [], counters=wire.DeliveryCounters(produced=200, dropped=dropped)))
    text = world.client.get("/metrics").text
    found = re.findall(r'hookcore_run_unsent_total\{reason="([^"]*)",run="one"\} (\d+)\.0', text)
    assert found == [("queue-full", "1"), ("spool-full", "2"), ("other", "90")]


def test_unfetched_commands_are_dropped_oldest_first_and_counted(world: World) -> None:
    world.take(make_batch(INFO, []))
    run = world.runs.get("one")
    assert run is not None
    asked = [run.ask("inventory") for _ in range(parts.MAX_COMMANDS + 1)]
    assert not [name for name, _, _ in _events(world) if name != "command-dropped"]
    assert len(_events(world)) == 1
    asked.append(run.ask("inventory"))
    assert len(_events(world)) == 1  # not one event per command
    assert world.client.get("/api/v1/overview").json()["dropped"] == {"commands queue-full": 2}
    assert world.take(make_batch(INFO, [], first=False)).commands == tuple(asked[2:])


def test_repeated_and_late_items_are_stored_once(world: World) -> None:
    batches = [make_batch(INFO, [step, step + 1], first=step == 0) for step in range(0, 20, 2)]
    shuffled = random.Random(1)
    for number, batch in enumerate(batches):
        world.take(batch)
        for again in shuffled.choices(batches[: number + 1], k=3):
            assert world.take(again).acknowledged == 2 * number + 1
    assert world.means() == (list(range(20)), [float(step) for step in range(20)])


def test_a_batch_that_skips_taps_is_refused_and_the_answer_lists_known_taps(world: World) -> None:
    answer = world.take(make_batch(INFO, [0], first=False))
    assert (answer.acknowledged, answer.taps) == (-1, 0)
    assert world.take(make_batch(INFO, [0])).acknowledged == 0


def test_a_removed_run_whose_trainer_still_sends_starts_again(world: World) -> None:
    world.take(make_batch(INFO, [0, 1]))
    assert world.runs.remove("one")
    assert world.take(make_batch(INFO, [2], first=False)).taps == 0
    assert world.take(make_batch(INFO, [2])).acknowledged == 2
    assert world.means() == ([2], [2.0])


def test_a_run_that_was_removed_after_its_end_stays_so_when_its_trainer_asks_whether_it_is_saved(world: World) -> None:
    ended = make_batch(INFO, [], items=(make_batch(INFO, [0]).items[0], wire.EndItem(1, 0)))
    world.take(ended)
    assert world.runs.remove("one")
    answer = world.take(make_batch(INFO, [], first=False))
    assert (answer.acknowledged, answer.saved) == (1, True)
    assert not world.runs.all()
    assert world.take(make_batch(make_info(key="of a new start"), [])).acknowledged == -1
    assert [run.id for run in world.runs.all()] == ["one"]


def test_a_run_shown_from_a_file_can_be_continued_only_by_its_trainer(world: World) -> None:
    world.take(make_batch(INFO, [0, 1]))
    run = world.runs.get("one")
    assert run is not None
    run.saved.from_disk = True
    _refused(world, make_batch(make_info(key="of a new start"), [2]), 403, "another trainer")
    assert world.means()[0] == [0, 1]


def test_a_clock_that_runs_backwards_changes_no_order() -> None:
    now = [100.0]
    world = make_world(lambda: now[0])
    for step in range(5):
        now[0] -= 1000.0
        frame = make_frame(step)
        item = wire.frame_item(step, frame)
        backwards = msgspec.structs.replace(item, time_s=1e9 - 3600.0 * step)
        world.take(make_batch(INFO, [], taps=2, items=(backwards,)))
    run = world.runs.get("one")
    assert run is not None
    assert run.state == "live"
    assert world.means() == (list(range(5)), [0.0, 1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("name", ["", "../etc", "a/b", "a b", "x" * 65, "naïve", "a\n", "%2e"])
def test_a_run_id_that_is_unsafe_in_a_url_is_refused(world: World, name: str) -> None:
    _refused(world, make_batch(make_info(name), [0]), 422, "64 letters")
    assert world.runs.all() == []


def test_a_run_can_be_continued_only_with_its_key(world: World) -> None:
    world.take(make_batch(INFO, [0]))
    _refused(world, make_batch(make_info(key="guessed"), [1], first=False), 403, "another trainer")
    _refused(world, make_batch(make_info(key="schlüssel"), [1], first=False), 403, "another trainer")
    assert world.means()[0] == [0]


def test_a_full_server_says_so_and_when_to_retry() -> None:
    world = make_world(max_runs=1)
    world.take(make_batch(INFO, [0]))
    response = world.post(make_batch(make_info("two"), [0]))
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) > 0
    assert "no room" in response.json()["error"]
    assert world.means()[0] == [0]


def test_an_ended_run_makes_room() -> None:
    world = make_world(max_runs=1)
    ended = make_batch(INFO, [], items=(wire.EndItem(0, 0),))
    world.take(ended)
    world.take(make_batch(make_info("two"), [0]))
    assert [run.id for run in world.runs.all()] == ["two"]


def test_many_short_runs_are_kept() -> None:
    """An ended run claims only the memory that it uses, not what it could have used."""
    world = make_world(memory=64_000_000)
    for number in range(20):
        world.take(make_batch(make_info(f"run-{number}"), [0, 1]))
        world.take(make_batch(make_info(f"run-{number}"), [], first=False, items=(wire.EndItem(2, 1),)))
    assert len(world.runs.all()) == 20


@pytest.mark.parametrize("kind", ["application/json", "", "text/plain", "application/octet-stream"])
def test_a_body_of_another_type_is_refused(world: World, kind: str) -> None:
    assert world.post(make_batch(INFO, [0]), **{"Content-Type": kind}).status_code == 415


def test_an_unsupported_encoding_is_refused_by_name(world: World) -> None:
    _refused(world, make_batch(INFO, [0]), 415, "br", **{"Content-Encoding": "br"})


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_a_compressed_batch_is_decompressed(world: World, name: str, pack: Any) -> None:
    response = world.post(pack(wire.encode(make_batch(INFO, [0, 1]))), **{"Content-Encoding": name})
    assert response.status_code == 200
    assert world.means()[0] == [0, 1]


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_a_truncated_or_invalid_compressed_batch_is_refused(world: World, name: str) -> None:
    pack = gzip.compress if name == "gzip" else zstandard.compress
    whole = pack(wire.encode(make_batch(INFO, [0, 1])))
    for damaged in (whole[:-9], whole[:20], b"", b"nonsense", whole + b"more"):
        assert world.post(damaged, **{"Content-Encoding": name}).status_code == 422, damaged[:30]
    assert world.runs.all() == []


@pytest.mark.parametrize(("name", "pack"), [("gzip", zlib.compress), ("zstd", zstandard.compress)])
def test_a_small_body_that_unpacks_to_a_huge_one_is_refused(name: str, pack: Any) -> None:
    world = make_world(max_body=2**20)
    bomb = gzip.compress(bytes(50 * 2**20)) if name == "gzip" else pack(bytes(50 * 2**20))
    assert len(bomb) < 2**17
    _refused(world, bomb, 413, "exceeds 1048576", **{"Content-Encoding": name})
    world.take(make_batch(INFO, [0]))


def test_a_body_that_is_too_large_is_refused_with_and_without_an_announced_length() -> None:
    world = make_world(max_body=100_000)

    def pieces() -> Any:
        for _ in range(20):
            yield bytes(10_000)

    _refused(world, bytes(100_001), 413, "larger than 100000")
    response = world.client.post("/api/v1/ingest", content=pieces(), headers=BATCH)
    assert response.status_code == 413
    world.take(make_batch(INFO, [0]))


def _snapshot(**others: Any) -> wire.SnapshotItem:
    values = np.zeros((2, 3), np.float32)
    item = wire.snapshot_item(0, Snapshot(Tap("a", "output"), 0, 0.0, "float32", (2, 3), values))
    return msgspec.structs.replace(item, **others)


def _frame_item(**others: Any) -> wire.FrameItem:
    return msgspec.structs.replace(wire.frame_item(0, make_frame(0)), **others)


WRONG: dict[str, dict[str, Any]] = {
    "a huge name of a layer": {"taps": (Tap("x" * 10_000_000, "output"),)},
    "a huge name of a run": {"run": make_info(name="x" * 1001)},
    "a run without a key": {"run": make_info(key="")},
    "huge settings": {"run": make_info(settings={"x": "y" * 100_000})},
    "deep settings": {"run": make_info(settings={"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}})},
    "settings that JSON can't represent": {"run": make_info(settings={"x": b"bytes"})},
    "settings with NaN": {"run": make_info(settings={"x": float("nan")})},
    "a start at no time": {"run": make_info(started_s=float("nan"))},
    "a start before 1970": {"run": make_info(started_s=-1e13)},
    "a start after all calendars": {"run": make_info(started_s=1e13)},
    "a frame of no time": {"items": (_frame_item(time_s=float("inf")),)},
    "an event after all calendars": {"items": (_frame_item(events=(Event(0, 1e13, "told", ""),)),)},
    "a rank beyond the last": {"run": make_info(place=wire.Place(job="job", rank=4, world=4))},
    "a job that is unsafe in a URL": {"run": make_info(place=wire.Place(job="a/b", rank=0, world=1))},
    "a coordinate beyond its axis": {"run": make_info(place=wire.Place(job="j", rank=0, world=4, axes={"x": (2, 2)}))},
    "a world of billions": {"run": make_info(place=wire.Place(job="job", rank=0, world=10**10))},
    "settings of a type that pages do not expect": {"run": make_info(settings={"kinds": 7})},
    "a list where a number is expected": {"run": make_info(settings={"every": [1]})},
    "settings of many small values": {"run": make_info(settings={"x": [[]] * 6000})},
    "a snapshot of a shape that no array has": {"items": (_snapshot(shape=(2**52, 2**52, 0), values=b""),)},
    "counts below zero": {"items": (_frame_item(stats=np.full(26, -1.0).tobytes()),)},
    "too many taps": {"taps_from": 200_000},
    "taps from below zero": {"taps_from": -1},
    "items that do not ascend": {"items": (_frame_item(number=1), _frame_item(number=1))},
    "an item below zero": {"items": (_frame_item(number=-1),)},
    "a step below zero": {"items": (_frame_item(step=-1),)},
    "a step that JSON cannot say": {"items": (wire.EndItem(0, 2**60),)},
    "half a number": {"items": (_frame_item(stats=bytes(7)),)},
    "too few stats": {"items": (_frame_item(stats=bytes(8)),)},
    "more taps than stats": {"items": (_frame_item(taps=bytes(400)),)},
    "a lying sketch": {"items": (_frame_item(start=np.array([0, 5, 9], "<u4").tobytes()),)},
    "a sketch that goes back": {"items": (_frame_item(start=np.array([0, 9, 0], "<u4").tobytes()),)},
    "a huge name of a scalar": {"items": (_frame_item(scalars={"x" * 1001: 1.0}),)},
    "too many scalars": {"items": (_frame_item(scalars=dict.fromkeys(map(str, range(10_001)), 1.0)),)},
    "a huge label": {"items": (_frame_item(labels={"x": "y" * 1001}),)},
    "a huge message": {"items": (_frame_item(events=(Event(0, 0.0, "told", "x" * 16_385),)),)},
    "an event with too many facts": {
        "items": (_frame_item(events=(Event(0, 0.0, "told", "", about=dict.fromkeys(map(str, range(101)))),)),)
    },
    "an event with a huge fact": {
        "items": (_frame_item(events=(Event(0, 0.0, "told", "", about={"x": "y" * 16_385}),)),)
    },
    "an event with a fact that JSON cannot say": {
        "items": (_frame_item(events=(Event(0, 0.0, "told", "", about={"x": 2**60}),)),)
    },
    "too many labels": {"items": (_frame_item(labels=dict.fromkeys(map(str, range(101)), "")),)},
    "a snapshot of objects": {"items": (_snapshot(stored="object"),)},
    "a snapshot of another size": {"items": (_snapshot(shape=(2, 4)),)},
    "a snapshot larger than all memory": {"items": (_snapshot(shape=(2**40, 2**40), truncated=False),)},
    "a snapshot of a shape below zero": {"items": (_snapshot(shape=(-2, -3)),)},
    "commands of a time that never comes": {"commands_done": 2**60},
    "accounts below zero": {"counters": wire.DeliveryCounters(produced=-1)},
    "another schema": {"schema": 99},
}


@pytest.mark.parametrize("case", WRONG)
def test_an_invalid_batch_leaves_no_trace(world: World, case: str) -> None:
    response = world.post(_with(WRONG[case]))
    assert response.status_code == 422, response.text
    assert len(response.json()["error"]) < 2000
    assert world.runs.all() == []
    world.take(make_batch(INFO, [0, 1]))
    assert world.means() == ([0, 1], [0.0, 1.0])


def _with(wrong: dict[str, Any]) -> wire.Batch:
    return wire.Batch(**{"run": INFO, "taps": make_taps(2), "items": (), **wrong})


def test_a_damaged_item_invalidates_the_whole_batch(world: World) -> None:
    world.take(make_batch(INFO, [0]))
    good = wire.frame_item(1, make_frame(1))
    batch = make_batch(INFO, [], first=False, items=(good, _frame_item(number=2, stats=bytes(8))))
    assert world.post(batch).status_code == 422
    assert world.means()[0] == [0]
    assert world.take(make_batch(INFO, [1, 2], first=False)).acknowledged == 2
    assert world.means()[0] == [0, 1, 2]


GOOD = wire.encode(
    make_batch(
        INFO,
        [0, 1],
        items=(wire.frame_item(0, make_frame(0, events=(make_event(0),), scalars={"loss": 1.0})), _snapshot(number=1)),
    )
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a batch with some bytes changed, cut off, inserted, or removed."""
    data = bytearray(GOOD)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "cut", "insert", "remove", "length"])):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=9))
            case "remove":
                del data[at : at + draw(st.integers(1, 20))]
            case "length":  # lengths of four bytes that announce data which never arrives
                data[at : at + 5] = bytes([draw(st.sampled_from([0xDB, 0xDD, 0xDF, 0xC6, 0xC9]))]) + b"\xff" * 4
    return bytes(data)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.one_of(damaged(), st.binary(max_size=200)))
def test_any_bytes_are_stored_or_refused_and_the_store_stays_consistent(body: bytes) -> None:
    world = _SHARED
    response = world.post(body)
    assert response.status_code in (200, 403, 422, 429), response.text
    for run in world.runs.all():
        if run.id != "good":
            world.runs.remove(run.id)
    good = world.runs.get("good")
    following = 0 if good is None else good.received.acknowledged + 1
    answer = world.take(make_batch(make_info("good"), [following], first=following == 0))
    assert answer.acknowledged == following
    steps, means = world.means("good")
    assert steps[-1] == following
    assert means[-1] == following
    if response.status_code == 200 or following % 10 == 0:  # rendering it takes most of the time
        assert world.client.get("/runs/good").status_code == 200


_SHARED = make_world()


@pytest.mark.parametrize("byte", [0x91, 0x81])
def test_a_body_with_endless_nesting_is_refused(world: World, byte: int) -> None:
    run = msgspec.msgpack.encode({"schema": 1, "run": msgspec.to_builtins(INFO)})
    for body in (bytes([byte]) * 1_000_000, run[:-1] + bytes([byte]) * 100_000):
        assert world.post(body).status_code == 422


def test_ten_thousand_layers_are_accepted(world: World) -> None:
    answer = world.take(make_batch(INFO, [0, 1], taps=10_000))
    assert answer.taps == 10_000
    assert world.means(tap=9_999) == ([0, 1], [0.0, 1.0])


def test_events_beyond_the_limit_are_dropped_and_counted() -> None:
    world = make_world(lambda: 0.0)  # on a busy machine, a pause would cause another event
    info = make_info(memory=2**24)
    world.take(make_batch(info, []))
    for number in range(8):
        events = tuple(make_event(2_500 * number + each) for each in range(2_500))
        world.take(
            make_batch(info, [], first=False, items=(wire.frame_item(number, make_frame(number, events=events)),))
        )
    run = world.runs.get("one")
    assert run is not None
    usage = run.store.usage()
    assert usage.nbytes <= usage.max_bytes
    taken, kept = run.store.events_after(0)
    assert taken == 20_000
    assert kept[-1].step == 19_999
    assert 0 < len(kept) < 20_000


def test_sixteen_trainers_at_once_lose_and_duplicate_nothing() -> None:
    steps, width = 40, 4

    def train(number: int, url: str) -> None:
        info = make_info(f"run-{number}")
        with httpx2.Client() as client:
            for step in range(0, steps, width):
                body = wire.encode(make_batch(info, range(step, step + width), taps=30, first=step == 0))
                for _ in range(2):  # each batch is sent twice, as after a lost answer
                    response = client.post(f"{url}/api/v1/ingest", content=body, headers={**BATCH, **BEARER})
                    assert response.status_code == 200, response.text

    with served() as server, ThreadPoolExecutor(16) as pool:
        list(pool.map(train, range(16), [server.url] * 16))
        for number in range(16):
            run = server.runs.get(f"run-{number}")
            assert run is not None
            assert run.store.steps().count == run.store.steps().frames == steps
            series = run.store.series(29, "mean")
            assert series.mean.tolist() == [float(step) for step in range(steps)]


def test_the_folder_for_a_run_is_used_only_on_the_users_own_dashboard() -> None:
    told = []

    class Keeper:
        def opened(self, run: Any, may_name_folder: bool) -> None:
            told.append((run.id, may_name_folder))

    for settings_given, headers in (
        ({"token": TOKEN}, BEARER),
        ({"token": TOKEN, "dashboard": True}, BEARER),
        ({"dashboard": True}, {}),
    ):
        world = make_world(**settings_given)
        world.app.state.keeper = Keeper()
        assert world.post(make_batch(INFO, [0]), **headers).status_code == 200
        assert world.post(make_batch(INFO, [1], first=False), **headers).status_code == 200
    assert told == [("one", False), ("one", True), ("one", False)]


def test_a_trainer_needs_the_token_that_permits_changes() -> None:
    world = make_world(token=TOKEN, read_token=READ_TOKEN)
    batch = make_batch(INFO, [0])
    assert world.post(batch).status_code == 401
    assert world.post(batch, Authorization="Bearer wrong").status_code == 401
    assert world.post(batch, Authorization=f"Bearer {READ_TOKEN}").status_code == 403
    assert world.post(batch, **BEARER).status_code == 200


def test_every_refusal_is_counted(world: World) -> None:
    world.post(b"nonsense")
    world.post(b"nonsense", **{"Content-Type": "text/csv"})
    world.take(make_batch(INFO, [0, 1]))
    intake = world.app.state.intake
    assert (intake.refused, intake.batches, intake.items) == ({422: 1, 415: 1}, 1, 2)
    assert json.dumps(world.client.get("/metrics").text).count("hookcore_items_total 2.0") == 1


def test_small_bodies_that_unpack_to_millions_of_values_take_little_memory() -> None:
    empty_maps = b"\xdd\x01\x00\x00\x00" + b"\x80" * 2**24
    run = {"id": "a", "key": "k", "name": "n", "settings": {"x": msgspec.Raw(empty_maps)}}
    body = zstandard.compress(msgspec.msgpack.encode({"schema": 1, "run": run}))
    assert len(body) < 5000
    headers = {**BATCH, **BEARER, "Content-Encoding": "zstd"}
    with served(memory=50_000_000) as server, ThreadPoolExecutor(6) as pool:
        tracemalloc.start()
        try:
            url = f"{server.url}/api/v1/ingest"
            answers = list(pool.map(lambda _: httpx2.post(url, content=body, headers=headers), range(6)))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert {answer.status_code for answer in answers} == {422}
        assert peak < 50_000_000  # they are unpacked one at a time, and not decoded
        assert server.runs.all() == []


def test_some_of_many_concurrent_large_batches_are_asked_to_retry() -> None:
    head = (
        f"POST /api/v1/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: {wire.CONTENT_TYPE}\r\nContent-Length: 100000\r\n\r\n"
    ).encode()
    with served(max_body=100_000) as server, ExitStack() as stack:
        opened = [stack.enter_context(server.connect()) for _ in range(4)]
        for connection in opened:
            connection.sendall(head + bytes(99_999))
        wait_for(lambda: server.app.state.intake.waiting_bytes == 4 * 99_999)
        with server.connect() as fifth:
            fifth.sendall(head + bytes(50_000))
            answer = read_all(fifth)
            assert answer.startswith(b"HTTP/1.1 429")
            assert b"retry-after" in answer.lower()
        for connection in opened:
            connection.sendall(b"x")
            assert connection.recv(12) == b"HTTP/1.1 422"
        wait_for(lambda: server.app.state.intake.waiting_bytes == 0)
        body = wire.encode(make_batch(INFO, [0]))
        assert httpx2.post(f"{server.url}/api/v1/ingest", content=body, headers={**BATCH, **BEARER}).status_code == 200


def test_at_most_two_threads_receive_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, leave, take = [], threading.Event(), Run.take

    def wait(run: Run, batch: wire.Batch) -> wire.Receipt:
        inside.append(run.id)
        leave.wait(20)
        return take(run, batch)

    monkeypatch.setattr(Run, "take", wait)
    batches = [wire.Batch(run=make_info(name), items=()) for name in ("a", "b", "c", "d")]
    with ThreadPoolExecutor(len(batches)) as pool:
        answers = [pool.submit(world.post, batch) for batch in batches]
        wait_for(lambda: len(inside) == 2)
        assert not world.app.state.intake.busy.acquire(blocking=False)
        leave.set()
        assert [each.result().status_code for each in answers] == [200] * 4
    assert sorted(inside) == ["a", "b", "c", "d"]


def _events(world: World) -> list[tuple[str, str, int]]:
    run = world.runs.get("one")
    assert run is not None
    return [(event.name, event.message, event.count) for event in run.store.events_after(0)[1]]


def test_a_trainer_that_returns_after_a_silence_is_an_event() -> None:
    now = [0.0]
    world = make_world(lambda: now[0])
    for step, at in enumerate((0.0, 1.0, 2.0)):
        now[0] = at
        world.take(make_batch(INFO, [step], first=step == 0))
    assert _events(world) == []
    now[0] = 14.0
    world.take(make_batch(INFO, [3], first=False))
    assert _events(world) == [("reconnected", "the trainer is back after 12 s without a message", 1)]


def test_a_trainer_that_switches_servers_is_one_event(world: World) -> None:
    counters = wire.DeliveryCounters(produced=8, acknowledged=7, in_flight=1)
    for step in (7, 8):
        world.take(make_batch(INFO, [step], first=step == 7, counters=counters))
    [(name, message, _)] = _events(world)
    assert name == "reconnected"
    assert "7 records (frames or snapshots) that it received" in message


def test_frames_that_a_trainer_could_not_send_are_one_event_in_ten_seconds() -> None:
    now = [0.0]
    world = make_world(lambda: now[0])
    for step, dropped in enumerate((0, 3, 5, 5, 9, 9)):
        now[0] = 4.0 * step
        world.take(
            make_batch(INFO, [step], first=step == 0, counters=wire.DeliveryCounters(dropped={"queue-full": dropped}))
        )
    assert [(name, count) for name, _, count in _events(world)] == [("frame-dropped", 3), ("frame-dropped", 6)]


def test_frames_that_a_trainer_could_not_send_at_its_end_are_an_event_too() -> None:
    world = make_world(lambda: 0.0)
    for step, dropped in enumerate((3, 5)):
        world.take(
            make_batch(INFO, [step], first=step == 0, counters=wire.DeliveryCounters(dropped={"queue-full": dropped}))
        )
    end, counters = wire.EndItem(number=2, step=1), wire.DeliveryCounters(dropped={"queue-full": 6})
    world.take(wire.Batch(run=INFO, taps_from=2, items=(end,), counters=counters))
    assert [(name, count) for name, _, count in _events(world)] == [("frame-dropped", 3), ("frame-dropped", 3)]


def test_commands_sent_at_the_same_time_reach_the_trainer_in_the_order_of_their_numbers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.take(make_batch(INFO, [0]))
    run = world.runs.get(INFO.id)
    assert run is not None
    other = threading.Thread(target=lambda: run.ask("inventory"))
    make = parts.Command

    def interrupted(*given: Any, **more: Any) -> Any:
        """Let another thread try to send a command after this one got its number."""
        if not other.ident:
            other.start()
            other.join(0.2)
        return make(*given, **more)

    monkeypatch.setattr(parts, "Command", interrupted)
    run.ask("inventory")
    other.join()
    numbers = [command.number for command in run.commands]
    assert len(numbers) == 2
    assert numbers == sorted(numbers)


def test_lost_data_is_shown_wherever_it_was_lost(world: World) -> None:
    world.take(make_batch(INFO, [0], counters=wire.DeliveryCounters(dropped={"queue-full": 7})))
    assert world.client.get("/api/v1/overview").json()["dropped"] == {"sender queue-full": 7}
    for page in (f"/runs/{INFO.id}", "/settings", f"/api/v1/report?run={INFO.id}"):
        text = world.client.get(page, headers={"Accept": "text/html"}).text
        assert re.search("sender queue-full:? *7", text), page
        assert "Nothing was lost" not in text
        assert "lack of memory" not in text


def test_frames_of_a_batch_are_filed_together_as_if_each_had_come_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together, alone, many = make_world(), make_world(), list[int]()
    extend = Store.extend
    monkeypatch.setattr(Store, "extend", lambda store, frames: (many.append(len(frames)), extend(store, frames))[1])
    together.take(make_batch(INFO, [0]))
    together.take(make_batch(INFO, [1, 2, 3], first=False))
    assert many == [1, 3]
    for step in range(4):
        alone.take(make_batch(INFO, [step], first=not step))
    assert together.means() == alone.means() == ([0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0])


def test_a_description_of_a_run_is_checked_whenever_it_is_another_one(world: World) -> None:
    world.take(make_batch(INFO, [0]))
    long, odd = msgspec.structs.replace(INFO, group="x" * 1001), msgspec.structs.replace(INFO, settings={"every": "x"})
    _refused(world, make_batch(long, [1], first=False), 422, "a string of 1001 characters")
    _refused(world, make_batch(odd, [1], first=False), 422, "every=x in its settings")
    world.take(make_batch(INFO, [1], first=False))
    assert world.means() == ([0, 1], [0.0, 1.0])
