"""What many ranks need: a server, a collector, and ClickHouse under load, and a collector that fails.

python -m benchmarks.scale               # every part: about twenty minutes
python -m benchmarks.scale --quick       # small numbers: checks that it works
python -m benchmarks.scale --only ranks collector acknowledgements history sums kills full-disk
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Playwright, sync_playwright

from benchmarks import browser, collector, traffic
from benchmarks.history import History, Wide, add_up_wide_runs, ask_long_runs
from benchmarks.parts import run_parts
from hookcore.delivery.http import Address, HttpSink
from hookcore.records import Tap
from hookcore.records.wire import Place
from tests.browser.browsing import launch
from tests.receiver import a_frame, a_run

LAYERS: Final = 500
HZ: Final = 2.0
PAGE_MS: Final = 250.0
FEEDERS: Final = 2  # processes that play the ranks
FOLLOWED: Final = ("rank-0", "ranks-scale")  # one rank, and the sum of all
ASKED: Final = (
    "/runs/ranks-scale",
    "/runs/ranks-scale/ranks",
    "/api/v1/series?run=ranks-scale&tap=0&stat=rms&points=1000",
    "/api/v1/heatmap?run=ranks-scale&kind=output&stat=rms&columns=200&rows=500",
    "/api/v1/ranks?run=ranks-scale",
)
TAPS: Final = tuple(Tap(f"layers.{number}", "output") for number in range(20))
DISK_MB: Final = 8


@dataclass(frozen=True, slots=True)
class Size:
    """The size of every part."""

    ranks: int
    seconds: float  # of every part
    kill_every_s: float
    collector: collector.Size
    history: History
    wide: tuple[Wide, ...]


FULL: Final = Size(
    64,
    60.0,
    2.0,
    collector.FULL,
    History(8, 1_000_000, 1000, 20_000, 30),
    (Wide(8, 500, 2500, 0), Wide(8, 500, 192, 196)),
)
QUICK: Final = Size(
    8, 6.0, 1.0, collector.QUICK, History(2, 20_000, 50, 2000, 5), (Wide(4, 50, 2500, 0), Wide(4, 50, 512, 50))
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts and print their figures."""
    parts: dict[str, Callable[[Size], None]] = {
        "ranks": many_ranks,
        "collector": lambda size: collector.insert(size.collector),
        "acknowledgements": lambda size: collector.acknowledge(size.collector),
        "history": lambda size: ask_long_runs(size.history),
        "sums": lambda size: add_up_wide_runs(size.wide),
        "kills": kill_the_collector,
        "full-disk": fill_the_disk,
    }
    run_parts(__doc__, parts, FULL, QUICK, arguments)


# -- many ranks at one server ------------------------------------------------------------------------------------------


def many_ranks(size: Size) -> None:
    """Play all ranks of a training, ask for answers, follow the live frames, and then a page."""
    print(f"\n{size.ranks} ranks, {LAYERS} layers (output and gradient), {HZ:g} steps a second each", flush=True)
    with traffic.server_process("--memory", "4GB") as server, sync_playwright() as playwright:
        results: Any = traffic.spawn.Queue()
        stop: Any = traffic.spawn.Event()
        feeders = [
            traffic.spawn.Process(
                target=_play, args=(server.url, range(first, size.ranks, FEEDERS), size.ranks, stop, results)
            )
            for first in range(FEEDERS)
        ]
        for feeder in feeders:
            feeder.start()
        for _ in feeders:
            _told(results)  # all ranks are there
        before, began = server.cpu_s, time.perf_counter()
        with ThreadPoolExecutor(1 + len(FOLLOWED)) as pool:
            answers = pool.submit(_ask, server, size.seconds)
            followed = [pool.submit(_follow, server.url, run, size.seconds) for run in FOLLOWED]
        cpu = (server.cpu_s - before) / (time.perf_counter() - began)
        drawn = [_watch(playwright, server, run, size.seconds / 2) for run in FOLLOWED]
        stop.set()
        steps: dict[int, dict[int, float]] = {}
        for _ in feeders:
            steps |= _told(results)
        for feeder in feeders:
            feeder.join(60)
        arrived = traffic.metric(server, "hookcore_run_frames_total")
    sent = sum(len(each) for each in steps.values())
    slowest = min(len(each) for each in steps.values())
    print(f"  {sent:,} frames, {slowest} of the slowest rank; the server took {cpu:.2f} of a core without a page")
    traffic.judge("frames lost or doubled", abs(arrived - sent), 0, "")
    for path, seconds in answers.result().items():
        traffic.judge(f"{path}, p95", traffic.describe(path, seconds)["p95"], PAGE_MS, "ms")
    all_ended = {step: max(each[step] for each in steps.values()) for step in range(slowest)}
    for run, ended, frames, page in zip(FOLLOWED, (steps[0], all_ended), followed, drawn, strict=True):
        for name, seen in (("live frames", frames.result()), ("step to pixel", page)):
            figures = traffic.describe(f"{name} of {run}", browser.lateness(ended, seen))
            traffic.judge(f"{name}, p95", figures["p95"], PAGE_MS, "ms")


def _told(results: Any) -> dict[int, dict[int, float]]:
    """Return what a feeder says. Raises RuntimeError if that is why it can't go on."""
    found: dict[int, dict[int, float]] | str = results.get(timeout=300)
    if isinstance(found, str):
        raise RuntimeError(f"a process that plays ranks failed: {found}")
    return found


def _ask(server: traffic.ServerProcess, seconds: float) -> dict[str, list[float]]:
    """Ask for pages and data of the run of all ranks, in turn."""
    taken: dict[str, list[float]] = {path: [] for path in ASKED}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for path, found in taken.items():
            began = time.perf_counter()
            server.get(path)
            found.append(time.perf_counter() - began)
            time.sleep(0.07)
    return taken


