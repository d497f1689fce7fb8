"""A training, what is expected of it, and what was found in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

import hookcore
from hookcore.findings import Diagnosis, examine
from hookcore.records import Severity
from hookcore.store import Store
from hookcore.store.incidents import NONFINITE

Step = Callable[[int], dict[str, Any]]  # trains one step and returns what to log
Training = tuple[nn.Module, Step]
EVERYTHING: Final = ("output", "output_grad", "param", "param_grad", "update")
Probe = tuple[str, Callable[..., Any], str]  # its name, its function, and the modules it looks at
PROBE_EVERY: Final = 10
UNKNOWN: Final = "(not known)"  # a culprit
DEAD: Final = "dead", hookcore.probes.dead_channels, "type:ReLU"
RANK: Final = "rank", hookcore.probes.effective_rank, "*"
ENTROPY: Final = "entropy", hookcore.probes.attention_entropy, "type:Softmax"
PARTS: Final = "parts", hookcore.probes.MicroBatches, "*"
HEADS: Final = "heads", hookcore.probes.attention, "*"
BOTH: Final = {"phases": ("train", "eval")}


@dataclass(frozen=True, slots=True)
class Case:
    """A training: what it watches and how it takes a step. One of the rules in `expected` must find something.

    `module` is the planted culprit, or a few modules if the fault is between them; `at` is the step of the fault.
    """

    make: Callable[[], Training]
    expected: tuple[str, ...] = ()
    module: str | tuple[str, ...] | None = None
    steps: int = 200
    at: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    probes: tuple[Probe, ...] = ()
    severities: tuple[Severity, ...] = ("error", "warning")  # of a finding that counts

    @property
    def culprits(self) -> tuple[str, ...]:
        """The modules that may be named; none if the fault has no place."""
        return () if self.module is None else (self.module,) if isinstance(self.module, str) else self.module


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found in one training: false alarms of a healthy one, or whether a fault was found, where, and when."""

    alarms: tuple[str, ...] = ()  # of a healthy training: the findings and incidents that are warnings or errors
    found: bool = False
    right: bool | None = None  # None if the fault has no place
    waited: int | None = None  # steps from the fault to the first incident
    named: str = ""
    exact: bool | None = None  # of non-finite values: whether the step is named exactly

    @property
    def is_fine(self) -> bool:
        """Whether there is nothing to mend."""
        return not self.alarms and (self.found is False or self.right is not False)


def diagnose(case: Case, **settings: Any) -> tuple[Diagnosis, Store]:
    """Train a case and return the findings at its end, and what was captured."""
    store = train(case, **settings).store
    return examine(store), store


def train(case: Case, **settings: Any) -> hookcore.Watcher:
    """Train a case and return its watcher, which is closed."""
    torch.manual_seed(0)
    model, step = case.make()
    watcher = hookcore.watch(model, **{"server": None, "budget": None, **case.settings, **settings})
    for name, function, include in case.probes:
        watcher.probe(name, function, include=include, every=PROBE_EVERY)
    try:
        for number in range(case.steps):
            watcher.log(**step(number))
            if number % 50 == 0:
                watcher.flush()  # a training this small outruns the recorder
        watcher.flush()
    finally:
        watcher.close()  # which waits for the replay of a saved step
    return watcher


def problems_of(
    diagnosis: Diagnosis, severities: tuple[Severity, ...] = ("error", "warning")
) -> list[tuple[str, str, int, str]]:
    """Return the findings except notes: rule, module, step, message."""
    found = (each for each in diagnosis.findings if each.severity in severities)
    return [(each.rule, each.module, each.since_step, each.message) for each in found]


def judge(case: Case, diagnosis: Diagnosis, store: Store) -> Outcome:
    """Compare what was found with what was expected."""
    problems = problems_of(diagnosis, case.severities)
    incidents = [each for each in store.incidents() if each.severity != "info"]
    if not case.expected:
        told = [f"{rule} {module} {step}: {message}" for rule, module, step, message in problems]
        return Outcome((*told, *(f"incident: {each.sentence}" for each in incidents)))
    mine = [each for each in incidents if each.rule in case.expected]
    named = [each.culprit.tap.module if each.culprit_known else UNKNOWN for each in mine] or [
        module for rule, module, *_ in problems if rule in case.expected
    ]
    if not named:
        return Outcome(named=", ".join(f"{each.rule} {each.culprit.tap.module}" for each in incidents))
    right = named[0] in case.culprits if case.culprits else None
    waited = max(0, (mine[0].found_step if mine[0].found_step >= 0 else mine[0].first_step) - case.at) if mine else None
    is_planted = bool(mine) and case.expected == (NONFINITE,)  # with another fault, it is a consequence
    exact = (mine[0].first_step, mine[0].unseen) == (case.at, 0) if is_planted else None
    return Outcome((), True, right, waited, named[0], exact)
