"""`hookcore collect --to clickhouse://...`: acknowledged data is in ClickHouse exactly once, whatever is killed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from hookcore.records import ModuleRecord, Tap
from hookcore.records.wire import Batch, Description, EndItem, Place, frame_item
from hookcore_app.clickhouse import client as clickhouse_client
from hookcore_app.clickhouse import schema
from hookcore_app.clickhouse.client import Shard, UnreachableError
from hookcore_app.clickhouse.reading import description_of, listed, names_of
from hookcore_app.clickhouse.schema import SchemaError, number_of_run, rank_shards
from hookcore_app.clickhouse.writing import Sign
from hookcore_app.collector import cutter, feed
from hookcore_app.collector import feed as homes
from hookcore_app.collector import lanes as lane
from hookcore_app.collector.cutter import Job
from hookcore_app.collector.feed import CutError, Cuts
from tests.clickhouse.conftest import Connect
from tests.clickhouse.nodes import DATABASE, Node, running
from tests.clickhouse.nodes import Cluster as Nodes
from tests.clickhouse.world import (
    TAPS,
    Collector,
    Trainers,
    a_frame,
    collecting,
    count_once,
    database_of,
    wait_until_stored,
)
from tests.ports import free_port
from tests.receiver import a_run
from tests.waiting import wait_for

NEVER_S = float("inf")
pytestmark = pytest.mark.slow


# -- the schema --------------------------------------------------------------------------------------------------------


def _tables(shard: Shard, url: str) -> set[str]:
    found = shard.read(f"SELECT name FROM system.tables WHERE database = '{database_of(url)}'")
    return {name.decode() for name in found.texts("name")}


@pytest.mark.clickhouse("18.16", "26")
def test_the_tables_are_made_once_and_found_again(url: str, connected: Connect) -> None:
    first = _tables(connected(url), url)
    assert {"rows", "rollups", "sketches", "items", "runs", "versions"} <= first
    assert _tables(connected(url), url) == first
    versions = connected(url).read("SELECT version FROM versions ORDER BY version").numbers("version").tolist()
    assert versions == list(range(1, len(schema.MIGRATIONS) + 1))


def _statements(*statements: str, ran: list[str] | None = None) -> Callable[[schema.Server], Iterator[str]]:
    def yield_all(server: schema.Server) -> Iterator[str]:
        for statement in statements:
            if ran is not None:
                ran.append(statement)
            yield statement

    return yield_all


@pytest.mark.clickhouse("18.16", "26")
def test_an_older_schema_is_migrated_step_by_step_and_keeps_its_data(url: str, connected: Connect) -> None:
    ran: list[str] = []
    first = _statements("CREATE TABLE IF NOT EXISTS a (x UInt8) ENGINE = Memory", ran=ran)
    second = _statements(
        "CREATE TABLE IF NOT EXISTS b AS a ENGINE = Memory", "INSERT INTO b SELECT x + 1 FROM a", ran=ran
    )
    connected(url, first).do("INSERT INTO a SELECT 7")
    assert len(ran) == 1
    for _ in range(2):
        assert connected(url, first, second).read("SELECT x FROM b").numbers("x").tolist() == [8]
    assert len(ran) == 3


@pytest.mark.clickhouse("18.16", "26")
def test_a_schema_of_a_later_release_is_refused_with_a_clear_message(url: str, connected: Connect) -> None:
    connected(url).do("INSERT INTO versions SELECT 99, now(), 'hookcore 7.0'")
    with pytest.raises(SchemaError, match=r"has schema 99, and this hookcore \(a test\) knows up to \d+"):
        connected(url).read("SELECT 1")


def test_a_wrong_password_and_an_unreachable_server_are_distinguished(nodes: Nodes, connected: Connect) -> None:
    with pytest.raises(clickhouse_client.ClickHouseError, match="Wrong password"):
        connected(nodes.url.replace("secret", "wrong")).read("SELECT 1")
    port = free_port()
    with pytest.raises(UnreachableError, match=f"127.0.0.1:{port}: ConnectionRefused"):
        connected(f"clickhouse://127.0.0.1:{port}").read("SELECT 1")


def test_a_connection_that_clickhouse_closes_after_three_seconds_is_not_used_again(
    url: str, connected: Connect
) -> None:
    shard = connected(url)
    shard.read("SELECT 1 AS one")
    time.sleep(3.5)
    assert shard.read("SELECT 1 AS one").one("one") == 1
    assert not shard.nodes[0].trouble


# -- one collector in this process -------------------------------------------------------------------------------------


@pytest.mark.clickhouse("18.16", "26")
def test_a_run_is_stored_with_names_description_items_and_signs_of_life(
    collector: Collector, url: str, nodes: Nodes, connected: Connect
) -> None:
    description = Description(3, (ModuleRecord("layers.0", "Linear", ""),))
    collector.send(range(10), description=description)
    collector.end(10)
    collector.wait()
    node, database = nodes.nodes[0], database_of(url)
    count_once([node], database, {"run": 10})
    shard = connected(url)
    run = number_of_run("run")
    lanes = shard.read(f"SELECT lane, content FROM lanes WHERE run = {run} ORDER BY lane")
    taps = [msgspec.msgpack.decode(each, type=Tap) for each in lanes.texts("content")[: len(TAPS)]]
    assert tuple(taps) == TAPS
    names = {msgspec.msgpack.decode(each) for each in lanes.texts("content")[len(TAPS) :]}
    assert names == {"loss", "hookcore/time_s"}
    (described,) = shard.read(f"SELECT content FROM descriptions WHERE run = {run}").texts("content")
    assert msgspec.msgpack.decode(described, type=Description) == description
    wait_for(lambda: _sign(shard, "run").stored == 10)
    sign = _sign(shard, "run")
    assert sign.has_ended
    assert sign.info.name == "run"
    assert a_run("run").key not in repr(sign), "the key is a secret of the trainer"


def _sign(shard: Shard, run: str) -> Sign:
    where = f"run = {number_of_run(run)} ORDER BY version DESC LIMIT 1"
    (content,) = shard.read(f"SELECT content FROM runs WHERE {where}").texts("content")
    return msgspec.msgpack.decode(content, type=Sign)


@pytest.mark.clickhouse("18.16", "26")
def test_the_newest_step_waits_for_its_other_parts(collector: Collector, url: str, nodes: Nodes) -> None:
    node, database = nodes.nodes[0], database_of(url)
    collector.send(range(3))
    wait_until_stored([node], database, {"run": 2})
    assert node.ask("SELECT max(step) FROM items", database) == "1"
    part = a_frame(2, value=7.0)
    collector.post(Batch(run=a_run(), taps_from=len(TAPS), items=(frame_item(3, part),)))
    collector.post(Batch(run=a_run(), taps_from=len(TAPS), items=(frame_item(4, a_frame(3)), EndItem(5, 3))))
    collector.wait()
    rows = "SELECT uniqExact(step), count() FROM rows WHERE lane = 0 AND role"
    assert node.ask(f"{rows} > 0", database).split() == ["4", "4"]
    assert node.ask(f"{rows} = 2", database).split() == ["1", "1"]
    assert node.ask("SELECT sum(present) FROM rollups WHERE lane = 0 AND level = 3", database) == "4"


def test_the_newest_step_of_a_restarted_rank_does_not_wait_a_minute(
    collector: Collector, url: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "REPLACED_S", 0.0)
    for attempt in range(2):
        place = Place(job="job", rank=0, world=2, attempt=attempt)
        info = msgspec.structs.replace(a_run(f"attempt-{attempt}"), place=place, started_s=1e9 + attempt)
        items = tuple(frame_item(step, a_frame(step)) for step in range(3))
        collector.post(Batch(run=info, taps=TAPS, items=items))
    wait_until_stored([nodes.nodes[0]], database_of(url), {"attempt-0": 3})
    where = f"run = {number_of_run('attempt-1')}"
    assert nodes.nodes[0].ask(f"SELECT count() FROM items WHERE {where}", database_of(url)) in ("0", "2")


@pytest.mark.clickhouse("18.16", "26")
def test_a_repeated_batch_is_stored_once_and_a_damaged_frame_is_counted(
    collector: Collector, url: str, nodes: Nodes
) -> None:
    collector.send(range(4))
    collector.send(range(4))
    bad = msgspec.structs.replace(frame_item(4, a_frame(4)), stats=b"x" * 7)
    collector.post(Batch(run=a_run(), taps_from=len(TAPS), items=(bad,)))
    collector.end(5)
    collector.wait()
    count_once(nodes.nodes, database_of(url), {"run": 4})
    assert 'hookcore_items_dropped_total{reason="refused"} 1.0' in collector.client.get("/metrics").text


@pytest.mark.clickhouse("18.16", "26")
def test_runs_of_several_days_are_in_separate_partitions(collector: Collector, url: str, nodes: Nodes) -> None:
    for day in range(3):
        info = msgspec.structs.replace(a_run(f"run-{day}"), started_s=86_400.0 * (20_000 + day))
        item = frame_item(0, a_frame(0))
        collector.post(Batch(run=info, taps=TAPS, items=(item, EndItem(1, 0))))
    collector.wait()
    partitions = "SELECT uniqExact(partition), count() > 0 FROM system.parts WHERE active AND table = 'rows'"
    database = database_of(url)
    assert nodes.nodes[0].ask(f"{partitions} AND database = '{database}'", database).split() == ["3", "1"]
    count_once(nodes.nodes, database, {f"run-{day}": 1 for day in range(3)})


def test_a_collector_says_where_it_writes_without_the_password(collector: Collector, url: str) -> None:
    said = collector.client.get("/runs/1")
    assert said.status_code == 404
    assert "`hookcore serve --store` shows its runs" in said.json()["error"]
    assert "secret" not in said.text
    metrics = collector.client.get("/metrics").text
    assert "hookcore_inserted_segments_total 0.0" in metrics


@pytest.mark.parametrize(("every", "expected"), [(1, [105.5, 111.0]), (12, [111.0, 117.0])])
def test_live_runs_are_inserted_as_often_as_is_set_although_their_newest_steps_always_wait(
    tmp_path: Path, url: str, every: int, expected: list[float]
) -> None:
    now = 100.0
    collector = Collector(tmp_path, url, insert=5.0)
    collector.inserter.cutter.clock = lambda: now
    slot, cut_at = collector.inserter.slots[0], []
    for turn in range(60):
        for run in range(2):
            step, is_due = divmod(turn - run * every // 2, every)  # half a step apart
            if step >= 0 and not is_due:
                collector.send(range(step, step + 1), f"run-{run}")
        collector.inserter.step()
        cut_at += [now for job in slot.jobs if job.cut is not None]
        slot.jobs.clear()
        now += 0.5
    collector.stop()
    assert cut_at[:2] == expected


@pytest.mark.parametrize(("most", "inserts"), [(cutter.MAX_NAMES, 1), (14, 3)])
def test_runs_that_begin_together_are_named_in_one_insert_if_there_are_not_too_many(
    tmp_path: Path, url: str, connected: Connect, monkeypatch: pytest.MonkeyPatch, most: int, inserts: int
) -> None:
    monkeypatch.setattr(cutter, "MAX_NAMES", most)
    collector, shard = Collector(tmp_path, url), connected(url)
    models = {f"run-{number}": Description(0, (ModuleRecord(str(number), "Linear", ""),)) for number in range(5)}
    for run, model in models.items():
        collector.send(range(1), run, description=model)
        collector.end(1, run)
    collector.inserter.step()  # finds the shards
    collector.inserter.step()
    (job,) = collector.inserter.slots[0].jobs
    assert [table.name for table, _ in job.names] == ["lanes"] * inserts + ["descriptions"]
    collector.inserter.start()
    collector.wait()
    collector.stop()
    for run, model in models.items():
        taps, scalars = names_of(shard, number_of_run(run))
        assert (taps, set(scalars)) == (TAPS, {"loss", "hookcore/time_s"})
        assert description_of(shard, number_of_run(run)) == model


# -- killed ------------------------------------------------------------------------------------------------------------


def _restarted(old: Collector, folder: Path, url: str) -> Collector:
    """Return a collector that takes over where another one stopped."""
    os.close(old.lanes.lock_file)
    old.inserter.cluster.close()
    return Collector(folder, url)


@pytest.mark.clickhouse("18.16", "26")
@pytest.mark.parametrize("inserted", range(6))
def test_a_segment_partly_inserted_by_a_killed_collector_is_completed(
    tmp_path: Path, url: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch, inserted: int
) -> None:
    monkeypatch.setattr(lane, "TRIM_BYTES", 0)
    first = Collector(tmp_path, url)
    shard = first.inserter.cluster.shards[0]
    first.send(range(10))
    first.inserter.insert(shard, _cut(first))
    first.send(range(8, 11))  # two of them again; the frame before them is in the spool twice, alone and in its batch
    first.end(11)
    job = _cut(first)
    for table, block in job.blocks[:inserted]:
        shard.insert(table.name, block)
    second = _restarted(first, tmp_path, url)
    second.inserter.start()
    second.send(range(11))  # the trainer repeats whatever wasn't answered
    second.wait()
    count_once(nodes.nodes, database_of(url), {"run": 11})
    second.stop()
    assert len(job.blocks) >= 5


def _cut(collector: Collector) -> Job:
    """Return the next segment without inserting it."""
    for _ in range(3):  # finds the run, its shard, and the data that is due
        collector.inserter.step()
    (job,) = (each for each in collector.inserter.slots[0].jobs if each.cut is not None)
    return job


def test_a_restarted_collector_does_not_call_ranks_silent_before_they_report(
    tmp_path: Path, url: str, nodes: Nodes
) -> None:
    first = Collector(tmp_path, url)
    first.send(range(10))
    second = _restarted(first, tmp_path, url)
    second.inserter.start()
    wait_for(lambda: not second.inserter.cutter.feeds["run"].items[1:], "all but the newest step")
    (each,) = wait_for(lambda: listed(second.inserter.cluster.shards[0], 1), "the sign of life")
    assert 0 <= each.sign.silent_s < 60
    assert each.sign.stored <= 8, "the newest step may have more parts"
    second.send(range(10, 11))
    second.end(11)
    second.wait()
    count_once(nodes.nodes, database_of(url), {"run": 11})
    second.stop()


def test_the_newest_heartbeat_counts_even_if_clocks_go_back_or_differ(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = 3
    monkeypatch.setattr(cutter, "time", SimpleNamespace(time_ns=lambda: (500_000 + hour) * 3600 * 10**9))
    one, other = (Collector(tmp_path / name, url) for name in ("one", "other"))
    other.post(Batch(run=a_run(), taps=TAPS))
    for each, steps, then in (
        (one, range(2), 3),
        (one, range(2, 4), 2),
        (other, range(4, 6), 1),  # the trainer switches to it
        (one, range(6, 8), 2),
        (other, range(8, 10), 1),  # and switches back
    ):
        hour = then
        each.send(steps)
        _wait_for_sign(each, steps[-1])
    again = _restarted(other, tmp_path / "other", url)
    hour = 0
    again.send(range(10, 11))
    _wait_for_sign(again, 10)
    one.stop()
    again.stop()


def _wait_for_sign(collector: Collector, acknowledged: int) -> None:
    """Insert the data that is due until the newest sign of life of the run says how much the collector has."""
    inserter = collector.inserter
    shard = inserter.cluster.shards[0]

    def is_given() -> bool:
        inserter.step()
        for job in list(inserter.slots[0].jobs):
            inserter.insert(shard, job)
        found = listed(shard, 1)
        return bool(found) and found[0].sign.acknowledged == acknowledged

    wait_for(is_given, "the sign of life")


def test_nothing_is_lost_if_the_disk_or_clickhouse_refuses_while_a_segment_is_cut(
    tmp_path: Path, url: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, numbers, refused = Cuts.cut, cutter.stored_numbers, list[str]()

    def refuses_once(name: str, then: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            if name not in refused:
                refused.append(name)
                raise CutError(f"{name} refuses")
            return then(*given)

        return call

    first = Collector(tmp_path, url)
    first.send(range(10))
    second = _restarted(first, tmp_path, url)  # it looks up in ClickHouse what the first one has inserted
    monkeypatch.setattr(Cuts, "cut", refuses_once("the disk", cut))
    monkeypatch.setattr(cutter, "stored_numbers", refuses_once("ClickHouse", numbers))
    second.end(10)
    second.inserter.start()
    second.wait()
    count_once(nodes.nodes, database_of(url), {"run": 10})
    second.stop()
    assert sorted(refused) == ["ClickHouse", "the disk"]


def test_a_trainer_that_switches_to_another_collector_and_returns_is_stored_once(
    tmp_path: Path, url: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer repeats whatever wasn't answered, so several spools have the same items."""
    monkeypatch.setattr(homes, "CLAIM_S", 2)
    one, other = Collector(tmp_path / "1", url), Collector(tmp_path / "2", url)
    one.inserter.start()
    other.inserter.start()
    one.send(range(8))
    other.post(Batch(run=a_run(), taps=TAPS))
    other.send(range(5, 12))
    one.send(range(9, 15))
    other.send(range(12, 20))
    other.end(20)
    one.post(Batch(run=a_run(), taps_from=len(TAPS), items=(EndItem(20, 20),)))
    for each in (one, other):
        each.wait()
        each.stop()
    count_once(nodes.nodes, database_of(url), {"run": 20})


