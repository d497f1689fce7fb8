"""Findings and events as lines of one list, and the origin of a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings import RULES, Finding, Rule
from hookcore.findings.rules import OF_TIME
from hookcore.reading import Mute, Reader, answers
from hookcore.records import PARAMETER_KINDS, ROOT, SEVERITIES, STAT_COLUMN, Kind, Severity, Tap
from hookcore.records.vocabulary import KIND_WORDS, NONFINITE_STEP, TRACEBACK
from hookcore.store import Store, TapList
from hookcore.store.incidents import Evidence, Incident, Link, Rank, rank_of
from hookcore.store.incidents import around as around_of
from hookcore.store.segments import STAT_SCHEMA

from ...analysis.figures.lines import Spark, spark_of
from ...analysis.numerals import title_of, title_of_rule
from ...runs import Run

SIGNS: Final = {"error": "\u2715", "warning": "\u25b2", "info": "\u2022"}  # not by color alone
FINDING: Final = "finding"
MAX_EVENTS: Final = 10_000  # of an answer


@dataclass(frozen=True, slots=True)
class Line:
    """A finding, an event, or an incident as it was known at a step."""

    key: str  # to acknowledge it; a finding keeps its key when it comes back
    name: str  # of the event, or of the rule
    title: str
    severity: Severity
    step: int
    until: int | None
    module: str
    message: str
    count: int
    time_s: float
    acknowledged: bool
    finding: Finding | None = None
    muted: str | None = None  # the pattern of its mute
    incident: Incident | None = None  # as it was known at a step, in place of a finding
    traceback: str = ""  # of an error

    @property
    def id(self) -> str:
        """The id in the list. A rule can find the same tensor at several steps."""
        return self.key if self.is_event else f"{self.key}@{self.step}"

    @property
    def rule(self) -> Rule | None:
        """The rule of a finding, with its advice."""
        return None if self.is_event else RULES.get(self.name)  # type: ignore[call-overload]

    @property
    def sign(self) -> str:
        """A mark that doesn't depend on color."""
        return SIGNS[self.severity]

    @property
    def quantity(self) -> str:
        """The quantity of the finding's values; empty for an event."""
        if self.finding is None:
            return ""
        return OF_TIME.get(self.finding.rule, "loss") if self.is_of_loss else self.finding.stat

    @property
    def is_event(self) -> bool:
        """Whether it is an event, which has one step."""
        return self.finding is None and self.incident is None

    @property
    def is_of_loss(self) -> bool:
        """Whether it is about a logged loss, not about a tensor."""
        if self.incident is not None:
            return not self.incident.placed
        return self.finding is not None and self.finding.is_of_loss

    @property
    def tap(self) -> Tap | None:
        """The tensor that it is about; None if it isn't known."""
        if not self.is_placed:
            return None
        if self.finding is not None:
            return self.finding.tap
        return None if self.incident is None else self.incident.culprit.tap

    @property
    def is_of_layer(self) -> bool:
        """Whether it is about a layer, which can be the root."""
        return bool(self.module) or (not self.is_event and not self.is_of_loss and self.is_placed)

    @property
    def earliest(self) -> int:
        """The first step in which it may have begun."""
        found = self.finding or self.incident
        return self.step if found is None else found.earliest_step

    @property
    def is_placed(self) -> bool:
        """Whether the layer in which it began is known."""
        found = self.finding or self.incident
        return found is None or found.culprit_known

    @property
    def after(self) -> int:
        """The number of modules that were affected after its own. An incident's message says so itself."""
        return 0 if self.finding is None or not self.is_placed else self.finding.downstream

    @property
    def is_ongoing(self) -> bool:
        """Whether it is a finding that still holds."""
        return not self.is_event and self.until is None

    @property
    def is_alert(self) -> bool:
        """Whether it is a warning or an error that is neither acknowledged nor muted, and not a part of an incident."""
        return self.severity != "info" and not self.is_quiet and self.name != NONFINITE_STEP

    @property
    def is_quiet(self) -> bool:
        """Whether it is acknowledged or muted."""
        return self.acknowledged or self.muted is not None


def finding_lines(run: Run) -> list[Line]:
    """Return the findings of a run, the worst first."""
    muting = run.edits.quiet.muting(run.store)
    return [
        _line_of(run, finding, _match_of(muting(finding.rule, finding.module))) for finding in run.findings.current()
    ]


def _match_of(mute: Mute | None) -> str | None:
    return None if mute is None else mute.match


def _line_of(run: Run, finding: Finding, muted: str | None) -> Line:
    return Line(
        finding.key,
        finding.rule,
        title_of_rule(finding.rule),
        finding.severity,
        finding.since_step,
        finding.until_step,
        finding.module,
        finding.message,
        1,
        float("nan"),
        run.has_seen(finding),
        finding,
        muted,
    )


