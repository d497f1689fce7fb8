"""An incident as its page shows it: the tensors around its onset, the modules around its culprit, and saved steps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from textwrap import dedent
from typing import Final, Literal

import numpy as np
from fastapi import Request
from numpy.typing import NDArray

from hookcore.findings import RULES, Rule, rule_about
from hookcore.reading import Reader, answers
from hookcore.reading.answers import Capsule, Explanation, SourceLine
from hookcore.records import GRADIENT_KINDS, ROOT, STAT_COLUMN, STATS, Severity, Tap
from hookcore.records.vocabulary import KIND_WORDS, counted
from hookcore.store.incidents import AROUND, NONFINITE, Evidence, Incident, Link

from ...analysis.figures.lines import Spark, spark_of
from ...analysis.numerals import title_of_rule
from ...runs import Run
from ...runs.alerts import Explainer
from .events import PHASES, SIGNS, Line

# The stats that the page offers: of a tensor's values, not of how they were captured.
SHOWN: Final = tuple(name for name in STATS if name not in ("count", "parts", "sketched"))
_COUNTS: Final = frozenset({"nan", "inf", "zero"})  # known even if no value is finite


@dataclass(frozen=True, slots=True)
class OnsetValue:
    """A value before and at an incident's first step; NaN where it isn't known."""

    before: float
    at: float
    was_seen: bool  # in the first step
    spark: Spark | None


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor around the onset: the culprit, another one of its module, or a neighbor."""

    tap: Tap
    place: str
    since: int | None  # the first step in which it was affected
    onset: OnsetValue


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """A logged value around the onset."""

    name: str
    onset: OnsetValue


@dataclass(frozen=True, slots=True)
class StepOfChain:
    """The tensors that followed in one step, in the order of cause."""

    step: int
    later: int  # steps after the first one
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class IncidentView:
    """The page's view of an incident."""

    incident: Incident
    rule: Rule | None
    title: str
    sign: str
    phase: str
    kind: str  # of the culprit, in words
    state: str
    stat: str
    rows: tuple[Row, ...]
    logged: tuple[LoggedRow, ...]
    chain: tuple[StepOfChain, ...]
    left_out: int  # tensors of the chain that aren't kept
    first: int | None  # of the kept steps
    last: int | None
    until: int | None  # the last step that will be kept
    before: int | None  # the captured step before the first one, as far as it is kept

    @property
    def is_of_loss(self) -> bool:
        """Whether it is about a logged loss or the training as a whole: the culprit is then only the model's output."""
        return not self.incident.placed

    @property
    def why_not_kept(self) -> str:
        """Why there are no values around the first step."""
        return "the layer isn't known" if self.incident.culprit.number < 0 else "there was no room for them"

    @property
    def unknown(self) -> list[str]:
        """The facts that are unknown, in words."""
        found, incident = [], self.incident
        if incident.unseen:
            steps, were = ("step", "was") if incident.unseen == 1 else ("steps", "were")
            found.append(f"The {incident.unseen:,} {steps} right before {were} not captured. It may have begun there.")
        if incident.evidence is None:
            found.append(f"The values around the first step weren't kept: {self.why_not_kept}.")
        if self.left_out:
            found.append(f"{counted(self.left_out, 'more tensor')} followed, whose first steps aren't kept.")
        return found


def view_of(incident: Incident, stat: str, ended: bool) -> IncidentView:
    """Return an incident as it is shown. `ended` says that no more steps will come."""
    evidence = incident.evidence
    affected = {link.number: link.first_step for link in affected_of(incident)}
    steps = np.empty(0, np.int64) if evidence is None else evidence.steps
    earlier = steps[steps < incident.first_step]
    severity: Severity = incident.severity
    rule = RULES.get(incident.rule)  # type: ignore[call-overload]
    return IncidentView(
        incident,
        rule,
        title_of_rule(incident.rule),
        SIGNS[severity],
        PHASES.get(incident.culprit.tap.kind, ""),
        KIND_WORDS[incident.culprit.tap.kind],
        state_of(incident, ended),
        stat,
        () if evidence is None else tuple(_rows(incident, evidence, stat, affected)),
        () if evidence is None else tuple(_logged(incident, evidence)),
        tuple(_chain(incident)),
        incident.taps - len(incident.chain),
        int(steps[0]) if len(steps) else None,
        int(steps[-1]) if len(steps) else None,
        _until(incident.first_step, steps, ended) if len(steps) else None,
        int(earlier[-1]) if len(earlier) else None,
    )


