"""The pages Compare and What changed: two runs aligned by step, and which layers differ most."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal, cast
from urllib.parse import urlencode

import numpy as np
from fastapi import Query
from numpy.typing import NDArray

from hookcore.errors import ArgumentError, PatternError
from hookcore.reading import Reader
from hookcore.reading.answers import Cka, ComparedLayer, DifferentLayer, Module
from hookcore.records import KINDS, Tap
from hookcore.records.vocabulary import ELAPSED, counted, loss_among
from hookcore.store import STAT_NAMES
from hookcore.store.unlike import Sample

from ..analysis.comparison import ComparisonQuery, Side, renamer, what_differs
from ..analysis.modules import finder_of, types_of
from ..analysis.verdict import Verdict, compare_runs, parting_words
from ..api.routing import MAX_RUN_ID
from ..formats import plain, script_json, text_of_setting
from ..live.publisher import mark_of
from ..live.views import news_of
from ..runs import Run, Runs, joint_in
from ..runs.query import Traits
from .frame import address_of, middle, naming, ranks_to_pick, since
from .page import FindText, Page, RunPage, Short, Text
from .views.overview import layer_address
from .views.run_list import model_of
from .views.span import range_in

# The page Compare: two runs by layer, aligned by step; where they first differ, and how much was compared.

MAX_LAYERS: Final = 200  # in the table
MAX_ALONE: Final = 50
LABEL_LETTERS: Final = 48
ASKED: Final = ("a", "b", "kind", "stat", "tolerance", "rename", "f", "sort")
CHANGING: Final = (
    "name",
    "server",
    "stride",
    "histogram_stride",
    "cost",
    "effective_cost",
    "following_cost",
)  # settings that say nothing about the run

RunId = Annotated[str, Query(max_length=MAX_RUN_ID)]


@dataclass(frozen=True, slots=True)
class Parting:
    """The first difference in a layer, and the values of the two runs there."""

    layer: ComparedLayer
    step: int
    values: tuple[float, float]
    share: float


@dataclass(frozen=True, slots=True)
class Line:
    """A setting or fact of the two runs."""

    name: str
    one: str
    two: str

    @property
    def differs(self) -> bool:
        """Whether the two values differ."""
        return self.one != self.two


@dataclass(frozen=True, kw_only=True)
class ComparePage(Page):
    """Two runs; by default the two newest of the same model."""

    name = "compare"
    path = "/compare"
    parts = ("verdict", "largest", "alike", "settings")

    a: RunId = ""
    b: RunId = ""
    kind: Text = "output"
    stat: Text = "rms"
    tolerance: Text = ""
    rename: Text = ""
    f: Text = ""
    sort: Annotated[Literal["", "model", "step"], Query()] = ""

    def query(self, **changes: str) -> str:
        """Return the query string of this view, with changes. A form also sends its empty fields."""
        asked = {name: getattr(self, name) for name in ASKED} | changes
        return urlencode({name: value for name, value in asked.items() if value})

    @property
    def share(self) -> float:
        """The tolerance as a fraction."""
        try:
            share = float(self.tolerance or 0)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 2:
            raise ArgumentError(
                f"tolerance={self.tolerance[:40]!r} is invalid: use a number from 0 to 2, for example 0.01"
            )
        return share

    def values(self) -> dict[str, Any]:
        """Return the two runs and how they differ, or the problem with the query."""
        every = self.runs.all()
        one, two, missing = _chosen(self.runs, every, self.a, self.b)
        ids = (one.id if one else "", two.id if two else "")
        wanted = replace(self, a=ids[0], b=ids[1], kind=self.kind or "output", stat=self.stat or "rms")
        # First, so that what the page shows is at least as new.
        news = [] if self.part else [news_of(run.id, run.name, mark_of(run)) for run in (one, two) if run is not None]
        values: dict[str, Any] = {
            "news": script_json(news),
            "every": labels_of(every),
            "one": one,
            "two": two,
            "titles": _titles_of(one, two),
            "wanted": wanted,
        }
        values |= {"missing": missing, "problem": "", "result": None, "settings": [], "query": wanted.query}
        if one is not None:
            values |= naming(one)
        values |= {"layer_address": _layer_address, "parting_words": parting_words}
        values["find_problem"] = finder_of(one, self.f).problem if one is not None else ""
        if one is not None and two is not None:
            values["settings"] = settings_of(one, two)
            try:
                values["result"] = _result(one, two, wanted)
            except (ArgumentError, PatternError) as error:
                values["problem"] = str(error)
        return values


def _titles_of(*runs: Run | None) -> list[str]:
    """Return what the two runs are called: by their letters, too, if their names are the same."""
    names = [run.name or run.id if run is not None else "" for run in runs]
    return [f"{letter}: {name}" for letter, name in zip("AB", names, strict=True)] if names[0] == names[1] else names


def labels_of(runs: list[Run]) -> list[tuple[str, str]]:
    """Return each run's id and a label that is unique in the list."""
    names = Counter(run.name or run.id for run in runs)
    return [(run.id, _label_of(run, names[run.name or run.id] > 1)) for run in runs]


