"""All ranks of a distributed training as one run: its contents if ranks are late, lost, restarted, or differ."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from hookcore.errors import HookcoreError
from hookcore.records import (
    STAT_COLUMN,
    Coverage,
    Event,
    Failure,
    Frame,
    ModuleRecord,
    Outcome,
    Snapshot,
    Tap,
    about_command,
    wire,
)
from hookcore.records.vocabulary import REDUCTION_WAIT, SAMPLES_RATE, STEPS_RATE, TRAINED
from hookcore.records.wire import DeliveryCounters, Description, EndItem, Place
from hookcore.store import Store
from hookcore.store.rankstep import Difference
from hookcore_app.analysis.distributed import ranks_of, stores_of
from hookcore_app.runs import Changes, Joint, Run, ranks_in
from hookcore_app.runs.assembly import GRACE_S
from hookcore_app.runs.joint import READ_AGAIN_S
from hookcore_app.runs.keep import Keeper
from hookcore_app.runs.parts import FOLLOWED_S, Commands
from hookcore_app.runs.ranks import IN_PARTS, LATE_S, RankProgress, desync_of, words_of
from hookcore_app.runs.rounds import Rounds
from hookcore_app.runs.shelf import Shelf
from hookcore_app.runs.summing import Sum
from tests.build import frame, make_info, stats_of
from tests.inside import class_of
from tests.serving import World, make_world
from tests.waiting import wait_for

TAPS = (Tap("layer", "output"), Tap("layer", "param", "weight"))
JOINT = "ranks-job"
WORLD = 4


@dataclass
class Clock:
    """A clock that the test sets."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Ranks:
    """The trainers of a training, and the server that they send to."""

    server: World
    clock: Clock
    world: int = WORLD
    run: str = "run"
    sent: dict[str, int] = field(default_factory=dict)  # items, by run
    restarted: set[int] = field(default_factory=set)  # ranks that were restarted by a launcher without attempts

    def send(self, rank: int, steps: Sequence[int], attempt: int = 0, **others: Any) -> wire.Receipt:
        """Send steps in which the rank's own output is its rank, and the shared weight is 10."""
        frames = [of_rank(rank, step, **others) for step in steps]
        return self.post(rank, frames, attempt)

    def post(
        self, rank: int, records: Sequence[Frame | Snapshot | EndItem], attempt: int = 0, **batch: Any
    ) -> wire.Receipt:
        return self.server.take(self.batch(rank, records, attempt, **batch))

    def batch(
        self, rank: int, records: Sequence[Frame | Snapshot | EndItem], attempt: int = 0, **batch: Any
    ) -> wire.Batch:
        run = f"{self.run}-{rank}-{attempt}{'b' if rank in self.restarted else ''}"
        first = self.sent.get(run, 0)
        items: list[Any] = []
        for number, record in enumerate(records, start=first):
            if isinstance(record, EndItem):
                items.append(EndItem(number, record.step, record.failure))
            elif isinstance(record, Snapshot):
                items.append(wire.snapshot_item(number, record))
            else:
                items.append(wire.frame_item(number, record))
        self.sent[run] = first + len(records)
        place = Place(job="job", rank=rank, world=self.world, local_rank=rank % 2, device="cpu", attempt=attempt)
        started_s = 1.0 + attempt + 500 * (rank in self.restarted)
        info = make_info(run, name=f"training rank {rank}", host=f"host{rank // 2}", place=place, started_s=started_s)
        taps: dict[str, Any] = {"taps": TAPS} if first == 0 else {"taps_from": len(TAPS)}
        return wire.Batch(**{"run": info, "items": tuple(items), **taps, **batch})

    def all(self, steps: Sequence[int], attempt: int = 0, **others: Any) -> None:
        for rank in range(self.world):
            self.send(rank, steps, attempt, **others)

    def end(self, rank: int, step: int, failure: Failure | None = None, attempt: int = 0) -> None:
        self.post(rank, [EndItem(0, step, failure)], attempt)

    @property
    def joint(self) -> Joint:
        run = self.server.runs.find(JOINT)
        assert run is not None
        found = ranks_in(run)
        assert found is not None
        return found

    def series(self, tap: int = 0, stat: str = "mean") -> dict[int, float]:
        if not self.joint.run.store.taps_known:
            return {}
        series = self.joint.run.store.series(tap, stat)
        return dict(zip(series.first_step.tolist(), series.mean.tolist(), strict=True))

    def events(self, name: str) -> list[str]:
        return [event.message for event in self.joint.run.store.events() if event.name == name]


def of_rank(
    rank: int,
    step: int,
    weight: float = 10.0,
    loss: float | None = None,
    more: dict[str, float] | None = None,
    **others: Any,
) -> Frame:
    """Return a frame of a rank: four own values, all equal to the rank, and weights that all ranks share."""
    own = stats_of(1, count=4, mean=rank, min=rank, max=rank, rms=rank, norm=2 * rank, parts=1, sketched=4)
    shared = stats_of(1, count=9, mean=weight, min=weight, max=weight, rms=weight, norm=3 * weight, parts=1, sketched=9)
    scalars = {"loss": float(rank) if loss is None else loss, **(more or {})}
    stats = np.concatenate([own, shared])
    stats[:, STAT_COLUMN["ratio"]] = np.nan
    owners = np.array([rank, 0], np.int32)
    return frame(step, stats, owners=owners, scalars=scalars, **{"time_s": 100.0 + step, **others})


@pytest.fixture
def ranks() -> Ranks:
    clock = Clock()
    return Ranks(make_world(clock), clock)


def test_ranks_are_one_run_with_the_values_of_all(ranks: Ranks) -> None:
    ranks.all(range(3))
    joint = ranks.joint
    assert [run.id for run in ranks.server.runs.all()] == [JOINT]
    assert len(ranks.server.runs.every()) == 1 + WORLD
    assert (joint.run.name, joint.run.state, joint.rounds.world, joint.rounds.missing()) == (
        "training",
        "live",
        WORLD,
        [],
    )
    assert joint.run.info.key == ""
    for stat, expected in {"count": 16, "mean": 1.5, "min": 0, "max": 3, "std": np.std([0, 1, 2, 3])}.items():
        assert ranks.series(0, stat) == pytest.approx(dict.fromkeys(range(3), expected))
    for stat, expected in {"count": 9, "mean": 10, "norm": 30}.items():
        assert ranks.series(1, stat) == dict.fromkeys(range(3), expected)
    loss = joint.run.store.scalars("loss")
    assert loss.mean.tolist() == [1.5] * 3
    assert joint.sum.assembly.absences.incomplete == 0
    assert joint.sum.assembly.compared == 3 * 3
    assert joint.run.store.incidents() == []


def test_the_choices_of_routers_add_up_over_ranks(ranks: Ranks) -> None:
    ranks.all(range(2))
    load, other = Tap("gate", "probe", "expert_load"), Tap("layer", "probe", "channel_rms")
    for rank in range(WORLD):
        values = np.array([rank, 1, 10], np.float32)
        ranks.post(rank, [Snapshot(tap, 1, 0.0, "float32", values.shape, values) for tap in (load, other)])
    store = ranks.joint.run.store
    assert store.choices(load)[1].tolist() == [[0 + 1 + 2 + 3], [WORLD], [10 * WORLD]]
    assert store.choices(other)[1].tolist() == [[0], [1], [10]]  # of the first rank alone, as other snapshots