def test_a_run_whose_first_answer_was_lost_so_that_two_processes_have_its_beginning_is_stored_once(
    tmp_path: Path, url: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "CLAIM_S", 2)
    monkeypatch.setattr(feed, "SILENT_S", 1.0)
    one, other = Collector(tmp_path / "1", url), Collector(tmp_path / "2", url)
    one.send(range(4))
    other.send(range(9))
    other.end(9)
    for each in (one, other):
        each.inserter.start()
    for each in (one, other):
        each.wait()
        each.stop()
    count_once(nodes.nodes, database_of(url), {"run": 9})


def test_a_process_that_returns_after_a_takeover_inserts_only_missing_items(
    tmp_path: Path, url: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "CLAIM_S", 1)
    first = Collector(tmp_path / "1", url)
    first.send(range(4))
    first.inserter.step()
    first.inserter.step()  # cut, not inserted
    assert list((tmp_path / "1" / "spool").glob("*.cut"))
    other = Collector(tmp_path / "2", url)
    other.inserter.start()
    other.post(Batch(run=a_run(), taps=TAPS))
    other.send(range(2, 9))
    other.end(9)
    other.wait()
    again = _restarted(first, tmp_path / "1", url)
    again.end(9)
    again.inserter.start()
    again.wait()
    for each in (again, other):
        each.stop()
    count_once(nodes.nodes, database_of(url), {"run": 9})


