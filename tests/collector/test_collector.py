"""The collector: acknowledged data reaches the server exactly once, or is counted as lost, whatever is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from starlette.testclient import TestClient

from hookcore.delivery.http import Address, HttpSink
from hookcore.errors import ArgumentError
from hookcore.records import STATS, Command, ModuleRecord, Tap
from hookcore.records.wire import (
    Batch,
    DeliveryCounters,
    Description,
    EndItem,
    Receipt,
    decode_answer,
    decode_batch,
    encode,
    frame_item,
)
from hookcore_app import cli
from hookcore_app.clickhouse.native import Answer as Found
from hookcore_app.collector import cutter, feed
from hookcore_app.collector import feed as cuts
from hookcore_app.collector.cutter import Cutter
from hookcore_app.collector.feed import CutError, Cuts, Feed, Share
from hookcore_app.collector.lanes import Lanes
from hookcore_app.collector.service import create_collector
from hookcore_app.collector.spool import UNSEALED, Record, Segment, Spool, SpoolError
from hookcore_app.settings import CollectorSettings, ServerSettings
from tests.lanes import examples
from tests.receiver import Receiver, a_frame, a_run, serving
from tests.serving import BATCH, TOKEN, make_batch
from tests.waiting import wait_for
from tests.warm import python

NEVER_S = float("inf")
TAPS = (Tap("a", "output"), Tap("b", "output"), Tap("c", "param"))
ROOT = Path(__file__).parents[2]


# -- the spool ---------------------------------------------------------------------------------------------------------


RECORD = 36 + len("run") + 500  # bytes per record


def _filled(folder: Path, *, count: int = 5, limit: int = 10**6, segment: int = 2000) -> Spool:
    spool = Spool(folder, limit, NEVER_S, segment)
    for number in range(count):
        spool.append("run", number, number, 1, bytes([number]) * 500)
    return spool


def test_records_survive_a_restart_in_order(tmp_path: Path) -> None:
    _filled(tmp_path).close()
    again = Spool(tmp_path, 10**6, NEVER_S, 2000)
    records = list(again.recover())
    assert [record.first for record in records] == [0, 1, 2, 3, 4]
    assert [again.read(record) for record in records] == [bytes([number]) * 500 for number in range(5)]
    assert again.nbytes == sum(path.stat().st_size for path in tmp_path.glob("*.spool"))


@pytest.mark.parametrize("cut", [1, 40, 499, 520])
def test_a_record_that_was_written_in_part_is_cut_off_and_the_rest_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    _filled(tmp_path).close()
    last = max(tmp_path.glob("*.spool"))
    os.truncate(last, last.stat().st_size - cut)
    again = Spool(tmp_path, 10**6, NEVER_S, 2000)
    assert [record.first for record in again.recover()] == [0, 1, 2, 3]
    assert "an unfinished record" in caplog.text
    assert again.damaged == 0, "the record was never acknowledged"
    record = again.append("run", 9, 9, 1, b"more")
    assert again.read(record) == b"more"
    assert [record.first for record in Spool(tmp_path, 10**6, NEVER_S, 2000).recover()] == [0, 1, 2, 3, 9]


@pytest.mark.parametrize("at", [0, 4, 5, 7, 12, 13, 14, 16, 23, 24, 31, 32, 35])
def test_records_after_a_damaged_header_are_found_and_the_damage_is_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    _filled(tmp_path, segment=10**6).close()
    (path,) = tmp_path.glob("*.spool")
    _change(path, RECORD + at, lambda byte: byte ^ 255)
    for count in range(5, 7):
        again = Spool(tmp_path, 10**6, NEVER_S, 10**6)
        records = list(again.recover())
        assert [record.first for record in records] == [0, 2, 3, 4, 9][: count - 1]
        assert [len(again.read(record)) for record in records] == [500] * (count - 1)
        assert again.damaged == 1
        assert again.nbytes == path.stat().st_size
        again.append("run", 9, 9, 1, bytes(500))
        again.close()
    assert f"{path} is damaged: bytes {RECORD} to {2 * RECORD - 1} contain no readable record" in caplog.text


def test_a_damaged_end_is_removed_and_counted(tmp_path: Path) -> None:
    _filled(tmp_path, segment=10**6).close()
    (path,) = tmp_path.glob("*.spool")
    with path.open("ab") as file:
        file.write(bytes(1000))  # as after a power failure
    for damaged in (1, 0):
        again = Spool(tmp_path, 10**6, NEVER_S)
        assert len(list(again.recover())) == 5
        assert again.damaged == damaged
    assert path.stat().st_size == 5 * RECORD


def test_a_spool_of_an_earlier_release_without_header_checksums_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("hookcore_app.collector.spool.seal_of", lambda _folder: UNSEALED)
        _filled(tmp_path, segment=10**6).close()
    (path,) = tmp_path.glob("*.spool")
    for record in range(5):
        for byte in (14, 15):
            _change(path, record * RECORD + byte, lambda _: 0)
    _change(path, RECORD, lambda _: 0)  # the mark of the second record
    again = Spool(tmp_path, 10**6, NEVER_S, 10**6)
    assert [record.first for record in again.recover()] == [0, 2, 3, 4]
    assert again.damaged == 1
    again.append("run", 5, 5, 1, b"sealed")
    assert len(list(tmp_path.glob("*.spool"))) == 2  # a file has records of one kind
    later = Spool(tmp_path, 10**6, NEVER_S, 10**6)
    assert [record.first for record in later.recover()] == [0, 2, 3, 4, 5]


def test_no_payload_is_taken_for_a_record_after_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forged = UNSEALED.head_of("other", 777, 777, 1, 4, UNSEALED.checksum_of("other", b"fake")) + b"fake"
    spool = Spool(tmp_path, 10**7, NEVER_S, 10**7)
    for number, payload in enumerate((b"first", forged * 1000 + UNSEALED.mark * 200_000, b"last")):
        spool.append("run", number, number, 1, payload)
    spool.close()
    (path,) = tmp_path.glob("*.spool")
    _change(path, 36 + len("run") + len(b"first") + 12, lambda byte: byte ^ 255)
    looked = []
    record_at = Segment.record_at
    monkeypatch.setattr(Segment, "record_at", lambda *given: looked.append(1) or record_at(*given))
    again = Spool(tmp_path, 10**7, NEVER_S, 10**7)
    assert [(record.run, record.first) for record in again.recover()] == [("run", 0), ("run", 2)]
    assert again.damaged == 1
    assert len(looked) < 10  # or a trainer could keep a collector from starting


@pytest.mark.parametrize("put", ["link", "other name", "pipe", "folder"])
def test_what_is_not_a_plain_file_of_the_spool_is_neither_read_nor_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, put: str
) -> None:
    folder, victim = tmp_path / "spool", tmp_path / "victim"
    folder.mkdir()
    victim.write_bytes(b"precious")
    for number in (0, 1):
        path = folder / f"{number:012d}.spool"
        if put == "link":
            path.symlink_to(victim)
        elif put == "other name" and not number:
            os.link(victim, path)
        elif put == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
    spool = Spool(folder, 10**6, NEVER_S)
    assert list(spool.recover()) == []
    assert spool.damaged == 2
    assert "000000000000.spool can't be read" in caplog.text
    spool.append("run", 0, 0, 1, b"payload")
    spool.close()
    assert (folder / "000000000002.spool").is_file()
    assert victim.read_bytes() == b"precious"


def test_a_head_is_only_of_the_run_that_its_file_is_named_after(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lanes = Lanes(tmp_path / "spool", 10**7, NEVER_S)
    for run in ("aa", "bb"):
        batch = make_batch(a_run(run), range(4))
        lanes.take(batch, encode(batch))
    lanes.close()
    heads = tmp_path / "spool"
    (heads / "bb.head").write_bytes((heads / "aa.head").read_bytes())
    outside = msgspec.structs.replace(decode_batch((heads / "aa.head").read_bytes()), run=a_run("../outside"))
    (heads / "cc.head").write_bytes(encode(outside))
    again = Lanes(heads, 10**7, NEVER_S)
    assert [(lane.info.id, lane.waiting) for lane in again.all()] == [("aa", 4)]
    assert again.dropped == {"spool-damaged": 4}
    assert "bb.head can't be read (it is about a run of another name, 'aa')" in caplog.text
    again.close()
    assert not list(tmp_path.glob("*.head"))


def test_the_descriptions_of_runs_are_counted_and_limited(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path / "spool", 10**6, NEVER_S)
    taken, why = 0, ""
    while not why:
        batch = make_batch(a_run(f"run-{taken}"), [0])
        modules = tuple(ModuleRecord(f"layer.{index}" * 20, "Linear", "", 0, 0) for index in range(200))
        try:
            lanes.take(msgspec.structs.replace(batch, description=Description(0, modules)), b"payload")
            taken += 1
        except SpoolError as error:
            why = str(error)
    assert "--spool-limit" in why
    assert 2 < taken < 20
    written = sum(path.stat().st_size for path in (tmp_path / "spool").glob("*.head"))
    assert lanes.spool.heads_nbytes == written < 500_000
    lanes.close()
    again = Lanes(tmp_path / "spool", 10**6, NEVER_S)
    assert again.spool.heads_nbytes >= written - taken * 100
    for lane in again.all():
        lane.forget()
    assert again.spool.heads_nbytes == 0
    again.close()


@pytest.mark.parametrize("name", ["key", "id"])
def test_a_damaged_secret_of_a_spool_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"short")
    with pytest.raises(ArgumentError, match=f"{name} is damaged"):
        Cuts(tmp_path) if name == "id" else Spool(tmp_path, 10**6, NEVER_S)


@pytest.mark.parametrize("note", [b"{", b"[]", b"\xff", b"[" * 100_000, None])
def test_a_damaged_note_of_a_segment_is_set_aside_and_the_others_are_repeated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, note: bytes | None
) -> None:
    cuts = Cuts(tmp_path)
    sound = [cuts.cut(0, 1, [Share("run", 0, 0, 1, -1, ((number, number),), number)]) for number in range(2)]
    path = tmp_path / "000000009000.cut"
    if note is None:
        os.mkfifo(path)
    else:
        path.write_bytes(note)
    again = Cuts(tmp_path)
    assert again.unfinished() == sound
    assert f"{path} can't be read" in caplog.text
    assert again.cut(0, 1, []).number == 9001
    later = Cuts(tmp_path)
    assert [cut.number for cut in later.unfinished()] == [0, 1, 9001]
    assert later.cut(0, 1, []).number == 9002


def _change(path: Path, at: int, how: Callable[[int], int]) -> None:
    data = bytearray(path.read_bytes())
    data[at] = how(data[at])
    path.write_bytes(data)


def test_a_damaged_record_is_not_read(tmp_path: Path) -> None:
    spool = _filled(tmp_path, count=1)
    (path,) = tmp_path.glob("*.spool")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (record,) = Spool(tmp_path, 10**6, NEVER_S).recover()
    with pytest.raises(SpoolError, match="damaged"):
        spool.read(record)


def test_beyond_the_limit_the_oldest_segment_is_dropped_and_its_contents_are_counted(tmp_path: Path) -> None:
    spool = _filled(tmp_path, count=20, limit=5000)
    assert spool.nbytes <= 5000 + 2000
    gone = [record.first for record in spool.gone]
    assert gone == list(range(len(gone)))
    assert [record.first for record in Spool(tmp_path, 5000, NEVER_S).recover()] == list(range(len(gone), 20))


def test_a_segment_is_removed_when_its_records_are_no_longer_needed(tmp_path: Path) -> None:
    spool = _filled(tmp_path)
    for record in Spool(tmp_path, 10**6, NEVER_S, 2000).recover():
        assert record
    for segment in list(spool.segments.values()):
        for record in list(segment.records):
            spool.release(record)
    assert len(list(tmp_path.glob("*.spool"))) == 1  # the file that is being written
    spool.append("run", 9, 9, 1, bytes(1900))
    assert len(list(tmp_path.glob("*.spool"))) == 1


def test_a_full_disk_is_an_error_that_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = _filled(tmp_path, count=1)
    before = spool.nbytes
    writev = os.writev

    def half(file: int, parts: list[bytes]) -> int:
        writev(file, [parts[0]])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", half)
    with pytest.raises(SpoolError, match="No space left"):
        spool.append("run", 1, 1, 1, b"x" * 100)
    monkeypatch.undo()
    spool.append("run", 2, 2, 1, b"y")
    assert [record.first for record in Spool(tmp_path, 10**6, NEVER_S).recover()] == [0, 2]
    assert spool.nbytes > before


def until_full(spool: Spool, size: int) -> list[Record]:
    records = []
    with suppress(SpoolError):
        while True:
            records.append(spool.append("run", 0, 0, 1, bytes(size)))
    return records


def test_a_full_disk_is_freed_when_the_server_has_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 3 * 2**20
    writev = os.writev

    def limited(file: int, parts: list[bytes]) -> int:
        if sum(path.stat().st_size for path in tmp_path.iterdir()) + sum(map(len, parts)) > room:
            raise OSError(28, "No space left on device")
        return writev(file, parts)

    monkeypatch.setattr(os, "writev", limited)
    spool = Spool(tmp_path, 10**9, NEVER_S)
    for size in (2**19, 2**10):
        records = until_full(spool, size)
        assert records
        for record in records:
            spool.release(record)
        assert spool.nbytes == 0
        assert not list(tmp_path.glob("*.spool"))


def test_two_collectors_do_not_share_a_spool(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, 10**6, NEVER_S)
    with pytest.raises(ValueError, match="in use by another collector"):
        Lanes(tmp_path, 10**6, NEVER_S)
    lanes.close()
    Lanes(tmp_path, 10**6, NEVER_S).close()


# -- from a trainer to a server, with random faults --------------------------------------------------------------------


class _Disk:
    durable, given_up = -1, ""

    def room_for(self, records: Sequence[object]) -> int:
        return len(records)

    def miss(self, count: int) -> None:
        pass


class Collected(RuleBasedStateMachine):
    """A trainer, a collector that is killed, and a server that loses whatever isn't on its disk."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.receiver = Receiver()
        self.now = 0.0
        self.limit = 10**6
        self.lanes = self._start()
        self.produced = self.acknowledged = 0  # items of the trainer
        self.known_taps = 0
        self.described = -1
        self.version = 0
        self.server_items: list[int] = []
        self.disk = _Disk()
        self.dropped: Counter[str] = Counter()

    def _start(self) -> Lanes:
        return Lanes(self.folder, self.limit, NEVER_S, lambda: self.now)

    def teardown(self) -> None:
        for _ in range(10):
            self.the_collector_sends()
            self.the_server_writes_to_its_disk()
        self.the_collector_sends()
        assert self.receiver.stored == list(range(self.acknowledged))
        assert all(not lane.waiting and lane.is_empty and not lane.dropped for lane in self.lanes.all())
        self.lanes.close()
        shutil.rmtree(self.folder)

    @rule(items=st.integers(0, 3), taps=st.integers(0, 3), repeated=st.booleans())
    def the_trainer_sends(self, items: int, taps: int, repeated: bool) -> None:
        known = max(self.known_taps, taps)
        first = self.acknowledged
        frames = [
            frame_item(number, a_frame(number, taps=tuple(range(max(1, known)))))
            for number in range(first, first + items)
        ]
        batch = Batch(
            run=a_run(),
            taps_from=self.known_taps,
            taps=TAPS[self.known_taps : max(known, 1 if items else 0)],
            description=Description(self.version, (ModuleRecord("a", "Linear", ""),))
            if self.version > self.described
            else None,
            items=tuple(frames),
            counters=DeliveryCounters(produced=first + items, acknowledged=first, in_flight=items),
        )
        for _ in range(1 + repeated):
            answer = self.lanes.take(batch, encode(batch))
        assert answer.acknowledged == first + items - 1 or not items
        self.acknowledged = max(self.acknowledged, answer.acknowledged + 1)
        self.known_taps, self.described = answer.taps, answer.described

    @rule()
    def the_trainer_describes_more(self) -> None:
        self.version += 1

    @rule()
    def the_collector_sends(self) -> None:
        for lane in self.lanes.all():
            sent = lane.next_batch()
            lane.on_answer(sent, self._arrive(sent))

    @rule()
    def the_collector_sends_and_hears_nothing(self) -> None:
        for lane in self.lanes.all():
            self._arrive(lane.next_batch())

    def _arrive(self, batch: Batch) -> Receipt:
        run = self.receiver.runs.open(batch.run)
        assert run is not None
        run.saved.on_disk = self.disk
        return self.receiver.take(batch)

    @rule()
    def the_server_writes_to_its_disk(self) -> None:
        run = self.receiver.runs.get("run")
        self.disk.durable = -1 if run is None else run.received.acknowledged

    @rule()
    def the_server_is_killed(self) -> None:
        """Restart the server with the data on its disk."""
        run = self.receiver.runs.get("run")
        self.receiver.stored = [step for step in self.receiver.stored if step <= self.disk.durable]
        self.receiver.forget()
        if run is not None and self.disk.durable >= 0:
            again = self.receiver.runs.open(a_run())
            assert again is not None
            again.store.announce(run.store.taps().taps)
            again.received.acknowledged, again.received.described = self.disk.durable, -1

    @rule(torn=st.booleans(), is_killed=st.booleans())
    def the_collector_restarts(self, torn: bool, is_killed: bool) -> None:
        if is_killed:
            os.close(self.lanes.lock_file)
            for segment in self.lanes.spool.segments.values():
                segment.close()
        else:
            self.lanes.close()
        if torn and (segments := sorted(self.folder.glob("*.spool"))):
            with segments[-1].open("ab") as file:
                file.write(b"hcs1 the beginning of a record")
        self.lanes = self._start()

    @invariant()
    def nothing_is_stored_twice(self) -> None:
        assert len(set(self.receiver.stored)) == len(self.receiver.stored)


