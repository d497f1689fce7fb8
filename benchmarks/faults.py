"""What happens to runs in ClickHouse when parts of the way fail: counts of what was acknowledged, lost, and doubled.

python -m benchmarks.faults               # every part: about twelve minutes
python -m benchmarks.faults --quick       # short: checks that it works
python -m benchmarks.faults --only collector servers
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import msgspec

from benchmarks import traffic
from benchmarks.parts import run_parts
from hookcore.delivery.http import Address, HttpSink
from hookcore.records.wire import Place, RunInfo
from hookcore_app.clickhouse.schema import number_of_run
from tests.clickhouse.nodes import DATABASE, Cluster, running
from tests.clickhouse.world import TAPS, Trainers, a_frame, collecting, miscounts, some_taps, wait_until_stored
from tests.receiver import a_run
from tests.serving import TOKEN
from tests.waiting import wait_for

RANKS: Final = 8
FULL_DISK_S: Final = 200.0  # what is left in a last batch waits for a minute of silence
LIMIT: Final = "100MB"  # beyond what is in memory on its way
WIDE: Final = 500  # taps
LARGE: Final = 200  # taps with which a batch of a few frames is a large one, of which the rest is written again
LARGE_EVERY_S: Final = 0.1
SKEW_S: Final = 3600.0
LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Size:
    """The size of every part."""

    seconds: float
    kill_every_s: float
    disk_mb: int  # more than the largest batch, which grows while the disk is full


FULL: Final = Size(60.0, 2.0, 8)
QUICK: Final = Size(6.0, 2.0, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts and print their counts."""
    parts: dict[str, Callable[[Size], None]] = {
        "collector": kill_the_collector,
        "zookeeper": stop_zookeeper,
        "replica": kill_a_replica,
        "shard": stop_a_shard,
        "servers": kill_a_server,
        "disk": fill_the_disk,
        "limit": fill_the_spool,
        "skew": skew_the_clocks,
        "attempt": restart_a_rank,
    }
    run_parts(__doc__, parts, FULL, QUICK, arguments)


def kill_the_collector(size: Size) -> None:
    """Kill the collector again and again while ranks send."""
    print(
        f"\n{RANKS} ranks of {LARGE} taps send, and the collector is killed every {size.kill_every_s:g} s", flush=True
    )
    with running() as nodes, tempfile.TemporaryDirectory() as spool:
        port, kills, end = traffic.free_port(), 0, time.monotonic() + size.seconds
        with Trainers(port, RANKS, taps=some_taps(LARGE), every_s=LARGE_EVERY_S) as trainers:
            while time.monotonic() < end:
                with collecting(nodes.url, Path(spool), port) as process:
                    time.sleep(size.kill_every_s)
                    process.kill()
                    kills += 1
            with collecting(nodes.url, Path(spool), port):
                _count(f"{kills} kills", nodes, trainers)


def stop_zookeeper(size: Size) -> None:
    """Stop ZooKeeper, so that replicated tables can only be read."""
    print(f"\n{RANKS} ranks send, and ZooKeeper is away for {size.seconds:g} s", flush=True)
    with running(replicas=2) as nodes, _sent_to(nodes) as trainers:
        assert nodes.zookeeper is not None
        time.sleep(3)
        nodes.zookeeper.kill()
        time.sleep(size.seconds)
        nodes.zookeeper.start()
        _count("ZooKeeper away", nodes, trainers)


def kill_a_replica(size: Size) -> None:
    """Kill one replica of two and start it again, several times."""
    print(f"\n{RANKS} ranks send, and a replica is killed every {3 * size.kill_every_s:g} s", flush=True)
    with running(replicas=2) as nodes, _sent_to(nodes) as trainers:
        kills, end = 0, time.monotonic() + size.seconds
        while time.monotonic() < end:
            node = nodes.nodes[kills % 2]
            node.kill()
            time.sleep(size.kill_every_s)
            node.start()
            node.wait()
            kills += 1
            time.sleep(size.kill_every_s)
        _count(f"{kills} kills", nodes, trainers)


def stop_a_shard(size: Size) -> None:
    """Stop one shard of two: a server must say so, and show the runs of the other one."""
    print(f"\n{RANKS} ranks send, and one shard of two is down for {size.seconds:g} s", flush=True)
    with (
        running(shards=2) as nodes,
        _sent_to(nodes) as trainers,
        traffic.server_process("--store", nodes.url) as server,
    ):
        wait_for(lambda: _listed(server)[0] == RANKS, "the list")
        nodes.nodes[0].kill()
        wait_for(lambda: _listed(server)[1], "the word partial")
        before, began = _frames(server), time.monotonic()
        time.sleep(size.seconds)
        shown, partial = _listed(server)
        rate = (_frames(server) - before) / (time.monotonic() - began)
        print(f"  meanwhile {shown} runs are listed, {rate:.0f} frames/s arrive, and it says: partial: {partial[:80]}")
        nodes.nodes[0].start()
        nodes.nodes[0].wait()
        _count("a shard down", nodes, trainers)


