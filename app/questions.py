"""Questions about runs, answered in a few lines with numbers, for coding agents and for people in a terminal.

Each function asks a `Client` and returns an answer in words, with the answers of REST that it was made of. Texts that a
training has chosen are data: they are quoted, on one line, and bounded. So are sentences that contain names.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any, Final, Literal
from urllib.parse import quote

import numpy as np

from hookcore.errors import ArgumentError, ServerError
from hookcore.findings import rule_about
from hookcore.reading import Client, answers
from hookcore.records import ROOT, Kind, Value, worst_first
from hookcore.records.vocabulary import CAPSULE_MISSED, KIND_TITLES, SEVERITY_WORDS, STATE_WORDS, counted
from hookcore.store import of_all_values

from .analysis import numerals
from .analysis.numerals import MAX_ROWS, MAX_TEXT, Told, labeled, named, quoted, shown, table, told

_LISTED: Final = 5  # findings, other incidents, or examples
_LINKS: Final = 8  # of a chain


def link(client: Client, run: str = "", page: str = "", **query: Any) -> list[str]:
    """Return a line with the address of a page; nothing if no server shows the run."""
    if not client.url:
        return []
    texts = {name: quote(str(value), safe="") for name, value in query.items() if value is not None}
    asked = "&".join(f"{name}={text}" for name, text in texts.items() if len(text) <= MAX_TEXT)
    place = f"runs/{quote(run, safe='')}{page}" if run else page.lstrip("/")
    return [f"Page: {client.url}/{place}{'?' + asked if asked else ''}"]


def id_of(client: Client, wanted: str | None) -> str:
    """Return the id of the run with this id or name; without either, of the newest run."""
    if not wanted:
        runs = client.runs(limit=1)
        if not runs:
            where = f"the server at {client.url} has no runs yet" if client.url else "there are no runs"
            raise ArgumentError(f"{where}: start a training first")
        return runs[0].id
    try:
        return client.run(wanted).id
    except ServerError as error:
        if error.status not in (404, 422):  # 422: no run can have such an id
            raise
        unknown = error
    ids = [run.id for run in client.runs("" if '"' in wanted else f'name:"{wanted}"') if run.name == wanted]
    if not ids:
        raise unknown
    if len(ids) > 1:
        some = ", ".join(ids[:5])
        raise ArgumentError(f"{len(ids)} runs have the name {wanted!r}: give the id of one, newest first: {some}")
    return ids[0]


def run_of_rank(client: Client, wanted: str | None, rank: int) -> str:
    """Return the id of one rank's run, in the distributed training that a name, an id, or the newest run means."""
    found = {each.rank: each.run for each in client.ranks(id_of(client, wanted)).ranks}
    if rank not in found:
        raise ArgumentError(f"rank={rank} is unknown: the run has the ranks {', '.join(map(str, sorted(found)))}")
    return found[rank]


# Which runs there are, and how one is.


def list_runs(client: Client, query: str = "", limit: int = 20) -> Told:
    """List runs, newest first; `query` finds some, such as `state:live` or `lr>0.1 and tag:sweep`."""
    runs = client.runs(query, limit=limit)
    rows = [
        (run.id, named(run.name), run.state, _step(run.newest_step), _loss_of(run), " ".join(map(named, run.tags)))
        for run in runs
    ]
    head = ("run", "name", "state", "step", "recent loss", "tags")
    which = f" {'matches' if len(runs) == 1 else 'match'} {quoted(query)}" if query else ", newest first"
    opening = f"{counted(len(runs), 'run')}{which}{f' (the first {limit})' if len(runs) == limit else ''}."
    return told([opening, *(table(head, rows) if runs else []), *link(client)], runs=runs)


def _loss_of(run: answers.Run) -> str:
    return shown(run.results["recent_loss"]) if "recent_loss" in run.results else ""


def _step(step: int | None) -> str:
    return "" if step is None else f"{step:,}"