TestCollected = Collected.TestCase
TestCollected.settings = settings(deadline=None, max_examples=examples(200), stateful_step_count=30)


# -- before ClickHouse -------------------------------------------------------------------------------------------------


class Cutting:
    """Runs with frames of about `FRAME` bytes, whose segments are cut for an empty ClickHouse."""

    FRAME = 200_000

    def __init__(self, folder: Path, runs: int) -> None:
        self.now = 100.0
        self.lanes = Lanes(folder, 10**9, NEVER_S, lambda: self.now)
        self.shard: Any = SimpleNamespace(number=0, read=lambda sql: Found({}), insert=lambda *given: None)
        cluster: Any = SimpleNamespace(shards=[self.shard])
        self.cutter = Cutter(self.lanes, cluster, 5.0, lambda: self.now)
        self.sent = [0] * runs  # frames
        self.cuts: list[list[str]] = []  # the runs in each segment
        self.most_bytes = 0  # bytes of the items in memory

    def send(self, number: int, step: int) -> None:
        """Let a run send a frame, and let the collector cut the segments that are due."""
        rows, item = self.FRAME // (8 * len(STATS)), self.sent[number]
        taps = tuple(Tap(f"layers.{tap}", "output") for tap in range(rows)) if not item else ()
        made = frame_item(item, a_frame(step, taps=tuple(range(rows))))
        about = {"taps": taps} if taps else {"taps_from": rows}
        batch = Batch(run=a_run(f"run-{number}"), items=(made,), **about)  # type: ignore[arg-type]
        self.lanes.take(batch, encode(batch))
        self.sent[number] += 1
        self.look()

    def look(self) -> None:
        self.cutter.follow()
        for each in self.cutter.feeds.values():
            each.shard = 0
        while (job := self.cutter.next(self.shard)) is not None:
            if job.cut is not None:
                self.cuts.append([share.run for share in job.cut.shares])
                self.cutter.on_stored(job.cut)
        self.most_bytes = max(self.most_bytes, sum(each.nbytes for each in self.cutter.feeds.values()))

    def waiting(self) -> list[int]:
        return [lane.waiting for lane in self.lanes.all()]