@pytest.mark.all
def test_a_collector_that_is_killed_repeatedly_loses_and_duplicates_nothing(
    tmp_path: Path, url: str, nodes: Nodes
) -> None:
    port = free_port()
    with Trainers(port) as trainers:
        for pause_s in (2.0, 1.3, 1.7, 1.1):
            with collecting(url, tmp_path, port, "--insert", "0.2") as process:
                time.sleep(pause_s)
                process.kill()
        with collecting(url, tmp_path, port, "--insert", "0.2"):
            frames = trainers.finish()
            wait_until_stored(nodes.nodes, database_of(url), frames)
    count_once(nodes.nodes, database_of(url), frames)


def test_clickhouse_that_is_killed_repeatedly_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    with running() as nodes:
        (node,) = nodes.nodes
        port = free_port()
        with collecting(nodes.url, tmp_path, port, "--insert", "0.1"), Trainers(port) as trainers:
            for pause_s in (1.5, 0.4, 0.7, 0.3):
                time.sleep(pause_s)
                node.kill()
                node.start()
                node.wait()
            frames = trainers.finish()
            wait_until_stored([node], DATABASE, frames)
        count_once([node], DATABASE, frames)


def test_clickhouse_that_hangs_during_an_insert_duplicates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clickhouse_client, "INSERT_S", 0.3)
    monkeypatch.setattr(clickhouse_client, "QUERY_S", 0.3)
    with running() as nodes:
        (node,) = nodes.nodes
        collector = Collector(tmp_path, nodes.url, insert=0.05)
        collector.inserter.start()
        collector.send(range(1))
        for first in range(1, 80, 20):
            collector.send(range(first, first + 20))
            time.sleep(0.1)
            node.pause()
            time.sleep(0.7)
            node.resume()
            wait_for(lambda: not collector.inserter.trouble)
        collector.end(81)
        collector.wait()
        collector.stop()
        count_once([node], DATABASE, {"run": 81})