def kill_a_server(size: Size) -> None:
    """Kill one of two servers, which show the same."""
    print(f"\n{RANKS} ranks send, two servers show them, and one is killed", flush=True)
    with running() as nodes, _sent_to(nodes) as trainers, traffic.server_process("--store", nodes.url) as stays:
        with traffic.server_process("--store", nodes.url) as dies:
            for each in (stays, dies):
                wait_for(lambda each=each: _listed(each)[0] == RANKS, "the list")
            time.sleep(size.seconds / 4)
            dies.process.kill()
        time.sleep(size.seconds / 4)
        produced = _count("a server killed", nodes, trainers)
        wait_for(lambda: _frames(stays) >= produced, "the last frame")
        shown = _frames(stays)
        print(f"  the other server has {shown:,} frames")
        traffic.judge("frames missing or doubled on the other server", abs(shown - produced), 0, "")


def fill_the_disk(size: Size) -> None:
    """Let the disk of the spool run full while ClickHouse is away. Trainers keep what isn't acknowledged."""
    print(
        f"\n{RANKS} ranks send, the spool's disk has {size.disk_mb} MB, and ClickHouse is away for {size.seconds:g} s",
        flush=True,
    )
    with running() as nodes, tempfile.TemporaryDirectory() as spool:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size.disk_mb}m", "tmpfs", spool], check=True)
        try:
            with _sent_to(nodes, spool=Path(spool)) as trainers:
                _stop_for_a_while(nodes, size.seconds)
                refused = _metric(trainers, "hookcore_batches_refused_total")
                assert refused, "the disk never was full"
                print(f"  {refused:,.0f} batches were refused while the disk was full", flush=True)
                _count("disk full", nodes, trainers, FULL_DISK_S)
        finally:
            subprocess.run(["umount", spool], check=True)