def describe(client: Client, run: str | None = None) -> Told:
    """Say how a run is: its state, its loss, what was found, what that covers, and what watching costs."""
    run = id_of(client, run)
    findings = client.findings(limit=_LISTED, run=run)  # loads a run that is only on disk
    overview, about = client.overview(run=run), client.run(run)
    lines = [_opening(about), *_failure(about), *_figures(overview), quoted(findings.course.sentence)]
    leading = {each.incident or f"{each.key}@{each.since_step}": each for each in reversed(findings.findings)}
    for each in reversed(leading.values()):
        place = f"  [{labeled(each.tap)}]" if each.culprit_known else ""
        words = f"{SEVERITY_WORDS[each.severity]}, {numerals.title(each.rule)}, since step {each.since_step:,}"
        lines.append(f"- {words}: {quoted(each.message)}{place}")
    more = findings.total - len(findings)
    lines += [f"- {more:,} more."] if more > 0 else []
    lines += [f"Covers: {findings.scope.sentence}", f"Cost: {overview.cost}.", *link(client, run)]
    return told(lines, run=about, overview=overview, findings=findings)


def _opening(run: answers.Run) -> str:
    state = STATE_WORDS.get(run.state, run.state)
    until = "before its first step" if run.newest_step is None else f"up to step {run.newest_step:,}"
    ranks = "" if run.ranks is None else f", {run.ranks.seen} of {run.ranks.world} ranks as one run"
    return f"Run {named(run.id)} {quoted(run.name, numerals.MAX_NAME)}: {state}, {until}{ranks}."


def _failure(run: answers.Run) -> list[str]:
    """Return how a training failed, with the line of code."""
    failure = run.failure
    if failure is None:
        return ["error: the training was lost: its process no longer answers."] if run.state == "lost" else []
    code = f": {quoted(failure.code, 200)}" if failure.code else ""
    lines = [f"error: {quoted(f'{failure.sentence}{failure.place}: {failure.error}'.removesuffix(': '))}"]
    return lines + ([f"source line: {named(failure.where)}{code}"] if failure.where else [])


def _figures(overview: answers.Overview) -> list[str]:
    figures = [] if overview.steps_per_s is None else [numerals.pace(overview.steps_per_s)]
    for word, reading in (("loss", overview.loss), ("gradient norm", overview.gradient_norm)):
        figures += [] if reading is None else [f"{word} {shown(reading.value)} at step {reading.step:,}"]
    if (raw := overview.gradient_norm_before) is not None:
        figures += [f"after clipping ({shown(raw.value)} before it)"]
    figures += [f"{counted(overview.nonfinite, 'module')} non-finite"] if overview.nonfinite else []
    return [f"{', '.join(filter(None, figures))}."] if figures else []


# Why: an incident with its culprit, evidence, operator, and what followed.


def explain(client: Client, run: str | None = None, incident: str | None = None) -> Told:
    """Say why a run went wrong: its worst incident, or the one with an id."""
    run = id_of(client, run)
    findings = client.findings(run=run)
    about, found = client.run(run), client.incidents(run=run)
    chosen = _worst(found) if incident is None else client.incident(incident, run=run)
    opening = [_opening(about), *_failure(about)]
    if chosen is None:
        lines = ["No incident was found.", *_notes(findings), quoted(findings.course.sentence)]
        lines = [*opening, *lines, f"Covers: {findings.scope.sentence}", *link(client, run, "/problems")]
        return told(lines, run=about, findings=findings, incidents=found)
    full = chosen if incident else client.incident(chosen.id, run=run)
    capsule = next((each for each in client.capsules(run) if _is_of(each, full)), None)
    missed = client.events(name=CAPSULE_MISSED, limit=1, run=run).events if capsule is None else ()
    lines = [*opening, *_of_incident(full), *(_replayed(capsule) or _where(full))]
    lines += [*(f"saved step: {quoted(each.message)}" for each in missed), *_evidence(full), *_chain(full)]
    lines += [*_moved_before(findings, found, full), quoted(client.samples(full.first_step, run=run).sentence)]
    lines += [*_advice(full), *_others(found, full)]
    lines += [f"Covers: {findings.scope.sentence}", *link(client, run, "/problems/incident", id=full.id)]
    return told(lines, run=about, incident=full, capsule=capsule)


