"""Fixtures for the REST tests: runs with known numbers, and readers of every format."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from starlette.testclient import TestClient

from hookcore.records import (
    STAT_COLUMN,
    Coverage,
    Event,
    Frame,
    HookRecord,
    ModuleRecord,
    SketchBlock,
    Snapshot,
    Tap,
)
from hookcore.records.flow import Flow, FlowCall
from hookcore.records.sketch import bins_of
from hookcore.records.vocabulary import REDUCTION_WAIT, SAMPLES_RATE, STEPS_RATE
from hookcore.records.wire import Description, Place, RunInfo
from hookcore_app.main import create_app
from hookcore_app.runs import Run, Runs
from hookcore_app.settings import ServerSettings
from tests import build
from tests.build import frame, stats_of_magnitudes

STEPS = 20
TAPS = (
    Tap("", "output"),
    Tap("layers.0", "output"),
    Tap("layers.1", "output", "past.1", 2),
    Tap("layers.1", "output_grad", phase="eval"),
    Tap("head", "param_grad", "weight"),
)
MODULES = (
    ModuleRecord("", "Net", None, 30, 30),
    ModuleRecord("layers.0", "Linear", "layers", 10, 10, ("again.0",), (("weight", (4, 3)),)),
    ModuleRecord("layers.1", "ReLU", "layers"),
    ModuleRecord("head", "Linear", "", 20, 0),
)
COVERAGE = (
    Coverage("", "Net", True, ("output",)),
    Coverage("layers.0", "Linear", True, ("output",)),
    Coverage("head", "Linear", False, (), "it was never called"),
)
HOOKS = (
    HookRecord("module", "head", "forward", "spy", "train.py:3", False, 7, ("prepend",), False, "it lies"),
    HookRecord("process", "", "forward", "observe", "capture.py:1", True),
)
FLOWS = {  # by the step in which hookcore learned them
    0: (FlowCall("layers.0", how="identity"), FlowCall("", returns=(0,))),
    9: (FlowCall("layers.0"), FlowCall("layers.1", fed_by=(0,)), FlowCall("", fed_by=(0, 1), how="order")),
}
MATRIX = np.array([[0.5, -2.0, np.nan], [np.inf, 0.0, -np.inf]], np.float32)


def value_at(step: int, row: int) -> float:
    """Return the rms of a tap in a step: known values, including all that JSON can't represent."""
    if row == 1 and step == 7:
        return math.nan
    if row == 2 and step == 9:
        return math.inf
    return (step + 1) * 10.0**row / 3.0


def make_frame(step: int, values: list[float], **others: Any) -> Frame:
    """Return a frame with these means, extremes, and rms. Each sketch counts the same value eight times."""
    block = SketchBlock(
        np.arange(len(values) + 1, dtype=np.uint32), bins_of(np.array(values)), np.full(len(values), 8, np.uint32)
    )
    stats = stats_of_magnitudes(values, "mean", "min", "max", "rms")
    return frame(step, stats, sketches=block, **{"time_s": 100.0 + step, **others})


def make_info(run: str, **others: Any) -> RunInfo:
    """Return a run's info, with settings that JSON can't represent."""
    settings = {"every": 1, "budget": math.inf, "odd": [b"bytes", {1: math.nan}]}
    return build.make_info(run, **{"key": f"secret of {run}", "name": f"run {run}", "settings": settings, **others})


def open_run(runs: Runs, run: str, **others: Any) -> Run:
    """Return an empty run whose trainer is connected."""
    found = runs.open(make_info(run, **others))
    assert found is not None
    return found


def fill(run: Run, scale: float = 1.0, steps: int = STEPS) -> Run:
    """Fill every part of a run with known numbers."""
    run.store.describe(MODULES, COVERAGE, HOOKS)
    for step in range(steps):
        values = [value_at(step, row) * scale for row in range(len(TAPS))]
        events = (Event(step, 100.0 + step, "note", f"at {step}", "warning" if step % 5 == 0 else "info"),)
        loss = math.nan if step == 3 else 1.0 / (step + 1)
        scalars = {"loss": loss, "lr": 0.1}
        new = TAPS if step == 0 else ()
        flow = Flow(step, FLOWS[step], 0.001) if step in FLOWS else None
        run.store.append(make_frame(step, values, new_taps=new, events=events, scalars=scalars, flow=flow))
    run.store.add_snapshot(Snapshot(TAPS[1], 3, 103.0, "float32", (2, 3), MATRIX))
    run.changes.tell()
    return run


