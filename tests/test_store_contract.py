"""Every answer about a run is the same, whether its trainer sends to a server or through a collector to ClickHouse."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from hookcore.records import STATS, Event, ModuleRecord, SketchBlock, Snapshot, Tap
from hookcore.records.flow import Flow, FlowCall
from hookcore.records.wire import Batch, Description, EndItem, Item, Place, RunInfo, frame_item, snapshot_item
from hookcore_app.clickhouse import record
from hookcore_app.clickhouse.cluster import opening
from tests.build import frame
from tests.clickhouse_nodes import Cluster, running
from tests.clickhouse_world import Collector, new_database
from tests.serving import World, make_world
from tests.waiting import wait_for

STEPS: Final = 300
MODULES: Final = ("", "embed", "layers.0", "layers.1", "head")
TAPS: Final = (
    *(Tap(module, kind) for module in MODULES[1:] for kind in ("output", "output_grad")),
    Tap("head.weight", "param_grad"),
    Tap("", "probe"),
)
PROBE: Final = len(TAPS) - 1
KEY: Final = "a secret of the trainer"
pytestmark = pytest.mark.slow


# -- what is sent ------------------------------------------------------------------------------------------------------


def info_of(run: str, place: Place | None = None) -> RunInfo:
    return RunInfo(
        id=run,
        key=KEY,
        name=f"the run {run}",
        started_s=1_700_000_000.0,
        host="box",
        config={"lr": 0.1},
        facts={"optimizer": "AdamW"},
        tags=("sweep",),
        place=place,
    )


def description() -> Description:
    return Description(1, tuple(ModuleRecord(path, "Linear", path.rpartition(".")[0] or None) for path in MODULES))


def batches_of(run: str, seed: int, place: Place | None = None, ends: bool = True) -> Iterator[Batch]:
    """Yield a training with values that aren't finite, parts of steps, taps that are rare, events, and snapshots."""
    random, info = np.random.default_rng(seed), info_of(run, place)
    items: list[Item] = []
    for step in range(STEPS):
        items += _items_of(random, len(items), step)
    if ends:
        items.append(EndItem(len(items), STEPS - 1))
    about: dict[str, Any] = {"taps": TAPS, "description": description()}
    for first in range(0, len(items), 100):
        yield Batch(run=info, items=tuple(items[first : first + 100]), **about)
        about = {"taps_from": len(TAPS)}


def _items_of(random: np.random.Generator, number: int, step: int) -> Iterator[Item]:
    numbers = np.array([tap for tap in range(PROBE) if tap != 8 or step % 7 == 0])
    rows = random.lognormal(0, 0.2, (len(numbers), len(STATS)))
    rows[:, :4], rows[:, 10:12] = (64, 0, 0, 3), (1, 64)
    if step in (120, 121, 122, 250):
        rows[2:4, [1, 4, 8]] = 2, math.nan, math.nan
    bins = np.sort(random.choice(np.arange(1900, 2200), (len(numbers), 3)), axis=1).astype(np.uint16)
    bins += np.arange(3, dtype=np.uint16)  # ascending
    start = np.arange(len(numbers) + 1, dtype=np.uint32) * 3
    block = SketchBlock(start, bins.ravel(), np.tile(np.array([20, 20, 24], np.uint32), len(numbers)))
    scalars = {"loss": 2.0 / (step + 1), **({"accuracy": step / STEPS} if step % 50 == 0 else {})}
    scalars |= {"hookcore/system/cpu": 50.0} if step % 20 == 0 else {}
    others: dict[str, Any] = {"elapsed_s": 0.5, "micro_batches": 2}
    if step == 0:
        calls = FlowCall("embed"), FlowCall("layers.0", fed_by=(0,)), FlowCall("head", fed_by=(1,))
        others |= {"labels": {"dtype": "float32"}, "flow": Flow(0, calls)}
    if step % 40 == 3:
        others["events"] = (Event(step, 1000.0 + step, "skipped", f"event of step {step}", "warning"),)
    yield frame_item(number, frame(step, rows, numbers=numbers, sketches=block, scalars=scalars, **others))
    if step % 60 == 7:
        more = frame(step, rows[:2] * 2, numbers=numbers[:2], scalars={"loss": 1.5})
        yield frame_item(number + 1, more)
        values = random.normal(size=(4, 6)).astype(np.float32)
        yield snapshot_item(number + 2, Snapshot(TAPS[0], step, 1000.0, "float32", (4, 6), values))
        yield snapshot_item(number + 3, Snapshot(TAPS[PROBE], step, 1000.0, "float32", (6,), values[0]))
        text = np.frombuffer(f"said in step {step}".encode(), np.uint8)
        yield snapshot_item(number + 4, Snapshot(Tap("words", "output"), step, 1000.0, "text/plain", text.shape, text))