def _worst(found: answers.Incidents) -> answers.Incident | None:
    """Return the incident that the page Problems has first."""

    def key(each: answers.Incident) -> tuple[bool, int, int, bool]:
        is_quiet = each.acknowledged or each.muted
        return worst_first(each.severity, each.earliest_step, is_of_loss=each.rule == "loss", is_quiet=is_quiet)

    return min(found, key=key, default=None)


def _notes(findings: answers.Findings) -> list[str]:
    return [f"- {SEVERITY_WORDS[each.severity]}: {quoted(each.message)}" for each in findings.findings[:_LISTED]]


def _of_incident(incident: answers.Incident) -> list[str]:
    seen = " (acknowledged)" if incident.acknowledged else " (muted)" if incident.muted else ""
    culprit = labeled(incident.culprit) if incident.culprit_known else "not known"
    end = "still lasts" if incident.recovered is None else f"over at step {incident.recovered:,}"
    when = f"step {incident.first_step:,}"
    if incident.unseen:
        when = f"a step from {incident.earliest_step:,} to {incident.first_step:,}"
    word = SEVERITY_WORDS[incident.severity]
    lines = [f"{word} {named(incident.id)}: {numerals.title(incident.rule)}{seen}. {quoted(incident.sentence)}"]
    lines.append(f"culprit: {culprit}; began in {when}; {end}; known by {incident.source}")
    return lines


def _where(incident: answers.Incident) -> list[str]:
    return [f"source line: {named(incident.where)}"] if incident.where else []


def _is_of(capsule: answers.Capsule, incident: answers.Incident) -> bool:
    return capsule.incident == incident.id or capsule.step == incident.first_step


def _replayed(capsule: answers.Capsule | None) -> list[str]:
    """Return what a replay of the saved step found: the operator, the line, and the values."""
    if capsule is None:
        return []
    if capsule.explanation is None:
        words = {"failed": f"can't be explained: {quoted(capsule.failure)}", "running": "is being replayed: ask again"}
        return [f"saved step {capsule.step:,} {words.get(capsule.state, 'is not explained yet')}"]
    lines, suspect = [f"replay: {quoted(capsule.explanation.sentence)}"], capsule.explanation.culprit
    if suspect is None:
        return lines
    lines.append(f"operator: {named(suspect.operator)} ({named(suspect.phase)}), {suspect.bad:,} bad values")
    if suspect.elements:
        lines[-1] += f", the first at {list(suspect.elements[0])}"
    for place in suspect.stack[-1:]:
        where = f"{named(f'{place.file}:{place.line}')} in {named(place.function)}"
        lines.append(f"source line: {where}: {quoted(place.code, 200)}")
    for tensor in suspect.inputs[:3]:
        least, most = (("none" if each is None else shown(each)) for each in (tensor.min, tensor.max))
        lines.append(f"input {named(tensor.name)}: {least} to {most}, {tensor.nan:,} NaN, {tensor.inf:,} infinite")
    return lines


def _evidence(incident: answers.Incident) -> list[str]:
    """Return the values right before and at the onset."""
    evidence = incident.evidence
    if evidence is None or not len(evidence.steps):
        return []
    steps, first = evidence.steps, incident.first_step
    rows = []
    for place, tap in enumerate(evidence.taps[: 1 + _LISTED]):
        seen = np.flatnonzero(~np.isnan(evidence.stats["count"][:, place]))
        before, at = (seen[steps[seen] < first][-1:], seen[steps[seen] == first])
        cells = [_cell(evidence, row[0], place) if len(row) else "" for row in (before, at)]
        rows.append((labeled(tap), *cells))
    for each in evidence.scalars[:_LISTED]:
        known = [each.values[each.steps < first][-1:], each.values[each.steps == first]]
        rows.append((named(each.name), *(shown(float(values[0])) if len(values) else "" for values in known)))
    return [
        f"evidence (rms, or how many values are bad), before and at step {first:,}:",
        *table(("", "before", "at"), rows),
    ]


def _cell(evidence: answers.Evidence, row: int, place: int) -> str:
    count, nan, inf = (evidence.stats[name][row, place] for name in ("count", "nan", "inf"))
    for many, word in ((nan, "NaN"), (inf, "infinite")):
        if many > 0:
            return f"{many:,.0f} of {count:,.0f} {word}"
    return shown(float(evidence.stats["rms"][row, place]))


