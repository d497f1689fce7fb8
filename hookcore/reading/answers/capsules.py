"""Capsules: steps that a training saved, and what a replay found in each."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from hookcore.reading.answers.base import Answer, Number

State = Literal["saved", "running", "explained", "failed"]


class SourceLine(Answer, frozen=True):
    """A line of the training's code, with the lines around it."""

    file: str
    line: int
    function: str
    source: tuple[str, ...]
    first: Annotated[int, Meta(description="the number of the first of these lines")]

    @property
    def code(self) -> str:
        """The line itself; empty if its file couldn't be read."""
        place = self.line - self.first
        return self.source[place].strip() if place < len(self.source) else ""


class TensorFacts(Answer, frozen=True):
    """A tensor in a replay; minimum, maximum, and mean are those of the finite values."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str
    nan: int
    inf: int
    min: float | None
    max: float | None
    mean: float | None
    values: Annotated[tuple[str, ...], Meta(description="the values at the bad elements")]


class Suspect(Answer, frozen=True):
    """Where a non-finite value came from."""

    origin: Literal["operator", "given", "constant", "uninitialized"]
    operator: Annotated[str, Meta(description="its name, or the given value")]
    number: Annotated[int, Meta(description="its position among the step's operators")]
    phase: Annotated[str, Meta(description="forward or backward")]
    node: Annotated[str, Meta(description="the autograd node that ran it, in the backward pass")]
    stack: Annotated[tuple[SourceLine, ...], Meta(description="the training's code, innermost last")]
    inputs: tuple[TensorFacts, ...]
    output: TensorFacts | None
    elements: Annotated[tuple[tuple[int, ...], ...], Meta(description="the indices of the first bad elements")]
    bad: Annotated[int, Meta(description="the number of bad elements")]
    module: Annotated[str, Meta(description="in which it ran, below the replayed model; in the backward pass, too")] = (
        ""
    )


class ReplayedLayer(Answer, frozen=True):
    """An activation of a replayed step, or its gradient."""

    module: Annotated[str, Meta(description="below the replayed model")]
    kind: Literal["output", "output_grad"]
    index: str
    call: int
    values: Annotated[
        tuple[float | None, ...], Meta(description="count, nan, inf, zero, mean, std, min, max, rms, norm")
    ]


class Explanation(Answer, frozen=True):
    """The result of a replay."""

    sentence: str
    culprit: Suspect | None
    others: Annotated[tuple[Suspect, ...], Meta(description="further origins; most reach no result of the step")]
    bad_results: tuple[str, ...]
    operators: int
    exact: Annotated[bool, Meta(description="whether the outputs matched the training, bit for bit")]
    differences: Annotated[tuple[str, ...], Meta(description="what didn't match, or couldn't be compared")]
    error: Annotated[str, Meta(description="the exception that the step raised")]
    above: Annotated[float | None, Meta(description="magnitudes above it also counted as bad")] = None
    layers: Annotated[
        tuple[ReplayedLayer, ...], Meta(description="the affected ones in order, and the finite ones before them")
    ] = ()


class Capsule(Answer, frozen=True):
    """A step that was saved on this machine."""

    id: Annotated[str, Meta(description="its name in addresses")]
    step: int
    reason: str
    model: str
    weights: Annotated[str, Meta(description="whether the weights are those before or after the update")]
    time_s: Number
    size: int
    path: Annotated[str, Meta(description="for `hookcore replay`")]
    state: State
    failure: Annotated[str, Meta(description="why it could not be explained")]
    explanation: Explanation | None
    incident: Annotated[str, Meta(description="the id of the incident after which it was requested; empty if none")]


class Capsules(Answer, frozen=True):
    """The steps that a run saved and that this server can read, oldest first."""

    run: str
    total: int
    capsules: tuple[Capsule, ...]