@pytest.fixture
def cutting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cutting]:
    """Return eight runs and a collector whose segments have room for about four frames."""
    monkeypatch.setattr(cutter, "MAX_BYTES", 4 * Cutting.FRAME)
    monkeypatch.setattr(feed, "STEP_BYTES", 4 * Cutting.FRAME)
    made = Cutting(tmp_path, 8)
    yield made
    made.lanes.close()


def test_newest_steps_that_fill_a_segment_neither_block_nor_truncate_anything(cutting: Cutting) -> None:
    for step in range(6):
        for run in range(8):
            cutting.send(run, step)
    cutting.now += 5
    cutting.look()
    assert cutting.waiting() == [1] * 8, "the newest step of each"
    assert len(cutting.cuts) <= 3 * 6, "one step of all runs makes two segments"
    assert cutting.most_bytes < (8 + 4 + 1) * Cutting.FRAME * 1.1


def test_runs_that_another_process_inserts_leave_room_for_the_others(
    cutting: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cutting.cutter.homes, "ours", lambda shard, feeds: [each for each in feeds if each.lane.info.id == "run-7"]
    )
    for step in range(8):
        for run in range(8):
            cutting.send(run, step)
    assert cutting.waiting() == [8] * 7 + [1]
    assert cutting.most_bytes < (4 + 8 + 8 + 1) * Cutting.FRAME * 1.1


