"""Attention over all layers: a request for the maps of one step, and their rollout."""

from __future__ import annotations

from typing import Annotated, Any, Final

import numpy as np
from fastapi import Query, Response
from starlette.exceptions import HTTPException

from hookcore.reading import answers

from ..analysis.attention import Captured, gradient_of, maps_at, taps_like_attention
from ..analysis.named import named
from ..analysis.rollout import AttentionLayer, Fuse, maps_of
from ..analysis.rollout import rollout as roll_out
from ..formats import ARRAYS, StrictJson, Table
from ..runs import Run
from .params import MAX_STEP, MatchParam, RunParam
from .routing import Format, ReplyParam, answered, described, router
from .runs import require_live

MAX_ASKED: Final = 64  # snapshots that a trainer remembers


@router.post(
    "/attention-rollout",
    summary="Request all attention maps",
    status_code=202,
    responses=answered(answers.RequestedMaps, 202, 409),
)
def request_maps(run: RunParam, match: MatchParam) -> Response:
    """Ask the trainer for a snapshot of every output that may be attention, and of its gradient if it has one."""
    require_live(run)
    store = run.store
    taps = taps_like_attention(store, match)
    if not taps:
        among = f" among the modules that fit {match!r}" if match else ""
        raise HTTPException(404, f"no output of this run looks like attention{among}; {_HELP}")
    known = set(store.latest("output_grad").taps)  # the existing ones: weights that don't affect the loss have none
    gradients = [gradient_of(tap) for tap in taps if gradient_of(tap) in known]
    wanted = [*taps, *gradients][:MAX_ASKED]
    commands = run.ask_snapshots(wanted)
    asked = tuple(
        answers.RequestedSnapshot(each.number, answers.Tap.of(None, tap))
        for each, tap in zip(commands, wanted, strict=True)
    )
    look = f"/api/v1/attention-rollout?run={run.id}"
    content = answers.RequestedMaps(run.id, asked, len(taps) + len(gradients) - len(wanted), look)
    return StrictJson(content, 202, {"Location": look})


_HELP: Final = (
    "they must be outputs of modules: use need_weights=True with nn.MultiheadAttention, in transformers "
    'attn_implementation="eager", and a softmax module in your own attention'
)


@router.get("/attention-rollout", summary="Attention over all layers", responses=described(ARRAYS, answers.Rollout))
def rollout(
    run: RunParam,
    reply: ReplyParam,
    match: MatchParam,
    step: Annotated[int | None, Query(ge=0, le=MAX_STEP, description="default: the newest step with maps")] = None,
    sample: Annotated[int, Query(ge=0, le=MAX_STEP, description="index in the batch")] = 0,
    fuse: Annotated[Fuse, Query(description="how the heads of a layer become one map")] = "mean",
    discard: Annotated[
        float, Query(ge=0, lt=1, description="the share of the smallest weights of each row to leave out")
    ] = 0.0,
    gradient: Annotated[bool, Query(description="weight the maps with their gradient")] = False,
    format: Format = None,
) -> Response:
    """Return Abnar and Zuidema's rollout over the captured attention maps of one step. Rows sum to 1.

    It is empty if there are none: request them with POST.
    """
    steps, kept = _chosen(run, match, step)
    layers = [
        AttentionLayer(
            each.snapshot.tap.module, maps_of(each.snapshot.values), _gradient_maps(each) if gradient else None
        )
        for each in kept
    ]
    # Computed before the format is chosen: maps that don't fit together are refused even if the client has a copy.
    how: dict[str, Any] = {"fuse": fuse, "discard": discard, "gradient": gradient}
    matrix = roll_out(layers, sample=sample, **how) if layers else np.zeros((0, 0))

    tokens, label = _names_of(kept, sample, len(matrix))

    def content() -> answers.Rollout:
        return answers.Rollout(
            run=run.id,
            step=kept[0].snapshot.step if kept else None,
            steps=tuple(steps),
            sample=sample,
            samples=min((len(layer.weights) for layer in layers), default=0),
            **how,
            layers=tuple(map(_layer_of, kept, layers)),
            tokens=tokens,
            label=label,
            matrix=matrix,
        )

    def table() -> Table:
        columns = {str(place): np.ascontiguousarray(matrix[:, place]) for place in range(matrix.shape[1])}
        return Table(columns, matrix)

    return reply.arrays(format, content, table=table)


def _layer_of(kept: Captured, layer: AttentionLayer) -> answers.RolloutLayer:
    gradient = None if kept.gradient is None else kept.gradient[0]
    return answers.RolloutLayer(kept.number, answers.Tap.of(None, kept.snapshot.tap), layer.weights.shape[1], gradient)


def _chosen(run: Run, match: str | None, step: int | None) -> tuple[list[int], list[Captured]]:
    maps = maps_at(run.store, match)
    steps = sorted(maps)
    if step is None:
        return steps, maps[steps[-1]] if steps else []
    if step not in maps:
        there_are = "ask for them with POST /api/v1/attention-rollout"
        if steps:
            there_are = f"available steps: {', '.join(map(str, steps[-20:]))}"
        raise HTTPException(404, f"there are no attention maps of step {step}: {there_are}")
    return steps, maps[step]


def _names_of(kept: list[Captured], sample: int, positions: int) -> tuple[tuple[str, ...], str]:
    """Return the names of the positions and of the sample, if all layers that have names have the same ones."""
    found = [named(each.snapshot) for each in kept if each.snapshot.names is not None]
    tokens = {each.tokens_of(sample) for each in found}
    labels = {each.labels[sample] if sample < len(each.labels) else "" for each in found}
    same = next(iter(tokens)) if len(tokens) == 1 else ()
    return same if len(same) == positions else (), next(iter(labels)) if len(labels) == 1 else ""


def _gradient_maps(kept: Captured) -> Any:
    return None if kept.gradient is None else maps_of(kept.gradient[1].values)
