"""What routes receive: the run, the span of steps, the rest of a query, and bodies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl

from fastapi import Depends, Path, Query, Request
from pydantic import BaseModel, Field, StrictBool, StrictFloat, StrictInt, StringConstraints, ValidationError
from starlette.exceptions import HTTPException

from hookcore.config.patterns import MAX_LENGTH, parse
from hookcore.errors import ArgumentError, HookcoreError
from hookcore.records import Kind, Phase
from hookcore.store import STAT_NAMES
from hookcore.store.checks import unknown

from ..runs import Run, Runs, why_gone
from ..runs.edits import MAX_TEXT
from ..runs.joint import rank_of
from ..runs.shelf import MAX_CHART, MAX_NAME, MAX_QUERY, Views
from ..serving.guard.security import is_list, what_is_wrong
from .routing import MAX_RUN_ID, ReplyParam

MAX_CELLS: Final = 2_000_000  # of a map
MAX_STEP: Final = 2**53
MAX_PAGE: Final = 10_000
RUN_PATTERN: Final = rf"^[A-Za-z0-9_-]{{1,{MAX_RUN_ID}}}$"

RunId = Annotated[str, Path(pattern=RUN_PATTERN, description="a run's id", examples=["run-1"])]
OfRun = Annotated[str | None, Query(pattern=RUN_PATTERN, description="a run's id; default: the newest run")]
OfRank = Annotated[
    int | None, Query(ge=0, le=2**31, description="one rank of a distributed training; default: all ranks together")
]
OfModule = Annotated[str | None, Query(max_length=1000, description="only the module with this path")]
OfKind = Annotated[Kind | None, Query(description="only taps of this kind")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="maximum number of items in this answer")]
After = Annotated[int, Query(ge=0, le=MAX_STEP, description="`next` of the previous answer")]
# Described as a choice but read as a text, so that an unknown one gets the nearest as a hint.
StatName = Annotated[str, Query(max_length=50, json_schema_extra={"enum": list(STAT_NAMES)})]
StatsOrQuantiles = Annotated[
    str,
    Query(
        max_length=500,
        description="a stat, or a quantile such as p50 or p99.9; separate several with commas",
        json_schema_extra={"anyOf": [{"enum": list(STAT_NAMES)}, {"pattern": r"^p(\d{1,2}(\.\d{1,6})?|100)$"}]},
    ),
]


def match_of(
    match: Annotated[
        str | None,
        Query(
            max_length=MAX_LENGTH,
            description="a pattern for modules, such as layers.*.attn, type:Linear, or is:nan; see docs/patterns.md",
            examples=["layers.*"],
        ),
    ] = None,
) -> str | None:
    """Return a pattern for modules. A malformed one raises PatternError before anything is read."""
    if match is not None:
        parse(match)
    return match


MatchParam = Annotated[str | None, Depends(match_of)]


def runs_of(request: Request) -> Runs:
    runs: Runs = request.app.state.runs
    return runs


RunsParam = Annotated[Runs, Depends(runs_of)]
NameParam = Annotated[str, Query(min_length=1, max_length=MAX_NAME, description="the name it was saved under")]


def forget(kept: Views, name: str) -> None:
    """Delete the view or chart that readers saved under a name. Answers 404 if there is none."""
    if not kept.delete(name):
        raise HTTPException(404, unknown(kept.noun, name, list(kept.all())))


def listed_run(runs: Runs, run_id: str) -> Run:
    """Return a run from the list by its id, or 404. Its values may be on disk."""
    found = runs.look_up(run_id)
    if found is None:
        raise HTTPException(
            404,
            why_gone(runs.gone(), run_id)
            or " ".join(filter(None, [unknown("run", run_id, [run.id for run in runs.all()]), runs.partial])),
        )
    return found


def run_named(runs: Runs, run_id: str | None) -> Run:
    """Return a run with its values, by its id, or the newest one. 404 if there is none."""
    if run_id is not None:
        return runs.read(listed_run(runs, run_id))
    newest = next(iter(runs.all()), None)
    if newest is None:
        raise HTTPException(404, "there is no run yet: start a training that calls hookcore.watch(model)")
    return runs.read(newest)


def _run_of_path(runs: RunsParam, reply: ReplyParam, run: RunId) -> Run:
    return reply.about(run_named(runs, run))


def _listed_run_of_path(runs: RunsParam, run: RunId) -> Run:
    return listed_run(runs, run)


def _run_of_query(runs: RunsParam, reply: ReplyParam, run: OfRun = None, rank: OfRank = None) -> Run:
    found = run_named(runs, run)
    return reply.about(found if rank is None else runs.read(rank_of(found, rank)))


PathRun = Annotated[Run, Depends(_run_of_path)]
ListedRun = Annotated[Run, Depends(_listed_run_of_path)]
RunParam = Annotated[Run, Depends(_run_of_query)]


@dataclass(frozen=True, slots=True)
class Span:
    """The steps from first to last, both inclusive. None means no bound."""

    first: Annotated[int | None, Query(alias="from", ge=0, le=MAX_STEP, description="the first step")] = None
    last: Annotated[int | None, Query(alias="to", ge=0, le=MAX_STEP, description="the last step")] = None

    def __post_init__(self) -> None:
        if self.first is not None and self.last is not None and self.first > self.last:
            raise ArgumentError(f"from={self.first} is after to={self.last}: give the earlier step as from")


SpanParam = Annotated[Span, Depends()]


def page_of(items: Sequence[Any], after: int, limit: int) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return a page of a list, and where the next one begins."""
    end = after + limit
    return items[after:end], {"total": len(items), "next": end if end < len(items) else None}