def test_a_micro_batch_that_brings_nearly_all_is_named_with_its_rank_in_the_run_of_all_ranks(ranks: Ranks) -> None:
    norm, cosine = (Tap("layer", "probe", f"parts {name}") for name in ("micro_norm", "micro_cosine"))
    for rank in range(WORLD):
        records: list[Frame | Snapshot] = []
        for step in range(12):
            size = 50.0 if (rank, step) == (2, 9) else 1.0
            owners = np.array([rank, 0, -1, -1], np.int32)
            records.append(frame(step, stats_of(4, count=2, mean=size, rms=size, max=size), owners=owners))
            for tap, numbers in ((norm, [1.0, size]), (cosine, [1.0, 1.0])):
                values = np.array(numbers, np.float32)
                records.append(Snapshot(tap, step, 0.0, "float32", values.shape, values))
        ranks.post(rank, records, taps=(*TAPS, norm, cosine))
    found = [each for each in ranks.joint.run.findings.current() if each.rule == "dominant-micro-batch"]
    assert [each.message.partition(" of the gradient")[0] for each in found] == [
        "micro-batch 1 of 2 of rank 2 brought 88%"
    ]
    assert found[0].since_step == 9


@pytest.mark.parametrize(("page", "reads"), [("/ranks", "is_silent"), ("", "late")])
def test_pages_can_be_rendered_while_ranks_join(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, page: str, reads: str
) -> None:
    ranks.send(0, [0])
    assembly, joined = ranks.joint.sum.assembly, iter(range(1, 100))

    def read(_self: RankProgress) -> int:
        assembly.join(next(joined), 100, tuple)
        return 0

    monkeypatch.setattr(RankProgress, reads, property(read, lambda _self, _value: None))
    answer = ranks.server.client.get(f"/runs/{JOINT}{page}", headers={"Accept": "text/html"})
    assert answer.status_code == 200, answer.text


