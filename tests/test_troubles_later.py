"""An hour later, after a restart, and in the report, each trouble of the demo is still blamed on its layer and step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hookcore.commands.demo import Demo, train
from hookcore.records import Frame
from hookcore.records.wire import Batch, EndItem, RunInfo, frame_item
from hookcore.store import Store
from hookcore_app.report import report_of
from hookcore_app.runs import Run, Runs
from hookcore_app.runs.keep import Keeper
from hookcore_app.settings import ServerSettings
from tests.waiting import wait_for

AT, TRAINED, LAST = 100, 300, 2_000
TAIL = 150  # the period of the spikes
INFO = RunInfo(id="run-1", key="k", name="a run", memory=8_000_000)  # small, so that steps are merged soon
TOLD = {  # the rules that may lead, and the layer that is blamed; None where the trouble has no layer of its own
    "nan": (("nonfinite",), "standardize"),
    "vanishing": (("vanishing",), None),
    "exploding": (("exploding", "loss"), None),
    "dead-relu": (("dead", "vanishing"), "blocks.1"),
    "spike": (("spike",), None),
}
Known = list[tuple[str, str, int]]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore torch's number of threads, which the demo sets."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def frames_of(trouble: str, monkeypatch: pytest.MonkeyPatch) -> list[Frame]:
    """Return the frames of a real training."""
    frames: list[Frame] = []
    append = Store.append

    def record(self: Store, frame: Frame) -> None:
        frames.append(frame)
        append(self, frame)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "append", record)
        train(Demo("cnn", trouble, AT, TRAINED, most_per_s=0), lambda _: None)
    return frames


def played(frames: list[Frame]) -> Iterator[Frame]:
    """Return the frames of a training that goes on as it ended."""
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


@pytest.mark.slow
@pytest.mark.parametrize("trouble", TOLD)
def test_the_culprit_and_the_step_stay(trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, module = TOLD[trouble]
    frames = frames_of(trouble, monkeypatch)
    settings = ServerSettings(keep=str(tmp_path))
    runs = Runs(settings)
    keeper = Keeper(runs, settings)
    run = runs.open(INFO)
    assert run is not None
    keeper.opened(run, False)
    send(run, frames)
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
    assert f"step {first}" in report
    assert f"<code>{blamed or '(root)'}</code>" in report
