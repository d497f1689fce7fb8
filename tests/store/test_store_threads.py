"""One writer and many readers: a reader always sees a whole step."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from hookcore.records import STATS, Frame, SketchBlock, Tap
from hookcore.store import Store
from hookcore.store.ladder import Ladder
from hookcore.store.segments import STAT_SCHEMA
from tests.build import frame

TAPS = 24
LANES = 4000  # enough values for NumPy to let other threads run while it copies a row


@pytest.fixture
def _many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def steady_frame(step: int, taps: np.ndarray, new: tuple[Tap, ...] = ()) -> Frame:
    """Return a frame in which every stat is the step, and every sketch has one bin with that count."""
    rows = len(taps)
    stats = np.full((rows, len(STATS)), float(step))
    stats[:, 1:3] = 0
    start = np.arange(rows + 1, dtype=np.uint32)
    block = SketchBlock(start, np.full(rows, 900, np.uint16), np.full(rows, step, np.uint32))
    return frame(step, stats, new, numbers=taps, sketches=block)


def check_heatmap(store: Store) -> None:
    shown = store.heatmap("output", "max", columns=10_000)  # one column per step, as long as they are exact
    if shown.worst.size:
        filled = shown.present > 0
        assert (filled == filled[0]).all(), "a step has only some of its taps"
        assert (np.nan_to_num(shown.worst) == np.nan_to_num(shown.worst[0])).all(), "taps of different steps were mixed"


def check_latest(store: Store) -> None:
    before = store.steps().newest or 0
    found = store.latest()
    steps = set(found.steps.tolist())
    assert len(steps) <= 1, "the newest step is not whole"
    if steps:
        assert max(steps) >= before, "the newest step disappeared"
        own = found.values[:, 3 : len(STATS)]
        assert (own == steps.pop()).all()


def check_series(store: Store) -> None:
    if before := store.steps().newest:
        series = store.series(TAPS - 1, "max", points=100_000)
        assert np.array_equal(series.last_step, series.max)
        assert (series.first_step[1:] == series.last_step[:-1] + 1).all(), "a step is missing or duplicated"
        assert series.present.sum() == series.last_step[-1] >= before


def check_histograms(store: Store) -> None:
    if store.steps().count:
        shown = store.histograms(0, columns=100_000)
        last = int(shown.last_step[-1])
        assert shown.counts.sum() == last * (last + 1) // 2, "sketches were lost, or counted twice"


@pytest.mark.usefixtures("_many_switches")
def test_readers_see_whole_steps_while_a_writer_writes_and_merges() -> None:
    store, done, wrong = Store(2**20), threading.Event(), []
    reads: dict[Callable[[Store], None], int] = dict.fromkeys(
        (check_heatmap, check_latest, check_series, check_histograms), 0
    )

    def read(check: Callable[[Store], None]) -> None:
        try:
            while not done.is_set():
                check(store)
                reads[check] += 1
        except BaseException as error:
            wrong.append(error)

    readers = [threading.Thread(target=read, args=(check,)) for check in reads]
    taps = np.arange(TAPS, dtype=np.uint32)
    store.append(steady_frame(1, taps, tuple(Tap(f"m{tap}", "output") for tap in range(TAPS))))
    for reader in readers:
        reader.start()
    step = 1
    while not wrong and (step < 600 or min(reads.values()) < 5) and step < 20_000:
        step += 1
        store.append(steady_frame(step, taps))
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong, wrong
    assert min(reads.values()) >= 5
    assert store.usage().merged["stats"] > 0
    assert store.usage().merged["sketches"] > 0


@pytest.mark.usefixtures("_many_switches")
def test_a_step_in_parts_is_never_half_merged() -> None:
    ladder = Ladder(STAT_SCHEMA, 40_000_000, threading.Lock())
    ladder.grow(LANES)
    done, wrong = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            for part in ladder.gather(3, slice(0, LANES), None, None):
                if not (part.high == part.high[:, :1]).all():
                    wrong.append(part.high)

    reader = threading.Thread(target=read)
    ladder.append([0], slice(0, LANES), np.zeros((len(STATS), 1, LANES)))
    reader.start()
    for step in range(1, 100):
        ladder.append([step], slice(0, LANES), np.zeros((len(STATS), 1, LANES)))
        for value in range(5):
            ladder.merge_newest(slice(0, LANES), np.full((len(STATS), LANES), float(value)), lambda known, new: new)
    done.set()
    reader.join()
    assert not wrong


def test_frames_from_several_threads_are_all_stored() -> None:
    store = Store(2**20)
    taps = np.arange(2, dtype=np.uint32)
    store.append(steady_frame(1, taps, (Tap("a", "output"), Tap("b", "output"))))

    def write() -> None:
        for _ in range(50):
            store.append(steady_frame(1, taps))

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert store.latest(stat="parts").values[:, 0].tolist() == [201.0, 201.0]
    assert store.histograms(0).counts.sum() == 201
