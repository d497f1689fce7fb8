"""The pages in a real headless Chromium: how fast they appear, how smoothly they follow, and their memory.

python -m benchmarks.browser             # every part: about fifteen minutes
python -m benchmarks.browser --quick     # small numbers: checks that it works
python -m benchmarks.browser --only load follow large huge model memory hidden tabs
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from benchmarks import traffic
from hookcore.records import Coverage, ModuleRecord, Tap, wire
from tests.browser.browsing import CHROMIUM, FLAGS, launch

PARTS_OF_A_BLOCK: Final = ("attn.q", "attn.k", "attn.v", "attn.out", "mlp.up", "mlp.act", "mlp.down", "norm")
PARTS_OF_A_LAYER: Final = 9  # modules in a layer of the GPT, with itself
PLAYED_HZ: Final = 60  # another step in each frame
PLAYED_STEPS: Final = 61
PLAYED_MS: Final = 950  # all of them
HZ: Final = 10.0
PATIENCE_MS: Final = 30_000
SETTLE_MS: Final = 2500
LOAD_MS: Final = 1500  # in which a page is left alone
WARM: Final = 4  # openings of a page by one visitor that are measured with a warm cache
# The pages' reports of their drawing, with the time at which it was visible.
LISTEN: Final = """
window.drawn = []; window.long = [];
document.addEventListener("hookcore:drawn", ({detail}) => {
  const {kind, step, ms} = detail;
  requestAnimationFrame(() => setTimeout(() =>
    window.drawn.push([kind, step, performance.timeOrigin + performance.now(), ms ?? 0])));
});
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.long.push([entry.startTime, entry.duration]);
}).observe({type: "longtask"});
"""
FRAMES: Final = """(ms) => new Promise((done) => {
  const began = performance.now(); let frames = 0;
  const count = (now) => {
    frames++;
    if (now - began < ms) requestAnimationFrame(count);
    else done(1000 * frames / (now - began));
  };
  requestAnimationFrame(count);
})"""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of every part."""

    modules: int
    large: int
    huge: int
    pictured: int
    rounds: int
    seconds: float
    steps_played: int  # 30 minutes at 10 per second


FULL: Final = Size(1000, 5000, 10_000, 2000, 5, 30.0, 18_000)
QUICK: Final = Size(100, 300, 600, 100, 2, 4.0, 600)