def _label_of(run: Run, ambiguous: bool) -> str:
    name = middle(run.name or run.id, LABEL_LETTERS)
    which = f" \u00b7 {run.id.rpartition('-')[2]}" if ambiguous else ""
    when = f", started {since(run.info.started_s, time.time())}" if run.info.started_s else ""
    return f"{name}{which} ({run.state}, {counted(run.steps, 'step')}{when})"


def _chosen(runs: Runs, every: list[Run], a: str, b: str) -> tuple[Run | None, Run | None, list[str]]:
    """Return the two runs, and the unknown names. A missing name means the newest other run of the same model."""
    one, two = runs.find(a) if a else None, runs.find(b) if b else None
    missing = [name for name, run in ((a, one), (b, two)) if name and run is None]
    if missing or (one is not None and two is not None):
        return one, two, missing
    given = one or two
    pair = _newest_pair(every) if given is None else (given, _like(given, every))
    for run in pair:
        if run is not None:
            runs.read(run)
    return (pair[0], pair[1], []) if two is None else (pair[1], pair[0], [])


def _newest_pair(every: list[Run]) -> tuple[Run | None, Run | None]:
    """Return the newest two runs of one model; if there are none, the newest two."""
    newest: dict[str, Run] = {}
    for run in every:
        model = model_of(run)
        if model and model in newest:
            return newest[model], run
        newest[model] = run
    return next(iter(every), None), next(iter(every[1:]), None)


def _like(given: Run, every: list[Run]) -> Run | None:
    """Return the newest other run of the same model, else the newest other run."""
    others, model = [run for run in every if run is not given], model_of(given)
    return next((run for run in others if model and model_of(run) == model), next(iter(others), None))


def _result(one: Run, two: Run, wanted: ComparePage) -> dict[str, Any]:
    if wanted.kind not in KINDS or wanted.stat not in STAT_NAMES:
        raise ArgumentError(
            f"there is no {wanted.stat[:40]!r} of {wanted.kind[:40]!r}: select a stat and a kind from the lists"
        )
    asked = ComparisonQuery(wanted.stat, wanted.kind, tolerance=wanted.share, rename=wanted.rename)
    verdict = compare_runs(one.store, two.store, asked)
    fits = finder_of(one, wanted.f).fits
    layers = [verdict.layers[place] for place in verdict.order(wanted.sort or "share")]
    shown = [layer for layer in layers if fits(layer.tap.module)]
    return {
        "verdict": verdict,
        "layers": shown[:MAX_LAYERS],
        "fitting": len(shown),
        "parting": parting_of(one.reader, two.reader, verdict, asked.stat),
        "alone": [
            (run, [*taps][:MAX_ALONE], len(taps)) for run, taps in zip((one, two), verdict.pairs.alone, strict=True)
        ],
        "types": types_of(one.reader),
        "loss": loss_among(logged.name for logged in verdict.logged) or "",
        "alike": _alike(one, two, wanted.rename),
    }


@dataclass(frozen=True, slots=True)
class Alike:
    """How alike what each layer of two runs makes of a fixed batch is, the least first."""

    steps: tuple[int, int]
    samples: int
    layers: list[tuple[str, float]]


def _alike(one: Run, two: Run, rename: str) -> Alike | None:
    """Return the CKA of the layers of both runs; None if they haven't measured it for the same batch."""
    found = one.store.similarities(), two.store.similarities()
    if found[0] is None or found[1] is None:
        return None
    try:
        cka = Cka.of((one.id, two.id), (found[0], found[1]))
    except ArgumentError:
        return None
    places = {path: place for place, path in enumerate(map(renamer(rename), cka.layers[1]))}
    rows = [(path, float(cka.values[row, places[path]])) for row, path in enumerate(cka.layers[0]) if path in places]
    return Alike(cka.steps, cka.samples, sorted(rows, key=lambda each: (each[1] != each[1], each[1]))) if rows else None