def test_a_step_that_does_not_end_stays_in_bounded_memory(cutting: Cutting) -> None:
    for _ in range(20):
        cutting.send(0, 7)
    assert len(cutting.cuts) >= 3
    assert cutting.most_bytes < 6 * Cutting.FRAME * 1.1
    assert cutting.waiting()[0] <= 5


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def _collector(folder: Path, to: str, **given: object) -> TestClient:
    settings_ = CollectorSettings(to, spool=str(folder / "spool"), sync=NEVER_S, **given)  # type: ignore[arg-type]
    app = create_collector(ServerSettings(), settings_)
    return TestClient(app, base_url="http://127.0.0.1:8643", raise_server_exceptions=False)


def _post(client: TestClient, batch: Batch) -> Receipt:
    response = client.post("/api/v1/ingest", content=encode(batch), headers=BATCH)
    assert response.status_code == 200, response.text
    return decode_answer(response.content)


@contextmanager
def _forwarding(client: TestClient) -> Iterator[None]:
    state = client.app.state
    state.forwarder.start()
    try:
        yield
    finally:
        state.forwarder.close()
        state.lanes.close()


def test_a_batch_is_forwarded_with_taps_and_description_and_commands_come_back(tmp_path: Path) -> None:
    receiver = Receiver()
    with serving(receiver) as url:
        client = _collector(tmp_path, url)
        description = Description(0, (ModuleRecord("a", "Linear", ""),))
        with _forwarding(client):
            first = _post(client, make_batch(a_run(), [0, 1, 2], description=description))
            assert (first.acknowledged, first.durable, first.taps, first.described) == (2, 2, 2, 0)
            wait_for(lambda: receiver.stored == [0, 1, 2])
            assert [module.path for module in receiver.run().store.modules()] == ["a"]
            receiver.run().ask("inventory")
            wait_for(lambda: _post(client, make_batch(a_run(), [], first=False)).commands)
            (command,) = _post(client, make_batch(a_run(), [], first=False)).commands
            assert isinstance(command, Command)
            done = _post(client, make_batch(a_run(), [], first=False, commands_done=command.number))
            assert not done.commands
            wait_for(lambda: not receiver.run().commands)