def check_cells(columns: int, rows: int) -> None:
    """Raise ArgumentError if a map has too many cells."""
    if columns * rows > MAX_CELLS:
        raise ArgumentError(f"columns={columns} by rows={rows} are more than {MAX_CELLS} cells: ask for fewer")


# The bodies of requests, validated: changes of a run, changes of settings, and commands.


class Body(BaseModel, extra="forbid"):
    """The body of a request. Unknown fields are errors."""


class BodyAboutRun(Body):
    """A body that names its run."""

    run: Annotated[str, Field(pattern=RUN_PATTERN, description="default: the newest run")] | None = None


class RunChanges(Body, json_schema_extra={"examples": [{"name": "baseline, lr 3e-4", "tags": ["best"]}]}):
    """What to change of a run. Parameters that aren't given stay as they are."""

    name: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    notes: Annotated[str, Field(max_length=20_000)] | None = None
    tags: Annotated[list[Annotated[str, Field(min_length=1, max_length=50)]], Field(max_length=20)] | None = None
    group: Annotated[str, Field(max_length=200)] | None = None
    archived: StrictBool | None = None


class ViewToSave(Body, json_schema_extra={"examples": [{"name": "sweep by loss", "query": "f=tag:sweep&sort=loss"}]}):
    """A view of the list of runs: its name, and the query string of the page."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    query: Annotated[str, Field(max_length=MAX_QUERY)]


class ChartToPin(
    Body,
    json_schema_extra={"examples": [{"name": "head: norm", "path": "series", "query": "tap=head+output&stat=norm"}]},
):
    """A chart of the board: its title, and its query, which fits any run."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    path: Literal["series", "scalars"]
    query: Annotated[str, Field(max_length=MAX_CHART, pattern="^[^#]*$")]


Patterns = (
    Annotated[str, Field(max_length=1000)]
    | Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=1000)]
)


