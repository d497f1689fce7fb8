"""Questions about runs in a terminal: their answers, a check for CI, and the report."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args
from xml.etree import ElementTree

from hookcore.errors import ArgumentError
from hookcore.reading import Client
from hookcore.records import SEVERITIES, Kind
from hookcore.records.vocabulary import OWN_RULE, SEVERITY_WORDS, STATE_WORDS, counted

from .flags import Commands, add_command, add_source, client_of, run_of_client, saved_run

if TYPE_CHECKING:
    from hookcore.findings import Diagnosis, Finding
    from hookcore.reading import answers
    from hookcore.reading.answers import Findings, Incident, Incidents, OwnRule, RunRules
    from hookcore.records import Failure

    from ..analysis.numerals import Told

# Answers of a few lines, or the answers of REST. What makes them is imported when it is needed, as it takes a while.

KINDS: Final = get_args(Kind)
UNTIL: Final = ("incident", "step", "end")
POLL_S: Final = 1.0
HAPPENED, NOT_YET = 0, 1
RUNS_EXAMPLES: Final = """
  hookcore runs                                    the newest runs of your own dashboard
  hookcore runs --query "state:live"               those that match a query (docs/runs.md)
  hookcore runs runs --json                        those in a folder of saved runs, as JSON
"""
WHY_EXAMPLES: Final = """
  hookcore why                                     the worst incident of the newest run
  hookcore why --run baseline --incident dead-120-3
                                                   one incident of a run
  hookcore why runs/x.hookcore                     of a saved run
"""
LAYERS_EXAMPLES: Final = """
  hookcore layers                                  the largest rms, non-finite values first
  hookcore layers --stat norm --kind param_grad --limit 20
                                                   the largest gradients of weights
  hookcore layers --match type:Linear --smallest   the smallest rms of the linear layers
"""
COMPARE_EXAMPLES: Final = """
  hookcore compare --run baseline --other wide     two runs: where they first differ
  hookcore compare --from 1000                     the steps from 1,000 on with those before
  hookcore compare --ranks                         the ranks of a distributed training
"""
PRECISION_EXAMPLES: Final = """
  hookcore precision                               which tensors a cast to float8 (E4M3) would harm
  hookcore precision --kind output_grad --format e5m2 --scale p99.9
                                                   gradients, in the other float8 format
"""
RESUME_EXAMPLES: Final = """
  hookcore resume-check                            the newest run, after the one that was saved before it
  hookcore resume-check --run again --earlier first
                                                   two runs
"""
WAIT_EXAMPLES: Final = """
  hookcore wait                                    until the newest run has an incident, or is over
  hookcore wait --until step --step 1000 --seconds 600
                                                   at most ten minutes
  hookcore wait --until end                        until the run is over