def test_while_the_server_is_away_everything_waits_and_arrives_later(tmp_path: Path) -> None:
    receiver = Receiver()
    with serving(receiver) as url:
        pass  # only to get a free port
    client = _collector(tmp_path, url)
    with _forwarding(client):
        for step in range(50):
            _post(client, make_batch(a_run(), [step], first=step == 0))
        metrics = client.get("/metrics").text.splitlines()
        assert "hookcore_waiting_items 50.0" in metrics
        assert "hookcore_server_reachable 0.0" in metrics
        with serving(receiver, port=int(url.rpartition(":")[2])):
            wait_for(lambda: receiver.stored == list(range(50)))
            wait_for(lambda: "hookcore_waiting_items 0.0" in client.get("/metrics").text)


def test_a_run_that_the_server_refuses_is_named_in_the_log_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver()
    receiver.before = lambda batch: 403 if batch.run.id == "taken" else None
    with serving(receiver) as url:
        client = _collector(tmp_path, url)
        with _forwarding(client):
            for run in ("taken", "free"):
                _post(client, make_batch(a_run(run), [0, 1]))
            wait_for(lambda: receiver.stored == [0, 1])
            wait_for(lambda: "hookcore_collector_runs_waiting 1.0" in client.get("/metrics").text)
            receiver.before = lambda batch: None
            wait_for(lambda: receiver.stored == [0, 1, 0, 1])
            wait_for(lambda: "hookcore_collector_runs_waiting 0.0" in client.get("/metrics").text)
    (told,) = {record.getMessage() for record in caplog.records if "waits in the spool" in record.getMessage()}
    assert "the run taken waits in the spool: the server answered 403" in told


