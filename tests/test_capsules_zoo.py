"""Recording changes no bit of any training in the zoo, and nearly every step of it is replayed to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from hookcore import hooks
from hookcore.capsules import Recording, record, replay
from tests.harness import run_case
from tests.zoo import CASES, Case, Trial

pytestmark = pytest.mark.slow
STEPS: Final = 2
# These depend on what a capsule doesn't contain: counters of the module, and weights that were swapped for one call.
DIFFERENT: Final = {"deep_recursion", "other_path_at_every_step", "functional_call_with_other_weights"}
RACING: Final = {"two_models_in_two_threads"}  # the other model's step may write a call that has not returned yet
BAD: Final = {"nan_and_infinity_in_an_output"}  # and meant to be


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
