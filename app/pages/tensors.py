"""The page Tensors: the list of snapshots, a view of one of them, and a form to request another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from hookcore.records import KINDS, Snapshot
from hookcore.records.vocabulary import KIND_TITLES
from hookcore.store import Store

from ..analysis.facts import finder_of
from ..analysis.tiles import statistics_of
from ..api.snapshots import MAX_VALUES
from ..runs import Run
from .frame import render, run_of

MAX_SHOWN: Final = 300
MAX_MODULES: Final = 20_000

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Shown:
    """A snapshot without scripts: its first matrix, and its facts."""

    number: int
    label: str
    snapshot: Snapshot
    part: str  # the part to show as an image; "-" if there is none
    statistics: dict[str, float]


def kept_of(run: Run, text: str) -> list[tuple[int, Snapshot]]:
    """Return the snapshots whose module matches the find box, newest step first."""
    finder = finder_of(run, text)
    found = [(number, each) for number, each in run.store.numbered_snapshots() if finder.fits(each.tap.module)]
    return sorted(found, key=lambda pair: -pair[1].step)  # within a step, in the order of the requests


def shown_of(store: Store, number: int | None) -> Shown | None:
    """Return one snapshot to show."""
    for each, snapshot in store.numbered_snapshots():
        if each == number:
            part = ",".join(["0"] * (snapshot.values.ndim - 2))
            cells = snapshot.values[(0,) * max(0, snapshot.values.ndim - 2)] if snapshot.values.size else None
            drawn = cells is not None and 0 < cells.size <= MAX_VALUES
            return Shown(each, snapshot.tap.label, snapshot, part if drawn else "-", statistics_of(snapshot.values))
    return None


@router.get("/runs/{run_id}/tensors", response_class=HTMLResponse)
def tensors_page(
    request: Request,
    run_id: str,
    snapshot: str = "",
    f: Annotated[str, Query(max_length=1000, description="the content of the find box")] = "",
) -> HTMLResponse:
    """List snapshots and show one. An invalid number is ignored."""
    run = run_of(request, run_id)
    kept = kept_of(run, f)
    number = int(snapshot) if snapshot.isascii() and snapshot.isdigit() and len(snapshot) < 20 else None
    query = request.query_params
    return render(
        request,
        "tensors",
        run=run,
        kept=[(each, one.tap.label, one) for each, one in kept[:MAX_SHOWN]],
        kept_total=len(kept),
        shown=shown_of(run.store, number if number is not None or not kept else kept[0][0]),
        asked_for=number,
        modules=[module.path for module in run.store.modules()[:MAX_MODULES]],
        wanted={"module": query.get("module", ""), "kind": query.get("kind", KINDS[0])},
        kind_labels=KIND_TITLES,
    )