def test_an_item_the_server_will_never_accept_is_dropped_alone_and_reported_to_the_server(tmp_path: Path) -> None:
    receiver = Receiver()
    receiver.before = lambda batch: 422 if any(item.number == 2 for item in batch.items) else None
    with serving(receiver) as url:
        client = _collector(tmp_path, url)
        with _forwarding(client):
            _post(client, make_batch(a_run(), [0, 1, 2, 3]))
            _post(client, Batch(run=a_run(), taps_from=2, items=(EndItem(4, 3),), counters=DeliveryCounters(5, 4)))
            wait_for(lambda: receiver.run().end.step is not None)
            assert receiver.stored == [0, 1, 3]
            assert "hookcore_items_dropped_total{" in client.get("/metrics").text
            assert receiver.run().received.counters.dropped == {"refused": 1}


def test_a_frame_that_the_server_refuses_does_not_stop_its_run_even_if_it_was_a_batch_by_itself(tmp_path: Path) -> None:
    lanes, receiver = Lanes(tmp_path, 10**9, NEVER_S), Receiver()
    for step in range(4):
        batch = make_batch(a_run(), [step], first=step == 0, counters=DeliveryCounters(step + 1, step, in_flight=1))
        lanes.take(batch, encode(batch))
    (lane,) = lanes.all()
    for _ in range(20):
        sent = lane.next_batch()
        if any(item.number == 2 for item in sent.items):
            lane.on_refusal(sent)
        else:
            lane.on_answer(sent, receiver.take(sent))
    assert receiver.stored == [0, 1, 3]
    assert lane.is_empty
    assert lane.dropped == {"refused": 1}
    lanes.close()


def test_a_description_that_the_server_refuses_delays_no_frame(tmp_path: Path) -> None:
    lanes, receiver = Lanes(tmp_path, 10**9, NEVER_S), Receiver()
    refusals = 0
    for step in range(4):
        description = Description(0, (ModuleRecord("a", "Linear", ""),)) if step == 0 else None
        batch = make_batch(a_run(), [step], first=step == 0, description=description)
        lanes.take(batch, encode(batch))
        (lane,) = lanes.all()
        while lane.waiting:
            sent = lane.next_batch()
            if sent.description is not None:
                lane.on_refusal(sent)
                refusals += 1
            else:
                lane.on_answer(sent, receiver.take(sent))
    assert receiver.stored == [0, 1, 2, 3]
    assert refusals == 3, "with the first frame, and twice by itself"
    lanes.close()


def test_a_server_that_asks_for_a_day_of_rest_is_asked_again_within_a_minute(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, 10**9, NEVER_S, lambda: 100.0)
    lanes.take(batch := make_batch(a_run(), [0]), encode(batch))
    (lane,) = lanes.all()
    lane.on_failure("the server answered 503", 86_400.0)
    assert 110.0 < lane.due_at() < 160.0
    lanes.close()


def test_items_that_the_server_has_are_not_counted_if_the_rest_of_their_batch_is_dropped(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, 10**9, NEVER_S)
    lanes.take(batch := make_batch(a_run(), list(range(5))), encode(batch))
    (lane,) = lanes.all()
    lane.on_answer(lane.next_batch(), Receipt(acknowledged=2, taps=2, described=-1))
    assert lane.waiting == 2
    lane.lose(lane.records(), "spool-full")
    assert lane.dropped == {"spool-full": 2}
    assert lane.waiting == 0
    lanes.close()


def test_items_dropped_by_a_full_spool_are_counted_at_the_server(tmp_path: Path) -> None:
    receiver = Receiver()
    client = _collector(tmp_path, "http://127.0.0.1:9", spool_limit=1_000_000)
    lanes = client.app.state.lanes  # type: ignore[attr-defined]
    lanes.spool.limit_bytes = 100_000
    for step in range(400):
        _post(
            client, make_batch(a_run(), [step], first=step == 0, counters=DeliveryCounters(step + 1, step, in_flight=1))
        )
    (lane,) = lanes.all()
    dropped = lane.dropped["spool-full"]
    assert 0 < dropped < 400
    assert lanes.spool.nbytes <= 100_000
    while lane.waiting:
        sent = lane.next_batch()
        lane.on_answer(sent, receiver.take(sent))
    assert receiver.stored == list(range(dropped, 400))
    told = receiver.run().received.counters
    assert told.dropped == {"spool-full": dropped}
    assert told.produced == told.acknowledged + dropped + told.waiting
    lanes.close()


