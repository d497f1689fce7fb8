"""The bodies of requests, validated: changes of a run, changes of settings, and commands."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StrictBool, StrictFloat, StrictInt, StringConstraints

from hookcore.records import Kind, Phase

from ..runs.annotating import MAX_TEXT
from ..runs.views import MAX_CHART, MAX_NAME, MAX_QUERY
from .params import RUN_PATTERN


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
    """Modules whose checkbox on the page Hooks was switched."""

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
    """Thresholds by rule; false switches a rule off; true or null gives it its defaults."""

    rules: Annotated[dict[str, dict[str, StrictFloat | StrictInt] | StrictBool | None], Field(max_length=200)]


class Mute(BodyAboutRun, json_schema_extra={"examples": [{"rule": "dead", "match": "layers.*"}]}):
    """A rule, or the name of events, in the modules that match."""

    rule: Annotated[str, Field(min_length=1, max_length=200)]
    match: Annotated[str, Field(max_length=1000, description="a pattern for modules; empty for all modules")] = ""