def parting_of(one: Reader, two: Reader, verdict: Verdict, stat: str) -> Parting | None:
    """Return the first step and layer in which two runs differ, with both values."""
    first = verdict.parting
    if first is None or first.parts_at is None:
        return None
    step = first.parts_at
    values = _value(one, first.numbers[0], stat, first), _value(two, first.numbers[1], stat, first)
    share = abs(values[1] - values[0]) / max(abs(values[0]), abs(values[1]), 1e-300)
    return Parting(first, step, values, share)


def _value(reader: Reader, number: int, stat: str, first: ComparedLayer) -> float:
    series = reader.series(number, stat, first.parts_at, first.parts_by)
    return float(series.mean[0]) if len(series.mean) else float("nan")


def settings_of(one: Run, two: Run) -> list[tuple[str, list[Line]]]:
    """Return the configurations of the two runs, what was recognized, and how they were captured, each with a title."""
    facts = zip(_facts(one).items(), _facts(two).values(), strict=True)
    return [
        (title, [Line(name, first.get(name, ""), second.get(name, "")) for name in {**first, **second}])
        for (title, first), second in facts
    ]


def _facts(run: Run) -> dict[str, dict[str, str]]:
    info = run.info
    modules = run.reader.modules(taps=False)
    about: dict[str, Any] = {"script": info.script, "host": info.host, "modules": len(modules)}
    about |= {"parameters": _parameters(modules), "steps": run.steps}
    capture = cast("dict[str, Any]", plain(info.settings))
    facts: dict[str, Mapping[str, Any]] = {
        "Configuration": info.config,
        "Recognized": about | Traits(run).facts | run.labels,
        "Capture": {name: value for name, value in capture.items() if name not in CHANGING},
    }
    return {title: {name: text_of_setting(value) for name, value in some.items()} for title, some in facts.items()}


def _parameters(modules: Sequence[Module]) -> int:
    return sum(module.parameters for module in modules if module.parent is None)


def _layer_address(run: Run, tap: Tap, step: int | None = None) -> str:
    """Return the address of a layer's page, held at a step."""
    return address_of(run, "layer", module=tap.module, step=step)


# The page What changed: which layers and logged values differ most in the steps that are shown.

MAX_DIFFERENT: Final = 30
MAX_BINS: Final = 60
MAX_WIDE: Final = 400  # bins of one drawing of magnitudes
WIDTH: Final = 240.0  # of a drawing, in its own units
HEIGHT: Final = 80.0


@dataclass(frozen=True, slots=True)
class Drawn:
    """A layer, with its two histograms as outlines of the same total area."""

    layer: DifferentLayer
    address: str
    inside: str
    outside: str
    zero: float | None  # where zero is between the ends; None if it isn't


@dataclass(frozen=True, kw_only=True)
class DifferencesPage(RunPage):
    """The steps in the address, as on the other pages, against others. Invalid parameters fall back to defaults."""

    name = "differences"
    parts = ("result",)

    kind: Short = ""
    f: FindText = ""
    other: Annotated[str, Query(max_length=200, description="another run; empty: the same")] = ""
    beside: Annotated[str, Query(max_length=50, description='the other steps, such as "0-99"; empty: all others')] = ""

    def values(self) -> dict[str, Any]:
        """Return the choices, and problems with them."""
        ranks = ranks_to_pick(self.run, self.name)
        own = {self.run.id, *(link.run for link in ranks.links)} if ranks else {self.run.id}
        candidates = [run for run in self.runs.all() if run.id not in own]
        return {
            "candidates": candidates,
            "listed": own | {candidate.id for candidate in candidates},
            "chosen": self.compared,
            "chosen_name": name_of(self.compared) if self.compared is not None else "",
            "missing": self.other if self.other and self.compared is None and self.other != self.run.id else "",
            "unread": self.beside if self.beside and range_in(self.beside) is None else "",
        }

    @cached_property
    def compared(self) -> Run | None:
        """The other run; None if this one is compared with itself."""
        return self.runs.find(self.other) if self.other and self.other != self.run.id else None

    def part_result(self) -> dict[str, Any]:
        other = self.compared
        name = name_of(other) if other is not None else ""
        return {"chosen_name": name, "result": self._result(other), "elapsed": ELAPSED, "split": self._split()}

    def _split(self) -> tuple[int, str] | None:
        """Return the held step, and the address that compares the steps from it on with those before it."""
        span, known = self.span, self.run.reader.steps()
        if span is None or span.step is None or known.first is None or known.newest is None or span.step <= known.first:
            return None
        steps, beside = f"{span.step}-{known.newest}", f"{known.first}-{span.step - 1}"
        address = address_of(self.run, self.name, steps=steps, beside=beside, kind=self.kind, f=self.f)
        return span.step, f"{address}&step="  # no longer held

    def _result(self, other: Run | None) -> dict[str, Any] | None:
        span, known = self.span, self.run.reader.steps()
        if span is None or known.first is None or known.newest is None:
            return None
        first, last = (span.first, span.last) if span.step is None else (span.step, span.step)
        beside = range_in(self.beside)
        is_all = first <= known.first and last >= known.newest and other is None and beside is None
        if is_all:  # there would be nothing to compare with
            first = known.newest - (known.newest - known.first) // 10
        inside = self.run.store.sample(first, last)
        elsewhere = (other or self.run).store
        begin, end = beside or (None, None)
        rest = elsewhere.sample(begin, end, inside if elsewhere is self.run.store else None)
        kind = next((each for each in KINDS if each == self.kind), None)
        fits = finder_of(self.run, self.f).fits
        found = what_differs(Side(self.run.store, inside), Side(elsewhere, rest), fits, kind, MAX_DIFFERENT, MAX_BINS)
        return {
            "asked": (first, last),
            "is_tail": is_all,
            "reaches_further": _reaches_further(inside, first, last),
            "found": found,
            "drawn": [self._drawn(layer) for layer in found.layers if not layer.is_usual],
            "usual": sum(layer.is_usual for layer in found.layers),
            "most": MAX_DIFFERENT,
        }

    def _drawn(self, layer: DifferentLayer) -> Drawn:
        both = layer.inside, layer.outside
        top = max((float(each.max(initial=0) / max(1.0, each.sum())) for each in both), default=1.0)
        inside, outside = (outline(each, top) for each in both)
        negative = int(np.count_nonzero(layer.edges < 0))
        zero = WIDTH * (negative - 0.5) / len(layer.inside) if 0 < negative < len(layer.edges) else None
        return Drawn(layer, layer_address(self.run, layer.tap), inside, outside, zero)


