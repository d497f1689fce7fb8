"""A batch with arbitrary numbers and names is either rejected, or every page and route can show its run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from hookcore.records import (
    KINDS,
    STAT_COLUMN,
    STATS,
    Coverage,
    Event,
    Frame,
    HookRecord,
    ModuleRecord,
    Snapshot,
    Tap,
    wire,
)
from hookcore.records import SketchBlock as Block
from hookcore.records.sketch import BINS
from hookcore.store import STAT_NAMES
from hookcore_app.runs import Run
from tests.api_world import World as FilledWorld
from tests.api_world import fill, open_run, strict
from tests.build import frame, make_info
from tests.serving import (
    World,
    make_world,
)

NUMBERS = [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 2.0**53, 2.0**63, 3.4e38, 0.1]
COUNTS = [0, 1, 8, 2**53, 0.5]
COUNTED = [STAT_COLUMN[name] for name in ("count", "nan", "inf", "zero", "parts", "sketched")]
TEXTS = ["", "a", "=1", "<b>", "\u202e", "\0", "\n", "'\"", "\N{OWL}" * 20, "x" * 1000, "loss", "re:(", "..", "{{7*7}}"]
STEPS = [[0, 1, 2, 3], [0, 2**53 - 1], [5], [1, 10**9, 10**15], list(range(40))]
SHAPES = [(2, 3), (0, 2**52), (2**52, 0), (0,), (), (3, 0, 5), (1, 2, 3, 3), (2**20, 0, 2**20)]
TIMES = [0.0, 1.7e9, 253_402_300_799.0]


class Trainer:
    """Sends a batch of numbers that are valid, but don't occur in trainings."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        kinds = [*KINDS]
        self.pick.shuffle(kinds)
        paths = ["a", "a.b", "", self.text(), self.text()]
        self.taps = tuple(Tap(path, kind, self.text()) for path, kind in zip(paths, kinds, strict=False))

    def text(self) -> str:
        return self.pick.choice(TEXTS)

    def number(self) -> float:
        return float(self.pick.choice(NUMBERS))

    def frame(self, step: int) -> Frame:
        rows = len(self.taps)
        stats = np.array([[self.number() for _ in STATS] for _ in range(rows)])
        stats[:, COUNTED] = [[self.pick.choice(COUNTS) for _ in COUNTED] for _ in range(rows)]
        bins = np.array([each for _ in range(rows) for each in sorted(self.pick.sample(range(BINS), 3))], np.uint16)
        counts = np.array([self.pick.choice([0, 1, 2**32 - 1]) for _ in bins], np.uint32)
        event = Event(
            self.pick.choice([step, -1, 2**53 - 1]), self.pick.choice(TIMES), self.text(), self.text(), "error"
        )
        return frame(
            step,
            stats,
            time_s=self.pick.choice(TIMES),
            sketches=Block(np.arange(0, 3 * rows + 1, 3, dtype=np.uint32), bins, counts),
            events=(event,),
            scalars={name: self.number() for name in ("loss", "lr", self.text())},
            micro_batches=self.pick.choice([0, 1, 2**53 - 1]),
            grad_scale=self.pick.choice([None, self.number()]),
            labels={self.text(): self.text()},
            elapsed_s=self.pick.choice([np.nan, 0.0, 5e-324, 1e11]),
        )

    def snapshot(self, shape: tuple[int, ...]) -> Snapshot:
        dtype = self.pick.choice(sorted(wire.DTYPES))
        values = np.array([self.number() for _ in range(int(np.prod(shape, dtype=object)))])
        with np.errstate(all="ignore"):
            return Snapshot(self.taps[0], 1, 1.0, self.text(), shape, values.astype(dtype).reshape(shape))

    def batch(self) -> wire.Batch:
        steps = self.pick.choice(STEPS)
        items: list[Any] = [wire.frame_item(place, self.frame(step)) for place, step in enumerate(steps)]
        items += [wire.snapshot_item(len(items) + place, self.snapshot(shape)) for place, shape in enumerate(SHAPES)]
        shapes = ((self.text(), (-1, 2**62)),)
        settings = {
            "every": self.pick.choice([None, 0, -5, 2.0**53]),
            "budget": self.pick.choice([None, -1, 2.0**53]),
            "kinds": self.pick.choice([[], ["output"], ["nonsense"]]),
            "include": self.pick.choice([None, "x", ["a", None]]),
            **{
                name: self.pick.choice([None, -1, 2.0**53, "x", [], {}])
                for name in ("cost", "stride", "paused", "name")
            },
        }
        about = make_info(
            "odd", name=self.text(), host=self.text(), started_s=self.pick.choice(TIMES), settings=settings
        )
        described = wire.Description(
            0,
            tuple(
                ModuleRecord(
                    tap.module,
                    self.text(),
                    None,
                    2**53 - 1,
                    0,
                    (self.text(),),
                    shapes,
                    placements=((self.text(),) * 2,),
                )
                for tap in self.taps
            ),
            (Coverage(self.text(), self.text(), False, (), self.text()),),
            (HookRecord("module", self.text(), self.text(), self.text(), self.text(), False, -5),),
        )
        return wire.Batch(run=about, taps=self.taps, description=described, items=tuple(items))