"""


def add_questions(commands: Commands) -> None:
    runs = _add(commands, "runs", "List runs, newest first.", RUNS_EXAMPLES, _runs)
    runs.add_argument("--query", default="", help="only runs that match, such as `lr>0.1 and tag:sweep`")
    _add_limit(runs, 20)
    why = _add(commands, "why", "Say why a run went wrong: culprit, evidence, and source line.", WHY_EXAMPLES, _why)
    why.add_argument("--incident", default=None, help="id of the incident (default: the worst one)")
    _add_layers(_add(commands, "layers", "List the worst layers by a statistic.", LAYERS_EXAMPLES, _layers))
    _add_compare(
        _add(commands, "compare", "Say what differs between two runs, two spans of steps, or the ranks of a run.",
             COMPARE_EXAMPLES, _compare)
    )  # fmt: skip
    precision = _add(commands, "precision", "Say which layers should stay in bf16.", PRECISION_EXAMPLES, _precision)
    precision.add_argument("--format", default="e4m3", help="bf16, fp16, e5m2, e4m3, or e2m1 (default: e4m3)")
    precision.add_argument("--scale", default="max", help="what becomes the largest value: max or p99.9 (default: max)")
    precision.add_argument("--kind", choices=KINDS, help="only tensors of this kind (default: all)")
    precision.add_argument("--match", help="only modules that match a pattern (docs/patterns.md)")
    _add_steps(precision)
    _add_limit(precision, 10)
    resume = _add(
        commands,
        "resume-check",
        "Say whether a restarted training went on as it was saved. The exit code is 1 if it did not, or if that isn't "
        "known.",
        RESUME_EXAMPLES,
        _resume,
    )
    resume.add_argument(
        "--earlier",
        help="id or name of the run that was saved (default: the one most like it)",
    )
    wait = _add(
        commands,
        "wait",
        "Wait until something happens in a run. The exit code is 0 if it happened, and 1 if the time passed or the run "
        "ended first.",
        WAIT_EXAMPLES,
        _wait,
    )
    wait.add_argument("--until", choices=UNTIL, default="incident", help="default: incident")
    wait.add_argument("--step", type=int, help="the step to wait for (default: the next one)")
    wait.add_argument("--since", type=int, metavar="STEP", help="only incidents that began after this step")
    wait.add_argument("--seconds", type=float, default=3600.0, help="how long to wait at most (default: 3600)")


def _add(
    commands: Commands, name: str, summary: str, examples: str, run: Callable[..., Any]
) -> argparse.ArgumentParser:
    parser = add_command(commands, name, summary, examples)
    add_source(parser)
    if name != "runs":
        parser.add_argument("--rank", type=int, help="one rank of a distributed training (default: their sum)")
    parser.add_argument("--json", action="store_true", help="print the answers of REST as JSON")
    parser.set_defaults(run=_answering(run), rank=None)
    return parser


def _answering(ask: Callable[[Client, argparse.Namespace], Told | tuple[Told, int]]) -> Callable[..., int]:
    """Return the function that runs a command: it asks, prints the answer, and returns the exit code."""

    def answer(given: argparse.Namespace, _environment: Mapping[str, str]) -> int:
        with client_of(given) as client:
            if given.rank is not None:
                from ..questions import run_of_rank

                given.run_id = run_of_rank(client, given.run_id, given.rank)
            found = ask(client, given)
        told, code = found if isinstance(found, tuple) else (found, HAPPENED)
        print(_json_of(told) if given.json else told.text)
        return code

    return answer


def _json_of(told: Told) -> str:
    from ..formats import json_of

    return json.dumps(json.loads(json_of(told.answers)), indent=2)


def _add_limit(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument("--limit", type=int, default=default, help=f"how many to list at most (default: {default})")


def _add_steps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="first", type=int, help="the first step (default: the first of the run)")
    parser.add_argument("--to", dest="last", type=int, help="the last step (default: the newest)")


def _add_layers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stat", default="rms", help="the statistic to sort by (default: rms)")
    parser.add_argument("--kind", choices=KINDS, help="only tensors of this kind (default: all)")
    parser.add_argument("--match", help="only modules that match a pattern (docs/patterns.md)")
    parser.add_argument("--smallest", action="store_true", help="start with the smallest value")
    _add_steps(parser)
    _add_limit(parser, 10)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--other", help="id or name of the run to compare with")
    parser.add_argument("--ranks", action="store_true", help="compare the ranks of the run")
    _add_steps(parser)
    parser.add_argument("--other-from", type=int, help="the first of the other steps (default: all others)")
    parser.add_argument("--other-to", type=int, help="the last of the other steps")
    parser.add_argument("--kind", choices=KINDS, help="only tensors of this kind (default: output; all of steps)")
    parser.add_argument("--stat", default="rms", help="the statistic to compare (default: rms)")
    _add_limit(parser, 8)


def _runs(client: Client, given: argparse.Namespace) -> Told:
    from .. import questions

    if given.run_id is not None:
        raise ArgumentError("`hookcore runs` lists all runs: use --query to find some, or `hookcore why --run` for one")
    return questions.list_runs(client, given.query, given.limit)


def _why(client: Client, given: argparse.Namespace) -> Told:
    from .. import questions

    return questions.explain(client, given.run_id, given.incident)


def _layers(client: Client, given: argparse.Namespace) -> Told:
    from .. import questions

    about = given.stat, given.kind, given.match, given.first, given.last, given.smallest, given.limit
    return questions.worst_layers(client, given.run_id, *about)


def _compare(client: Client, given: argparse.Namespace) -> Told:
    from .. import questions

    others = given.other_from, given.other_to
    return questions.compare(
        client, given.run_id, given.other, given.ranks, given.first, given.last, *others, given.kind, given.stat,
        given.limit,
    )  # fmt: skip


def _precision(client: Client, given: argparse.Namespace) -> Told:
    from .. import questions

    about = given.format, given.scale, given.kind, given.match, given.first, given.last, given.limit
    return questions.precision(client, given.run_id, *about)


def _resume(client: Client, given: argparse.Namespace) -> tuple[Told, int]:
    from .. import questions

    told = questions.check_resume(client, given.run_id, given.earlier)
    return told, int(told.answers["resume"].outcome != "resumed")


def _wait(client: Client, given: argparse.Namespace) -> tuple[Told, int]:
    from .. import questions

    waiting = questions.Waiting(client, given.run_id, given.until, given.step, given.since, given.seconds)
    deadline = time.monotonic() + given.seconds
    while (told := waiting.look()) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            return waiting.give_up(), NOT_YET
        time.sleep(min(POLL_S, left))
    return told, HAPPENED if waiting.happened else NOT_YET


# `check`: the incidents of a run, and an exit code for scripts and CI.

CHECK_EXAMPLES: Final = """
  hookcore check                                   the newest run of your own dashboard
  hookcore check runs/x.hookcore                   a saved run
  hookcore check http://box:8642 --run run-1       a run of a server (token: HOOKCORE_TOKEN)
  hookcore check runs/x.hookcore --format junit    for CI