def affected_of(incident: Incident) -> tuple[Link, ...]:
    """Return all affected tensors, as far as they are kept."""
    return (incident.culprit, *incident.chain) if incident.culprit_known else incident.chain


def state_of(incident: Incident, ended: bool) -> str:
    """Return whether an incident lasts, in words."""
    if incident.recovered is not None:
        return f"over at step {incident.recovered:,}"
    if incident.short:
        return "a single step" if incident.steps == 1 else f"{incident.steps:,} single steps"
    return "until the end of the run" if ended else "ongoing"


def _until(first: int, steps: NDArray[np.int64], ended: bool) -> int:
    """Return the last kept step, or the expected one if not all have come."""
    newest = int(steps[-1])
    return newest if ended or int((steps > first).sum()) >= AROUND else max(newest, first + AROUND)


def default_stat(incident: Incident) -> str:
    """Return the stat that shows an incident best."""
    return "nan" if incident.rule == NONFINITE and np.isnan(incident.value) else "rms"


def _rows(incident: Incident, evidence: Evidence, stat: str, affected: Mapping[int, int]) -> Iterable[Row]:
    values = evidence.stats[STAT_COLUMN[stat]]
    seen = ~np.isnan(evidence.stats[STAT_COLUMN["count"]])
    if stat not in _COUNTS:
        values = np.where(evidence.stats[STAT_COLUMN["inf"]] > 0, np.inf, values)
        values = np.where(evidence.stats[STAT_COLUMN["nan"]] > 0, np.nan, values)
    for place, (number, tap) in enumerate(zip(evidence.numbers, evidence.taps, strict=True)):
        onset = _onset(evidence.steps[seen[:, place]], values[seen[:, place], place], incident.first_step)
        since = affected.get(number) if incident.placed else None
        yield Row(tap, _place(incident, number, tap), since, onset)


def _place(incident: Incident, number: int, tap: Tap) -> str:
    culprit = incident.culprit
    if number == culprit.number:
        return "culprit" if incident.placed and incident.culprit_known else "the model"
    if not incident.culprit_known:
        return "of the model"
    if tap.module == culprit.tap.module:
        return "same module"
    # Taps are numbered in the order of the forward pass; the backward pass has the reverse order.
    is_later = (number > culprit.number) != (PHASES.get(tap.kind) == "backward")
    return "next" if is_later else "before it"


def _logged(incident: Incident, evidence: Evidence) -> Iterable[LoggedRow]:
    for each in evidence.logged:
        yield LoggedRow(each.name, _onset(each.steps, each.values, incident.first_step))


def _onset(steps: NDArray[np.int64], values: NDArray[np.float64], first: int) -> OnsetValue:
    earlier, at = values[steps < first], values[steps == first]
    return OnsetValue(
        float(earlier[-1]) if len(earlier) else float("nan"),
        float(at[-1]) if len(at) else float("nan"),
        bool(len(at)),
        spark_of(steps, values, first, may_be_log=True),
    )


def _chain(incident: Incident) -> Iterable[StepOfChain]:
    for step, links in groupby(incident.chain, lambda link: link.first_step):
        yield StepOfChain(step, step - incident.first_step, tuple(links))


# The modules around an incident's culprit as a small graph: what feeds it, and what it feeds. Pure.

BEFORE: Final = 2  # levels that are shown of what feeds the culprit
BEHIND: Final = 3  # of what it feeds
A_LEVEL: Final = 5  # modules
WIDTH: Final = 170  # of a module's box
HEIGHT: Final = 34
GAP_X: Final = 46
GAP_Y: Final = 12

State = Literal["culprit", "same", "later", "fine", "unknown"]


@dataclass(frozen=True, slots=True)
class Node:
    """A call of a module: its box, and what the incident says of it."""

    path: str
    call: int
    x: int
    y: int
    state: State
    since: int | None

    @property
    def name(self) -> str:
        return f"{self.path or ROOT}{f' call {self.call}' if self.call else ''}"


@dataclass(frozen=True, slots=True)
class Graph:
    """Boxes, and curves between them. `left_out` calls are near too, but there are too many."""

    nodes: tuple[Node, ...]
    edges: tuple[str, ...]
    width: int
    height: int
    left_out: int
    guessed: bool  # whether some of it is only known from the order of execution


