"""What a rule is, and the names of all rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from hookcore.records import Severity

RuleName = Literal[
    "nonfinite",
    "loss",
    "learning-rate-too-high",
    "learning-rate-too-low",
    "exploding",
    "vanishing",
    "no-gradient",
    "dead",
    "saturated-activation",
    "not-in-optimizer",
    "frozen-by-mistake",
    "duplicate-in-optimizers",
    "overfit",
    "loss-not-decreasing",
    "unchanged-tensor",
    "bf16-update-lost",
    "large-update",
    "stalled",
    "spike",
    "loss-spike",
    "all-zero",
    "tensor-variance",
    "poor-weight-initialization",
    "batch-norm-drift",
    "gradient-clipped-always",
    "dead-channels",
    "rank-collapse",
    "attention-entropy-collapse",
    "never-used",
    "stalled-training",
    "slow-data-loading",
    "long-evaluation",
    "idle-gpu",
    "late-rank",
    "desync",
]

OF_TIME: Final = frozenset({"slow-data-loading", "long-evaluation", "idle-gpu", "late-rank"})
OF_LOSS: Final = OF_TIME | {  # rules about logged values: they are about the training, not about a tensor
    *("loss", "learning-rate-too-high", "learning-rate-too-low", "loss-spike", "overfit", "loss-not-decreasing"),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """The conditions of a finding, its meaning, and advice. `limits` are its thresholds, also those that are fixed."""

    name: RuleName
    severity: Severity
    title: str
    help: str
    limits: Mapping[str, float]
    causes: tuple[str, ...]
    tries: tuple[str, ...]
    known_as: str  # its name in SageMaker Debugger; "" if there is none
