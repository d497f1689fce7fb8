"""What the overview says at a glance: key figures as tiles, findings and scalars with their small lines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from hookcore.records import Tap
from hookcore.store import Store

from ..attention import Finding, KeyFigures, Reading
from ..numerals import percent, shown, thousands
from ..runs import Run
from .eventlines import Line, line_of
from .frame import address_of
from .spark import Spark, spark_of

SHOWN_SCALARS: Final = 12
POINTS: Final = 90  # of a small line
WINDOW: Final = 500  # steps of a small line
OWN: Final = "hookcore/"
_KINDS: Final = {"param_grad": "parameters", "output_grad": "outputs"}


@dataclass(frozen=True, slots=True)
class Tile:
    """One key figure: its number, what is said below it, and where a click leads."""

    key: str
    title: str
    text: str
    detail: str = ""
    address: str = ""
    value: float | None = None  # where it is a plain number, which the reader's choice of digits holds for
    tone: str = ""  # bad, nan: with words, never alone
    help: str = ""


@dataclass(frozen=True, slots=True)
class FindingLine:
    """A finding with its small line."""

    line: Line
    finding: Finding
    spark: Spark | None
    address: str
    type: str

    @property
    def acknowledged(self) -> bool:
        """Whether somebody saw it."""
        return self.line.acknowledged


@dataclass(frozen=True, slots=True)
class ScalarLine:
    """A scalar of the user's: its newest value and its small line."""

    name: str
    value: float
    step: int
    spark: Spark | None


def tiles_of(run: Run, figures: KeyFigures) -> list[Tile]:
    """The key figures of a run."""
    return [
        _loss(run, figures),
        _norm(run, figures),
        _gradient(run, figures, "smallest", figures.smallest_gradient),
        _gradient(run, figures, "largest", figures.largest_gradient),
        _nonfinite(run, figures),
        _watched(run, figures),
        _cost(run, figures),
    ]


def _loss(run: Run, figures: KeyFigures) -> Tile:
    loss = figures.loss
    if loss is None:
        return Tile("loss", "Loss", "-", "watcher.log(loss=...) shows it here")
    older = f"step {loss.step:,}" if loss.step != figures.newest_step else ""
    return _number(Tile("loss", loss.name, "", older), loss.value)


def _norm(run: Run, figures: KeyFigures) -> Tile:
    norm, kind = figures.gradient_norm, figures.gradient_kind or ""
    tile = Tile(
        "norm",
        "Gradient norm",
        "-",
        f"of all {_KINDS[kind]}" if kind else "no backward pass yet",
        address_of(run, "flow", kind=kind, stat="norm"),
        help="The root of the sum of squares of every gradient that was captured in one step.",
    )
    return tile if norm is None else _number(tile, norm.value)


def _gradient(run: Run, figures: KeyFigures, which: str, found: Reading | None) -> Tile:
    tile = Tile(
        which,
        f"{which.capitalize()} gradient",
        "-",
        "no finite one" if figures.gradient_kind else "",
        help="By root mean square.",
    )
    if found is None or found.tap is None:
        return tile
    address = layer_address(run, found.tap, found.step)
    return _number(Tile(which, tile.title, "", found.tap.module or "(root)", address, help=tile.help), found.value)


def _nonfinite(run: Run, figures: KeyFigures) -> Tile:
    found = figures.nonfinite_modules
    detail = (
        f"{found[0] or '(root)'}{f' and {len(found) - 1:,} more' if len(found) > 1 else ''}"
        if found
        else "all is finite"
    )
    if figures.newest_step is None:
        detail = ""
    address = address_of(run, "flow", f="is:nan") if found else address_of(run, "flow")
    return Tile("nonfinite", "Non-finite layers", thousands(len(found)), detail, address, tone="nan" if found else "")


def _watched(run: Run, figures: KeyFigures) -> Tile:
    share = f"of {figures.modules:,} modules" if figures.modules else ""
    return Tile("watched", "Modules watched", thousands(figures.modules_captured), share, address_of(run, "hooks"))


def _cost(run: Run, figures: KeyFigures) -> Tile:
    lost = sum(figures.dropped.values()) + sum(int(count) for count in run.books.dropped.values())
    every = figures.every
    words = ["not measured"] if every is None else ["every step" if every == 1 else f"every {every:,} steps"]
    words.append(f"{lost:,} dropped" if lost else "nothing dropped")
    text = "-" if figures.hook_cost is None else percent(figures.hook_cost)
    tile_help = (
        "The share of a step's time that watching adds, over all steps; how often a step is captured; what was lost."
    )
    return Tile("cost", "Cost of the hooks", text, ", ".join(words), address_of(run, "hooks"), help=tile_help)


def _number(tile: Tile, value: float) -> Tile:
    tone = tile.tone if math.isfinite(value) else "nan"
    return Tile(tile.key, tile.title, shown(value), tile.detail, tile.address, value, tone, tile.help)


def layer_address(run: Run, tap: Tap, step: int) -> str:
    """The layer of a tap, at a step."""
    phase = "" if tap.phase == "train" else tap.phase
    return address_of(
        run, "layer", module=tap.module, kind=tap.kind, index=tap.index, call=tap.call or "", phase=phase, step=step
    )


def finding_lines(run: Run) -> list[FindingLine]:
    """What needs attention, the worst first."""
    findings = run.attention.findings()
    modules = {finding.module for finding in findings}
    types = {module.path: module.type for module in run.store.modules() if module.path in modules}
    return [
        FindingLine(
            line_of(run, finding),
            finding,
            spark_of_finding(finding),
            layer_address(run, finding.tap, finding.since_step),
            types.get(finding.module, ""),
        )
        for finding in findings
    ]


def spark_of_finding(finding: Finding) -> Spark | None:
    """Its last finite stretch; behind it a mark where nothing finite came."""
    values = [*finding.spark, math.nan] if not math.isfinite(finding.value) else list(finding.spark)
    return spark_of(np.arange(len(values), dtype=np.int64), np.array(values, float))


def scalar_lines(store: Store, most: int | None) -> tuple[list[ScalarLine], int]:
    """The user's scalars, the loss first, and how many there are."""
    names = [name for name in store.scalar_names() if not name.startswith(OWN)]
    names.sort(key=lambda name: "loss" not in name.casefold())
    newest = store.steps().newest or 0
    found = (_scalar_line(store, name, max(0, newest - WINDOW + 1)) for name in names[:most])
    return [line for line in found if line is not None], len(names)


def _scalar_line(store: Store, name: str, first: int) -> ScalarLine | None:
    series = store.scalars(name, first, points=POINTS)
    if not len(series.mean):
        series = store.scalars(name, points=POINTS)
    if not len(series.mean):
        return None
    step = int(series.last_step[-1])
    newest = store.scalars(name, first=step, points=1)
    return ScalarLine(name, float(newest.mean[-1]), step, spark_of(series.last_step, series.mean))


def why_empty(run: Run, figures: KeyFigures) -> str:
    """Why there is nothing to see, and what to do; nothing where there is something."""
    if figures.newest_step is None:
        if run.state == "live":
            return (
                "No step has been captured yet. The first numbers come with the first step of the optimizer, "
                "or with watcher.step()."
            )
        return "No step has been captured: the run was over before its first step ended."
    if figures.taps == 0:
        return "No module has run a forward pass yet under this watcher: was the model replaced, or compiled before?"
    if figures.gradient_kind is None:
        return (
            "No module has run a backward pass yet (model.eval()? torch.no_grad()? kinds without gradients?). "
            "Activations are shown; gradients come with loss.backward()."
        )
    return ""