def graph_of(incident: Incident, reader: Reader) -> Graph | None:
    """Return the graph around the culprit, from the structure that was known in the first step; None if it has none."""
    flow = reader.flow(incident.first_step)
    if flow.step is None and flow.steps:
        flow = reader.flow(flow.steps[0])
    tap = incident.culprit.tap
    of_module = [place for place, each in enumerate(flow.calls) if each.module == tap.module]
    exact = (place for place in of_module if (flow.calls[place].call, flow.calls[place].phase) == (tap.call, tap.phase))
    start = next(exact, of_module[0] if of_module else None)  # parameters have no calls, but their module has
    if start is None:
        return None
    feeds: dict[int, list[int]] = defaultdict(list)
    for place, call in enumerate(flow.calls):
        for source in call.fed_by:
            feeds[source].append(place)
    levels: dict[int, int] = {start: 0}
    left_out = _spread(levels, start, {place: call.fed_by for place, call in enumerate(flow.calls)}, -1, BEFORE)
    left_out += _spread(levels, start, feeds, 1, BEHIND)
    return _drawn(incident, flow, start, levels, left_out, reader.taps().taps) if len(levels) > 1 else None


def _spread(levels: dict[int, int], start: int, ways: Mapping[int, Iterable[int]], by: int, most: int) -> int:
    """Add the calls that are up to `most` levels away. Return how many were left out."""
    at, left_out = [start], 0
    for distance in range(1, most + 1):
        reached = dict.fromkeys(to for place in at for to in ways.get(place, ()))
        found = [call for call in reached if call not in levels]
        left_out += max(0, len(found) - A_LEVEL)
        at = found[:A_LEVEL]
        levels.update(dict.fromkeys(at, by * distance))
    return left_out


def _drawn(
    incident: Incident,
    flow: answers.Flow,
    start: int,
    levels: Mapping[int, int],
    left_out: int,
    taps: Iterable[answers.Tap],
) -> Graph:
    columns: dict[int, list[int]] = defaultdict(list)
    for place in sorted(levels):
        columns[levels[place]].append(place)
    first, tallest = min(columns), max(map(len, columns.values()))
    height = tallest * (HEIGHT + GAP_Y) - GAP_Y
    affected, captured = _affected(incident), {_key(tap) for tap in taps if _is_of_pass(tap, incident)}
    nodes: dict[int, Node] = {}
    for level, places in columns.items():
        top = (height - len(places) * (HEIGHT + GAP_Y) + GAP_Y) // 2
        for row, place in enumerate(places):
            call = flow.calls[place]
            key = call.module, call.call, call.phase
            since = affected.get(key)
            x, y = (level - first) * (WIDTH + GAP_X), top + row * (HEIGHT + GAP_Y)
            state = _state(incident, since, place == start, key in captured)
            nodes[place] = Node(call.module, call.call, x, y, state, since)
    edges = [
        _curve(nodes[source], nodes[place])
        for place in sorted(nodes)
        for source in flow.calls[place].fed_by
        if source in nodes and nodes[source].x < nodes[place].x
    ]
    width = len(range(first, max(columns) + 1)) * (WIDTH + GAP_X) - GAP_X
    guessed = any(flow.calls[place].how == "order" for place in levels)
    return Graph(tuple(nodes.values()), tuple(edges), width, height, left_out, guessed)


def _affected(incident: Incident) -> dict[tuple[str, int, str], int]:
    """Return the first step of each call that was affected in the culprit's pass."""
    found: dict[tuple[str, int, str], int] = {}
    for link in (incident.culprit, *incident.chain):
        if _is_of_pass(link.tap, incident):
            key = _key(link.tap)
            found[key] = min(found.get(key, link.first_step), link.first_step)
    return found


def _is_of_pass(tap: Tap | answers.Tap, incident: Incident) -> bool:
    """Return whether a tap belongs to the culprit's pass, forward or backward."""
    return (tap.kind in GRADIENT_KINDS) == (incident.culprit.tap.kind in GRADIENT_KINDS)


def _key(tap: Tap | answers.Tap) -> tuple[str, int, str]:
    return tap.module, tap.call, tap.phase


def _state(incident: Incident, since: int | None, is_culprit: bool, is_captured: bool) -> State:
    if is_culprit:
        return "culprit"
    if since is None:
        return "fine" if is_captured and incident.taps <= len(incident.chain) else "unknown"
    return "same" if since == incident.first_step else "later"