def test_items_dropped_by_a_full_spool_are_not_counted_if_they_are_in_flight(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, 10**9, NEVER_S)
    for step in range(4):
        batch = make_batch(a_run(), [step], first=step == 0)
        lanes.take(batch, encode(batch))
    (lane,) = lanes.all()
    feed = Feed(lane)
    feed.fill(10**6)
    lane.lose(lane.records()[:3], "spool-full")
    assert not lane.dropped
    assert (len(feed.items), lane.waiting) == (4, 4)
    lane.on_stored(0)
    assert lane.waiting == 3
    feed.restart(-1)  # nothing more of it can be inserted, and the disk has only the last item
    assert lane.dropped == {"spool-full": 2}
    assert lane.waiting == 1
    lanes.close()


def test_the_rest_of_a_large_batch_does_not_keep_the_whole_batch_on_disk(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, 10**9, NEVER_S)
    taps = tuple(Tap(f"layers.{number}", "output") for number in range(200))
    for steps in (range(4), range(4, 6)):
        items = tuple(frame_item(step, a_frame(step, taps=tuple(range(len(taps))))) for step in steps)
        about = {"taps": taps} if steps.start == 0 else {"taps_from": len(taps)}
        lanes.take(batch := Batch(run=a_run(), items=items, **about), encode(batch))  # type: ignore[arg-type]
    (lane,) = lanes.all()
    feed = Feed(lane)
    feed.fill(10**9)
    lane.on_stored(2)
    assert [(each.first, each.last, each.count) for each in lane.records()] == [(3, 3, 1), (4, 5, 2)]
    assert lane.waiting == 3
    assert sum(each.size for each in lane.records()) < 4 * 25_000
    lane.on_stored(2)  # no change
    assert lane.waiting == 3
    lanes.close()
    again = Lanes(tmp_path, 10**9, NEVER_S)  # it also finds the whole batch, because the file still has it
    (lane,) = again.all()
    assert [(each.first, each.last, each.count) for each in lane.records()] == [(3, 3, 1), (4, 5, 2)]
    assert lane.waiting == 3
    lane.on_stored(5)
    assert not any(segment.records for segment in again.spool.segments.values())
    again.close()


def test_a_repeated_segment_has_each_item_once_whatever_its_trainer_repeated(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, 10**9, NEVER_S)
    for steps in (range(4), range(2, 6), range(5, 8)):
        batch = make_batch(a_run(), list(steps), first=steps.start == 0)
        lanes.take(batch, encode(batch))
    (lane,) = lanes.all()
    piece = Feed(lane).repeat(Share("run", 0, 0, 1, 0, ((1, 2), (4, 6)), 6))
    assert [item.number for item in piece.items] == [1, 2, 4, 5, 6]
    lanes.close()