"""
NEVER: Final = "never"
TROUBLES: Final = ("rule-failed", "own-rule-off", "damaged")  # events after which incidents may be missing
BROKEN: Final = frozenset({"crashed", "lost"})  # states of a run that count as errors
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Checked:
    """The known facts about a run."""

    run: str
    name: str
    state: str
    failure: Failure | None
    newest_step: int | None
    scope: str
    course: str
    incidents: Incidents
    notes: tuple[str, ...]  # findings that are no problem, and no incident either
    troubles: tuple[str, ...]  # why incidents may be missing
    rules: RunRules

    @property
    def own(self) -> tuple[OwnRule, ...]:
        """The rules of the user."""
        return self.rules.own

    @property
    def needs(self) -> dict[str, str]:
        """For each rule without data, what it needs."""
        return {rule.name: rule.needs for rule in self.rules if rule.on and rule.needs}

    def reaches(self, level: str) -> list[Incident]:
        """Return the incidents that are at least this severe, except acknowledged and muted ones."""
        if level == NEVER:
            return []
        bad = SEVERITIES[: SEVERITIES.index(level) + 1]
        return [
            incident
            for incident in self.incidents
            if incident.severity in bad and not incident.acknowledged and not incident.muted
        ]

    @property
    def dropped_words(self) -> str:
        """How many incidents were dropped, and how many of these may matter."""
        dropped, alerts = self.incidents.dropped, self.incidents.dropped_alerts
        return f"{counted(dropped, 'more incident')} dropped ({alerts:,} of them warnings or errors)"

    @property
    def ending(self) -> str | None:
        """How the training ended, in words; None if it ended as it should."""
        if self.state not in BROKEN:
            return None
        if self.failure is None:
            return "The training was lost"
        return f"{self.failure.sentence}{self.failure.place}: {self.failure.error}"


def add_check(commands: Commands) -> None:
    parser = add_command(
        commands,
        "check",
        "Print the incidents of a run. The exit code is 0 if none reaches the severity, 1 if one does or the training "
        "crashed or was lost, and 2 if the run can't be judged.",
        CHECK_EXAMPLES,
    )
    add_source(parser)
    parser.add_argument(
        "--fail-on",
        choices=(*SEVERITIES, NEVER),
        default="error",
        help="the lowest severity that leads to exit code 1 (default: error)",
    )
    parser.add_argument(
        "--format",
        choices=tuple(FORMATS),
        default="text",
        help="how to print the incidents; junit is XML for CI (default: text)",
    )
    parser.set_defaults(run=_check)


def _check(given: argparse.Namespace, _environment: Mapping[str, str]) -> int:
    checked = _look(given)
    if checked.newest_step is None and checked.failure is None:
        raise ArgumentError(f"no step of the run {checked.run!r} was captured, so it can't be judged")
    print(FORMATS[given.format](checked, given.fail_on))
    fails = _fails(checked, given.fail_on)
    if checked.troubles and not fails:
        raise ArgumentError(f"the run can't be judged completely: {'; '.join(checked.troubles)}")
    return int(fails)


def _fails(checked: Checked, level: str) -> bool:
    if level == NEVER:
        return False
    # Dropped incidents include warnings or errors; notes are dropped first.
    return bool(checked.reaches(level) or checked.ending or checked.incidents.dropped_alerts)


def _look(given: argparse.Namespace) -> Checked:
    run = saved_run(given)
    if run is not None:
        from ..runs.edits import rules_of  # needs more than a request to a server

        diagnosis, newest = run.findings.diagnosis(), run.store.steps().newest
        troubles = tuple(event.message for event in run.store.events() if event.name in TROUBLES)
        known = run.id, run.name, run.state, run.end.failure, newest, *_sentences(diagnosis)
        incidents = run.reader.incidents()
        return Checked(*known, incidents, _notes(diagnosis.findings, incidents), troubles, rules_of(run))
    with run_of_client(given) as (client, run_id):
        findings = client.findings(run=run_id)  # loads a run that is only on disk
        found, incidents = client.run(run_id), client.incidents(run=run_id)
        rules = client.rules(run_id)
        events = [event for name in TROUBLES for event in client.events(name=name, run=run_id).events]
    troubles = tuple(event.message for event in events)
    about = found.id, found.name, found.state, found.failure, found.newest_step
    return Checked(*about, *_sentences(findings), incidents, _notes(findings, incidents), troubles, rules)


def _notes(findings: Iterable[Finding | answers.Finding], incidents: Incidents) -> tuple[str, ...]:
    """Return the notes that begin no incident, in words."""
    from hookcore.findings import RULES
    from hookcore.findings.finding import OF_LOSS

    known = {(incident.key, incident.first_step) for incident in incidents}
    notes = [each for each in findings if each.severity == "info" and (each.key, each.since_step) not in known]
    titles = {rule: about.title for rule, about in RULES.items()}
    return tuple(
        f"{titles.get(note.rule, note.rule)}: {note.message}{'' if note.rule in OF_LOSS else f' ({note.tap.label})'}"  # type: ignore[call-overload]
        for note in notes
    )


def _sentences(found: Diagnosis | Findings) -> tuple[str, str]:
    return found.scope.sentence, found.course.sentence


def _as_text(checked: Checked, _level: str) -> str:
    from hookcore.findings import RULES

    name = f"{checked.run} ({checked.name})" if checked.name else checked.run
    state = STATE_WORDS.get(checked.state, checked.state)
    until = "before the first captured step" if checked.newest_step is None else f"up to step {checked.newest_step}"
    lines = [f"Run {name}, {state}, {until}.", checked.course]
    lines += [f"error: {checked.ending}."] if checked.ending else []
    if checked.failure is not None and checked.failure.code:
        lines.append(f"    {checked.failure.where}: {checked.failure.code}")
    for incident in checked.incidents:
        seen = " (acknowledged)" if incident.acknowledged else " (muted)" if incident.muted else ""
        title = RULES[incident.rule].title if incident.rule in RULES else incident.rule  # type: ignore[index]
        lines.append(f"{SEVERITY_WORDS[incident.severity]}: {title}: {incident.sentence}{seen}")
        lines += _advice_lines(incident.rule, incident.value)
    muted = sum(incident.muted for incident in checked.incidents)
    total = checked.incidents.total
    lines += [f"{muted:,} of {counted(total, 'incident')} {'is' if muted == 1 else 'are'} muted."] if muted else []
    if checked.incidents.dropped:
        lines.append(f"{checked.dropped_words}.")
    lines += [] if checked.incidents.total else ["No incidents in the captured steps."]
    lines += [f"{SEVERITY_WORDS['info']}: {note}." for note in checked.notes]
    lines += [f"warning: {trouble}" for trouble in checked.troubles]
    lines += [f"your rule {each.name}: {_own_words(each)}." for each in checked.own]
    lines.append(f"Besides the end of the training: {checked.scope}" if checked.ending else checked.scope)
    if checked.needs:
        lines.append(f"Rules without data: {', '.join(checked.needs)}.")
    return "\n".join(lines)


def _advice_lines(rule: str, value: float = 0.0) -> list[str]:
    """Return what a built-in rule means, its usual causes, and what to try; nothing for a custom rule."""
    advice = _advice_of(rule, value)
    if advice is None:
        return []
    causes, tries = "; ".join(advice["causes"]), "; ".join(advice["tries"])
    return [f"    meaning: {advice['meaning']}", f"    usual causes: {causes}.", f"    try: {tries}."]


def _advice_of(rule: str, value: float) -> dict[str, Any] | None:
    from hookcore.findings import rule_about

    known = rule_about(rule, value)
    return None if known is None else {"meaning": known.help, "causes": known.causes, "tries": known.tries}


def _own_words(rule: OwnRule) -> str:
    """Return the state of one of the user's rules, in words."""
    looked = f"it checked {counted(rule.calls, 'frame')}"
    failed = f"{looked} and raised an exception in {rule.faults:,} of them" if rule.faults else looked
    return f"{failed}; it was switched off: {rule.off}" if rule.off else failed