class SettingsChanges(Body, json_schema_extra={"examples": [{"every": 10, "budget": 0.02}]}):
    """Changes of settings during a training. Omitted ones stay unchanged."""

    every: Annotated[int, Field(strict=True, ge=1, le=10**9)] | None = None
    budget: Annotated[float, Field(gt=0, le=10)] | None = None
    include: Patterns | None = None
    exclude: Patterns | None = None
    channels: Patterns | None = None
    kinds: Annotated[list[Kind], Field(min_length=1, max_length=7)] | None = None
    paused: Annotated[bool, Field(strict=True)] | None = None


_Path = Annotated[str, Field(max_length=1000)]
_Drafted = Annotated[tuple[_Path, ...], Field(max_length=1000)]


class Switched(Body):
    """Modules whose checkbox on the page Capture was switched."""

    paths: Annotated[tuple[_Path, ...], Field(min_length=1, max_length=100_000)]
    whole: bool
    on: bool


class SelectionDraft(Body):
    """Patterns that are not applied yet."""

    include: _Drafted = ()
    exclude: _Drafted = ()
    switch: Switched | None = None


class SnapshotRequest(Body, json_schema_extra={"examples": [{"module": "0", "kind": "output"}]}):
    """The requested tensor: `tap` by its number or label, or the module and the known parts of the stream."""

    tap: Annotated[int, Field(strict=True, ge=0)] | Annotated[str, Field(max_length=2100)] | None = None
    module: Annotated[str, Field(max_length=1000)] | None = None
    kind: Kind = "output"
    index: Annotated[str, Field(max_length=1000)] = ""
    call: Annotated[int, Field(ge=0, le=2**31)] = 0
    phase: Phase = "train"


class Acknowledgement(
    BodyAboutRun, json_schema_extra={"examples": [{"key": "dead:layers.0 output", "acknowledged": True}]}
):
    """The acknowledgement of a finding or an event, by its `key`."""

    key: Annotated[str, Field(min_length=1, max_length=2200)]
    acknowledged: Annotated[bool, Field(strict=True)] = True


class Annotation(BodyAboutRun, json_schema_extra={"examples": [{"step": 100, "text": "learning rate halved"}]}):
    """What to note at a step."""

    step: Annotated[int, Field(strict=True, ge=0, le=2**53)]
    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_TEXT)]


class RuleChanges(
    BodyAboutRun, json_schema_extra={"examples": [{"rules": {"spike": {"factor": 20}, "dead_relu": False}}]}
):
    """Thresholds by rule; false switches a rule off; true or null gives it its defaults.

    With `later`, this run stays as it is, and all runs that begin from now on have them.
    """

    later: StrictBool = False
    rules: Annotated[dict[str, dict[str, StrictFloat | StrictInt] | StrictBool | None], Field(max_length=200)]


class MuteRequest(BodyAboutRun, json_schema_extra={"examples": [{"rule": "dead", "match": "layers.*"}]}):
    """A rule, or the name of events, in the modules that match."""

    rule: Annotated[str, Field(min_length=1, max_length=200)]
    match: Annotated[str, Field(max_length=1000, description="a pattern for modules; empty for all modules")] = ""


# Query strings that readers save, checked like a request with them: what is stored can be shown.

Asked = TypeVar("Asked", bound=BaseModel)
SavedText = Annotated[str, Field(max_length=1000)]


def asked_in(kind: type[Asked], query: str) -> Asked:
    """Return the parameters of a query string. Raises ArgumentError for one that is unknown, repeated, or invalid."""
    pairs = parse_qsl(query)
    known = {name: is_list(field.annotation) for name, field in kind.model_fields.items()}
    if wrong := what_is_wrong(Counter(name for name, _ in pairs), known):
        raise ArgumentError(wrong)
    given: dict[str, Any] = {}
    for name, value in pairs:
        if known[name]:
            given.setdefault(name, []).append(value)
        else:
            given[name] = value
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
        raise ArgumentError("; ".join(problems)) from None


def problem_of(check: Any, *given: str) -> str | None:
    """Return why something that was saved can't be shown; None if it can."""
    try:
        check(*given)
    except HookcoreError as error:
        return str(error)
    return None