def test_a_note_that_frees_disk_space_can_be_written_to_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a note, nothing can be inserted, so nothing would ever leave the disk."""
    made = Cuts(tmp_path)

    def full(path: Path) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cuts, "whole_file", full)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    for number in range(3):
        cut = made.cut(0, 1, [Share("run", 0, 0, 1, -1, ((number, number),), number)])
        again = Cuts(tmp_path)  # in a process that starts after this one was killed
        assert again.unfinished() == [cut]
        with pytest.raises(CutError):
            made.cut(0, 1, [])  # there is room for one of them
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) == size
        made.finish(cut)
        made.finish(cut)
        assert made.unfinished() == []
        assert Cuts(tmp_path).next_number == number + 1
    with pytest.raises(CutError):
        made.cut(0, 1, [Share("r" * 100, 0, 0, 1, -1, (), 0)] * 1000)
    monkeypatch.undo()
    small = made.cut(0, 1, [])
    made.finish(small)
    assert Cuts(tmp_path).next_number == small.number + 1
    assert len(list(tmp_path.glob("*.inserted"))) == 1


def test_a_full_disk_refuses_the_batch_and_the_trainer_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = _collector(tmp_path, "http://127.0.0.1:9")

    def full(file: int, parts: list[bytes]) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    response = client.post("/api/v1/ingest", content=encode(make_batch(a_run(), [0])), headers=BATCH)
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    assert "No space left" in response.json()["error"]
    monkeypatch.undo()
    assert _post(client, make_batch(a_run(), [0])).acknowledged == 0


def test_a_spool_with_damaged_headers_says_so_in_the_metrics(tmp_path: Path) -> None:
    client = _collector(tmp_path, "http://127.0.0.1:9")
    for step in range(3):
        _post(client, make_batch(a_run(), [step], first=step == 0))
    lanes = client.app.state.lanes  # type: ignore[attr-defined]
    begin = lanes.all()[0].records()[0].offset + lanes.all()[0].records()[0].size
    lanes.close()
    (path,) = (tmp_path / "spool").glob("*.spool")
    _change(path, begin + 16, lambda _: 200)  # the number of its first item
    again = _collector(tmp_path, "http://127.0.0.1:9")
    metrics = again.get("/metrics").text
    assert "hookcore_spool_damaged_total 1.0" in metrics
    assert "hookcore_waiting_items 2.0" in metrics
    assert _post(again, make_batch(a_run(), [3], first=False)).acknowledged == 3
    again.app.state.lanes.close()  # type: ignore[attr-defined]


def test_another_trainer_cannot_add_to_a_run(tmp_path: Path) -> None:
    client = _collector(tmp_path, "http://127.0.0.1:9")
    _post(client, make_batch(a_run(), [0]))
    other = encode(make_batch(a_run().__class__(id="run", key="wrong", name="run"), [1]))
    response = client.post("/api/v1/ingest", content=other, headers=BATCH)
    assert response.status_code == 403


def test_a_finished_run_is_forgotten_when_the_server_has_all_of_it(tmp_path: Path) -> None:
    now = [0.0]
    lanes, receiver = Lanes(tmp_path, 10**6, NEVER_S, lambda: now[0]), Receiver()
    batch = Batch(run=a_run(), taps=TAPS, items=(frame_item(0, a_frame(0)), EndItem(1, 0)))
    lanes.take(batch, encode(batch))
    (lane,) = lanes.all()
    now[0] = 1000.0
    lanes.forget_finished()
    assert lanes.all() == [lane]  # nothing has been delivered yet
    sent = lane.next_batch()
    lane.on_answer(sent, receiver.take(sent))
    now[0] = 2000.0
    lanes.forget_finished()
    assert lanes.all() == []
    assert not list(tmp_path.glob("*.head"))
    assert lanes.take(batch, encode(batch)).acknowledged == 1  # its trainer repeats its last batch
    lanes.close()


def test_a_browser_is_redirected_to_the_server(tmp_path: Path) -> None:
    client = _collector(tmp_path, "https://box:8642/")
    answer = client.get("/runs/one/flow?f=x", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "https://box:8642/runs/one/flow?f=x")
    assert client.get("/api/v1/runs").status_code == 404
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--to", "box:8642"], "to='box:8642' is neither the address of a server"),
        (["--to", "http://box", "--spool-limit", "1kB"], "at least 1MB"),
        (["--to", "http://box", "--spool-limit", "much"], "spool_limit='much'"),
        (["--to", "http://box", "--sync", "soon"], "sync='soon'"),
        (["--to", "http://box", "--host", "0.0.0.0", "--token", "short"], "shorter than 16"),
    ],
)
def test_a_wrong_flag_is_named(
    given: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["collect", "--port", "0", "--spool", str(tmp_path), *given]) == 2
    assert words in capsys.readouterr().err


# -- real processes ----------------------------------------------------------------------------------------------------


class Process:
    """A collector process with a fixed port and spool."""

    def __init__(self, folder: Path, to: str) -> None:
        self.folder, self.to, self.port = folder, to, 0
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [python(), "-m", "hookcore_app.cli", "collect", "--to", self.to, "--port", str(self.port)]
        environment = {**os.environ, "HOOKCORE_TOKEN": TOKEN, "HOOKCORE_HOME": str(self.folder)}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "collects at http://127.0.0.1:" in line, line
        self.port = int(line.partition("http://127.0.0.1:")[2].partition("/")[0])

    def stop(self, how: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait()


def close_at_once(sinks: Sequence[HttpSink]) -> None:
    """End the threads of a test that has failed, so that its second try needn't wait for them."""
    for sink in sinks:
        sink.limit_close_time(0.0)
        sink.close()


@pytest.mark.slow
def test_a_collector_that_is_killed_repeatedly_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    """Eight ranks send while the collector is killed; the server is killed too, without losing its disk."""
    receiver = Receiver()
    with serving(receiver) as url, ExitStack() as at_failure:
        collector = Process(tmp_path, url)
        collector.start()
        sinks = [HttpSink(a_run(f"rank-{rank}"), close_s=60) for rank in range(8)]
        for sink in sinks:
            sink.start(Address(f"http://127.0.0.1:{collector.port}", TOKEN))
        done = threading.Event()
        at_failure.callback(close_at_once, sinks)
        at_failure.callback(done.set)

        def train(sink: HttpSink) -> None:
            step = 0
            while not done.is_set():
                sink.send(a_frame(step, TAPS[:1] if step == 0 else (), padding=2000))
                step += 1
                done.wait(0.02)

        threads = [threading.Thread(target=train, args=(sink,)) for sink in sinks]
        for thread in threads:
            thread.start()
        for _ in range(examples(6)):
            before = receiver.items_sent()
            wait_for(lambda before=before: receiver.items_sent() > before + 100)  # type: ignore[misc]
            collector.stop()
            collector.start()
        done.set()
        for thread in threads:
            thread.join()
        for sink in sinks:
            assert sink.flush(60.0)
            sink.close()
        runs = [receiver.run(f"rank-{rank}") for rank in range(8)]
        wait_for(lambda: all(run.end.step is not None for run in runs))
        for sink, run in zip(sinks, runs, strict=True):
            assert sink.counters.dropped == {}
            steps = run.store.steps()
            assert (steps.first, steps.count, steps.frames) == (0, sink.counters.produced, sink.counters.produced)
        assert collector.stop(signal.SIGTERM) == 0
        at_failure.pop_all()
