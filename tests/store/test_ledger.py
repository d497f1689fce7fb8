"""The ledger of non-finite values, compared with brute force: their exact steps are always known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hookcore.store import Store
from tests.nonfinite_world import TAPS, Part, part, quick, steps, store_of


def streaks_of(bad: list[int], seen: list[int]) -> list[tuple[int, int]]:
    """Return the first and last step of each streak. A step in which the tap was finite ends it."""
    found = [[bad[0], bad[0]]]
    for one, two in pairwise(bad):
        if any(one < step < two for step in seen if step not in bad):
            found.append([two, two])
        found[-1][1] = two
    return [(first, last) for first, last in found]


@quick
@given(run=steps)
def test_every_tap_keeps_its_exact_steps_and_counts(run: list[tuple[int, list[Part]]]) -> None:
    store, told = store_of(run)
    known = store.nonfinite_taps()
    expected = []
    for tap in range(TAPS):
        held = {step: [each[tap] for each in parts if each[tap] is not None] for step, parts in told.items()}
        seen = [step for step, each in held.items() if each]
        bad = [step for step in seen if any(held[step])]
        if not bad:
            continue
        streaks = streaks_of(bad, seen)
        nan = sum(max(0, each) for step in seen for each in held[step])
        inf = sum(max(0, -each) for step in seen for each in held[step])
        expected.append(
            (tap, bad[0], bad[-1], streaks[-1][0], streaks[0][1], len(streaks), len(bad), nan, inf, seen[-1] != bad[-1])
        )
    columns = (
        known.numbers,
        known.first_step,
        known.last_step,
        known.since,
        known.first_until,
        known.streaks,
        known.steps,
        known.nan,
        known.inf,
        known.is_over,
    )
    assert [tuple(row) for row in zip(*(column.tolist() for column in columns), strict=True)] == expected
    assert store.captured() == sum(any(each is not None for held in parts for each in held) for parts in told.values())


FINE = (0,) * 45  # more taps make the steps so wide that a small store soon merges them


def test_the_exact_steps_are_known_after_many_steps_with_gaps_in_a_store_that_merges() -> None:
    store = Store(2**20)
    random = np.random.default_rng(0)
    step, seen = 0, []
    for place in range(1600):
        step += int(random.integers(1, 4))
        seen.append(step)
        held = (
            3 if place == 7 else 0,
            1 if 90 <= place < 140 or place == 1200 else 0,
            0,
            -1 if place > 1590 else 0,
            0,
            *FINE,
        )
        store.append(part(step, held, new=place == 0))
    assert store.usage().merged["stats"] > 800
    known = store.nonfinite_taps()
    assert known.numbers.tolist() == [0, 1, 3]
    assert known.first_step.tolist() == [seen[7], seen[90], seen[1591]]
    assert known.last_step.tolist() == [seen[7], seen[1200], seen[-1]]
    assert known.since.tolist() == [seen[7], seen[1200], seen[1591]]
    assert known.steps.tolist() == [1, 51, 9]
    assert known.is_over.tolist() == [True, True, False]
    assert [(each.first_step, each.last_step, each.previous) for each in store.incidents()] == [
        (seen[7], seen[7], seen[6]),
        (seen[90], seen[139], seen[89]),
        (seen[1200], seen[1200], seen[1199]),
        (seen[1591], seen[-1], seen[1590]),
    ]
    assert store.captured() == 1600


def test_a_tensor_that_repeatedly_becomes_non_finite_takes_no_more_memory() -> None:
    store = Store(2**20)
    for step in range(1000):
        store.append(part(step, (step % 2, 0, 0, 0, 0), new=step == 0))
        if step == 200:
            taken = store.usage().parts["ledger"].nbytes
    assert store.usage().parts["ledger"].nbytes <= taken + 16
    assert store.usage().parts["ledger"].nbytes <= store.usage().parts["ledger"].limit


def test_a_heatmap_counts_every_step_in_one_column_and_a_non_finite_one_in_the_right_one() -> None:
    store, steps = Store(2**20), 900
    for step in range(steps):
        held = (3 if step == 299 else 0, 1 if step in (400, 401, 800) else 0, 0, -1 if step >= 600 else 0, 0)
        store.append(part(step, (*held, *FINE), new=step == 0))
    assert store.usage().merged["stats"] > 450
    for columns in (1, 7, 50, 100):
        shown = store.heatmap("output", "rms", columns=columns)
        assert shown.present.sum(axis=1).tolist() == [steps] * (TAPS + len(FINE))
        width = shown.last_step - shown.first_step + 1
        assert (shown.present == width).all()
        for tap, bad in enumerate(([299], [400, 401, 800], [], range(600, steps), [])):
            ends = zip(shown.first_step.tolist(), shown.last_step.tolist(), strict=True)
            expected = [sum(first <= step <= last for step in bad) for first, last in ends]
            assert shown.nonfinite[tap].tolist() == expected


@quick
@given(run=steps, columns=st.integers(1, 200), often=st.integers(1, 8))
def test_counts_in_a_heatmap_add_up_however_the_rows_were_merged(
    run: list[tuple[int, list[Part]]], columns: int, often: int
) -> None:
    store, told = store_of(run * often)
    if not store.captured():
        return
    shown = store.heatmap("output", "rms", columns=columns)
    held = [[[each[tap] for each in parts if each[tap] is not None] for parts in told.values()] for tap in range(TAPS)]
    assert shown.present.sum(axis=1).tolist() == [sum(bool(each) for each in steps) for steps in held]
    assert shown.nonfinite.sum(axis=1).tolist() == [sum(any(each) for each in steps) for steps in held]
    assert (shown.nonfinite <= shown.present).all()
    assert (shown.present <= shown.last_step - shown.first_step + 1).all()
    assert ((shown.state == 0) == (shown.present == 0)).all()


def test_a_healthy_run_takes_no_memory() -> None:
    store = Store(2**20)
    for step in range(100):
        store.append(part(step, (0,) * TAPS, new=step == 0))
    assert store.usage().parts["ledger"].nbytes == 0
    assert not len(store.nonfinite_taps().numbers)