def _as_json(checked: Checked, level: str) -> str:
    from ..formats import json_of

    about: dict[str, Any] = {
        "run": checked.run,
        "name": checked.name,
        "state": checked.state,
        "ending": checked.ending,
        "failure": None if checked.failure is None else json.loads(json_of(checked.failure)),
        "newest_step": checked.newest_step,
        "scope": checked.scope,
        "course": checked.course,
        "notes": checked.notes,
        "muted": sum(incident.muted for incident in checked.incidents),
        "fails": _fails(checked, level),
        "troubles": checked.troubles,
        "rules_without_data": checked.needs,
        "own_rules": [json.loads(json_of(each)) for each in checked.own],
        "advice": {incident.rule: _advice_of(incident.rule, incident.value) for incident in checked.incidents},
    }
    return json.dumps(about | json.loads(json_of(checked.incidents)), indent=2)


def _as_junit(checked: Checked, level: str) -> str:
    """Return one test case for each rule, including the user's, and one for how the training ended.

    A rule of the user that raised is an error, as is a trouble: its case says nothing about the run.
    """
    from hookcore.findings import RULES

    failing = checked.reaches(level)
    own = {f"{OWN_RULE}{each.name}": each for each in checked.own}
    rules = [*RULES, *own] + [each.rule for each in failing if each.rule not in RULES]
    suite = ElementTree.Element("testsuite", name=_xml(f"hookcore {checked.name or checked.run}"))
    cases = {rule: [each.sentence for each in failing if each.rule == rule] for rule in dict.fromkeys(rules)}
    cases["training"] = [checked.ending] if checked.ending and level != NEVER else []
    if checked.incidents.dropped_alerts and level != NEVER:
        cases["dropped"] = [checked.dropped_words]
    for rule, sentences in cases.items():
        case = ElementTree.SubElement(suite, "testcase", classname="hookcore", name=rule)
        if sentences:
            failure = ElementTree.SubElement(case, "failure", message=_xml(sentences[0]))
            failure.text = _xml("\n".join([*sentences, *_advice_lines(rule)]))
        elif rule in checked.needs:
            ElementTree.SubElement(case, "skipped", message=_xml(f"no data: it needs {checked.needs[rule]}"))
        if rule in own and (own[rule].off or own[rule].faults):
            ElementTree.SubElement(case, "error", message=_xml(_own_words(own[rule])))
    for trouble in checked.troubles:
        case = ElementTree.SubElement(suite, "testcase", classname="hookcore", name="rules")
        ElementTree.SubElement(case, "error", message=_xml(trouble))
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("failures", str(sum(bool(each) for each in cases.values())))
    ElementTree.SubElement(suite, "system-out").text = _xml(_as_text(checked, level))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode")