def _chain(incident: answers.Incident) -> list[str]:
    if not incident.chain:
        return []
    links = ", ".join(f"{labeled(each)} (step {each.first_step:,})" for each in incident.chain[:_LINKS])
    more = incident.taps - min(_LINKS, len(incident.chain))
    rest = f", and {more:,} more" if more > 0 else ""
    return [f"then: {links}{rest}; {counted(incident.modules, 'other module')} in all"]


def _advice(incident: answers.Incident) -> list[str]:
    rule = rule_about(incident.rule, incident.value)
    if rule is None:
        return []
    meaning = rule.help.partition(". ")[0].removesuffix(".")
    return [f"meaning: {meaning}.", f"usual causes: {'; '.join(rule.causes)}", f"try: {'; '.join(rule.tries)}"]


def _moved_before(findings: answers.Findings, found: answers.Incidents, incident: answers.Incident) -> list[str]:
    """Return what moved first before the loss jumped."""
    if incident.rule != "loss-spike":
        return []
    reach = next((each.limits["before"] for each in findings.rules if each.name == "spike-precursor"), 0)
    moved = [each for each in found if each.rule == "spike-precursor"]
    near = [each for each in moved if 0 <= incident.first_step - each.first_step <= reach]
    return [f"before it: {quoted(each.sentence)}" for each in near[:_LISTED]]


def _others(found: answers.Incidents, shown_one: answers.Incident) -> list[str]:
    others = [each for each in found if each.id != shown_one.id]
    lines = [f"other incidents: {len(others):,}"] if others else []
    for each in others[:_LISTED]:
        lines.append(f"- {SEVERITY_WORDS[each.severity]} {named(each.id)}: {quoted(each.headline, 200)}")
    return lines


# What changed: between two runs, two spans of steps, or the ranks.


def compare(
    client: Client,
    run: str | None = None,
    other: str | None = None,
    ranks: bool = False,
    first: int | None = None,
    last: int | None = None,
    other_first: int | None = None,
    other_last: int | None = None,
    kind: Kind | None = None,
    stat: str = "rms",
    limit: int = 8,
) -> Told:
    """Say what differs between two runs, between some steps of a run and its others, or between its ranks."""
    spans = first, last, other_first, other_last
    if [other is not None, ranks, spans != (None, None, None, None)].count(True) != 1:
        raise ArgumentError("compare one of three: a run with another one, steps of a run with others, or its ranks")
    if ranks:
        return _compare_ranks(client, run, kind or "output", stat, limit)
    if other is not None:
        return _compare_runs(client, run, other, kind or "output", stat, limit)
    return _compare_steps(client, run, spans, kind, limit)


def _compare_runs(client: Client, run: str | None, other: str, kind: Kind, stat: str, limit: int) -> Told:
    """Say where two runs first differ, and which settings differ."""
    run, other = id_of(client, run), id_of(client, other)
    found = client.compare(run, other, kind, stat, limit=limit, sort="step")
    one, two = client.run(run), client.run(other)
    lines = [f"{_opening(one)}\n{_opening(two)}", f"{found.verdict.outcome}: {quoted(found.verdict.message, 1200)}"]
    rows = [
        (labeled(each.tap), _step(each.parts_at), numerals.percent(each.share), _step(each.at_step))
        for each in found.layers
        if each.parts_at is not None
    ]
    if rows:
        head = (f"{stat} of", "differs from step", "largest difference", "at step")
        lines += [f"{found.parted:,} of {found.total:,} tensors differ; the first:", *table(head, rows)]
    lines += [f"recent loss: {_loss_of(one) or 'none'} and {_loss_of(two) or 'none'}", *_settings_apart(one, two)]
    covers = f"the {KIND_TITLES[kind]} in {counted(found.verdict.steps_compared, 'step')} that both runs captured"
    lines += [
        f"Covers: {covers}; {found.verdict.steps_not_comparable:,} could not be compared.",
        *link(client, "", "/compare", a=run, b=other),
    ]
    return told(lines, comparison=found)