def _follow(url: str, run: str, seconds: float) -> list[tuple[str, int, float, int]]:
    """Return the steps of a live stream and when they came, as a page notes them."""
    frames = traffic.read_frames(url, f"run={run}&stat=rms", seconds)
    return [("frame", frame["last_step"], at * 1000, 0) for at, frame in frames]


def _watch(playwright: Playwright, server: traffic.ServerProcess, run: str, seconds: float) -> list[Any]:
    """Return what the page of a run draws."""
    started = launch(playwright)
    bench = browser.Bench(server, started, browser.FULL)
    with bench.context() as context:
        page = bench.open(context, f"runs/{run}")
        browser.settle(page)
        drawn, _ = browser.watch(page, seconds)
    started.close()
    return [each for each in drawn if each[0] == "heat"]


def _play(url: str, ranks: Sequence[int], world: int, stop: Any, results: Any) -> None:
    """Play some ranks until they are stopped; say when they begin, and then when each of their steps ended."""
    try:
        feeds = {
            rank: browser.make_feed(url, LAYERS, history=20, place=Place(job="scale", rank=rank, world=world))
            for rank in ranks
        }
        results.put({})
        with ThreadPoolExecutor(len(feeds)) as pool:
            list(pool.map(lambda feed: _flow(feed, stop), feeds.values()))
        results.put({rank: feed.ended for rank, feed in feeds.items()})
    except Exception as error:  # nobody would wait for less than five minutes for what never comes
        results.put(f"{type(error).__name__}: {error}")
        raise


def _flow(feed: browser.Feed, stop: Any) -> None:
    for _ in traffic.pace(HZ, 10**9):
        if stop.is_set():
            return
        feed.step()


# -- faults of a collector ---------------------------------------------------------------------------------------------


def kill_the_collector(size: Size) -> None:
    """Kill the collector again and again while ranks send, and count what the server has at the end."""
    print(f"\n8 ranks send, and the collector is killed every {size.kill_every_s:g} s", flush=True)
    with traffic.server_process() as server, tempfile.TemporaryDirectory() as spool:
        port = traffic.free_port()
        sinks = _start_ranks(port)
        with _sending(sinks):
            kills, end = 0, time.monotonic() + size.seconds
            while time.monotonic() < end:
                with _collector(server.url, spool, port) as process:
                    time.sleep(size.kill_every_s)
                    process.kill()
                    kills += 1
        with _collector(server.url, spool, port):
            _finish(f"{kills} kills", server, sinks)


def fill_the_disk(size: Size) -> None:
    """Let the disk of the spool run full while the server is away, then bring the server back."""
    print(f"\n8 ranks send, the spool's disk has {DISK_MB} MB, and the server is away", flush=True)
    with tempfile.TemporaryDirectory() as spool:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", spool], check=True)
        try:
            port, server_port = traffic.free_port(), traffic.free_port()
            sinks = _start_ranks(port)
            with _collector(f"http://127.0.0.1:{server_port}", spool, port):
                with _sending(sinks):
                    time.sleep(size.seconds / 2)
                used = sum(path.stat().st_size for path in Path(spool).iterdir())
                print(f"  the spool has {used / 1e6:.1f} MB; the server starts", flush=True)
                with traffic.server_process(port=server_port) as server:
                    _finish("full disk", server, sinks)
        finally:
            subprocess.run(["umount", spool], check=True)


def _start_ranks(port: int) -> list[HttpSink]:
    sinks = [HttpSink(a_run(f"{secrets.token_hex(6)}-{rank}"), close_s=120) for rank in range(8)]
    for sink in sinks:
        sink.start(Address(f"http://127.0.0.1:{port}", traffic.TOKEN))
    return sinks


@contextmanager
def _sending(sinks: Sequence[HttpSink]) -> Iterator[None]:
    """Send 50 frames per second of each rank until the end of the block."""
    done = threading.Event()

    def send(sink: HttpSink) -> None:
        for step in traffic.pace(50.0, 10**9):
            if done.is_set():
                return
            sink.send(a_frame(step, TAPS if step == 0 else (), taps=tuple(range(len(TAPS)))))

    with ThreadPoolExecutor(len(sinks)) as pool:
        sending = [pool.submit(send, sink) for sink in sinks]
        yield
        done.set()
        for each in sending:
            each.result()


@contextmanager
def _collector(to: str, spool: str, port: int) -> Iterator[Any]:
    os.environ["HOOKCORE_TO_TOKEN"] = traffic.TOKEN
    with traffic.server_process("--to", to, "--spool", spool, name="collect", port=port) as started:
        yield started.process


def _finish(name: str, server: traffic.ServerProcess, sinks: Sequence[HttpSink]) -> None:
    """Wait until everything has arrived, and count."""
    with ThreadPoolExecutor(len(sinks)) as pool:
        flushed = list(pool.map(lambda sink: sink.flush(120.0), sinks))
        list(pool.map(lambda sink: sink.close(), sinks))
    produced = sum(sink.counters.produced for sink in sinks)
    dropped = sum(sum(sink.counters.dropped.values()) for sink in sinks)
    end = time.monotonic() + 60
    while (arrived := traffic.metric(server, "hookcore_run_frames_total")) < produced - dropped:
        if time.monotonic() > end:
            break
        time.sleep(0.2)
    print(f"  {name}: {produced:,} frames sent, {dropped} dropped by trainers and counted, {arrived:,.0f} arrived")
    traffic.judge("ranks that could not send everything", flushed.count(False), 0, "")
    traffic.judge("frames lost or doubled", abs(produced - dropped - arrived), 0, "")


if __name__ == "__main__":
    main()
