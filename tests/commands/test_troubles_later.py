"""Each trouble of the demo is still blamed on its layer and step an hour later, after a restart, and in the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from hookcore.commands.demo import Demo, train
from hookcore.delivery.archive import load_into, read_archive
from hookcore.findings import examine, follow
from hookcore.records import STATS, Frame
from hookcore.records.wire import Batch, EndItem, RunInfo, frame_item
from hookcore.store import Store
from hookcore.watcher import watch
from hookcore_app.pages.report import report_of
from hookcore_app.runs import Run, Runs
from hookcore_app.runs.keep import Keeper
from hookcore_app.settings import ServerSettings
from tests import build
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

AT, TRAINED, LAST = 100, 300, 2_000
MEMORY = 24 * 2**20  # rules look at the steps that a store has exactly, so they find the same with the same memory
TAIL = 150  # the spikes' period in steps
INFO = RunInfo(id="run-1", key="k", name="a run", memory=8_000_000)  # small, so that steps are soon merged
# Several layers shrink or grow in the same step, so which one is first may depend on the processor's rounding.
TOLD = {
    "nan": ("nonfinite", {"standardize"}),
    "vanishing": ("vanishing", {"stem", "blocks.0.relu"}),
    "exploding": ("exploding", {"blocks.3.conv", "blocks.4.conv", "blocks.5.conv", "head"}),
    "dead-relu": ("dead", {"blocks.1.relu"}),
    "spike": ("spike", {"head"}),
}
# The rules that may come first on a server, and the blamed layer; None if the trouble isn't in a single layer.
LED = {
    "nan": (("nonfinite",), "standardize"),
    "vanishing": (("vanishing",), None),
    "exploding": (("exploding", "loss", "learning-rate-too-high"), None),
    "dead-relu": (("dead", "vanishing"), "blocks.1"),
    "spike": (("spike", "loss-spike"), None),
}
Known = list[tuple[str, str, int]]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore torch's number of threads, which the demo sets."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class Trained:
    """A real training with a trouble: its frames, its store, and the folder with the saved run."""

    trouble: str
    frames: list[Frame]
    store: Store
    folder: Path


@pytest.fixture(
    scope="module",
    params=[pytest.param(trouble, marks=pytest.mark.all if place else ()) for place, trouble in enumerate(TOLD)],
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    frames: list[Frame] = []
    extend, kept, trouble = Store.extend, tmp_path_factory.mktemp("kept"), str(request.param)

    def record(self: Store, added: Sequence[Frame]) -> None:
        frames.extend(added)
        extend(self, added)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Store, "extend", record)
        patched.setattr(
            "hookcore.commands.demo.watch",
            lambda model, **given: watch(model, server=None, keep=kept, memory=MEMORY, **given),
        )
        store = train(Demo("cnn", trouble, AT, TRAINED, most_per_s=0), lambda _: None).store
    (folder,) = kept.glob("*.hookcore")
    return Trained(trouble, frames, store, folder)


def played(frames: list[Frame]) -> Iterator[Frame]:
    """Return frames that continue a training in the way in which it ended."""
    yield from frames
    for step in range(frames[-1].step + 1, LAST):
        again = frames[-TAIL:][(step - frames[-1].step - 1) % TAIL]
        yield replace(again, step=step, time_s=again.time_s + step, new_taps=(), events=(), flow=None)


def send(run: Run, frames: list[Frame]) -> None:
    taps = tuple(tap for frame in frames for tap in frame.new_taps)
    run.take(Batch(run=INFO, taps=taps, items=()))
    items = [frame_item(number, replace(frame, new_taps=())) for number, frame in enumerate(played(frames))]
    for start in range(0, len(items), 200):
        run.take(Batch(run=INFO, taps_from=len(taps), items=tuple(items[start : start + 200])))
    run.take(Batch(run=INFO, taps_from=len(taps), items=(EndItem(len(items), LAST - 1),)))


def incidents_of(run: Run) -> Known:
    return [(each.rule, each.culprit.tap.module, each.first_step) for each in run.store.incidents()]


def findings_of(run: Run) -> Known:
    return [(each.rule, each.module, each.since_step) for each in run.findings.current()]


def test_the_culprit_and_the_step_stay(trained: Trained, tmp_path: Path) -> None:
    rules, module = LED[trained.trouble]
    settings = ServerSettings(keep=str(tmp_path))
    runs = Runs(settings)
    keeper = Keeper(runs, settings)
    run = runs.open(INFO)
    assert run is not None
    keeper.opened(run, False)
    send(run, trained.frames)
    rule, blamed, first = told = incidents_of(run)[0]
    assert rule in rules
    assert module is None or blamed.startswith(module)
    assert AT <= first <= AT + 30
    assert told in findings_of(run)
    assert run.store.series(run.store.taps().taps[0], "rms").last_step[1] > 1  # old steps have been merged
    keeper.close()

    again = Runs(settings)
    Keeper(again, settings).close()
    wait_for(lambda: again.get(INFO.id) is not None)
    shown = again.find(INFO.id)
    assert shown is not None
    assert told in incidents_of(shown)
    assert told in findings_of(shown)
    report = report_of(shown).decode()
    assert f"step {first}" in report or rule == "learning-rate-too-high"  # which says in how many steps the loss grew
    assert f"<code>{blamed or '(root)'}</code>" in report


def test_a_culprit_stays_named_after_merging_and_rereading(trained: Trained) -> None:
    rule, modules = TOLD[trained.trouble]
    store = trained.store
    known = {each.id: each for each in store.incidents()}
    incident = next(each for each in known.values() if each.rule == rule)
    module = incident.culprit.tap.module
    assert module in modules
    assert AT <= incident.first_step <= AT + 30
    assert incident.found_step <= incident.first_step + 40
    assert incident.evidence is not None
    assert incident.evidence.steps[0] < incident.first_step

    again = follow(Store(store.usage().max_bytes))
    load_into(again, read_archive(trained.folder))
    again.settle()
    assert list(map(repr, again.incidents())) == list(map(repr, known.values()))

    newest = store.latest()
    for step in range(TRAINED, 5000):  # nothing changes for a long time
        stats = newest.values[:, : len(STATS)]
        store.append(build.frame(step, stats, numbers=newest.numbers, scalars={"loss": 1.0}))
    assert store.usage().merged["stats"] > 1000
    after = {each.id: each for each in store.incidents()}
    for id, each in known.items():
        told = after[id].culprit, after[id].first_step, after[id].message, after[id].chain[:5]
        assert told == (each.culprit, each.first_step, each.message, each.chain[:5])
    if not after[incident.id].is_over:
        named = [(each.module, each.since_step) for each in examine(store).findings if each.rule == rule]
        assert (module, incident.first_step) in named
