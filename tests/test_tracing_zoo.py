"""Tracing changes nothing: every case of the zoo under `hookcore.trace`, against itself without."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import hookcore
from hookcore.tracing import Trace
from tests.harness import process_state, run_case
from tests.zoo import CASES, Case, Trial


@contextlib.contextmanager
def _traced(trial: Trial, seen: list[Trace]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for model in (trial.model, *trial.others):
            with contextlib.suppress(hookcore.TraceError):  # compiled as a whole and in place: it says so
                seen.append(stack.enter_context(hookcore.trace(model)))
        yield


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_tracing_changes_no_bit_and_leaves_nothing(case: Case) -> None:
    traces: list[Trace] = []
    before, expected = process_state(), run_case(case)
    seen = run_case(case, lambda trial: _traced(trial, traces))
    seen.hooks = expected.hooks  # those are its point; afterwards they are gone
    assert seen == expected
    assert not seen.warnings - expected.warnings
    assert process_state() == before
    for layer in (trace[path] for trace in traces for path in trace):
        for call in layer.calls:
            assert call.problem == ""