def test_the_ranks_of_an_attempt_stay_known_when_the_next_one_begins(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.all(range(2))
    joint = ranks.joint
    monkeypatch.setattr(Sum, "shift", property(lambda self: self.assembly.begin_round() or 0))
    assert [each.rank for each in stores_of(joint)] == [*range(WORLD)]


def test_a_rank_is_followed_while_somebody_looks_at_all_ranks(ranks: Ranks) -> None:
    ranks.all([0])
    joint = ranks.joint  # which counts as a look
    runs = [each.run for each in joint.rounds.members.values()]
    ranks.clock.now += FOLLOWED_S
    assert not any(run.is_followed for run in runs)
    joint.run.signs.look()
    assert all(run.is_followed for run in runs)


def test_a_rank_that_is_removed_while_its_description_arrives_breaks_nothing(ranks: Ranks) -> None:
    ranks.send(0, [0])
    joint, described = ranks.joint, Description(1, (ModuleRecord("", "Net", None),), (), ())
    (run,) = [each.run for each in joint.rounds.members.values()]
    joint.dismiss(run)
    joint.describe_of(run, described)
    assert joint.rounds.members == {}


def test_a_step_waits_for_all_ranks(ranks: Ranks) -> None:
    for rank in (3, 0, 1):
        ranks.send(rank, range(5))
        assert ranks.series() == {}
    ranks.send(2, range(2))
    assert list(ranks.series()) == [0, 1]
    before = ranks.joint.sum.assembly.backlog.nbytes
    ranks.send(3, [5], more={f"value {number}": 1.0 for number in range(1000)})
    assert ranks.joint.sum.assembly.backlog.nbytes - before > 100_000, "logged values take memory, too"
    ranks.send(2, range(2, 5))
    assert list(ranks.series()) == list(range(5))
    for rank in range(3):
        ranks.send(rank, [5])
    assert ranks.joint.sum.assembly.backlog.nbytes == 0


def test_a_second_part_is_added_to_its_step(ranks: Ranks) -> None:
    ranks.all([0])
    for rank in range(WORLD):
        late = frame(0, stats_of(0), scalars={"accuracy": rank / 2}, time_s=100.0)
        ranks.post(rank, [late])
    ranks.all([1])
    assert ranks.joint.run.store.scalars("accuracy").mean.tolist() == [0.75]
    assert ranks.joint.run.store.scalars("loss").mean.tolist() == [1.5, 1.5]
    assert ranks.series() == {0: 1.5, 1: 1.5}


def test_an_update_that_comes_after_the_rest_of_its_step_is_relative_to_the_parts_of_all_ranks(ranks: Ranks) -> None:
    for rank in range(WORLD):
        ranks.post(rank, [frame(0, of_rank(rank, 0).stats[1:], numbers=[1], owners=np.array([0], np.int32))])
    for rank in range(WORLD):
        part = stats_of(1, count=4, norm=1.0 + rank, ratio=0.1 * (1 + rank))  # of weights whose norm is 10
        ranks.post(rank, [frame(0, part, numbers=[0], owners=np.array([rank], np.int32))])
    assert ranks.series(0, "count") == {0: 4.0 * WORLD}
    assert ranks.series(0, "norm") == pytest.approx({0: np.sqrt(30)})
    assert ranks.series(0, "ratio") == pytest.approx({0: np.sqrt(30) / np.sqrt(400)})


def test_a_gradient_before_clipping_that_not_all_ranks_measure_yet_is_left_out(ranks: Ranks) -> None:
    taps = (Tap("0", "raw_grad", "weight"), Tap("0", "param_grad", "weight"))
    for rank in range(WORLD):
        both = stats_of(2, count=4, norm=1.0)
        own, last = np.array([rank, rank], np.int32), rank == WORLD - 1
        rows = [
            frame(0, both[1:] if last else both, numbers=[1] if last else [0, 1], owners=own[:1] if last else own),
            frame(1, both, numbers=[0, 1], owners=own),
        ]
        ranks.post(rank, rows, taps=taps)
    assert ranks.series(1, "norm") == {0: 2.0, 1: 2.0}
    assert ranks.series(0, "norm") == {1: 2.0}
    assert ranks.joint.sum.assembly.partial == 0


def test_the_throughput_is_the_sum_of_the_ranks_that_have_batches_of_their_own(ranks: Ranks) -> None:
    rate = {STEPS_RATE: 1.0, SAMPLES_RATE: 100.0}
    for rank in (0, 1, 2):
        ranks.send(rank, range(3), more=rate)
    ranks.send(3, range(2))  # each rank samples in different steps
    ranks.send(3, [2], more=rate)
    ranks.all([3, 4])
    ranks.send(1, [5], more={SAMPLES_RATE: 50.0})
    for rank in (0, 2, 3):
        ranks.send(rank, [5])
    found = ranks.joint.run.store.scalars(SAMPLES_RATE)
    assert dict(zip(found.first_step.tolist(), found.mean.tolist(), strict=True)) == {2: 400.0, 5: 350.0}
    page = ranks.server.client.get(f"/runs/{JOINT}/performance", headers={"Accept": "text/html"}).text
    assert "4 ranks together" in page


def test_the_throughput_of_ranks_that_may_see_the_same_batch_is_their_mean(ranks: Ranks) -> None:
    for rank in range(WORLD):
        rates = {STEPS_RATE: 1.0, SAMPLES_RATE: 100.0 + rank}
        owners = np.array([-1, 0], np.int32)
        ranks.post(rank, [replace(of_rank(rank, step), owners=owners, scalars=rates) for step in (0, 1)])
    assert ranks.joint.run.store.scalars(SAMPLES_RATE).mean.tolist() == [101.5, 101.5]
    page = ranks.server.client.get(f"/runs/{JOINT}/performance", headers={"Accept": "text/html"}).text
    assert "mean of the ranks" in page


def test_the_throughput_of_pipeline_stages_is_that_of_one_stage(ranks: Ranks) -> None:
    """Each rank has a different part of the whole model."""
    root = ModuleRecord("", "Model", None)
    for rank in range(WORLD):
        children = [ModuleRecord("layer", "Block", ""), ModuleRecord(f"layer.{rank}", "Linear", "layer")]
        stage = Tap(f"layer.{rank}", "output")
        record = replace(of_rank(rank, 0), scalars={SAMPLES_RATE: 100.0})
        batch = ranks.batch(rank, [record], description=Description(1, (root, *children)))
        ranks.server.take(msgspec.structs.replace(batch, taps=(*TAPS, stage)))
        own = frame(1, stats_of(1, count=4, parts=1), owners=np.array([rank], np.int32), scalars={SAMPLES_RATE: 100.0})
        batch = ranks.batch(rank, [replace(own, taps=np.array([2], np.uint32))])
        ranks.server.take(msgspec.structs.replace(batch, taps_from=3))
    assert ranks.joint.run.store.scalars(SAMPLES_RATE).mean.tolist()[-1] == 100.0


def test_missing_ranks_are_awaited_and_then_named(ranks: Ranks) -> None:
    for rank in (0, 1):
        ranks.send(rank, range(3))
    assert ranks.joint.rounds.missing() == [2, 3]
    assert ranks.series() == {}
    ranks.clock.now += GRACE_S + 1
    ranks.joint.sum.tick()
    assert ranks.series() == dict.fromkeys(range(3), 0.5)
    assert ranks.events("ranks-unseen") == [
        "2 of 4 ranks have sent nothing yet: the sums from step 0 on don't include them"
    ]
    assert ranks.joint.sum.assembly.absences.incomplete == 3
    ranks.send(2, range(5))  # its first steps are too late
    assert ranks.joint.rounds.missing() == [3]
    assert ranks.joint.sum.assembly.ranks[2].late == 2  # of three steps: the newest one can still grow
    (message,) = ranks.events("rank-late")
    assert "rank 2 sent step 0 after step 2 had been added up" in message
    for rank in (0, 1, 2):
        ranks.send(rank, range(5 if rank == 2 else 3, 7))
    assert {step: value for step, value in ranks.series().items() if step > 2} == dict.fromkeys(range(3, 7), 1.0)


def test_a_rank_that_falls_behind_delays_the_others_only_briefly(ranks: Ranks) -> None:
    ranks.all([0])
    for rank in range(3):
        ranks.send(rank, [1, 2])
    assert list(ranks.series()) == [0]
    ranks.clock.now += LATE_S - 1
    for rank in range(4):
        ranks.send(rank, [] if rank == 3 else [3])
    assert list(ranks.series()) == [0]
    ranks.clock.now += 2
    ranks.joint.sum.tick()
    assert ranks.series() == {0: 1.5, 1: 1.0, 2: 1.0}
    assert ranks.joint.sum.assembly.ranks[3].missed == 2
    assert "step 1 was added up without rank 3" in ranks.events("rank-missing")[0]
    ranks.send(3, [1, 2, 3])
    assert ranks.series()[3] == 1.5


def test_a_live_rank_that_sends_no_frames_is_not_awaited_and_its_steps_count_as_incomplete(ranks: Ranks) -> None:
    ranks.all([0])
    for rank in range(3):
        ranks.send(rank, [1, 2])
    member = ranks.joint.rounds.current()[3].run
    for _ in range(2):
        ranks.joint.sum.do_without(member, "memory is full")
    assert ranks.series() == {0: 1.5, 1: 1.0, 2: 1.0}
    (message,) = ranks.events("rank-not-in-memory")
    assert message.startswith(
        "rank 3 isn't in this server's memory, because memory is full: the sum of all ranks doesn't"
    )
    assert "doesn't include it from step 1 on" in message
    assert ranks.joint.sum.assembly.absences.incomplete == 2
    ranks.send(3, [3])
    for rank in range(3):
        ranks.send(rank, [3])
    assert ranks.series()[3] == 1.5
    assert ranks.joint.sum.assembly.absences.incomplete == 2
    assert not ranks.events("rank-missing")


def test_unreadable_ranks_are_not_read_again_for_each_frame(ranks: Ranks, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[float] = []

    def refuse(runs: Sequence[Run]) -> dict[str, Any]:
        asked.append(ranks.clock.now)
        raise HookcoreError("the shard is away")

    ranks.all([0])
    joint, disk = ranks.joint, ranks.joint.disk
    joint.run.loaded = False
    joint.disk = lambda: SimpleNamespace(wait_until_listed=lambda: None, recorded=refuse)  # type: ignore[return-value]
    for step in range(1, 4):
        ranks.all([step])
    assert len(asked) == 1
    (record,) = caplog.records
    assert "the run of all ranks, ranks-job, can't be read, trying again in 10 s: the shard is away" in record.message
    assert not record.exc_info
    assert joint.run.store.steps().newest == 1, "as the ranks were then"
    ranks.clock.now += READ_AGAIN_S
    joint.disk = disk
    ranks.all([4])
    assert joint.run.loaded


def test_the_sum_of_all_ranks_names_the_steps_that_only_single_ranks_have(ranks: Ranks) -> None:
    ranks.all(range(300))
    store = ranks.joint.run.store
    assert not ranks.joint.run.partial
    store.shrink(store.usage().nbytes // 8)
    ranks.all(range(300, 600))
    assert store.exact_since
    assert not ranks.joint.run.partial, "the ranks have no more"
    ranks.joint.rounds.current()[0].run.store.recall_from(SimpleNamespace(trouble=""))  # type: ignore[arg-type]
    begins = f"Before step {store.exact_since:,}, several steps share their tensor values"
    assert ranks.joint.run.partial.startswith(begins)


def test_a_lost_rank_does_not_hold_up_the_others(ranks: Ranks) -> None:
    ranks.all([0])
    ranks.clock.now += 10
    for rank in range(3):
        ranks.send(rank, [1])
    ranks.clock.now += 6  # rank 3 has been silent longer than the others
    for rank in range(3):
        ranks.send(rank, [])
    ranks.joint.sum.tick()
    assert ranks.server.runs.get("run-3-0").state == "lost"  # type: ignore[union-attr]
    assert ranks.joint.run.state == "live"
    assert ranks.series() == {0: 1.5, 1: 1.0}
    assert ranks.joint.sum.assembly.absences.incomplete == 1
    (message,) = ranks.events("rank-gone")
    assert message == "rank 3 has crashed or is lost: the sums from step 1 on don't include it"
    assert ranks.joint.sum.assembly.ranks[3].missed == 1
    ranks.send(3, [1, 2])
    for rank in range(3):
        ranks.send(rank, [2])
    assert ranks.series() == dict.fromkeys(range(3), 1.5)
    assert ranks.joint.sum.assembly.absences.incomplete == 0, "step 1 was still the newest one"
    assert ranks.joint.sum.assembly.ranks[3].missed == 0


def test_all_ranks_end(ranks: Ranks) -> None:
    ranks.all(range(2))
    for rank in range(WORLD):
        assert ranks.joint.run.end.step is None
        ranks.end(rank, 1)
    assert (ranks.joint.run.state, ranks.joint.run.end.step) == ("ended", 1)


def test_a_rank_that_has_ended_before_another_one_sends_its_first_step_waits_for_it(ranks: Ranks) -> None:
    ranks.world = 2
    ranks.post(1, [])
    ranks.send(0, range(3))
    ranks.end(0, 3)
    assert (ranks.joint.sum.assembly.steps, ranks.joint.run.end.step) == (0, None)
    ranks.send(1, range(3))
    ranks.end(1, 3)
    assert (ranks.joint.sum.assembly.steps, ranks.joint.sum.assembly.absences.incomplete, ranks.joint.run.end.step) == (
        3,
        0,
        3,
    )


def test_a_rank_that_trained_and_sent_no_values_is_missing_in_the_sum(ranks: Ranks) -> None:
    ranks.world = 2
    ranks.post(1, [])
    ranks.send(0, range(3))
    ranks.end(0, 3)
    ended = ranks.batch(1, [EndItem(0, 3)])
    ranks.server.take(msgspec.structs.replace(ended, run=msgspec.structs.replace(ended.run, facts={TRAINED: 3})))
    assert (ranks.joint.sum.assembly.steps, ranks.joint.sum.assembly.absences.incomplete) == (3, 3)
    assert ranks.joint.sum.assembly.ranks[1].missed == 3
    assert "rank 1 reported 3 trained steps, but it sent no values" in ranks.events("rank-silent")[0]
    page = ranks.server.client.get(f"/runs/{JOINT}/performance/ranks", headers={"Accept": "text/html"}).text
    assert "Trained, but sent no values: rank 1." in page
    assert re.findall(r'<td class="number">(\d*)</td>\s*<td class="mono small">', page) == ["0", "3"]  # missed


def test_a_crash_of_one_rank_is_a_crash_that_names_the_rank(ranks: Ranks) -> None:
    ranks.all(range(2))
    ranks.end(2, 1, Failure("crashed", 1, "ValueError: bad batch"))
    assert ranks.joint.run.state == "live"
    for rank in (0, 1, 3):
        ranks.end(rank, 1, Failure("stopped", 1, signal="SIGTERM"))
    assert ranks.joint.run.state == "crashed"
    assert ranks.joint.run.end.failure is not None
    assert ranks.joint.run.end.failure.error == "rank 2: ValueError: bad batch", (
        "first, because long text is cut at its end"
    )


def test_a_restarted_training_continues_the_same_run(ranks: Ranks) -> None:
    ranks.all(range(3))
    for rank in range(WORLD):
        ranks.send(rank, range(2), attempt=1)
    assert list(ranks.series()) == list(range(5))
    assert ranks.joint.rounds.world == WORLD
    assert len(ranks.joint.rounds.members) == 2 * WORLD
    assert [each.run.id for each in ranks.joint.rounds.current()] == [f"run-{rank}-1" for rank in range(WORLD)]
    (message,) = ranks.events("restarted")
    assert "its steps continue from 3 here" in message
    ranks.send(1, [3])  # from the attempt before
    assert list(ranks.series()) == list(range(5))
    assert "rank 1 of an earlier attempt" in ranks.events("rank-of-before")[0]


def test_ranks_of_an_attempt_that_the_sum_has_not_begun_are_not_paired_with_what_is_known_of_the_one_before(
    ranks: Ranks,
) -> None:
    ranks.all(range(3))
    joint = ranks.joint
    before = {each.place.rank: each.run for each in joint.rounds.current()}
    before[0].received.sent = before[0].received.acknowledged + 1  # its last step is still on its way
    for rank in range(WORLD):
        ranks.send(rank, range(2), attempt=1)
    assert stores_of(joint) == []
    assert {each.newest_step for each in ranks_of(joint).ranks} == {None}
    before[0].received.sent = before[0].received.acknowledged
    ranks.all([2], attempt=1)
    assert [each.shift for each in stores_of(joint)] == [3] * WORLD
    assert {each.newest_step for each in ranks_of(joint).ranks} == {5}


def test_a_new_rank_that_is_the_first_of_a_restarted_training_begins_it(ranks: Ranks) -> None:
    ranks.world = 3
    ranks.all(range(3))
    ranks.world = 4
    for rank in (3, 1, 0, 2):
        ranks.send(rank, range(2), attempt=1)
    assert list(ranks.series()) == list(range(5))
    assert ranks.series()[4] == 1.5
    assert [each.place.rank for each in ranks.joint.rounds.current()] == [0, 1, 2, 3]
    assert ranks.joint.sum.assembly.absences.incomplete == 0


def test_a_rank_that_restarts_alone_does_not_take_the_run_from_the_others(ranks: Ranks) -> None:
    ranks.all(range(3))
    ranks.restarted.add(1)
    ranks.send(1, range(2))
    for rank in (0, 2, 3):
        ranks.send(rank, [3])
    assert [each.run.id for each in ranks.joint.rounds.current()] == ["run-0-0", "run-1-0", "run-2-0", "run-3-0"]
    ranks.clock.now += LATE_S + 1
    for rank in (0, 2, 3):
        ranks.send(rank, [4])
    assert ranks.series()[3] == pytest.approx(5 / 3)
    ranks.joint.sum.tick()
    (message,) = ranks.events("rank-alone")
    assert "rank 1 was restarted and counts from 0, but most other ranks were not" in message
    ranks.restarted |= {0, 2, 3}
    for steps in ((), range(2, 4)):
        for rank in (0, 2, 3, 1):
            ranks.send(rank, steps)
    assert ranks.joint.sum.shift == 5
    assert ranks.series()[5 + 3] == 1.5
    (message,) = ranks.events("rank-joined-late")
    assert "rank 1 has steps from 0 on, but the sum of all ranks includes only those from 2 on" in message


def alone(ranks: Ranks) -> None:
    """Rank 1 crashes after ten steps and starts again, alone; the others continue to step 13."""
    ranks.all(range(10))
    ranks.restarted.add(1)
    ranks.send(1, range(3))
    for step in range(10, 14):
        for rank in (0, 2, 3):
            ranks.send(rank, [step])
    ranks.clock.now += LATE_S + 1
    ranks.joint.sum.tick()


def test_a_rank_that_restarts_alone_does_not_continue_the_run_of_ended_ranks(ranks: Ranks) -> None:
    alone(ranks)
    for rank in (0, 2, 3):
        ranks.send(rank, [14])
        ranks.end(rank, 14)
    ranks.send(1, range(3, 6))
    ranks.end(1, 5)
    assert list(ranks.series()) == list(range(15))
    assert (ranks.joint.run.end.step, ranks.joint.sum.shift, ranks.events("restarted")) == (14, 0, [])


def test_a_rank_that_restarts_alone_does_not_take_the_run_from_silent_ranks(ranks: Ranks) -> None:
    alone(ranks)  # the others have been silent for long
    ranks.send(1, range(3, 5))
    for step in (14, 15):
        for rank in (0, 2, 3):
            ranks.send(rank, [step])
    assert list(ranks.series()) == list(range(16))
    assert (ranks.events("restarted"), ranks.events("rank-of-before")) == ([], [])


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_rank_that_restarts_alone_stays_out_after_a_restart_of_the_server(tmp_path: Path, is_readable: bool) -> None:
    with saved(tmp_path) as ranks:
        alone(ranks)
        before, others = ranks.series(), {"sent": ranks.sent, "restarted": ranks.restarted}
    with saved(tmp_path) as again:
        wait_for(lambda: len(again.server.runs.every()) == 1 + WORLD + 1)
        again.sent, again.restarted = others["sent"], others["restarted"]  # type: ignore[assignment]
        first = again.server.runs.get("run-1-0")
        assert first is not None
        assert first.saved.folder is not None
        if not is_readable:
            (first.saved.folder / "run.json").write_text("{")
        for rank in (0, 2, 3):
            again.send(rank, [14])
        again.clock.now += GRACE_S + 1
        again.joint.sum.tick()
        assert list(again.series()) == list(range(15))
        if is_readable:
            assert again.series() == before | {14: before[13]}
        else:
            assert again.series() == dict.fromkeys(range(15), before[13])
            assert again.joint.sum.assembly.absences.incomplete == 15
        assert len(again.events("rank-alone")) == 1


def test_ranks_that_all_restart_lose_no_step_in_any_order(ranks: Ranks) -> None:
    ranks.all(range(3))
    ranks.restarted |= set(range(WORLD))
    for rank in (2, 0, 3, 1):
        ranks.send(rank, range(2))
    assert ranks.series() == dict.fromkeys(range(5), 1.5)
    assert (ranks.joint.sum.assembly.absences.incomplete, ranks.events("rank-alone")) == (0, [])


def test_a_rank_that_restarted_twice_participates_with_its_newest_run() -> None:
    """First alone, and then with the others, whichever is first, and in whatever order runs are found on disk."""
    started = {
        "0a": 1.0,
        "1a": 1.0,
        "2a": 1.0,
        "3a": 1.0,
        "1b": 100.0,
        "0c": 301.0,
        "2c": 302.0,
        "3c": 300.0,
        "1c": 303.0,
    }
    runs = {
        name: Run(make_info(name, started_s=at), Store(2**20), Commands(count()), Changes())
        for name, at in started.items()
    }
    places = {name: Place(job="job", rank=int(name[0]), world=WORLD) for name in runs}
    for order in (list(runs), sorted(runs), sorted(runs, reverse=True)):
        rounds = Rounds()
        for name in order:
            (rounds.admit if order == list(runs) else rounds.admit_unordered)(runs[name], places[name])
        assert [[each.run.id for each in rounds.members_in(turn)] for turn in range(3)] == [
            ["0a", "1a", "2a", "3a"],
            ["0c", "1c", "2c", "3c"],
            [],
        ]


def test_a_straggler_of_an_otherwise_unseen_attempt_is_not_a_restart(ranks: Ranks) -> None:
    ranks.all(range(2), attempt=1)
    ranks.send(0, range(5), attempt=0)
    ranks.all([2], attempt=1)
    assert ranks.series() == dict.fromkeys(range(3), 1.5)
    assert "rank 0 of an earlier attempt" in ranks.events("rank-of-before")[0]


def test_a_rank_that_starts_slowly_does_not_shorten_the_wait_for_others(ranks: Ranks) -> None:
    ranks.send(0, [])
    ranks.clock.now += GRACE_S * 2
    ranks.all(range(2))
    ranks.joint.sum.tick()
    assert ranks.series() == {0: 1.5, 1: 1.5}
    assert ranks.joint.sum.assembly.absences.incomplete == 0


def test_a_step_that_some_ranks_did_not_capture_shows_no_part_as_the_whole(ranks: Ranks) -> None:
    ranks.all([0])
    for rank in range(WORLD):
        ranks.post(rank, [of_rank(rank, 1) if rank < 2 else frame(1, stats_of(0), scalars={"loss": float(rank)})])
    ranks.all([2])
    assert ranks.series() == {0: 1.5, 2: 1.5}
    assert ranks.series(1) == dict.fromkeys(range(3), 10.0)  # the weights, which are the same on all ranks
    assert ranks.joint.run.store.scalars("loss").mean.tolist() == [1.5] * 3
    assert (ranks.joint.sum.assembly.partial, ranks.joint.sum.assembly.absences.incomplete) == (1, 0)


@pytest.mark.parametrize(("captured", "trained", "left_out"), [((0, 2, 4), 6, {1, 3, 5}), ((0, 1, 2), 3, set())])
def test_the_steps_that_a_rank_did_not_capture_are_known_also_when_it_has_ended(
    ranks: Ranks, captured: Sequence[int], trained: int, left_out: set[int]
) -> None:
    """A rank that ended has trained the number of steps that it reports, and later steps are complete without it."""
    ranks.send(3, captured)
    ended = ranks.batch(3, [EndItem(0, captured[-1])])
    ranks.server.take(msgspec.structs.replace(ended, run=msgspec.structs.replace(ended.run, facts={TRAINED: trained})))
    for rank in range(3):
        ranks.send(rank, range(6))
    assert ranks.series() == {step: 1.5 if step in captured else 1.0 for step in range(6) if step not in left_out}
    assert ranks.series(1) == dict.fromkeys(range(6), 10.0)
    assert (ranks.joint.sum.assembly.partial, ranks.joint.sum.assembly.absences.incomplete) == (len(left_out), 0)


def test_a_nan_in_a_step_that_only_one_rank_captured_is_shown(ranks: Ranks) -> None:
    ranks.all([0])
    bad = of_rank(3, 1)
    bad.stats[0, STAT_COLUMN["nan"]] = 2
    for rank in range(WORLD):
        ranks.post(rank, [bad if rank == 3 else frame(1, stats_of(0))])
    (incident,) = ranks.joint.run.store.incidents()
    assert (incident.rule, incident.first_step) == ("nonfinite", 1)
    assert "It was in rank 3 of 4." in incident.sentence


def test_a_value_that_is_logged_after_the_step_does_not_end_a_desync(ranks: Ranks) -> None:
    for step in range(3):
        for rank in range(WORLD):
            ranks.send(rank, [step], weight=11.0 if rank == 2 else 10.0)
        for rank in range(WORLD):
            ranks.post(rank, [frame(step, stats_of(0), scalars={"accuracy": 1.0}, time_s=100.0 + step)])
    (incident,) = ranks.joint.run.store.incidents()
    assert (incident.first_step, incident.is_over) == (0, False)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 1, 3), (3, 2, 1, 0)])