def every_event(reader: Reader, name: str | None = None) -> Iterator[answers.Event]:
    """Yield the events of a run, the oldest first: all of them, or those with a name."""
    after, left = 0, True
    while left:
        some = reader.events(name=name, after=after, limit=MAX_EVENTS)
        yield from some.events
        after, left = some.next, some.total > len(some.events)


def event_lines(run: Run) -> list[Line]:
    """Return the events of a run, the oldest first."""
    muting = run.edits.quiet.muting(run.store)
    found = []
    for event in every_event(run.reader):
        found.append(
            Line(
                event.key,
                event.name,
                title_of(event.name),
                event.severity,
                event.step,
                None,
                event.module,
                event.message.replace(ROOT, run.store.root),
                event.count,
                event.time_s,
                event.acknowledged,
                muted=_match_of(muting(event.name, event.module)) if event.muted else None,
                traceback=str(event.about.get(TRACEBACK, "")),
            )
        )
    return found


def incident_lines(run: Run, first: int | None, last: int) -> list[Line]:
    """Return the incidents that touch some steps, the worst first, as they were known at the last of these steps."""
    muting = run.edits.quiet.muting(run.store)
    found = [
        _line_of_incident(run, incident.as_of(last), _match_of(muting(incident.rule, incident.culprit.tap.module)))
        for incident in reversed(run.store.incidents())
        if incident.touches(first, last)
    ]
    return sorted(found, key=lambda line: (SEVERITIES.index(line.severity), line.is_of_loss))


def _line_of_incident(run: Run, incident: Incident, muted: str | None) -> Line:
    until = incident.last_step if incident.is_over or incident.short else None
    return Line(
        incident.key,
        incident.rule,
        title_of_rule(incident.rule),
        incident.severity,
        incident.first_step,
        until,
        incident.culprit.tap.module if incident.placed else "",
        incident.sentence,
        1,
        float("nan"),
        run.edits.quiet.has_seen(incident.key, incident.first_step),
        muted=muted,
        incident=incident,
    )


def alert_lines(run: Run) -> list[Line]:
    """Return what to look at: errors first, then findings in their order, then events from the newest."""
    found = [line for line in (*finding_lines(run), *reversed(event_lines(run))) if line.is_alert]
    return sorted(found, key=lambda line: line.severity != "error")


def all_lines(run: Run, first: int | None = None, last: int | None = None) -> list[Line]:
    """Return findings and events, the newest first, and within a step the worst first.

    With bounds, return the events of these steps, and the incidents that touch them instead of today's findings.
    """
    if last is None:
        lines = finding_lines(run) + event_lines(run)
    else:
        events = (line for line in event_lines(run) if (first is None or line.step >= first) and line.step <= last)
        lines = incident_lines(run, first, last) + list(events)
    return sorted(lines, key=lambda line: (-line.step, line.is_event, SEVERITIES.index(line.severity)))


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines to show. An empty field matches everything."""

    severity: str = ""
    name: str = ""
    fits_module: Callable[[str], bool] = lambda path: True
    text: str = ""
    hides_seen: bool = False

    def fits(self, line: Line) -> bool:
        """Return whether a line is shown."""
        return (
            self.severity in ("", line.severity)
            and self.name in ("", line.name, "" if line.is_event else FINDING)
            and self.fits_module(line.module)
            and self.text.casefold() in f"{line.title}\n{line.message}\n{line.module}\n{line.traceback}".casefold()
            and not (self.hides_seen and line.is_quiet)
        )


def names_of(lines: Iterable[Line]) -> dict[str, str]:
    """Return the names that lines can be filtered by, each with its title."""
    return dict(sorted({line.name: line.title for line in lines}.items(), key=lambda each: each[1]))


def markdown_of(lines: Sequence[Line], title: str, address: str, left_out: int = 0) -> str:
    """Return the lines as a Markdown table, and how many older ones it lacks."""
    rows = [
        f"| {line.step:,} | {line.severity} | {_cell(line.title)} | {_code(line.module)} | {_cell(line.message)} |"
        for line in lines
    ]
    head = ["| step | severity | event | module | message |", "| ---: | --- | --- | --- | --- |"]
    table = head + rows if rows else ["No events."]
    more = ["", f"{left_out:,} older ones are left out."] if left_out else []
    return "\n".join([f"# {_cell(title)}", "", f"<{address}>", "", *table, *more, ""])


def _cell(text: str) -> str:
    """Escape text so that it stays in its cell and contains no markup."""
    flat = " ".join(text.split())
    return "".join(f"\\{each}" if each in "\\|*_`<>[]#~" else each for each in flat)


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|').replace('`', chr(39))}`" if text else ""


# The origin of a finding: the first layer, its inputs, the affected layers, and the steps around the onset. Pure:
# records in, words and sparklines out.

AROUND: Final = 50  # steps on either side
FOLLOWERS: Final = 12  # maximum number of taps in the list
PHASES: Final[dict[Kind, str]] = {
    "input": "forward",
    "output": "forward",
    "output_grad": "backward",
    "input_grad": "backward",
    "raw_grad": "backward",
    "param_grad": "backward",
    **dict.fromkeys(("exp_avg", "exp_avg_sq", "state"), "optimizer"),
    "update": "optimizer",
    "param": "optimizer",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive steps with the same state."""

    first: int
    last: int
    state: str  # finite, bad, unseen