def name_of(run: Run) -> str:
    """Return the name of a run among others. Ranks of one training may share a name, so theirs says the rank."""
    name, joint = run.name or run.id, joint_in(run)
    if joint is None:
        return name
    rank = next((member.place.rank for member in joint.rounds.members.values() if member.run is run), None)
    words = f"rank {rank:,}"
    return name if rank is None or name.endswith(words) else f"{name}, {words}"


def outline(counts: NDArray[np.float64], top: float) -> str:
    """Return the outline of a histogram as the path of a drawing. A bin as high as `top` fills it."""
    if not len(counts) or not counts.sum():
        return ""
    wide = WIDTH / len(counts)
    heights = HEIGHT - (HEIGHT - 2) * counts / counts.sum() / top
    steps = "".join(f"V{height:.2f}H{(place + 1) * wide:.2f}" for place, height in enumerate(heights.tolist()))
    return f"M0 {HEIGHT:g}{steps}V{HEIGHT:g}Z"


FAR: Final = 8  # powers of two: limits of a format that are farther from all values aren't drawn


def drawn_magnitudes(
    edges: NDArray[np.float64], counts: NDArray[np.float64], limits: tuple[float, float, float]
) -> dict[str, Any] | None:
    """Return a histogram of magnitudes and of the zones of a format, from one with signs; None if all values are zero.

    Zones are places in the drawing: where subnormal values, normal ones, and those that are too large begin.
    """
    filled = (counts > 0) & (edges[:-1] * edges[1:] > 0)
    low, high = (np.log2(np.abs(side)) for side in (edges[:-1], edges[1:]))
    low, high = np.minimum(low, high)[filled], np.maximum(low, high)[filled]
    if not len(low):
        return None
    width = float(np.median(high - low))
    wanted = [float(np.log2(each)) for each in (limits[0], limits[2])]
    start = min(float(low.min()), max(wanted[0], float(low.min()) - FAR)) - width
    end = max(float(high.max()), min(wanted[1], float(high.max()) + FAR)) + width
    many = min(MAX_WIDE, max(1, round((end - start) / width)))
    places = np.clip(((low + high) / 2 - start) / (end - start) * many, 0, many - 1).astype(np.intp)
    heights = np.bincount(places, counts[filled], many).astype(np.float64)
    at = [min(1.0, max(0.0, (float(np.log2(each)) - start) / (end - start))) * WIDTH for each in limits]
    top = float(heights.max() / heights.sum())
    return {"path": outline(heights, top), "zones": at, "low": 2.0**start, "high": 2.0**end, "wide": WIDTH}


def _reaches_further(sample: Sample, first: int, last: int) -> bool:
    return sample.first is not None and sample.last is not None and (sample.first < first or sample.last > last)