def test_the_odd_rank_is_named_in_any_order(ranks: Ranks, order: tuple[int, ...]) -> None:
    for rank in order:
        ranks.send(rank, [0], weight=11.0 if rank == 2 else 10.0)
    (incident,) = ranks.joint.run.store.incidents()
    assert incident.sentence.startswith("Rank 2 differs from the others")
    assert ranks.series(1) == {0: 10.0}


def test_values_that_ranks_should_have_in_common_and_do_not_are_an_incident(ranks: Ranks) -> None:
    ranks.all(range(2))
    for step in range(2, 30):
        for rank in range(WORLD):
            ranks.send(rank, [step], weight=11.0 if rank == 2 and step < 10 else 10.0)
    (incident,) = ranks.joint.run.store.incidents()
    assert (incident.rule, incident.severity, incident.first_step) == ("desync", "error", 2)
    assert incident.culprit.tap == TAPS[1]
    assert incident.sentence.startswith(
        "Rank 2 differs from the others, although all should have the same values: at step 2, min of "
        "layer param [weight] is 10 in ranks 0, 1 and 3, 11 in rank 2. It was over at step 10."
    )
    assert incident.is_over
    page = f"/runs/{JOINT}/performance/ranks"
    assert "The rule desync is off" not in ranks.server.client.get(page, headers={"Accept": "text/html"}).text


