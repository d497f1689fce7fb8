"""Rules about routers of mixtures of experts: dead experts, routers that collapse, and ranks with more than others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hookcore.findings import Finding, findings_of
from hookcore.records import STAT_COLUMN, Snapshot, Tap
from hookcore.store import RankStore, Store
from tests import build

LOAD = Tap("moe.gate", "probe", "expert_load")
OWNED = Tap("moe.gate", "probe", "expert_owned")


def run_of(columns: list[list[float]]) -> Store:
    """Return a run with these choices of each expert in every tenth step."""
    store = Store(2**24)
    for step in range(10 * len(columns)):
        taps = (Tap("moe", "output"), LOAD)[: 1 if step % 10 else 2]
        values = build.stats_of_magnitudes([1.0] * len(taps), "rms", "mean", "max")
        new = (Tap("moe", "output"), LOAD) if step == 0 else ()
        store.append(build.frame(step, values, new))
        if step % 10 == 0:
            counts = np.array(columns[step // 10], np.float32)
            store.add_snapshot(Snapshot(LOAD, step, 0.0, "float32", counts.shape, counts))
    return store


def found(columns: list[list[float]], **rules: Any) -> list[Finding]:
    store = run_of(columns)
    store.rules.update(rules)
    return [each for each in findings_of(store) if each.rule in ("dead-expert", "router-collapse")]


EVEN, DEAD, ALONE = [50.0, 60.0, 40.0, 50.0], [70.0, 60.0, 0.0, 70.0], [199.0, 0.0, 1.0, 0.0]


def test_an_expert_is_dead_after_enough_measurements_without_a_choice() -> None:
    assert found(4 * [EVEN] + 7 * [DEAD]) == []
    (told,) = found(4 * [EVEN] + 8 * [DEAD])
    assert (told.rule, told.severity, told.module, told.since_step) == ("dead-expert", "warning", "moe.gate", 40)
    assert told.message == "no token has chosen expert 2 of 4 since a step between 31 and 40"
    (told,) = found(12 * [DEAD])
    assert told.since_step == 0


def test_an_expert_is_not_dead_if_so_few_tokens_were_there_that_it_can_be_chance() -> None:
    few = [3.0, 4.0, 0.0, 3.0]
    assert found(20 * [few]) == []
    (told,) = found(40 * [few])
    assert told.rule == "dead-expert"


def test_a_rarely_chosen_expert_is_not_dead() -> None:
    assert found(20 * [[70.0, 60.0, 2.0, 70.0]]) == []
    (told,) = found(20 * [[7000.0, 6000.0, 2.0, 7000.0]])
    assert told.message == "expert 2 of 4 has received only 0.0001 of all choices since step 0"


def test_a_router_that_gives_nearly_all_choices_to_one_expert_has_collapsed() -> None:
    assert found(4 * [EVEN] + 7 * [ALONE]) == []
    (told,) = found(4 * [EVEN] + 8 * [ALONE])  # its other experts are dead, which follows from it
    assert (told.rule, told.severity, told.module, told.since_step) == ("router-collapse", "warning", "moe.gate", 40)
    assert told.message == "expert 0 of 4 has received 100% of all choices since a step between 31 and 40"
    assert found(20 * [[120.0, 20.0, 20.0, 40.0]]) == []


def test_thresholds_of_a_run_count() -> None:
    columns = 20 * [[120.0, 20.0, 20.0, 40.0]]
    (told,) = found(columns, **{"router-collapse": {"choices": 0.55}})
    assert told.rule == "router-collapse"
    assert {each.rule for each in found(columns, **{"dead-expert": {"share": 0.5}})} == {"dead-expert"}
    assert found(20 * [DEAD], **{"dead-expert": False}) == []


def test_many_experts_are_not_all_listed() -> None:
    (told,) = found(20 * [[0.0] * 10 + [100.0] * 22])
    assert told.message == "no token has chosen experts 0, 1, 2, 3, and 6 more of 32 since step 0"
    (told,) = found(20 * [[0.0, 0.0] + [100.0] * 6])
    assert told.message == "no token has chosen experts 0 and 1 of 8 since step 0"


def test_choices_of_several_steps_and_ranks_add_up() -> None:
    store = run_of(700 * [EVEN])
    store.add_snapshot(Snapshot(LOAD, 6990, 0.0, "float32", (4,), np.array([150.0, 0, 0, 50], np.float32)))  # a rank
    steps, counts = store.choices(LOAD)
    assert len(steps) <= 512
    assert counts.sum() == 700 * 200 + 200
    assert counts[:, -1].tolist() == [200.0, 60.0, 40.0, 100.0]
    read = store.channels(LOAD, columns=1)
    assert read.values[:, 0] == pytest.approx(counts.sum(axis=1) / counts.sum())
    assert store.channels(LOAD, columns=1, rows=2).values.sum() == pytest.approx(1)


def joint_of(columns: list[list[float]], *owned: tuple[int, int] | None) -> Store:
    """Return the run of ranks that have these experts, from the first to the last."""
    ranks = [Store(2**22) for _ in owned]
    for store, ends in zip(ranks, owned, strict=True):
        given = [] if ends is None else [OWNED]
        stats = build.stats_of_magnitudes([0.0] * (1 + len(given)), "mean")
        for stat, end in zip(("min", "max"), ends or (), strict=ends is not None):
            stats[-1, STAT_COLUMN[stat]] = end
        store.append(build.frame(0, stats, (Tap("moe", "output"), *given)))
    joint = run_of(columns)
    joint.name_ranks(lambda number, step: "", lambda: [RankStore(rank, each) for rank, each in enumerate(ranks)])
    return joint


def uneven(store: Store, **limits: float) -> list[Finding]:
    store.rules = {"uneven-expert-ranks": limits} if limits else {}
    return [each for each in findings_of(store) if each.rule == "uneven-expert-ranks"]


FIRST_TWO = [80.0, 80.0, 20.0, 20.0]  # 1.6 times an even share for a rank with experts 0 and 1


def test_a_rank_whose_experts_get_most_choices_is_named_with_them() -> None:
    halves = (0, 1), (2, 3)
    assert uneven(joint_of(4 * [EVEN] + 7 * [FIRST_TWO], *halves)) == []
    (told,) = uneven(joint_of(4 * [EVEN] + 8 * [FIRST_TWO], *halves))
    assert (told.severity, told.module, told.since_step) == ("warning", "moe.gate", 40)
    assert told.message == (
        "rank 0, experts 0 to 1, has received 1.60 times an even share of the choices since a step between 31 and 40"
    )
    assert uneven(joint_of(20 * [FIRST_TWO], *halves), factor=1.7) == []
    (told,) = uneven(joint_of(20 * [FIRST_TWO], (2, 3), (0, 1), (2, 3), (0, 1)))  # each expert on two ranks
    assert told.message.startswith("ranks 1 and 3, experts 0 to 1, have received 1.60 times")


def test_ranks_are_not_compared_if_it_is_not_known_which_has_which_experts() -> None:
    for owned in [((0, 1), None), ((0, 1), (2, 2)), ((0, 2), (2, 3)), ((0, 3), (0, 3)), ()]:
        assert uneven(joint_of(20 * [FIRST_TWO], *owned)) == []
    assert uneven(run_of(20 * [FIRST_TWO])) == []


def test_a_router_that_collapsed_is_not_also_called_uneven() -> None:
    joint = joint_of(20 * [ALONE], (0, 1), (2, 3))
    assert {each.rule for each in findings_of(joint)} == {"router-collapse"}