def fill_the_spool(size: Size) -> None:
    """Let the spool reach its own limit while ClickHouse is away: the oldest frames go, and are counted."""
    frames = int(20 * max(20, size.seconds))
    print(f"\n{RANKS} ranks send {frames} frames of {WIDE} taps to a spool of {LIMIT}; ClickHouse is away", flush=True)
    with running() as nodes, tempfile.TemporaryDirectory() as spool:
        flags = "--to", nodes.url, "--spool", spool, "--spool-limit", LIMIT
        with traffic.server_process(*flags, name="collect") as collector:
            senders = [traffic.Sender(collector.url, WIDE, sketch_every=0) for _ in range(RANKS)]
            nodes.nodes[0].kill()
            for _ in range(frames // 10):
                for sender in senders:
                    sender.send(10)
            for sender in senders:
                sender.end()
            nodes.nodes[0].start()
            nodes.nodes[0].wait()
            wait_for(lambda: not traffic.metric(collector, "hookcore_waiting_items"), "the last insert")
            dropped = int(traffic.metric(collector, "hookcore_items_dropped_total"))
        stored, different = _stored(nodes, [sender.info.id for sender in senders])
    produced = sum(sender.step for sender in senders)
    assert dropped, "the spool never was full"
    print(f"  {produced:,} frames acknowledged, {dropped:,} dropped by the collector and counted, {stored:,} stored")
    traffic.judge("frames neither stored nor counted, or both", abs(produced - dropped - different), 0, "")
    traffic.judge("frames doubled", stored - different, 0, "")


def skew_the_clocks(size: Size) -> None:
    """Let the clocks of half the ranks be an hour ahead, and a server add them up."""
    print(f"\n{RANKS} ranks send; the clocks of {RANKS // 2} are {SKEW_S:g} s ahead", flush=True)
    infos = [_rank_info(rank, started_s=time.time() + SKEW_S * (rank % 2)) for rank in range(RANKS)]
    with running() as nodes, _sent_to(nodes, infos) as trainers, traffic.server_process("--store", nodes.url) as server:
        wait_for(lambda: _listed(server)[0] == 1, "the run of all ranks")
        time.sleep(size.seconds / 2)
        states = Counter(each["state"] for each in _ranks(server)["ranks"])
        produced = _count("clocks an hour apart", nodes, trainers)
        wait_for(lambda: _frames(server) >= produced, "the last frame")
        found = _ranks(server)
    print(f"  meanwhile the server said: {dict(states)}; it added up {found['steps']:,} steps")
    traffic.judge("ranks that it didn't call live", RANKS - states["live"], 0, "")
    traffic.judge("steps without some rank", _missing(found, min(trainers.frames.values())), 0, "")


def restart_a_rank(size: Size) -> None:
    """Kill one rank, and start it again as another attempt, while the others go on."""
    print(f"\n{RANKS} ranks send, and one is killed and started again as another attempt", flush=True)
    infos = [_rank_info(rank) for rank in range(RANKS)]
    again = msgspec.structs.replace(infos[3], id="attempt-1", key="another", place=_place(3, 1))
    with running() as nodes, _sent_to(nodes, infos[:3] + infos[4:]) as others:
        acknowledged: Any = traffic.spawn.Value("q", 0)
        first = traffic.spawn.Process(target=_send_until_killed, args=(others.port, infos[3], acknowledged))
        first.start()
        wait_for(lambda: acknowledged.value, "the first frame")
        time.sleep(size.seconds / 4)
        first.kill()
        with Trainers(others.port, infos=[again]) as second:
            time.sleep(size.seconds / 4)
            _count("the rank's second attempt", nodes, second)
        _count("the others", nodes, others)
        # Its newest step waits for a minute, because more of it might come.
        wait_for(lambda: _stored(nodes, [infos[3].id])[1] >= acknowledged.value, "the rest")
        stored, different = _stored(nodes, [infos[3].id])
    print(f"  its first attempt: at least {acknowledged.value:,} frames acknowledged, {stored:,} stored")
    traffic.judge("frames doubled", stored - different, 0, "")


def _send_until_killed(port: int, info: RunInfo, acknowledged: Any) -> None:
    sink = HttpSink(info)
    sink.start(Address(f"http://127.0.0.1:{port}", TOKEN))
    for step in traffic.pace(50, 10**9):
        sink.send(a_frame(step, TAPS if step == 0 else ()))
        acknowledged.value = sink.counters.acknowledged


def _place(rank: int, attempt: int = 0) -> Place:
    return Place(job="faults", rank=rank, world=RANKS, attempt=attempt)


def _rank_info(rank: int, started_s: float = 0.0) -> RunInfo:
    about = {"started_s": started_s or time.time(), "place": _place(rank)}
    return msgspec.structs.replace(a_run(f"rank-{rank}"), **about)


def _ranks(server: traffic.ServerProcess) -> Any:
    return json.loads(server.get("/api/v1/ranks?run=ranks-faults"))


def _missing(found: Any, least: int) -> int:
    """Return how many steps that all ranks have are not in the sum, or only with some ranks."""
    return int(found["incomplete"] + max(0, least - found["steps"]))


def _stop_for_a_while(nodes: Cluster, seconds: float) -> None:
    (node,) = nodes.nodes
    time.sleep(2)
    node.kill()
    time.sleep(seconds)
    node.start()
    node.wait()


def _metric(trainers: Trainers, name: str) -> float:
    request = Request(f"http://127.0.0.1:{trainers.port}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urlopen(request, timeout=30) as answer:
        return traffic.sum_of(answer.read(), name)


def _listed(server: traffic.ServerProcess) -> tuple[int, str]:
    """Return how many runs are listed, and what the list says is missing."""
    answer = json.loads(server.get("/api/v1/runs?limit=1000"))
    return len(answer["runs"]), str(answer["partial"])


def _frames(server: traffic.ServerProcess) -> int:
    return int(traffic.metric(server, "hookcore_run_frames_total"))


@contextmanager
def _sent_to(
    nodes: Cluster, infos: Sequence[RunInfo] = (), spool: Path | None = None, *flags: str
) -> Iterator[Trainers]:
    with tempfile.TemporaryDirectory() as folder:
        port = traffic.free_port()
        collector = collecting(nodes.url, spool or Path(folder), port, *flags)
        with collector, Trainers(port, RANKS, infos) as trainers:
            yield trainers


def _count(name: str, nodes: Cluster, trainers: Trainers, patience_s: float = 60.0) -> int:
    """End the trainings, wait until everything is inserted, and count."""
    frames = trainers.finish(patience_s)
    wait_until_stored([shard[0] for shard in nodes.shards], DATABASE, frames)
    produced, (stored, different) = sum(frames.values()), _stored(nodes, frames)
    print(f"  {name}: {produced:,} frames acknowledged, {stored:,} stored")
    traffic.judge("frames lost", produced - different, 0, "")
    traffic.judge("frames doubled", stored - different, 0, "")
    wrong = miscounts(nodes.nodes, DATABASE, frames, len(trainers.taps))
    traffic.judge("other counts in items, rows, sketches, and sums", len(wrong), 0, "")
    print("".join(f"    {each}\n" for each in wrong), end="")
    return produced


def _stored(nodes: Cluster, runs: Iterable[str]) -> tuple[int, int]:
    """Return how many frames of some runs are stored, and how many different ones."""
    stored = different = 0
    for run in runs:
        of_run = f"FROM items WHERE run = {number_of_run(run)} AND kind = 0"
        # Replicas of a shard may lag, and only one shard has the run.
        counts = [_pair(node.ask(f"SELECT count(), uniqExact(number) {of_run}")) for node in nodes.nodes]
        stored, different = stored + max(counts)[0], different + max(counts)[1]
    return stored, different


def _pair(text: str) -> tuple[int, int]:
    one, two = text.split()
    return int(one), int(two)


if __name__ == "__main__":
    main()