def test_without_the_rule_the_page_does_not_claim_that_everything_is_equal(ranks: Ranks) -> None:
    ranks.all([0])
    ranks.joint.run.change_rules({"desync": False})
    for rank in range(WORLD):
        ranks.send(rank, [1], weight=11.0 if rank == 2 else 10.0)
    assert not ranks.joint.run.store.incidents()
    page = ranks.server.client.get(f"/runs/{JOINT}/performance/ranks", headers={"Accept": "text/html"}).text
    assert "In 1 step, ranks differed in values that they should share. The rule desync is off" in page
    assert "had the same values" not in page


def test_a_nan_in_one_rank_names_that_rank(ranks: Ranks) -> None:
    ranks.all(range(2))
    for rank in range(WORLD):
        bad = of_rank(rank, 2)
        if rank == 3:
            bad.stats[0, STAT_COLUMN["nan"]] = 2
        ranks.post(rank, [bad])
    (incident,) = ranks.joint.run.store.incidents()
    assert incident.rule == "nonfinite"
    assert "It was in rank 3 of 4." in incident.sentence


def test_events_of_several_ranks_are_one_event_that_names_them(ranks: Ranks) -> None:
    for rank in range(WORLD):
        own = [Event(0, float(rank), "told", f"only rank {rank} says this.")] if rank == 1 else []
        told = [Event(0, float(rank), "told", "a thing.")] if rank != 3 else []
        ranks.send(rank, [0], events=(*told, *own))
    messages = ranks.events("told")
    assert messages == ["a thing (ranks 0-2)", "only rank 1 says this (rank 1)"]