@dataclass(frozen=True, slots=True)
class Affected:
    """Another affected module: its first tensor, and since when."""

    tap: Tap
    step: int
    spark: Spark | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """The known facts about the origin of a finding."""

    phase: str
    before: str  # about the layer's inputs
    first: int
    last: int  # the last step of the sparklines
    spark: Spark | None
    strip: tuple[Stretch, ...]  # of the finding's own tap
    merged: int  # the maximum number of steps per point of the strip: old ones are merged
    followers: tuple[Affected, ...]  # in the order in which they were affected
    followers_left_out: int


@dataclass(frozen=True, slots=True)
class _Around:
    """Every tap in the steps around the onset [tap, row]; a row is a step, or several merged ones."""

    taps: TapList
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    worst: NDArray[np.float64]
    bad: NDArray[np.bool_]
    seen: NDArray[np.bool_]

    def at(self, place: int) -> _Around:
        one = slice(place, place + 1)
        return _Around(self.taps.at([place]), self.first, self.last, self.worst[one], self.bad[one], self.seen[one])


def provenance_of(store: Store, finding: Finding) -> Provenance | None:
    """Return the known facts about the origin of a finding: those of its incident, if there is one.

    If its tensor was never captured, such as a weight, those of the first captured one that followed; None if none did.
    """
    first, last = max(0, finding.since_step - AROUND), finding.since_step + AROUND
    incident, before, left_out = incident_of(store.incidents(), finding), "", 0
    number = finding.number
    if number < 0:
        number = next((each.number for each in (() if incident is None else incident.chain) if each.number >= 0), -1)
    if number < 0:
        return None
    around = _read(store, finding, first, last)  # after the incident, so that it has all tensors that followed
    place = int(np.flatnonzero(around.taps.numbers == number)[0])
    shown = around.at(place)
    followers: tuple[Affected, ...] = ()
    if incident is not None:
        exact = None if incident.evidence is None else _exact(incident.evidence, finding.stat, first, last)
        shown = around.at(place) if exact is None else exact.at(0)
        before = _before(around, incident, place) if incident.rule == "nonfinite" else ""
        followers, left_out = _followers(incident, around, exact)
    return Provenance(
        PHASES[finding.tap.kind],
        before,
        first,
        last,
        _line(shown, 0),
        _strip(shown, 0, first, min(last, store.steps().newest or last)),
        int((shown.last - shown.first).max(initial=0)) + 1,
        followers,
        left_out,
    )


def incident_of(incidents: Sequence[Incident], finding: Finding) -> Incident | None:
    """Return the incident that a finding is about."""
    wanted = finding.key, finding.since_step
    return next((incident for incident in incidents if (incident.key, incident.first_step) == wanted), None)


def _exact(evidence: Evidence, stat: str, first: int, last: int) -> _Around:
    """Return what an incident keeps of the culprit and its neighbors. Nothing of it is merged."""
    inside = (evidence.steps >= first) & (evidence.steps <= last)
    steps, stats = evidence.steps[inside], evidence.stats[:, inside]
    bad = stats[STAT_COLUMN["nan"]] + stats[STAT_COLUMN["inf"]] > 0
    size = np.where(bad, np.nan, STAT_SCHEMA.read(STAT_SCHEMA.names.index(stat), stats.__getitem__))
    taps = TapList(np.array(evidence.numbers, np.int64), evidence.taps)
    return _Around(taps, steps, steps, size.T, bad.T, ~np.isnan(stats[STAT_COLUMN["count"]]).T)


def _strip(around: _Around, place: int, first: int, last: int) -> tuple[Stretch, ...]:
    state = dict.fromkeys(range(first, last + 1), "unseen")
    for row in np.flatnonzero(around.seen[place]).tolist():
        for step in range(max(first, int(around.first[row])), min(last, int(around.last[row])) + 1):
            state[step] = "bad" if around.bad[place, row] else "finite"
    found: list[Stretch] = []
    for step, each in state.items():
        begin = found.pop().first if found and found[-1].state == each else step
        found.append(Stretch(begin, step, each))
    return tuple(found)


