"""Keeping steps changes no bit of any training in the zoo, and nearly all of their steps can be replayed to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import hookcore
from hookcore import hooks
from hookcore.capsules import Recording, record, replay
from hookcore.delivery.dashboard.capsules import folder_of
from tests.harness import run_case
from tests.inside import run_id_of
from tests.late import late_device
from tests.zoo import CASES, Case, Trial

STEPS: Final = 2
# These depend on what such a capsule doesn't have: the calls of a model inside its own, and weights of only one call.
DIFFERENT: Final = {"deep_recursion", "functional_call_with_other_weights"}
# A pickled model has its counters. A step whose forward contains the backward pass is saved before it returns.
DIFFERENT_IF_KEPT: Final = DIFFERENT - {"deep_recursion"} | {"backward_inside_the_forward"}
RACING: Final = {"two_models_in_two_threads"}  # the other model's step may write a call that hasn't returned yet
BAD: Final = {"nan_and_infinity_in_an_output"}  # on purpose


@pytest.mark.rota("case", of="zoo")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_recording_changes_no_bit_and_the_step_is_replayed_to_the_bit(case: Case, tmp_path: Path) -> None:
    path, recordings = tmp_path / "step.capsule", list[Recording]()

    @contextmanager
    def attach(trial: Trial) -> Iterator[None]:
        def write(*_: object) -> None:
            if recording.written is None and not recording.failure:
                recording.write()

        with record(trial.model, path, "asked") as recording:
            recordings.append(recording)
            handle = hooks.on_optimizer_step_pre(None, write)
            yield
            handle.remove()

    unrecorded, recorded = run_case(case, steps=STEPS), run_case(case, attach, steps=STEPS)
    assert recorded.steps == unrecorded.steps
    assert recorded.hooks_afterwards == unrecorded.hooks_afterwards
    if case.name in RACING:
        return
    if recordings[0].written is not None:
        found = replay(path)
        assert not found.error
        assert found.exact == (case.name not in DIFFERENT), found.differences
        assert (found.culprit is None) == (case.name not in BAD)
    else:
        assert not path.exists()


@pytest.mark.rota("case", of="zoo")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_watch_that_keeps_steps_changes_no_bit_and_what_it_saves_is_replayed_to_the_bit(case: Case) -> None:
    folders = []

    @contextmanager
    def attach(trial: Trial) -> Iterator[None]:
        with hookcore.watch(trial.model, server=None, budget=None, capsule="error") as watcher:
            folders.append(folder_of(run_id_of(watcher)))
            watcher.capsule()
            yield
            assert not watcher.errors

    unwatched, watched = run_case(case, steps=STEPS), run_case(case, attach, steps=STEPS)
    assert watched.steps == unwatched.steps
    assert watched.hooks_afterwards == unwatched.hooks_afterwards
    saved = sorted(folders[0].glob("*.capsule"))
    if case.name in RACING or not saved:
        return
    found = replay(saved[0])
    assert found.exact == (case.name not in DIFFERENT_IF_KEPT), found.differences
    assert (found.culprit is None) == (case.name not in BAD)


@pytest.mark.rota("case", of="zoo")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_keeping_the_weights_of_the_last_steps_changes_no_bit(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def attach(trial: Trial) -> Iterator[None]:
        with (
            late_device(monkeypatch),
            hookcore.watch(trial.model, server=None, budget=None, every=2, capsule="error") as watcher,
        ):
            yield
            assert not watcher.errors

    unwatched, watched = run_case(case), run_case(case, attach)
    assert watched.steps == unwatched.steps
    assert watched.hooks_afterwards == unwatched.hooks_afterwards