def test_messages_describe_ranks_in_words() -> None:
    apart = [Difference(1, "rms", (((0,), 1.5), ((1,), 1.8)))]
    assert desync_of(3, apart, TAPS).message.endswith("layer param [weight] is 1.5 in rank 0, 1.8 in rank 1")
    assert desync_of(3, apart * 2, TAPS).message.endswith("1.8 in rank 1; 1 other tensor differs, too")
    assert desync_of(3, apart * 5, TAPS).message.endswith("1.8 in rank 1; 4 other tensors differ, too")
    assert words_of([3], 4) == "rank 3"
    assert words_of([0, 1, 2, 3], 4) == "all 4 ranks"
    assert words_of([7, 0, 1, 2], 9) == "ranks 0-2 and 7"
    assert words_of(range(0, 40, 2), 64) == "ranks 0, 2, 4, 6, 8, 10, 12 and 13 more"


def test_modules_are_those_of_all_ranks_and_the_counters_are_sums(ranks: Ranks) -> None:
    for rank in range(WORLD):
        root = ModuleRecord("", "Model", None)
        stage = ModuleRecord(f"stage{rank}", "Linear", "")
        counters = DeliveryCounters(10, 8, {"queue-full": rank}, 2, 0)
        ranks.post(rank, [of_rank(rank, 0)], description=Description(1, (root, stage)), counters=counters)
        ranks.clock.now += 2
    assert [each.path for each in ranks.joint.run.store.modules()] == ["", *(f"stage{rank}" for rank in range(WORLD))]
    ranks.send(0, [])
    assert ranks.joint.run.received.counters.produced == 4 * 10
    assert ranks.joint.run.received.counters.dropped == {"queue-full": 0 + 1 + 2 + 3}


def test_a_module_split_across_ranks_has_no_outputs_in_the_joint_run(ranks: Ranks) -> None:
    """In stages of a pipeline, the output of the whole model is that of the stage."""

    def describe(version: int, *parts: str) -> None:
        for rank in range(WORLD):
            leaf = f"layer.{parts[rank // 2]}"
            records = ("", "Model", None), ("layer", "Block", ""), (leaf, "Linear", "layer")
            modules = tuple(ModuleRecord(*each) for each in records)
            coverage = tuple(Coverage(each.path, each.type, True, ("output", "param")) for each in modules)
            described = Description(version, modules, coverage)
            ranks.post(rank, [of_rank(rank, version - 1)], description=described)

    describe(1, "0", "1")
    assert ranks.series(0) == {}
    assert ranks.series(1) == {0: 10.0}
    lacks = {each.path: each.reason for each in ranks.joint.run.store.coverage() if not each.captured}
    assert lacks == dict.fromkeys(("", "layer"), IN_PARTS)
    assert {each.kinds for each in ranks.joint.run.store.coverage() if not each.captured} == {("param",)}
    describe(2, "0", "0")  # now, all have the same parts
    ranks.all([2])
    assert ranks.series(0)[2] == 1.5
    assert all(each.captured for each in ranks.joint.run.store.coverage())


def test_commands_reach_all_ranks_and_tensors_are_requested_from_the_lowest(ranks: Ranks) -> None:
    ranks.all([0])
    ranks.joint.run.ask("settings", changes={"paused": True})
    ranks.joint.run.ask_snapshots([TAPS[0]])
    answers = [ranks.send(rank, [1]) for rank in range(WORLD)]
    names = [[command.name for command in answer.commands] for answer in answers]
    assert names == [["settings", "snapshot"], *[["settings"]] * 3]


def test_the_outcome_of_a_command_to_all_ranks_is_that_of_the_rank_that_needs_a_look_first(ranks: Ranks) -> None:
    ranks.all([0])
    asked = ranks.joint.run.ask("settings", changes={"paused": True})
    assert {command.number for rank in range(WORLD) for command in ranks.send(rank, [1]).commands} == {asked.number}

    def report(rank: int, outcome: Outcome) -> str:
        about = about_command(asked.number, outcome)
        run = ranks.joint.rounds.members[f"run-{rank}-0"].run
        run.store.add_event(Event(1, 1.0, "settings-changed", f"by {rank}", about=about))
        return ranks.joint.run.outcome(asked.number).outcome

    assert report(0, "applied") == "waiting"
    assert [report(rank, "applied") for rank in range(1, WORLD)][-1] == "applied"
    assert report(2, "refused") == "refused"
    assert ranks.joint.run.outcome(asked.number).reason == "by 2"
    assert ranks.joint.run.outcome(asked.number + 1).outcome == "unknown"


def test_the_tensors_of_the_lowest_rank_are_shown(ranks: Ranks) -> None:
    ranks.all([0])
    for rank in (1, 0):
        values = np.full(3, rank, np.float32)
        ranks.post(rank, [Snapshot(TAPS[0], 0, 100.0, "float32", (3,), values)])
    (snapshot,) = ranks.joint.run.store.snapshots()
    assert snapshot.values.tolist() == [0.0] * 3


def test_deleting_the_run_deletes_all_ranks_and_they_come_back_together(ranks: Ranks) -> None:
    ranks.all(range(2))
    assert ranks.server.runs.remove(JOINT)
    assert ranks.server.runs.every() == []
    (gone,) = ranks.server.runs.gone()
    assert (gone.id, gone.name) == (JOINT, "training")
    assert ranks.server.client.post(f"/api/v1/removed-runs/{JOINT}/restore").status_code == 200
    assert [run.id for run in ranks.server.runs.all()] == [JOINT]
    assert len(ranks.server.runs.every()) == 1 + WORLD
    assert ranks.server.runs.gone() == []
    assert ranks.series() == {0: 1.5, 1: 1.5}
    ranks.all([2])
    assert ranks.series() == {0: 1.5, 1: 1.5, 2: 1.5}


def test_tags_and_groups_set_by_readers_are_saved_with_the_run(ranks: Ranks) -> None:
    ranks.all([0])
    ranks.server.client.patch(f"/api/v1/runs/{JOINT}", json={"tags": ["good"], "group": "sweep", "archived": True})
    ranks.all([1])
    assert (ranks.joint.run.edits.tags, ranks.joint.run.edits.group, ranks.joint.run.edits.archived) == (
        ("good",),
        "sweep",
        True,
    )
    lead = ranks.joint.rounds.current()[0].run
    assert (lead.edits.tags, lead.edits.group, lead.edits.archived) == (("good",), "sweep", True)


def test_single_processes_are_separate_runs(ranks: Ranks) -> None:
    ranks.world = 1
    ranks.send(0, range(2))
    assert [run.id for run in ranks.server.runs.all()] == ["run-0-0"]


def test_no_trainer_can_send_to_the_run_of_all_ranks(ranks: Ranks) -> None:
    ranks.all([0])
    batch = wire.Batch(run=make_info(JOINT, key=""), items=())
    assert ranks.server.post(batch).status_code in (403, 422)
    batch = wire.Batch(run=make_info(JOINT), items=())
    assert ranks.server.post(batch).status_code == 403