def _xml(text: str) -> str:
    """Replace characters that XML doesn't have: names of modules may contain any."""
    return _NOT_XML.sub("\ufffd", text)


FORMATS: Final[dict[str, Callable[[Checked, str], str]]] = {"text": _as_text, "json": _as_json, "junit": _as_junit}


# `report`: a run as one HTML file.

REPORT_EXAMPLES: Final = """
  hookcore report                                  the newest run of your own dashboard
  hookcore report http://box:8642 --run run-1      a run of a server (token: HOOKCORE_TOKEN)
  hookcore report runs/x.hookcore -o report.html   a saved run
"""


def add_report(commands: Commands) -> None:
    about = "Write a report of a run: one HTML file of at most 10 MB that works offline."
    parser = add_command(commands, "report", about, REPORT_EXAMPLES)
    add_source(parser)
    parser.add_argument("-o", "--output", default="", help="output file (default: hookcore-RUN.html; - for stdout)")
    parser.add_argument("--from", dest="first", type=int, help="the first step to show (default: the first of the run)")
    parser.add_argument("--to", dest="last", type=int, help="the last step to show (default: the newest)")
    parser.add_argument("--at", type=int, help="the step that numbers are taken from (default: the newest shown)")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.set_defaults(run=_report)


def _report(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    run_id, content = _content(given)
    if given.output == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return ""
    path = Path(given.output or f"hookcore-{run_id}.html")
    write_file(path, content, given.force)
    return f"wrote the report of {run_id} to {path} ({len(content) / 1e6:.1f} MB)"


def _content(given: argparse.Namespace) -> tuple[str, bytes]:
    run = saved_run(given)
    if run is not None:
        from ..pages.report import ReportSteps, report_of

        return run.id, report_of(run, ReportSteps(given.first, given.last, given.at))
    with run_of_client(given) as (client, run_id):
        return run_id, client.report(run_id, given.first, given.last, given.at)


def write_file(path: Path, content: bytes, over: bool) -> None:
    """Write the file completely or not at all, so that a full disk doesn't destroy an existing file."""
    if path.exists() and not over:
        raise ArgumentError(f"{str(path)!r} already exists: choose another name with -o, or use --force")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ArgumentError(f"can't write {str(path)!r}: {error}; choose another path with -o") from None