# -- clusters ----------------------------------------------------------------------------------------------------------


@pytest.mark.all
def test_replicas_agree_after_any_kill_and_everything_waits_for_zookeeper(tmp_path: Path) -> None:
    with running(replicas=2) as nodes:
        one, other = nodes.nodes
        port = free_port()
        with collecting(nodes.url, tmp_path, port, "--insert", "0.1"), Trainers(port) as trainers:
            for node, survivor in ((one, other), (other, one)):
                wait_for(lambda survivor=survivor: _grows(survivor), "an insert")
                # After its own restart, it may lag. A collector in doubt about an insert waits for what only one has.
                survivor.ask("SYSTEM SYNC REPLICA rows")
                node.kill()
                wait_for(lambda survivor=survivor: _grows(survivor), "an insert at the other replica")
                node.start()
                node.wait()
            assert nodes.zookeeper is not None
            nodes.zookeeper.kill()
            time.sleep(3)
            assert one.number("SELECT count() FROM items") > 0, "reads continue"
            nodes.zookeeper.start()
            frames = trainers.finish()
            wait_until_stored([one], DATABASE, frames)
        for node in nodes.nodes:
            for table in ("rows", "rollups", "sketches", "sketch_rollups", "items"):
                node.ask(f"SYSTEM SYNC REPLICA {table}")
            count_once([node], DATABASE, frames)


