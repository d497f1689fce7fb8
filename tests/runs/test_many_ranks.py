"""64 ranks with 2,000 layers each: the server's memory and its pages stay small."""

from __future__ import annotations

import numpy as np
import pytest
from starlette.testclient import TestClient

from hookcore.records import Tap
from hookcore.records.wire import Place
from hookcore_app.main import create_app
from hookcore_app.runs import Runs, ranks_in
from hookcore_app.settings import ServerSettings
from tests.api_world import open_run
from tests.build import frame, stats_of

RANKS, LAYERS, STEPS = 64, 2000, 4
MEMORY = 130_000_000
PAGE_BYTES = 300_000
TAPS = tuple(Tap(f"model.layers.{number}.attention.projection", "output") for number in range(LAYERS))
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def filled() -> tuple[Runs, int]:
    """Return the runs, and the most memory that they used."""
    runs = Runs(ServerSettings(memory=MEMORY), lambda: 0.0)
    ranks = [
        open_run(runs, f"job-{rank}", name=f"training rank {rank}", place=Place(job="job", rank=rank, world=RANKS))
        for rank in range(RANKS)
    ]
    for run in ranks:
        run.store.announce(TAPS)
    most = 0
    for step in range(STEPS):
        for rank, run in enumerate(ranks):
            values = dict.fromkeys(("mean", "min", "max", "rms"), float(rank + step))
            stats = stats_of(LAYERS, count=4, norm=1.0, parts=1, sketched=4, **values)
            owners = np.full(LAYERS, rank, np.int32)
            run.take_record(frame(step, stats, owners=owners, elapsed_s=0.5))
            runs.balance()
            most = max(most, runs.used_bytes)
    return runs, most


def test_the_memory_is_bounded_and_every_step_has_all_ranks(filled: tuple[Runs, int]) -> None:
    runs, most = filled
    run = runs.get("ranks-job")
    assert run is not None
    joint = ranks_in(run)
    assert joint is not None
    assert MEMORY / 2 < most <= MEMORY
    assert runs.removed == 0
    assert (len(joint.rounds.current()), joint.rounds.missing()) == (RANKS, [])
    # All rows are kept until it is known which ones ranks share. Here, those of the first step don't fit.
    assert joint.sum.assembly.absences.incomplete == 1
    assert any(
        "was added up without" in each.message or "don't include them" in each.message
        for each in joint.run.store.events()
    )
    assert joint.run.store.usage().dropped["taps_refused"] == 0
    series = joint.run.store.series(LAYERS - 1, "mean", 1)
    assert (series.first_step.tolist(), series.last_step[-1]) == ([1, 2, 3], STEPS - 1)
    assert series.mean.tolist() == pytest.approx([(RANKS - 1) / 2 + step for step in (1, 2, 3)])
    assert joint.run.store.series(LAYERS - 1, "count", 1).mean.tolist() == [4 * RANKS] * 3


PATHS = (
    "/runs/ranks-job",
    "/runs/ranks-job/performance/ranks",
    "/runs/ranks-job/flow",
    "/api/v1/ranks/map?run=ranks-job&tap=0&columns=400",
    "/api/v1/ranks/spread?run=ranks-job&kind=output&limit=100",
)


@pytest.mark.parametrize("path", PATHS)
def test_a_page_of_a_large_run_meets_the_size_limit_of_a_small_one(filled: tuple[Runs, int], path: str) -> None:
    runs, _ = filled
    client = TestClient(create_app(runs, runs.settings), base_url="http://127.0.0.1")
    answer = client.get(path)
    assert answer.status_code == 200
    assert len(answer.content) < PAGE_BYTES