def _addresses(run: Run, stat: str, kind: str) -> Iterator[str]:
    asked, newest = f"run={run.id}", run.store.steps().newest
    yield from ("/", "/settings", f"/settings?{asked}", "/metrics", f"/runs/{run.id}", f"/compare?runs={run.id},good")
    yield from (f"/runs/{run.id}/{page}" for page in ("flow", "hooks", "events", "histograms", "tensors"))
    for each in run.store.incidents()[:3]:
        yield f"/runs/{run.id}/problems/incident?id={quote(each.id)}&stat={stat}"
    for place, tap in enumerate(run.store.taps().taps[:3]):
        yield f"/runs/{run.id}/model/layers?module={quote(tap.module, safe='')}&step={newest}"
        yield f"/api/v1/histograms?{asked}&tap={place}&format=csv"
        yield f"/api/v1/figure?{asked}&chart=fan&tap={place}"
        yield f"/api/v1/series?{asked}&tap={place}&stat=p50,{stat}&points=3"
    yield "/api/v1/runs"
    for part in (
        "overview",
        "findings",
        "events",
        "settings",
        "snapshots",
        "scalars",
        "report",
        "coverage",
        "hooks",
    ):
        yield f"/api/v1/{part}?{asked}"
    for form in ("json", "csv"):
        yield f"/api/v1/latest?{asked}&sort=-{stat}&format={form}"
        yield f"/api/v1/heatmap?{asked}&kind={kind}&stat={stat}&rows=2&format={form}"
        yield f"/api/v1/compare?runs={run.id},good&stat={stat}&kind={kind}&format={form}"
    yield from (f"/api/v1/figure?{asked}&chart={chart}&kind={kind}&stat={stat}" for chart in ("heatmap", "scalars"))
    for number, _ in run.store.numbered_snapshots():
        yield from (f"/api/v1/snapshots/{number}?{asked}&format={form}" for form in ("json", "csv", "png"))
        yield from (f"/api/v1/snapshots/{number}/{part}?{asked}" for part in ("statistics", "tiles"))
        yield f"/runs/{run.id}/model/tensors?snapshot={number}"


@pytest.fixture
def world() -> World:
    made = make_world(memory=200_000_000)
    fill(open_run(made.runs, "good"))
    return made


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.rota
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_every_page_and_route_responds_whatever_a_trainer_sent(
    world: World, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(seed)
    world.take(trainer.batch())
    run = world.runs.get("odd")
    assert run is not None
    for address in _addresses(run, trainer.pick.choice(STAT_NAMES), trainer.pick.choice(KINDS)):
        answer = world.client.get(address, headers={} if "/api/" in address else {"Accept": "text/html"})
        assert answer.status_code < 500, address
        if answer.headers.get("content-type", "").startswith("application/json"):
            strict(answer.content)
    assert caplog.text == ""


def test_an_unreadable_run_is_listed_as_such_among_the_others(world: World, caplog: pytest.LogCaptureFixture) -> None:
    broken = open_run(world.runs, "broken")
    # The server asks every run for its memory use, even a broken one.
    object.__setattr__(broken, "store", SimpleNamespace(usage=broken.store.usage))
    page = world.client.get("/", headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert "run good" in page.text
    assert "broken" in page.text
    assert "can&#39;t be read" in page.text
    assert "broken" in caplog.text


@pytest.mark.parametrize("started_s", [1e13, -1e13, float("nan"), float("inf")])
def test_an_impossible_start_date_does_not_break_the_list_of_runs(started_s: float) -> None:
    world = FilledWorld()
    fill(open_run(world.runs, "odd", started_s=started_s, settings={"kinds": 7}))
    for address in ("/", "/settings", "/settings?run=odd", "/runs/odd", "/runs/odd/capture", "/api/v1/runs"):
        assert world.client.get(address).status_code == 200, address