@contextmanager
def saved(folder: Path | str, **settings: Any) -> Iterator[Ranks]:
    clock = Clock()
    server = make_world(clock, keep=str(folder), **settings)
    try:
        yield Ranks(server, clock)
    finally:
        server.app.state.keeper.close()


def everything(ranks: Ranks) -> list[Any]:
    joint = ranks.joint
    return [
        [ranks.series(tap, stat) for tap in (0, 1) for stat in ("count", "mean", "std", "max", "norm")],
        joint.run.store.scalars("loss").mean.tolist(),
        [(each.rule, each.first_step, each.sentence) for each in joint.run.store.incidents()],
        joint.run.end.step,
        joint.run.state,
    ]


def test_a_run_is_unchanged_after_a_restart(tmp_path: Path) -> None:
    with saved(tmp_path) as ranks:
        ranks.all(range(20))
        for rank in range(WORLD):
            ranks.send(rank, range(20, 40), weight=10.0 + (rank == 1))
        ranks.joint.run.name, ranks.joint.run.edits.notes = "renamed", "noted"
        ranks.joint.run.edited()
        for rank in range(WORLD):
            ranks.end(rank, 39)
        before = everything(ranks)
    with saved(tmp_path) as again:
        wait_for(lambda: len(again.server.runs.every()) == 1 + WORLD)
        listed = again.server.runs.get(JOINT)
        assert listed is not None
        assert listed.is_derived
        assert (listed.loaded, listed.state, listed.name, listed.edits.notes) == (False, "ended", "renamed", "noted")
        assert listed.store.steps().newest == 39
        assert everything(again) == before


def test_the_step_that_the_check_of_one_rank_names_is_known_before_and_after_a_restart(tmp_path: Path) -> None:
    about = {"found": "loss", "name": "loss", "value": "nan", "previous": 11, "captured": False, "late": False}
    said = Event(12, 112.0, "nonfinite-step", "the loss is NaN", "error", about=about)
    with saved(tmp_path) as ranks:
        ranks.all((0, 8))
        for rank in range(WORLD):
            bad = of_rank(rank, 16, events=(said,) if rank == 1 else ())
            bad.stats[0, STAT_COLUMN["nan"]] = 2
            ranks.post(rank, [bad, of_rank(rank, 24)])
        for rank in range(WORLD):
            ranks.end(rank, 24)
        before = everything(ranks)
        (incident,) = ranks.joint.run.store.incidents()
        assert (incident.first_step, incident.earliest_step, incident.culprit_known) == (12, 12, False)
        assert ranks.events("nonfinite-step") == ["the loss is NaN (rank 1)"]
    with saved(tmp_path) as again:
        wait_for(lambda: len(again.server.runs.every()) == 1 + WORLD)
        assert everything(again) == before
        assert again.events("nonfinite-step") == ["the loss is NaN (rank 1)"]


def test_a_late_rank_is_found_again_after_a_restart(tmp_path: Path) -> None:
    with saved(tmp_path) as ranks:
        for rank in range(WORLD):
            waited = {REDUCTION_WAIT: 0.1 if rank == 2 else 0.5}
            ranks.send(rank, range(140), more=waited, elapsed_s=1.0)
            ranks.end(rank, 139)
        before = everything(ranks)
        (incident,) = ranks.joint.run.store.incidents()
        assert incident.sentence.startswith("Rank 2 is late: it was last in ")
    with saved(tmp_path) as again:
        wait_for(lambda: len(again.server.runs.every()) == 1 + WORLD)
        assert problems_listed(again) == "not loaded"  # those of rank 0 don't tell
        assert everything(again) == before
        assert problems_listed(again).startswith("1 Rank is late")


def problems_listed(ranks: Ranks) -> str:
    """Return what the list of runs says about the problems of the run of all ranks."""
    row = ranks.server.client.get("/").text.partition(f'id="run-{JOINT}"')[2]
    cell = row.partition('class="alerts">')[2].partition("</td>")[0]
    return " ".join(re.sub("<.*?>", " ", cell).split())


def test_the_rules_check_ranks_in_turn_both_live_and_on_rereading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[tuple[Store, int]] = []
    follower = class_of("Follower", "findings")
    look = follower.look
    monkeypatch.setattr(follower, "look", lambda self: (looks.append((self._store, self._frames)), look(self))[1])

    def looked(ranks: Ranks) -> list[list[int]]:
        runs = [ranks.server.runs.find(f"run-{rank}-0") for rank in range(WORLD)]
        return [[frames for store, frames in looks if run is not None and store is run.store] for run in runs]

    with saved(tmp_path) as ranks:
        ranks.all(range(40))
        for rank in range(WORLD):
            ranks.end(rank, 39)
        live = looked(ranks)
    assert [each[:3] for each in live] == [[8, 16, 32], [9, 17, 33], [10, 18, 34], [11, 19, 35]]
    with saved(tmp_path) as again:
        wait_for(lambda: len(again.server.runs.every()) == 1 + WORLD)
        looks.clear()
        assert looked(again) == live


def test_a_restarted_server_continues_with_the_ranks_in_any_order(tmp_path: Path) -> None:
    with saved(tmp_path) as ranks:
        ranks.all(range(10))
        sent = ranks.sent
    with saved(tmp_path) as again:
        wait_for(lambda: len(again.server.runs.every()) == 1 + WORLD)
        again.sent = sent
        for rank in (2, 0, 3, 1):
            again.send(rank, range(10, 15))
        assert again.series() == dict.fromkeys(range(15), 1.5)
        assert again.joint.sum.assembly.absences.incomplete == 0
        assert again.joint.run.state == "live"


def test_ranks_that_are_back_before_their_runs_are_listed_continue_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with saved(tmp_path) as ranks:
        ranks.all(range(10))
        sent = ranks.sent
    listing = threading.Event()
    runs = Shelf.runs
    monkeypatch.setattr(Shelf, "runs", lambda shelf: (listing.wait(20), runs(shelf))[1])
    with saved(tmp_path) as again:
        again.sent = sent
        assert again.server.runs.every() == []
        first = threading.Thread(target=again.send, args=(1, range(10, 15)))
        first.start()
        wait_for(lambda: again.server.runs.get("run-1-0") is not None)
        listing.set()
        first.join()
        for rank in (2, 0, 3):
            again.send(rank, range(10, 15))
        assert again.series() == dict.fromkeys(range(15), 1.5)
        assert again.joint.sum.assembly.absences.incomplete == 0


def test_saved_steps_of_some_ranks_count_while_another_rank_is_awaited(tmp_path: Path) -> None:
    """When the steps are added up, none of these runs is in memory."""
    with saved(tmp_path) as ranks:
        for rank in range(3):
            ranks.send(rank, range(3))
            ranks.end(rank, 2)
    with saved(tmp_path) as again:
        wait_for(lambda: len(again.server.runs.every()) == WORLD)
        assert again.series() == dict.fromkeys(range(3), 1.0)
        assert again.joint.sum.assembly.absences.incomplete == 3
        assert not any(each.run.loaded for each in again.joint.rounds.current())