def _settings_apart(one: answers.Run, two: answers.Run) -> list[str]:
    lines = []
    for word, here, there in (("setting", one.config, two.config), ("fact", one.facts, two.facts)):
        apart = [name for name in dict.fromkeys((*here, *there)) if here.get(name) != there.get(name)]
        for name in apart[:10]:
            lines.append(f"{word} {named(name)}: {_value(here.get(name))} and {_value(there.get(name))}")
        lines += [f"{len(apart) - 10:,} more {word}s differ"] if len(apart) > 10 else []
    return lines or ["No setting and no recognized fact differs."]


def _value(value: Value) -> str:
    return quoted(value, 100) if isinstance(value, str) else json.dumps(value)


def check_resume(client: Client, run: str | None = None, earlier: str | None = None) -> Told:
    """Say whether a run went on where an earlier one was saved."""
    run = id_of(client, run)
    found = client.resume_check(run, None if earlier is None else id_of(client, earlier))
    lines = [f"Run {named(run)}, after run {named(found.earlier)}: {found.outcome}. {quoted(found.message)}"]
    lines += [f"- {each.name}: {each.outcome}. {quoted(each.message)}" for each in found.parts]
    saved = "no saved state" if found.step is None else f"the state saved after {counted(found.step, 'step')}"
    lines.append(f"Covers: {saved}, and what the run had before its first step.")
    return told([*lines, *link(client, "", "/compare", a=found.earlier, b=run)], resume=found)


Spans = tuple[int | None, int | None, int | None, int | None]  # first and last step, and those of the others


def _compare_steps(client: Client, run: str | None, spans: Spans, kind: Kind | None, limit: int) -> Told:
    """Say what differs most between some steps of a run and its other steps."""
    run, (first, last, other_first, other_last) = id_of(client, run), spans
    found = client.differences(first, last, None, other_first, other_last, kind, limit=limit, run=run)
    rows = [
        (
            labeled(each.tap),
            numerals.percent(each.share),
            "" if each.usual is None else numerals.percent(each.usual),
            each.message,
        )
        for each in found.layers
    ]
    head = ("tensor", "values that differ", "usual", "how")
    lines = [*table(head, rows)] if rows else ["No tensor differs beyond chance."]
    for each in found.logged[:limit]:
        lines.append(f"logged {named(each.name)}: {numerals.percent(each.share)} changed; {quoted(each.message)}")
    inside, outside = (
        "no captured step" if each.first is None else f"steps {each.first:,} to {each.last:,} ({each.steps:,} captured)"
        for each in (found.inside, found.outside)
    )
    covers = f"Covers: {inside}, compared with {outside}; {found.compared:,} tensors in both."
    return told([*lines, covers, *link(client, run, "/flow/changes")], differences=found)


def _compare_ranks(client: Client, run: str | None, kind: Kind, stat: str, limit: int) -> Told:
    """Say how the ranks of a run differ: their speed, and their values layer by layer in the newest step."""
    run = id_of(client, run)
    found, spread = client.ranks(run), client.rank_spread(kind, stat, sort="apart", limit=limit, run=run)
    ranks = [
        (str(each.rank), named(each.run), each.state, _step(each.newest_step), _seconds(each.seconds_per_step),
         _seconds(each.wait_s), f"{each.was_last:,}")
        for each in found.ranks[:MAX_ROWS]
    ]  # fmt: skip
    lines = table(("rank", "run", "state", "step", "a step takes", "waits", "was last"), ranks)
    if found.waits is not None and found.waits.latest is not None:
        lines.append(f"Rank {found.waits.latest} is last in most steps, and the others wait for it.")
    rows = [(labeled(each.tap), *map(shown, (each.low, each.median, each.high)), _odd(each)) for each in spread.layers]
    if rows:
        lines += [f"{stat} over the ranks at step {_step(spread.step)}, widest first:"]
        lines += table(("tensor", "least", "median", "largest", "odd one"), rows)
    odd = [each.odd for each in spread.layers if each.odd is not None]
    lines += [f"Odd in most of these: rank {max(set(odd), key=odd.count)}."] if odd else []
    seen, steps = found.summary, f"{found.steps:,} steps, {found.incomplete:,} incomplete"
    return told(
        [*lines, f"Covers: {seen.seen} of {seen.world} ranks; {steps}.", *link(client, run, "/performance/ranks")],
        ranks=found,
        spread=spread,
    )