# -- the servers -------------------------------------------------------------------------------------------------------


@dataclass
class Servers:
    """A server with everything in memory, and others that read ClickHouse."""

    memory: World
    followed: World  # it was there when the data came
    opened: World  # it came later
    long: World  # it came later, and takes the runs for long ones


def unhurried() -> float:
    """Return the time of servers to which no trainer seems to be late, however slow this machine is."""
    return 0.0


def _has_all(world: World) -> bool:
    every = world.runs.every()
    return len(every) == 5 and all(run.loaded and run.ended_at_step is not None for run in every)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with running() as made:
        yield made


@pytest.fixture(scope="module")
def servers(nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder: Path = tmp_path_factory.mktemp("contract")
    with pytest.MonkeyPatch.context() as patch:
        url = new_database(nodes.url)
        followed = make_world(unhurried, store=url)
        followed.app.state.shared.start()
        collector = Collector(folder, url)
        collector.inserter.start()
        memory = make_world(unhurried)
        places = [Place(job="job", rank=rank, world=2) for rank in (0, 1)]
        trainings = [batches_of("one", 1), batches_of("two", 2)]
        trainings += [batches_of(f"rank-{place.rank}", 3 + place.rank, place) for place in places]
        for turn, batches in enumerate(zip(*trainings, strict=True)):
            for batch in batches:
                memory.take(batch)
                collector.post(batch)
            if not turn:  # a training that has ended before it is seen is read only when it is asked for
                wait_for(lambda: sum(run.loaded for run in followed.runs.every()) >= 4, "the first frames")
        collector.wait()
        wait_for(lambda: _has_all(followed), "the last frame")
        opened = make_world(unhurried, store=url)
        opened.app.state.shared.start()
        for run in opened.runs.every():
            opened.runs.read(run)
        long = make_world(unhurried, store=url)
        long.app.state.shared.start()
        with patch.context() as small:
            small.setattr(opening, "WHOLE_ROWS", 100)
            small.setattr(opening, "WINDOW_ROWS", 700)
            small.setattr(record, "FRAME_ROWS", 1)
            for run in long.runs.every():
                long.runs.read(run)
        yield Servers(memory, followed, opened, long)
        for world in (followed, opened, long):
            world.app.state.shared.close()
        collector.stop()


# -- the questions -----------------------------------------------------------------------------------------------------

OF_A_RUN: Final = (
    "runs/{run}",
    "runs/{run}/modules",
    "taps?run={run}",
    "taps?run={run}&kind=output&match=layers.*",
    "coverage?run={run}",
    "hooks?run={run}",
    "flow?run={run}",
    "flow?run={run}&step=100",
    "model?run={run}",
    "findings?run={run}",
    "overview?run={run}",
    "mutes?run={run}",
    "rules?run={run}",
    "incidents?run={run}",
    "capsules?run={run}",
    "series?run={run}&stat=rms&tap=2",
    "series?run={run}&stat=mean&kind=output_grad&match=*&points=37",
    "series?run={run}&stat=nan&tap=4&from=50&to=260&points=20",
    "heatmap?run={run}&kind=output&stat=rms",
    "heatmap?run={run}&kind=output&stat=rms&columns=40&rows=2&from=10&to=280",
    "heatmap?run={run}&kind=output_grad&stat=nan&columns=77&counts=true",
    "histograms?run={run}&tap=0",
    "histograms?run={run}&tap=0&columns=25&bins=16&from=20&to=200",
    "channels?run={run}&tap=9",
    "latest?run={run}",
    "latest?run={run}&kind=output&sort=rms&limit=3",
    "latest?run={run}&from=40&to=60",
    "latest?run={run}&from=100&to=270&sort=rms",
    "overview?run={run}&from=10&to=90",
    "timeline?run={run}&from=10&to=200",
    "timeline?run={run}&columns=40",
    "scalars?run={run}",
    "scalars?run={run}&name=accuracy",
    "scalars?run={run}&name=loss&points=30&from=100",
    "snapshots?run={run}",
    "media?run={run}",
    "events?run={run}",
    "events?run={run}&from=100&to=200",
    "settings?run={run}",
    "differences?run={run}&kind=output&from=0&to=100&other_from=150&other_to=250",
    "figure?run={run}&chart=series&tap=0&stat=rms",
    "figure?run={run}&chart=heatmap&kind=output&stat=rms",
    "figure?run={run}&chart=histograms&tap=0",
    "figure?run={run}&chart=scalars&name=loss",
)
OF_SEVERAL: Final = (
    "runs",
    "runs?query=state:ended",
    "removed-runs",
    "compare?runs=one,two",
    "compare?runs=one,two&kind=output&stat=mean&points=50",
    "compare/heatmap?runs=one,two&kind=output",
    "differences?run=one&other=two&kind=output",
    "ranks?run=ranks-job",
    "ranks/map?run=ranks-job&tap=0&stat=rms&columns=50",
    "ranks/map?run=ranks-job&name=loss",
    "snapshots/0?run=one&format=json",
    "snapshots/0/statistics?run=one",
    "snapshots/0/tiles?run=one&rows=2&columns=2",
)
RUNS: Final = ("one", "rank-1", "ranks-job")
LATE: Final = "findings", "incidents"  # they look at the newest steps of a long run
MARKS: Final = "marks"  # of the timeline: incidents are among them
OWN: Final = frozenset({"counters", "usage", "in_memory", "folder"})  # what each server says of itself


def plain(answer: Any) -> Any:
    """Return an answer without what isn't about the run."""
    if isinstance(answer, dict):
        return {name: plain(value) for name, value in answer.items() if name not in OWN}
    return [plain(each) for each in answer] if isinstance(answer, list) else answer


def without(answer: dict[str, Any], name: str) -> dict[str, Any]:
    return {each: value for each, value in answer.items() if each != name}


def ask(world: World, question: str) -> Any:
    response = world.client.get(f"/api/v1/{question}")
    return response.status_code, plain(response.json())


def test_a_long_run_that_is_opened_late_says_what_begins_late_and_answers_the_rest_in_the_same_way(
    servers: Servers,
) -> None:
    """Its older steps are in ClickHouse only."""
    beginning = "findings, incidents, and counts of non-finite steps look at steps 224 and later"
    for question in (each.format(run=run) for run in ("one", "rank-1") for each in OF_A_RUN):
        response = servers.long.client.get(f"/api/v1/{question}")
        assert beginning in response.headers["hookcore-partial"]
        assert "etag" not in response.headers
        if question.startswith(("runs/one", "runs/rank-1")) and question.count("/") == 1:
            assert beginning in response.json()["partial"]
        elif not question.startswith(LATE):
            expected, found = ask(servers.memory, question)[1], plain(response.json())
            assert without(found, MARKS) == without(expected, MARKS), question
    store = servers.long.runs.get("one").store  # type: ignore[union-attr]
    assert store.whole_since == 224


def test_the_sum_of_all_ranks_of_a_long_training_says_where_it_begins(servers: Servers) -> None:
    found = servers.long.client.get("/api/v1/series?run=ranks-job&stat=rms&tap=0")
    expected = servers.memory.client.get("/api/v1/series?run=ranks-job&stat=rms&tap=0&from=262").json()
    assert found.json() == expected
    assert "the sum of all ranks begins at step 262" in found.headers["hookcore-partial"]
    page = servers.long.client.get("/runs/ranks-job")
    assert "the sum of all ranks begins at step 262" in page.text


@pytest.mark.parametrize("run", [*RUNS, "two"])
@pytest.mark.parametrize(
    "page",
    ["", "/flow", "/layer?module=embed", "/histograms", "/differences", "/tensors", "/system", "/hooks", "/events"],
)
def test_every_page_of_a_run_is_shown(servers: Servers, run: str, page: str) -> None:
    for world in (servers.followed, servers.opened, servers.long):
        answer = world.client.get(f"/runs/{run}{page}", headers={"Accept": "text/html"})
        assert answer.status_code == 200
        hidden = re.search(r'id="partial" role="status"( hidden)?>', answer.text)
        assert hidden is not None
        assert bool(hidden[1]) == (world is not servers.long)


@pytest.mark.parametrize("question", [each.format(run=run) for run in RUNS for each in OF_A_RUN] + list(OF_SEVERAL))
def test_servers_answer_the_same(servers: Servers, question: str) -> None:
    expected = ask(servers.memory, question)
    assert expected[0] == 200, expected
    assert ask(servers.followed, question) == expected, "followed"
    assert ask(servers.opened, question) == expected, "opened"