def test_a_rank_whose_saved_run_cannot_be_read_is_named(tmp_path: Path) -> None:
    with saved(tmp_path) as ranks:
        ranks.all(range(10))
        for rank in range(WORLD):
            ranks.end(rank, 9)
    with saved(tmp_path) as again:
        wait_for(lambda: len(again.server.runs.every()) == 1 + WORLD)
        damaged = again.server.runs.get("run-1-0")
        assert damaged is not None
        assert damaged.saved.folder is not None
        (damaged.saved.folder / "run.json").write_text("{")
        again.server.runs.read(again.joint.run)
        said = again.server.client.get("/api/v1/ranks", params={"run": JOINT}).json()
        assert (said["unread"], said["steps"]) == ([1], 10)
        (event,) = [event for event in again.joint.run.store.events() if event.name == "rank-not-read"]
        assert event.severity == "warning"
        assert "rank 1 can't be read, so the sum of all ranks doesn't include it" in event.message
        page = again.server.client.get(f"/runs/{JOINT}/performance/ranks", headers={"Accept": "text/html"}).text
        assert "The saved run of rank 1 can't be read" in page


def test_a_rank_whose_folder_cannot_be_read_at_startup_is_listed_as_missing_with_the_reason(tmp_path: Path) -> None:
    with saved(tmp_path) as ranks:
        ranks.all(range(3))
        for rank in range(WORLD):
            ranks.end(rank, 2)
        folder = ranks.server.runs.get("run-1-0").saved.folder  # type: ignore[union-attr]
    assert folder is not None
    (folder / "run.json").write_text("{")
    with saved(tmp_path) as again:
        wait_for(lambda: len(again.server.runs.every()) == WORLD)
        (message,) = again.events("rank-not-read")
        assert f"a saved run can't be read: {folder} is not a saved run" in message
        assert "By its name, it may belong to this training, and rank 1 is missing" in message
        page = again.server.client.get(f"/runs/{JOINT}/performance/ranks", headers={"Accept": "text/html"}).text
        assert "1 saved run with the name of this training can't be read" in page


@pytest.mark.parametrize("late", [None, 3])
def test_ranks_that_save_their_runs_elsewhere_are_added_up_together_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int | None
) -> None:
    monkeypatch.setattr(Keeper, "_folder_for", lambda keeper, info, may: tmp_path)  # a trainer's own folder
    with saved("") as ranks:
        ranks.all(range(10))
        sent = ranks.sent
    with saved("") as again:
        again.sent = dict(sent)
        order = [rank for rank in (2, 0, 3, 1) if rank != late]
        asked = [again.server.post(again.batch(rank, [of_rank(rank, 10)])).status_code for rank in order]
        assert asked == [429] * (len(order) - 1) + [200 if late is None else 429]
        if late is not None:
            again.clock.now += GRACE_S + 1
        again.sent = dict(sent)
        for rank in order:
            again.send(rank, range(10, 15))
        assert again.series() == (dict.fromkeys(range(15), 1.5) if late is None else {})
        again.clock.now += GRACE_S - 1
        if late is not None:
            again.send(late, range(10, 15))
            assert again.joint.sum.assembly.absences.incomplete == 10
            assert again.series() == dict.fromkeys(range(10), 1.0) | dict.fromkeys(range(10, 15), 1.5)
            assert "rank 3 has steps from 0 on" in again.events("rank-joined-late")[0]
        else:
            assert again.joint.sum.assembly.absences.incomplete == 0


def test_a_rank_that_joins_while_the_run_is_read_does_not_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with saved(tmp_path) as ranks:
        ranks.all(range(10))
    with saved(tmp_path) as again:
        wait_for(lambda: len(again.server.runs.every()) == 1 + WORLD)
        run = again.server.runs.get(JOINT)
        assert run is not None
        joint = ranks_in(run)
        assert joint is not None
        disk = again.server.runs.disk
        recorded = disk.recorded

        def meanwhile(runs: Sequence[Run]) -> Any:
            place = Place(job="job", rank=0, world=WORLD, attempt=1)
            again.server.runs.open(make_info("run-0-1", name="training rank 0", place=place, started_s=2.0))
            return recorded(runs)

        monkeypatch.setattr(disk, "recorded", meanwhile)
        assert again.series() == dict.fromkeys(range(10), 1.5)
        assert joint.run.store.usage().max_bytes > 2**20


def test_attempts_are_distinguished_after_a_restart(tmp_path: Path) -> None:
    with saved(tmp_path) as ranks:
        ranks.all(range(3))
        for attempt in (1, 2):
            for rank in reversed(range(WORLD)):
                ranks.send(rank, range(2), attempt=attempt)
        before = everything(ranks)[:3]
    with saved(tmp_path) as again:
        wait_for(lambda: len(again.server.runs.every()) == 1 + 3 * WORLD)
        assert everything(again)[:3] == before
        assert list(again.series()) == list(range(7))


def test_a_run_whose_ranks_are_all_on_disk_leaves_memory_and_returns(tmp_path: Path) -> None:
    with saved(tmp_path) as ranks:
        ranks.all(range(10))
        for rank in range(WORLD):
            ranks.end(rank, 9)
        before = everything(ranks)
        joint = ranks.joint
        wait_for(lambda: all(map(ranks.server.app.state.keeper.is_whole, joint.runs())))
        ranks.clock.now += 1000
        assert ranks.server.runs.memory.unload(joint.run)
        assert not joint.run.loaded
        assert joint.run.steps == 10
        assert ranks.server.runs.get(JOINT) is joint.run
        assert everything(ranks) == before


def test_frames_that_came_too_late_are_in_the_sum_after_the_ranks_were_added_up_again(tmp_path: Path) -> None:
    with saved(tmp_path / "late") as late, saved(tmp_path / "in-time") as in_time:
        for rank in range(3):
            late.send(rank, range(8))
        late.clock.now += LATE_S + 1
        late.joint.sum.tick()
        late.send(3, range(8))
        in_time.all(range(8))
        asked = {"run": JOINT}
        assert late.server.client.post("/api/v1/ranks", params=asked).status_code == 409, "the ranks are still live"
        for rank in range(WORLD):
            late.end(rank, 7)
            in_time.end(rank, 7)
        wait_for(lambda: late.server.runs.can_sum_again(late.joint))
        page = late.server.client.get(f"/runs/{JOINT}/performance/ranks", headers={"Accept": "text/html"}).text
        assert "7 frames came too late" in page
        assert "data-sum-again" in page
        assert everything(late) != everything(in_time)
        answer = late.server.client.post("/api/v1/ranks", params=asked)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["incomplete"], [rank["late"] for rank in answer.json()["ranks"]]) == (0, [0] * WORLD)
        assert everything(late) == everything(in_time)
        page = late.server.client.get(f"/runs/{JOINT}/performance/ranks", headers={"Accept": "text/html"}).text
        assert "came too late" not in page


def test_ranks_that_are_only_in_memory_are_not_added_up_again(ranks: Ranks) -> None:
    ranks.all(range(3))
    for rank in range(WORLD):
        ranks.end(rank, 2)
    answer = ranks.server.client.post("/api/v1/ranks", params={"run": JOINT})
    assert answer.status_code == 409
    assert "all of them must have ended and be saved" in answer.text
    assert list(ranks.series()) == [0, 1, 2]


def test_thresholds_of_the_joint_run_survive_a_server_restart(tmp_path: Path) -> None:
    with saved(tmp_path) as ranks:
        ranks.all(range(4))
        asked = {"run": JOINT, "rules": {"dead": False}}
        assert ranks.server.client.post("/api/v1/rules", json=asked).status_code == 200
        assert ranks.joint.rounds.current()[0].run.store.rules["dead"] is False
        for rank in range(WORLD):
            ranks.end(rank, 3)
    with saved(tmp_path) as again:
        wait_for(lambda: len(again.server.runs.every()) == 1 + WORLD)
        table = again.server.client.get(f"/api/v1/rules?run={JOINT}").json()["rules"]
        assert [each["name"] for each in table if not each["on"]] == ["dead"]
        assert again.joint.run.store.rules["dead"] is False