def _seconds(value: float) -> str:
    return "" if math.isnan(value) else numerals.duration(value)


def _odd(spread: answers.LayerSpread) -> str:
    return "" if spread.odd is None else f"rank {spread.odd}: {shown(spread.odd_value)}"


# The worst layers.

_ALSO: Final = ("nan", "inf", "rms", "zero_fraction")


def worst_layers(
    client: Client,
    run: str | None = None,
    stat: str = "rms",
    kind: Kind | None = None,
    match: str | None = None,
    first: int | None = None,
    last: int | None = None,
    smallest: bool = False,
    limit: int = 10,
) -> Told:
    """List the tensors with the largest (or smallest) value of a stat; non-finite ones come first."""
    run, sort = id_of(client, run), f"-{stat}" if smallest else stat
    found = client.latest(match, kind, None, sort, min(limit, MAX_ROWS), first, last, run=run)
    stats = list(dict.fromkeys((stat, *_ALSO)))
    if stat not in found.stats:
        raise ArgumentError(f"stat={stat!r} is not a stat: use one of {', '.join(found.stats)}")
    places = [found.stats.index(name) for name in stats]
    rows = [
        (labeled(tap), *(shown(float(values[place])) for place in places), f"{tap.step:,}")
        for tap, values in zip(found.taps, of_all_values(found.values, found.stats), strict=True)
    ]
    what = f"{'smallest' if smallest else 'largest'} {stat}"
    lines = table(("tensor", *stats, "step"), rows) if rows else ["No tensor was captured in these steps."]
    covers = (
        f"the newest values{span_words(first, last)} of {found.total:,} tensors{'' if kind is None else f' ({kind})'}"
    )
    covers = f"Covers: {covers}; shown are the {len(rows)} with the {what}, non-finite ones first."
    return told([*lines, covers, *link(client, run, "/flow", f=match)], latest=found)


def span_words(first: int | None, last: int | None) -> str:
    if first is None and last is None:
        return ""
    return f" in steps {'0' if first is None else f'{first:,}'} to {'the newest' if last is None else f'{last:,}'}"


# What is captured, and what it costs.


def precision(
    client: Client,
    run: str | None = None,
    format: str = "e4m3",
    scale: str = "max",
    kind: Kind | None = None,
    match: str | None = None,
    first: int | None = None,
    last: int | None = None,
    limit: int = 10,
) -> Told:
    """Say which layers a cast to a format of low precision would harm."""
    run = id_of(client, run)
    found = client.precision(format, scale, match, kind, first, last, MAX_ROWS, run=run)
    rows = [
        (labeled(each), *(_share_words(share) for share in (cast.underflow, cast.subnormal, cast.saturated)),
         numerals.percent(cast.noise), numerals.percent(cast.most_noise), "yes" if cast.fits else "no")
        for each in found.taps[:limit]
        for cast in (each.formats[format],)
    ]  # fmt: skip
    stay = [each for each in found.taps if not each.formats[format].fits]
    some = f"{'at least ' if len(stay) == MAX_ROWS else ''}{counted(len(stay), 'tensor')}"
    lines = [f"{some} of {found.total:,} should stay in bf16 rather than {format}, the worst first:"]
    head = "cast to " + format, "to zero", "subnormal", "too large", "noise", "without the largest 1%", "fits"
    lines += table(head, rows) if rows else []
    sampled = sum(each.sampled for each in found.taps)
    covers = f"{counted(len(found.taps), 'tensor')}, {sampled:,} of them sampled, scaled by {scale}"
    page = link(client, run, "/flow/precision", kind=kind, format=format, scale=scale, f=match)
    return told([*lines, f"Covers: {covers}{span_words(first, last)}.", *page], precision=found)


def _share_words(share: answers.Estimate) -> str:
    usual, least, most = map(numerals.percent, share)
    return usual if least == most else f"{usual} ({least} to {most})"


