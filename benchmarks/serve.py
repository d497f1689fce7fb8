"""The server under load: queries while frames arrive, an hour of frames, many trainers, and the cost for a training.

python -m benchmarks.serve             # every part: about ten minutes
python -m benchmarks.serve --quick     # small numbers: checks that it works
python -m benchmarks.serve --only questions hour trainers beside
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from websockets.sync.client import connect

from benchmarks import traffic
from benchmarks.parts import run_parts
from hookcore.records import STATS

MEMORY_MIB: Final = 2000
SERIES_MS: Final = 50.0
HEATMAP_MS: Final = 150.0
VALUES_PER_S: Final = 5e6
LOSS: Final = 1.02
CLIENTS: Final = 50
TRAINERS: Final = 16


@dataclass(frozen=True, slots=True)
class Size:
    """The size of every part."""

    taps: int
    history: int  # frames before the queries
    seconds: float  # of queries
    hour: int  # frames played fast
    trainer_frames: int  # of each of the trainers
    rounds: int  # of training beside a server
    steps: int  # per round


FULL: Final = Size(2000, 4000, 60.0, 72_000, 500, 40, 50)
QUICK: Final = Size(200, 1200, 3.0, 1000, 50, 3, 10)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts and print their figures."""
    parts: dict[str, Callable[[Size], None]] = {
        "questions": ask_while_frames_arrive,
        "hour": play_an_hour,
        "trainers": many_trainers,
        "beside": train_beside,
    }
    run_parts(__doc__, parts, FULL, QUICK, arguments)


def ask_while_frames_arrive(size: Size) -> None:
    """Measure two queries while frames arrive and clients follow."""
    print(f"\nquestions while {size.taps:,} taps x 20 frames a second arrive, {CLIENTS} clients follow", flush=True)
    with traffic.server_process() as server:
        sender = traffic.Sender(server.url, size.taps)
        while sender.step < size.history:
            sender.send(10)
        results: Any = traffic.spawn.Queue()
        clients = traffic.spawn.Process(target=_hold_clients, args=(server.url, size.seconds, results), daemon=True)
        clients.start()
        results.get(timeout=60)  # all are connected
        stop = threading.Event()
        feeding = threading.Thread(target=_feed, args=(sender, stop), daemon=True)
        before = server.cpu_s
        feeding.start()
        series, heatmap = _ask(server, size)
        share = (server.cpu_s - before) / size.seconds
        stop.set()
        held, messages = results.get(timeout=120)
        feeding.join(30)
        print(f"  the server took {share:.0%} of a core; {held} clients held, {messages:,} messages to them")
        traffic.judge("series of 1,000 points, p95", series, SERIES_MS, "ms")
        traffic.judge("heatmap of 1,000 x 500, p95", heatmap, HEATMAP_MS, "ms")
        traffic.judge("live clients held", held, CLIENTS, "", at_least=True)


def _ask(server: traffic.ServerProcess, size: Size) -> tuple[float, float]:
    random = np.random.default_rng(2)
    taken: dict[str, list[float]] = {"series": [], "heatmap": []}
    end = time.monotonic() + size.seconds
    while time.monotonic() < end:
        tap = random.integers(size.taps)
        for name, path in (
            ("series", f"/api/v1/series?tap={tap}&stat=rms&points=1000"),
            ("heatmap", "/api/v1/heatmap?kind=output&stat=rms&columns=500&rows=1000"),
        ):
            started = time.perf_counter()
            server.get(path)
            taken[name].append(time.perf_counter() - started)
            time.sleep(0.05)
    found = {name: traffic.describe(name, times) for name, times in taken.items()}
    return found["series"]["p95"], found["heatmap"]["p95"]


def _feed(sender: traffic.Sender, stop: threading.Event) -> None:
    for _ in traffic.pace(20, 10**9):
        if stop.is_set():
            return
        sender.send()


def _hold_clients(url: str, seconds: float, results: Any) -> None:
    """Read one stream many times in one process. The readers read bytes and count messages."""
    ready, counts = threading.Barrier(CLIENTS + 1), [0] * CLIENTS
    end = [float("inf")]

    def follow(place: int) -> None:
        with traffic.open_url(f"{url}/api/v1/live?stat=rms") as answer:
            answer.readline()
            ready.wait(60)
            for line in answer:
                counts[place] += line.startswith(b"data: ")
                if time.monotonic() > end[0]:
                    return

    readers = [threading.Thread(target=follow, args=(place,), daemon=True) for place in range(CLIENTS)]
    for reader in readers:
        reader.start()
    ready.wait(60)
    results.put("ready")
    time.sleep(seconds)
    before = list(counts)
    time.sleep(1.0)
    held = sum(now > then for now, then in zip(counts, before, strict=True))
    end[0] = 0.0
    results.put((held, sum(counts)))