@dataclass
class Feed:
    """A run with steps at a steady rate, from a thread, and the end of each step."""

    sender: traffic.Sender
    ended: dict[int, float] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def page(self) -> str:
        """The address of its overview."""
        return f"runs/{self.sender.info.id}"

    def step(self, frames: int = 1) -> None:
        """Send more steps."""
        first = self.sender.step
        when = self.sender.send(frames)
        self.ended |= dict.fromkeys(range(first, first + frames), when)

    @contextmanager
    def flowing(self, hz: float = HZ, frames: int = 1) -> Iterator[None]:
        """Send steps until the end of the block."""
        self.stopped.clear()

        def flow() -> None:
            for _ in traffic.pace(hz, 10**9):
                if self.stopped.is_set():
                    return
                self.step(frames)

        thread = threading.Thread(target=flow, name="feed", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stopped.set()
            thread.join()


def make_feed(url: str, modules: int, history: int = 600, place: wire.Place | None = None) -> Feed:
    """Return a run of a model with this many modules, with outputs and gradients, and some steps."""
    paths = [f"layers.{place // 8}.{PARTS_OF_A_BLOCK[place % 8]}" for place in range(modules)]
    parents = sorted({path.rsplit(".", cut)[0] for path in paths for cut in range(1, path.count(".") + 1)}, key=len)
    records = tuple(
        ModuleRecord(path, "Linear" if path in set(paths) else "Block", path.rpartition(".")[0] or None)
        for path in [*parents, *paths]
    )
    coverage = tuple(Coverage(path, "Linear", True, ("output", "output_grad")) for path in paths)
    taps = tuple(Tap(path, kind) for path in paths for kind in ("output", "output_grad"))
    description = wire.Description(version=1, modules=records, coverage=coverage, hooks=())
    name = f"model-{modules}" if place is None else f"rank-{place.rank}"
    feed = Feed(traffic.Sender(url, taps, sketch_every=50, name=name, description=description, place=place))
    at_once = min(20, 100_000 // len(taps))  # a request has a limit
    for _ in range(history // at_once):
        feed.step(at_once)
    return feed


@dataclass
class Bench:
    """A server, a browser, and the sizes."""

    server: traffic.ServerProcess
    browser: Browser
    size: Size

    @contextmanager
    def context(self) -> Iterator[BrowserContext]:
        """Open a browser session with an empty cache."""
        context = self.browser.new_context(viewport={"width": 1440, "height": 900})
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(LISTEN)
        try:
            yield context
        finally:
            context.close()

    @contextmanager
    def person(self) -> Iterator[BrowserContext]:
        """Open a browser of a new visitor. Its profile keeps files, and compiled scripts."""
        with TemporaryDirectory() as folder:
            context = self.browser.browser_type.launch_persistent_context(
                folder, executable_path=CHROMIUM, args=list(FLAGS), viewport={"width": 1440, "height": 900}
            )
            context.set_default_timeout(PATIENCE_MS)
            context.add_init_script(LISTEN)
            try:
                # What a browser does when it starts is not the page's work.
                context.pages[0].wait_for_timeout(SETTLE_MS)
                yield context
            finally:
                context.close()

    def open(self, context: BrowserContext, path: str) -> Page:
        """Open a tab that shows a page."""
        page = context.new_page()
        page.goto(f"{self.server.url}/{path}", wait_until="commit")
        return page


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts and print their figures."""
    parts: dict[str, Callable[[Bench], None]] = {
        "load": load,
        "follow": follow,
        "large": follow_a_large_model,
        "huge": use_a_huge_model,
        "model": play_a_model,
        "memory": play_half_an_hour,
        "hidden": hide,
        "tabs": open_nine_tabs,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small numbers")
    parser.add_argument("--only", nargs="+", choices=list(parts), default=list(parts))
    given = parser.parse_args(arguments)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        for name in given.only:
            print(f"{name}: {(parts[name].__doc__ or '').splitlines()[0]}", flush=True)
            with traffic.server_process("--memory", "4GB") as server:
                parts[name](Bench(server, browser, QUICK if given.quick else FULL))
        browser.close()


def _mark(page: Page, name: str) -> float:
    """Return when the page reported something, in ms since its navigation started."""
    page.wait_for_function("(name) => performance.getEntriesByName(name).length > 0", arg=name)
    found: float = page.evaluate("(name) => performance.getEntriesByName(name)[0].startTime", name)
    return found


def load(bench: Bench) -> None:
    """Measure how a page opens: its first paint, first chart, live data, and Plotly; cold, and with a warm cache."""
    feed = make_feed(bench.server.url, bench.size.modules)
    names = ("first-contentful-paint", "hookcore:chart", "hookcore:live", "hookcore:plot")
    found: dict[tuple[str, str], list[float]] = {}
    with feed.flowing():
        for _ in range(bench.size.rounds):
            with bench.person() as context:
                # A script's compiled form is kept at its second use.
                for cache in ("cold", "filling", "filling", *["warm"] * WARM):
                    page = bench.open(context, feed.page)
                    # To ask a page for something, Playwright runs a script in it that would take its turn.
                    page.wait_for_timeout(LOAD_MS)
                    times = {name: _mark(page, name) for name in names}
                    # A chart that is drawn before the first paint is seen with it.
                    times["hookcore:chart"] = max(times["hookcore:chart"], times["first-contentful-paint"])
                    for name, at in times.items():
                        found.setdefault((cache, name), []).append(at)
                    page.wait_for_timeout(500)
                    page.close()
    targets = dict(zip(names, ((500, 500), (1500, 300), (1000, 1000), (1500, 1500)), strict=True))
    for (cache, name), times in found.items():
        if cache != "filling":
            traffic.judge(f"{name}, {cache}: median", float(np.median(times)), targets[name][cache == "warm"], "ms")
            print(f"    p95 {np.percentile(times, 95):.0f} ms of {len(times)}", flush=True)


def watch(page: Page, seconds: float) -> tuple[list[Any], list[Any]]:
    """Return what the page draws, and its long tasks, for some time from now on."""
    page.evaluate("window.drawn.length = 0; window.long.length = 0")
    page.wait_for_timeout(seconds * 1000)
    drawn, long = page.evaluate("[window.drawn, window.long]")
    return drawn, long


def settle(page: Page) -> None:
    """Wait until the page follows."""
    _mark(page, "hookcore:live")
    page.wait_for_timeout(3000)


def _longest(long: Sequence[Any]) -> float:
    return max((duration for _, duration in long), default=0.0)


def follow(bench: Bench) -> None:
    """Measure the time from the end of a step to the pixel, at 10 steps per second, and blocking of the page."""
    feed = make_feed(bench.server.url, bench.size.modules)
    with feed.flowing(), bench.context() as context:
        page = bench.open(context, feed.page)
        settle(page)
        drawn, long = watch(page, bench.size.seconds)
    late = lateness(feed.ended, [each for each in drawn if each[0] == "heat"])
    figures = traffic.describe("step to pixel", late)
    traffic.judge("step to pixel, p50", figures["p50"], 100, "ms")
    traffic.judge("step to pixel, p95", figures["p95"], 250, "ms")
    traffic.judge("longest task", _longest(long), 100, "ms")


def lateness(ended: Mapping[int, float], drawn: Sequence[Any]) -> list[float]:
    """Return the delay of each step until it was first visible, including steps that were drawn with later ones."""
    seen, late = -1, []
    for _, step, at, _ in drawn:
        if seen >= 0:
            late += [at / 1000 - ended[each] for each in range(seen + 1, step + 1) if each in ended]
        seen = max(seen, step)
    return late


def follow_a_large_model(bench: Bench) -> None:
    """Measure 5,000 modules: updates of the heatmap, and whether scrolling and typing ever block."""
    feed = make_feed(bench.server.url, bench.size.large, 500)
    with feed.flowing(5), bench.context() as context:
        page = bench.open(context, feed.page + "/flow")
        settle(page)
        page.evaluate("window.drawn.length = 0; window.long.length = 0")
        for letter in "layers.1":
            page.locator("#find").press_sequentially(letter)
            page.wait_for_timeout(250)
        for turn in range(20):
            page.mouse.wheel(0, 400 if turn < 10 else -400)
            page.wait_for_timeout(100)
        page.locator("#find").fill("")
        typed = page.evaluate("window.long")
        drawn, long = watch(page, bench.size.seconds)
    took = [ms / 1000 for kind, _, _, ms in drawn if kind == "heat"]
    figures = traffic.describe("heatmap update", took)
    traffic.judge("heatmap update, p95", figures["p95"], 50, "ms")
    traffic.judge("longest task while typing and scrolling", _longest(typed), 100, "ms")
    traffic.judge("longest task while following", _longest(long), 100, "ms")


def use_a_huge_model(bench: Bench) -> None:
    """Measure 10,000 modules: frames per second on the overview."""
    feed = make_feed(bench.server.url, bench.size.huge, 300)
    with feed.flowing(5), bench.context() as context:
        page = bench.open(context, feed.page)
        settle(page)
        frames = page.evaluate(FRAMES, bench.size.seconds * 500)
    traffic.judge("frames a second", frames, 30, "/s", at_least=True)


def play_a_model(bench: Bench) -> None:
    """Measure the picture of 2,000 modules, all unfolded, while its steps are played: pictures a second."""
    run = train_blocks(bench.server.url, bench.size.pictured)
    idle, played, took = [], [], []
    with bench.context() as context:
        page = bench.open(context, f"runs/{run}/model?speed={PLAYED_HZ}")
        settle(page)
        page.locator("#unfold").click()
        page.wait_for_timeout(2 * SETTLE_MS)
        print(" ", page.locator("#model-count").inner_text(), flush=True)
        for _ in range(bench.size.rounds):
            page.locator("#model-step").press("Home")
            page.wait_for_timeout(SETTLE_MS)
            idle.append(page.evaluate(FRAMES, PLAYED_MS))
            page.evaluate("window.drawn.length = 0")
            page.locator("#play").click()
            played.append(page.evaluate(FRAMES, PLAYED_MS))
            took += [ms / 1000 for kind, _, _, ms in page.evaluate("window.drawn") if kind == "model"]
            page.wait_for_timeout(500)
    traffic.describe("drawing of a step", took)
    print(f"  frames a second with nothing to draw: median {np.median(idle):.1f}", flush=True)
    traffic.judge("frames a second while playing: median", float(np.median(played)), 58, "/s", at_least=True)
    traffic.judge("the same, to nothing to draw", float(np.median(np.divide(played, idle))), 0.97, "", at_least=True)


def train_blocks(url: str, modules: int) -> str:
    """Train a transformer of this many small modules, and return its run."""
    import torch

    import hookcore
    from benchmarks.models import GPT

    model = GPT(vocabulary=32, width=16, heads=2, layers=max(1, modules // PARTS_OF_A_LAYER), length=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tokens = torch.randint(0, 32, (2, 8))
    kinds = {"output", "output_grad"}
    with hookcore.watch(model, server=url, name=f"model-{modules}", kinds=kinds, budget=None) as watcher:
        for _ in range(PLAYED_STEPS):
            optimizer.zero_grad()
            model(tokens).square().mean().backward()
            optimizer.step()
        return (watcher.url or "").rpartition("/")[2]


def play_half_an_hour(bench: Bench) -> None:
    """Measure the page's memory over 30 minutes of steps, played fast."""
    feed = make_feed(bench.server.url, bench.size.modules)
    heap = []
    with bench.context() as context:
        page = bench.open(context, feed.page)
        settle(page)
        session = context.new_cdp_session(page)
        for _ in range(7):
            session.send("HeapProfiler.collectGarbage")
            heap.append(session.send("Runtime.getHeapUsage")["usedSize"] / 2**20)
            goal = feed.sender.step + bench.size.steps_played // 6
            while len(heap) < 7 and feed.sender.step < goal:
                feed.step(4)
                page.wait_for_timeout(20)
    print("  heap after each sixth, MiB:", *(f"{each:.1f}" for each in heap), flush=True)
    traffic.judge("growth after the first sixth", heap[-1] - heap[1], 5, "MiB")


def hide(bench: Bench) -> None:
    """Check that a hidden tab draws nothing, and catches up when it is shown."""
    feed = make_feed(bench.server.url, bench.size.modules)
    with feed.flowing(), bench.context() as context:
        page = bench.open(context, feed.page)
        settle(page)
        _show(page, False)
        page.wait_for_timeout(500)
        drawn, _ = watch(page, 3)
        traffic.judge("pictures while it was hidden", len(drawn), 0, "")
        newest, began = feed.sender.step - 1, time.monotonic()
        _show(page, True)
        page.wait_for_function("(step) => window.drawn.some((each) => each[1] >= step)", arg=newest)
        traffic.judge("until it has caught up", 1000 * (time.monotonic() - began), 1000, "ms")


def _show(page: Page, shown: bool) -> None:
    """Pretend to hide or show the tab, because a headless browser doesn't hide tabs."""
    page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
          const state = hidden ? "hidden" : "visible";
          Object.defineProperty(document, "visibilityState", {configurable: true, get: () => state});
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        not shown,
    )


def open_nine_tabs(bench: Bench) -> None:
    """Measure nine live tabs at the same time."""
    feed = make_feed(bench.server.url, bench.size.modules)
    with feed.flowing(2), bench.context() as context:
        pages = [bench.open(context, feed.page + place) for place in ("", "/flow", "") * 3]
        for page in pages:
            _mark(page, "hookcore:live")
        newest = feed.sender.step + 4
        for page in pages:
            page.wait_for_function("(step) => window.drawn.some((each) => each[1] >= step)", arg=newest)
    traffic.judge("tabs that follow", len(pages), 9, "", at_least=True)


if __name__ == "__main__":
    main()