def _grows(node: Node) -> bool:
    try:
        before = node.number("SELECT count() FROM items")
        time.sleep(0.2)
        return node.number("SELECT count() FROM items") > before
    except (OSError, RuntimeError):
        return False


def test_a_shard_that_is_down_keeps_only_its_own_runs_waiting(tmp_path: Path) -> None:
    with running(shards=2) as nodes:
        runs = [f"run-{number}" for number in range(6)]
        at = {run: rank_shards(run, 2)[0] for run in runs}
        assert set(at.values()) == {0, 1}
        collector = Collector(tmp_path, nodes.url)
        collector.inserter.start()
        for run in runs:
            collector.send(range(3), run)
        wait_until_stored(nodes.nodes, DATABASE, dict.fromkeys(runs, 2))
        nodes.nodes[1].kill()
        for run in runs:
            collector.send(range(3, 6), run)
            collector.end(6, run)
        mine = [run for run in runs if at[run] == 0]
        wait_until_stored(nodes.nodes[:1], DATABASE, dict.fromkeys(mine, 6))
        wait_for(lambda: 'clickhouse_reachable{shard="1"} 0.0' in collector.client.get("/metrics").text)
        assert 'clickhouse_reachable{shard="0"} 1.0' in collector.client.get("/metrics").text
        nodes.nodes[1].start()
        collector.wait()
        for shard, node in enumerate(nodes.nodes):
            count_once([node], DATABASE, {run: 6 for run in runs if at[run] == shard})
        collector.stop()