def _read(store: Store, finding: Finding, first: int, last: int) -> _Around:
    taps = store.taps()
    rows = store.rows(taps.numbers, finding.stat, first, last)
    worst = np.where(np.abs(rows.low) > np.abs(rows.high), rows.low, rows.high)
    worst[rows.nonfinite > 0] = np.nan
    return _Around(taps, rows.first, rows.last, worst.T, (rows.nonfinite > 0).T, (rows.present > 0).T)


def _line(around: _Around, place: int) -> Spark | None:
    seen = around.seen[place]
    return spark_of(around.first[seen], around.worst[place, seen])


def _followers(incident: Incident, around: _Around, exact: _Around | None) -> tuple[tuple[Affected, ...], int]:
    """Return the first tensor of each other module that followed, and the number of modules beyond these."""
    firsts: dict[str, Link] = {}
    for link in incident.chain:
        if link.tap.module != incident.culprit.tap.module:
            firsts.setdefault(link.tap.module, link)
    found = list(firsts.values())[:FOLLOWERS]
    return tuple(Affected(link.tap, link.first_step, _spark_of(link, around, exact)) for link in found), max(
        0, incident.modules - len(found)
    )


def _spark_of(link: Link, around: _Around, exact: _Around | None) -> Spark | None:
    known = exact if exact is not None and link.number in exact.taps.numbers else around
    places = np.flatnonzero(known.taps.numbers == link.number)
    return _line(known, int(places[0])) if len(places) else None  # a replay names tensors that were never captured


def _ranks(around: _Around, steps: dict[int, int]) -> dict[int, Rank]:
    holders = around_of(around.taps.taps[place].module for place in steps)
    return {
        place: rank_of(step, int(around.taps.numbers[place]), around.taps.taps[place], holders)
        for place, step in steps.items()
    }


def _before(around: _Around, incident: Incident, place: int) -> str:
    """Describe whether the tensor's inputs were finite, as far as they were captured."""
    words, sources = _sources_of(incident.culprit.tap, around.taps.taps)
    seen, is_bad = _at(around, incident)
    known = [source for source in sources if seen[source]]
    bad = [around.taps.taps[source] for source in known if is_bad[source]]
    if bad:
        return f"Its {words} was non-finite: the {KIND_WORDS[bad[0].kind]} of {bad[0].module or incident.root}."
    if known:
        return f"Its {words} was finite in that step" + ("." if incident.unseen else ": it began here.")
    return f"Its {words} was not captured. {_earlier(around, incident, place)}"


def _earlier(around: _Around, incident: Incident, place: int) -> str:
    """Describe the tensors that the model computed earlier in that step."""
    seen, is_bad = _at(around, incident)
    ranks = _ranks(around, dict.fromkeys([*np.flatnonzero(seen).tolist(), place], incident.first_step))
    earlier = [each for each, rank in ranks.items() if rank < ranks[place]]
    if not earlier:
        return "No tensor was captured before it in that step."
    bad, where = int(is_bad[earlier].sum()), "captured before it in that step"
    if len(earlier) == 1:
        return f"The one tensor {where} was {'also non-finite' if bad else 'finite'}."
    if bad:
        return f"{bad:,} of the {len(earlier):,} tensors {where} {'was' if bad == 1 else 'were'} also non-finite."
    return f"All {len(earlier):,} tensors {where} were finite."


def _sources_of(tap: Tap, taps: Sequence[Tap]) -> tuple[str, list[int]]:
    """Return a tensor's captured inputs, as a word and as indexes."""
    kinds: dict[str, tuple[str, tuple[str, ...]]] = {
        "output": ("input", ("input",)),
        "input_grad": ("gradient from above", ("output_grad",)),
        "raw_grad": ("gradient from above", ("output_grad",)),
        "param_grad": ("gradient from above", ("output_grad",)),
        **dict.fromkeys(("update", "exp_avg", "exp_avg_sq"), ("gradient", ("param_grad",))),
        "param": ("update", ("update", "param_grad")),
    }
    words, wanted = kinds.get(tap.kind, ("input" if tap.kind == "input" else "gradient from above", ()))
    exact = tap.kind in PARAMETER_KINDS and "grad" not in tap.kind  # of one parameter, not of all of the module
    found = [
        place
        for place, each in enumerate(taps)
        if each.module == tap.module and each.kind in wanted and (not exact or each.index == tap.index)
    ]
    return words, found


def _at(around: _Around, incident: Incident) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which taps were captured in the first step, and which were non-finite then."""
    step = incident.first_step
    rows = (around.first <= step) & (around.last >= step)
    first = [link.number for link in (incident.culprit, *incident.chain) if link.first_step == step]
    return np.asarray(around.seen[:, rows].any(axis=1)), np.isin(around.taps.numbers, first)