def _curve(source: Node, target: Node) -> str:
    x, y, right, down = source.x + WIDTH, source.y + HEIGHT // 2, target.x, target.y + HEIGHT // 2
    middle = (x + right) // 2
    head = f"M{right - 6} {down - 4}L{right} {down}L{right - 6} {down + 4}"
    return f"M{x} {y}C{middle} {y} {middle} {down} {right} {down}{head}"


# Saved steps, next to the findings that they explain.

SPIKE: Final = "loss-spike"
_PRECURSOR: Final = "spike-precursor"
# Rules that a replay explains. A loss is often logged a step later.
_BEFORE: Final[dict[str, int]] = {NONFINITE: 0, "loss": 1, SPIKE: 0}
_EVENTS = frozenset({"capsule", "explained", "explanation-failed", "crashed"})


def capsules_of(request: Request, run: Run) -> list[Capsule]:
    """Return the steps that a run saved on this machine."""
    explainer: Explainer = request.app.state.explainer
    return explainer.capsules_of(run)


def capsule_for(line: Line, capsules: Sequence[Capsule]) -> Capsule | None:
    """Return the saved step of a line: that of an event, or the first one while a finding lasted."""
    if line.is_event:
        known = line.name in _EVENTS
        return next((capsule for capsule in capsules if known and capsule.step == line.step), None)
    return _capsule_between(line.name, line.step, line.until, capsules)


def capsule_of(incident: Incident, capsules: Sequence[Capsule]) -> Capsule | None:
    """Return the step that was asked for after an incident, or the first that was saved while it lasted."""
    last = incident.last_step if incident.is_over else None
    return next(
        (capsule for capsule in capsules if capsule.incident == incident.id),
        _capsule_between(incident.rule, incident.first_step, last, capsules),
    )


def _capsule_between(rule: str, first: int, last: int | None, capsules: Sequence[Capsule]) -> Capsule | None:
    before = _BEFORE.get(rule)
    if before is None:
        return None
    end = float("inf") if last is None else last
    return next((capsule for capsule in capsules if first - before <= capsule.step <= end), None)


def precursors_of(incident: Incident, every: Iterable[Incident]) -> list[Incident]:
    """Return what moved first in the steps before the loss jumped."""
    reach = RULES[_PRECURSOR].limits["before"] if incident.rule == SPIKE else -1
    moved = [each for each in every if each.rule == _PRECURSOR]
    return [each for each in moved if 0 <= incident.first_step - each.first_step <= reach]


def may_be_of_samples(incident: Incident | None) -> bool:
    """Return whether the batch of its first step may have brought it."""
    rules = NONFINITE, SPIKE, "dominant-micro-batch"
    return incident is not None and not incident.unseen and (incident.rule in rules or incident.short)


def source_of(line: SourceLine) -> list[tuple[int, str]]:
    """Return lines of source code with their numbers, without the indentation that they share."""
    return list(enumerate(dedent("\n".join(line.source)).split("\n"), line.first))


# Operators that make infinities or NaN of a zero; the others that do leave the range of a type.
_OF_ZERO: Final = frozenset(
    {"div", "divide", "true_divide", "reciprocal", "log", "log2", "log10", "sqrt", "rsqrt", "pow"}
)


def rule_after(rule: Rule | None, capsule: Capsule | None) -> Rule | None:
    """Return a rule with the advice that fits what a replay has found out; all of it if there was none."""
    replayed = None if capsule is None else capsule.explanation
    if rule is None or rule.name != NONFINITE or replayed is None:
        return rule
    found = replayed.culprit
    if found is None and replayed.exact and not replayed.error and (loss := rule_about("loss", math.nan)) is not None:
        return replace(rule, causes=loss.causes[1:], tries=loss.tries[1:])
    if found is None or found.origin != "operator":
        return rule
    place = 0 if any(word.removesuffix("_") in _OF_ZERO for word in found.operator.split(".")) else 1
    return replace(rule, causes=(rule.causes[place],), tries=(rule.tries[1 + place],))


def explained_by(line: Line, capsules: Sequence[Capsule]) -> Explanation | None:
    """Return what a replay found out about a finding of bad tensors or of a jump of the loss, if there was a replay."""
    is_explained = not line.is_event and line.name in (NONFINITE, SPIKE) and line.earliest == line.step
    found = capsule_for(line, capsules) if is_explained else None
    return None if found is None else found.explanation
