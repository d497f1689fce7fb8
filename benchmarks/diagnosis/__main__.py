"""Train all cases, and print a table of false alarms, faults found, right culprits, and steps until they were found.

`python -m benchmarks.diagnosis` exits with 1 if a healthy training has a finding or an incident that is a warning or an
error, or if a fault is not found or blamed on another module. Parts of names select cases.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable

from benchmarks.timing import busy

from . import (
    BAD,
    BUSY,
    FAULTY,
    HEALTHY,
    NONFINITE,
    RANKED,
    WAITING,
    Case,
    Outcome,
    diagnose,
    in_seconds,
    judge,
    judge_ranks,
)
from .case import EVERYTHING


def _run(cases: dict[str, Case], names: list[str], settings: dict[str, object]) -> dict[str, Outcome]:
    found = {}
    for name, case in cases.items():
        if names and not any(each in name for each in names):
            continue
        outcome = found[name] = judge(case, *diagnose(case, **settings))
        if not case.expected:
            print(f"{'WRONG' if outcome.alarms else 'ok   '} {name}", *outcome.alarms[:4], sep="\n        ", flush=True)
            continue
        _tell(name, outcome)
    return found


def _tell(name: str, outcome: Outcome) -> None:
    fine = outcome.found and outcome.right is not False and outcome.exact is not False
    waited = "not as an incident" if outcome.waited is None else f"after {outcome.waited} steps"
    waited += ", at another step" if outcome.exact is False else ""
    told = f"{outcome.named or '(root)'}, {waited}" if outcome.found else f"not found; instead: {outcome.named}"
    print(f"{'ok   ' if fine else 'WRONG'} {name}: {told}", flush=True)


def _run_ranks(names: list[str]) -> dict[str, Outcome]:
    """Train in two processes. The rank with the fault must name it; the other one can only know when it began."""
    found = {}
    for name in RANKED:
        if not names or any(each in name for each in names):
            outcomes = judge_ranks(name)
            found[name] = outcomes[BAD]
            _tell(name, outcomes[BAD])
            others = (each for rank, each in enumerate(outcomes) if rank != BAD)
            print(*(f"      the other rank: {each.named}, after {each.waited} steps" for each in others), sep="\n")
    return found


def _table(title: str, outcomes: Iterable[Outcome]) -> None:
    told = list(outcomes)
    placed = [each for each in told if each.found and each.right is not None]
    waits = [each.waited for each in told if each.waited is not None]
    print(
        f"| {title} | {len(told)} | {sum(each.found for each in told)} | "
        f"{sum(bool(each.right) for each in placed)} of {len(placed)} | "
        f"{sum(bool(each.exact) for each in told)} of {sum(each.exact is not None for each in told)} | "
        f"{statistics.median(waits) if waits else '':g} |"
        if waits
        else f"| {title} | {len(told)} | {sum(each.found for each in told)} | | | |"
    )


def main() -> int:
    """Run the named cases, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of the names of cases")
    parser.add_argument("--everything", action="store_true", help="capture parameters and updates in all cases")
    parser.add_argument("--every", type=int, default=1, help="capture every n-th step (default: 1)")
    parser.add_argument("--default", action="store_true", help="capture as many steps as the default settings allow")
    parser.add_argument("--busy", type=int, default=0, help="processes that keep cores busy meanwhile (default: 0)")
    given = parser.parse_args()
    settings: dict[str, object] = {"kinds": EVERYTHING} if given.everything else {}
    settings |= {"every": given.every} if given.every > 1 else {}
    # Without a server, a watch saves steps only if it is asked to.
    settings |= {"budget": 0.05, "capsule": "error"} if given.default else {}
    with busy(given.busy):
        return _run_all(given.names, settings, is_usual=not settings)


def _run_all(names: list[str], settings: dict[str, object], is_usual: bool) -> int:
    healthy = _run(HEALTHY, names, settings)
    faulty, nonfinite = (_run(cases, names, settings) for cases in (FAULTY, NONFINITE))
    with in_seconds():
        healthy |= _run(BUSY, names, settings)
        faulty |= _run(WAITING, names, settings)
    if is_usual:
        nonfinite |= _run_ranks(names)
    alarmed = sum(bool(each.alarms) for each in healthy.values())
    print(f"\n{len(healthy)} healthy trainings, {alarmed} with a false alarm\n")
    print("| planted fault | trainings | found | right culprit | exact step | steps until found (median) |")
    print("|---|---|---|---|---|---|")
    _table("NaN or infinity", nonfinite.values())
    _table("other", faulty.values())
    _table("all", [*nonfinite.values(), *faulty.values()])
    missed = sum(
        not each.found or False in (each.right, each.exact) for each in (*nonfinite.values(), *faulty.values())
    )
    return 1 if alarmed or missed else 0


if __name__ == "__main__":
    sys.exit(main())