def play_an_hour(size: Size) -> None:
    """Send frames as fast as they are accepted: throughput, and memory compared with its limit."""
    print(
        f"\n{size.hour:,} frames of {size.taps:,} taps, sketches in every tenth, as fast as they are taken", flush=True
    )
    with traffic.server_process("--memory", f"{MEMORY_MIB}MB") as server:
        sender = traffic.Sender(server.url, size.taps)
        sender.send()
        base, before, started, peak = server.rss_mib, server.cpu_s, time.perf_counter(), 0.0
        print(f"  {'frames':>10} {'RSS MiB':>9} {'values a second':>16}")
        part = max(10, size.hour // 10)
        while sender.step < size.hour:
            begun, at = time.perf_counter(), sender.step
            while sender.step < min(at + part, size.hour):
                sender.send(min(10, size.hour - sender.step))
            rate = (sender.step - at) * size.taps * len(STATS) / (time.perf_counter() - begun)
            peak = max(peak, server.rss_mib)
            print(f"  {sender.step:10,} {server.rss_mib:9.0f} {rate:16,.0f}", flush=True)
        values = (sender.step - 1) * size.taps * len(STATS)
        wall, cpu = time.perf_counter() - started, server.cpu_s - before
        print(f"  {values / wall:,.0f} stat values a second of wall time, sender beside it")
        traffic.judge("stat values a second of one core", values / cpu, VALUES_PER_S, "", at_least=True)
        traffic.judge("memory above that of an empty server", peak - base, float(MEMORY_MIB), "MiB")


def many_trainers(size: Size) -> None:
    """Check many simultaneous trainers: every step arrived, and none was stored twice."""
    print(f"\n{TRAINERS} trainers at once, {size.trainer_frames} frames of 200 taps each", flush=True)
    with traffic.server_process() as server:
        names = [f"trainer-{number}" for number in range(TRAINERS)]
        processes = [
            traffic.spawn.Process(target=_send_all, args=(server.url, name, size.trainer_frames), daemon=True)
            for name in names
        ]
        started = time.perf_counter()
        for process in processes:
            process.start()
        for process in processes:
            process.join(300)
        wall = time.perf_counter() - started
        broken = sum(process.exitcode != 0 for process in processes)
        lost, doubled = zip(*(_count(server, name, size.trainer_frames) for name in names), strict=True)
        print(f"  {TRAINERS * size.trainer_frames / wall:,.0f} frames a second, starting the processes included")
        traffic.judge("trainers that failed", broken, 0, "")
        traffic.judge("frames lost", sum(lost), 0, "")
        traffic.judge("frames taken twice", sum(doubled), 0, "")


def _send_all(url: str, name: str, frames: int) -> None:
    """Send every request twice, as after a lost answer."""
    sender = traffic.Sender(url, 200, name=name, memory=64_000_000)
    while sender.step < frames:
        sender.send(5)
        sender.repeat()


def _count(server: traffic.ServerProcess, run: str, frames: int) -> tuple[int, int]:
    """Return how many steps of a run are missing, and how many were merged with themselves."""
    wish = {"op": "subscribe", "id": 1, "view": "heatmap", "run": run, "kind": "output", "stat": "count"}
    url = server.url.replace("http", "ws") + "/api/v1/socket"
    with connect(url, compression=None, max_size=None, additional_headers=traffic.AUTHORIZED) as socket:
        socket.send(json.dumps({**wish, "columns": 4000, "rows": "fit:10000"}))
        socket.recv()
        data = socket.recv()
    columns, rows = np.frombuffer(data, "<u4", 2, 16).tolist()  # type: ignore[arg-type]
    counts = np.frombuffer(data, "<f4", columns * rows, 32).reshape(columns, rows)  # type: ignore[arg-type]
    return frames - int((counts >= traffic.COUNT).all(axis=1).sum()), int((counts > traffic.COUNT).any(axis=1).sum())


def train_beside(size: Size) -> None:
    """Compare a training while its server runs with the same one while its server is stopped, in turns of steps.

    A stopped server takes no processor time, and does the work of these steps in the next turn. So the mean of both
    turns is compared with the turn in which it is stopped. What a new server prepares once is no part of it.
    """
    from benchmarks.timing import describe_machine

    print(f"\ntraining beside a server, {describe_machine()}", flush=True)
    _train_beside(size, "default", {})
    _train_beside(size, "every step", {"every": 1, "budget": None})


def _train_beside(size: Size, name: str, settings: dict[str, Any]) -> None:
    from benchmarks.timing import Length, Spread, take_turns

    with traffic.server_process() as server:
        server.rest()
        run, watcher = _loop(server.url, settings)

        def stopped() -> float:
            server.process.suspend()
            try:
                return run(size.steps)
            finally:
                server.process.resume()

        run(size.steps)
        used = server.cpu_s
        turns = {"running": lambda: run(size.steps), "stopped": stopped}
        figures = take_turns(turns, Length(0.0, rounds=size.rounds))
        used = (server.cpu_s - used) / (2 * size.rounds * size.steps)
        ratio = Spread.of((figures["running"] + figures["stopped"]) / 2 / figures["stopped"])
        a_step = np.median(figures["stopped"]) / size.steps * 1000
        print(f"  {name}: a step takes {a_step:.2f} ms, and {used * 1000:.2f} ms of the server's processor time")
        traffic.judge(f"{name}: both turns / stopped, {ratio}", ratio.median, LOSS, "")
        watcher.close()


def _loop(url: str, settings: dict[str, Any]) -> tuple[Callable[[int], float], Any]:
    import torch
    from torch import nn

    import hookcore

    torch.manual_seed(1)
    model = nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(512, 512), nn.GELU())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randn(256, 512)
    watcher = hookcore.watch(model, server=url, **settings)

    def run(steps: int) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - started

    return run, watcher


if __name__ == "__main__":
    main()