def attend(run: Run) -> Run:
    """Add an attention layer and its attention map."""
    tap = Tap("blocks.0.attn", "output", "1")
    frame = make_frame(STEPS, [0.5] * (len(TAPS) + 1), new_taps=(tap,))
    frame.stats[-1, [STAT_COLUMN["min"], STAT_COLUMN["max"]]] = 0.0, 1.0
    run.store.append(frame)
    weights = np.full((1, 2, 2, 2), 0.5, np.float32)
    run.store.add_snapshot(Snapshot(tap, STEPS, 1.0, "float32", weights.shape, weights))
    return run


def fill_ranks(runs: Runs, job: str = "4f2a", world: int = 2, steps: int = STEPS, **others: Any) -> None:
    """Fill the runs of a training's ranks. The values and step times of rank n are n times as large."""
    ranks = []
    spread = (("weight", f"Shard(0) over data, {world} ranks"),)
    modules = [replace(each, placements=spread) if each.type == "Linear" else each for each in MODULES]
    for rank in range(world):
        axes = {"data": (rank, world)}
        place = Place(job=job, rank=rank, world=world, local_rank=rank, device=f"cuda:{rank}", axes=axes)
        ranks.append(open_run(runs, f"{job}-{rank}", **{"name": f"ddp rank {rank}", "place": place, **others}))
        ranks[-1].store.announce(TAPS)
        ranks[-1].store.describe(modules, COVERAGE, HOOKS)
        training = ranks[-1].training
        assert training is not None
        training.describe_of(ranks[-1], Description(0, tuple(modules), tuple(COVERAGE), tuple(HOOKS)))
    for step in range(steps):
        for rank, run in enumerate(ranks):
            values = [value_at(step, row) * (1 + rank) for row in range(len(TAPS))]
            scalars = {"loss": (1.0 + rank) / (step + 1), REDUCTION_WAIT: 0.1 * (world - 1 - rank)}
            elapsed_s = 0.25 * (1 + rank)
            scalars |= {STEPS_RATE: 1 / elapsed_s, SAMPLES_RATE: 8 / elapsed_s}
            time_s = 100.0 + elapsed_s * step
            run.take_record(make_frame(step, values, scalars=scalars, elapsed_s=elapsed_s, time_s=time_s))


class World:
    """An application, its runs, and a client without a network."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs = Runs(ServerSettings(memory=500_000_000), lambda: self.now)
        self.app = create_app(self.runs, self.runs.settings)
        self.client = TestClient(self.app, base_url="http://127.0.0.1")
        self.run = fill(open_run(self.runs, "one"))

    def get(self, path: str, accept: str | None = None, status: int = 200, **asked: Any) -> Any:
        """Return an answer with this status. `first` and `last` become the parameters `from` and `to`."""
        named = {{"first": "from", "last": "to"}.get(name, name): value for name, value in asked.items()}
        headers = {} if accept is None else {"Accept": accept}
        answer = self.client.get(f"/api/v1/{path}", params=named, headers=headers)
        assert answer.status_code == status, answer.text
        return answer

    def json(self, path: str, **asked: Any) -> Any:
        """Return the JSON of an address."""
        return strict(self.get(path, **asked).content)

    def error(self, path: str, status: int, **asked: Any) -> str:
        """Return the message of an error."""
        said = strict(self.get(path, status=status, **asked).content)
        assert set(said) == {"error"}
        return str(said["error"])


def strict(data: bytes) -> Any:
    """Parse JSON as strictly as any parser does."""
    return json.loads(data, parse_constant=_refuse)


def _refuse(word: str) -> Any:
    raise AssertionError(f"{word} is not JSON")


def floats(values: Any) -> Any:
    """Return lists of numbers and words as an array."""
    return np.array(values, float)


def arrow_columns(data: bytes) -> dict[str, list[Any]]:
    """Return the columns of an Arrow stream."""
    table: dict[str, list[Any]] = pa.ipc.open_stream(data).read_all().to_pydict()
    return table


def csv_columns(data: bytes) -> dict[str, list[str]]:
    """Return the columns of a CSV."""
    names, *rows = list(csv.reader(io.StringIO(data.decode())))
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def npy(data: bytes) -> Any:
    """Return the columns of a NumPy file without objects."""
    return np.load(io.BytesIO(data), allow_pickle=False)


def same(one: Any, two: Any) -> bool:
    """Return whether arrays are equal to the last bit. NaN equals NaN."""
    return np.array_equal(floats(one), floats(two), equal_nan=True)