def coverage(client: Client, run: str | None = None) -> Told:
    """Say which modules are captured, why the others aren't, and what watching costs."""
    run = id_of(client, run)
    overview, missing, about = client.overview(run=run), client.coverage(captured=False, run=run), client.run(run)
    kinds = about.settings.get("kinds") or ()
    lines = [
        f"{overview.modules_captured:,} of {overview.modules:,} modules were captured in the newest step, as "
        f"{overview.taps:,} tensors. Kinds: {', '.join(map(named, map(str, kinds)))}.",
        f"Cost: {overview.cost}. Every {counted(overview.every, 'step')} is captured"
        if overview.every != 1
        else f"Cost: {overview.cost}.",
    ]
    by_reason: dict[str, list[str]] = defaultdict(list)
    for each in missing:
        by_reason[each.reason].append(each.path)
    for reason, paths in sorted(by_reason.items(), key=lambda each: -len(each[1]))[:10]:
        some = ", ".join(named(path or ROOT) for path in paths[:_LISTED])
        lines.append(f"- {counted(len(paths), 'module')} not captured: {quoted(reason, 200)}, such as {some}")
    lines += ["Nothing was left out."] if not missing else []
    lost = ", ".join(f"{many:,} {named(why)}" for why, many in overview.dropped.items() if many)
    lines += [f"dropped: {lost}"] if lost else []
    left_out = "" if overview.steps_left_out is None else f"; {overview.steps_left_out:,} were not captured"
    memory = f"; {numerals.size(about.usage.nbytes)} of memory" if about.in_memory else ""
    lines += [f"Covers: {counted(overview.steps, 'step')}{left_out}{memory}.", *link(client, run, "/capture")]
    return told(lines, overview=overview, coverage=missing)


# Waiting until something happens.

Until = Literal["incident", "step", "end"]
ENDED: Final = frozenset({"ended", "crashed", "stopped", "lost"})


class Waiting:
    """Looks whether what was waited for has happened: an incident, a step, or the end of a run.

    An incident counts if it is a warning or an error that began after `since`, and nobody has dealt with it. At the end
    of the run, there is nothing left to wait for.
    """

    def __init__(
        self,
        client: Client,
        run: str | None,
        until: Until,
        step: int | None = None,
        since: int | None = None,
        seconds: float = math.inf,
    ) -> None:
        self.client, self.run, self.until, self.seconds = client, id_of(client, run), until, seconds
        self._since = -1 if since is None else since
        newest = client.run(self.run).newest_step
        self._step = step if step is not None else (-1 if newest is None else newest) + 1
        self.happened = False

    def look(self) -> Told | None:
        """Return what happened, or None if nothing has yet."""
        about = self.client.run(self.run)
        found = self._incident() if self.until == "incident" else None
        if found is not None:
            self.happened = True
            return told(
                [_opening(about), *_of_incident(found), *_where(found), *self._page(found.id)],
                run=about,
                incident=found,
            )
        if self.until == "step" and about.newest_step is not None and about.newest_step >= self._step:
            return self._end(about, f"It has reached step {self._step:,}.", happened=True)
        if about.state in ENDED:
            words = (
                "" if self.until == "end" else f" without {'an incident' if self.until == 'incident' else 'that step'}"
            )
            return self._end(about, f"It is over{words}.", happened=self.until == "end")
        return None

    def give_up(self) -> Told:
        """Return that it hasn't happened in time."""
        words = {"incident": "no incident", "step": f"not yet at step {self._step:,}", "end": "not over yet"}
        return self._end(self.client.run(self.run), f"After {self.seconds:g} s: {words[self.until]}.", happened=False)

    def _incident(self) -> answers.Incident | None:
        return next(
            (
                each
                for each in self.client.incidents(run=self.run)
                if each.severity != "info" and each.first_step > self._since and not (each.acknowledged or each.muted)
            ),
            None,
        )

    def _end(self, about: answers.Run, sentence: str, happened: bool) -> Told:
        self.happened = happened
        return told([f"{_opening(about)} {sentence}", *_failure(about), *self._page()], run=about)

    def _page(self, incident: str | None = None) -> list[str]:
        return link(self.client, self.run, "/problems/incident" if incident else "", id=incident)
