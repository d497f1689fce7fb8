"""The zoo itself: it is large, and each unwatched case always computes the same bits."""

from __future__ import annotations

import pytest
import torch

from tests.harness import digest, process_state, run_case
from tests.zoo import CASES, Case


def test_the_zoo_has_many_cases() -> None:
    assert len(CASES) >= 150


@pytest.mark.rota("case", of="zoo")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_an_unwatched_case_computes_the_same_bits_twice_and_leaves_nothing_behind(case: Case) -> None:
    before = process_state()
    assert run_case(case) == run_case(case)
    assert process_state() == before


def test_most_cases_learn() -> None:
    def changes(case: Case) -> bool:
        steps = run_case(case).steps
        return steps[0]["parameters"] != steps[-1]["parameters"]

    still = {name for name, case in CASES.items() if not changes(case)}
    assert still == {"only_inference", "backward_without_any_step"}


def test_a_digest_sees_a_single_bit() -> None:
    tensor = torch.ones(3)
    changed = tensor.clone()
    changed.view(torch.int32)[1] ^= 1
    assert digest({"a": tensor}) == digest({"a": tensor.clone()})
    assert digest({"a": tensor}) != digest({"a": changed})
    assert digest(torch.zeros(1)) != digest(-torch.zeros(1))
    assert digest(torch.zeros(2)) != digest(torch.zeros(2, dtype=torch.float64))
