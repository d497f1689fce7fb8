"""The requests of a page over the socket, validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from hookcore.config.patterns import STRUCTURE, parse
from hookcore.errors import ArgumentError
from hookcore.reading.answers.live import ColorScale
from hookcore.store import STAT_NAMES, checks

from .frames import NOBODY

MAX_ROWS: Final = 10_000
MAX_ID: Final = NOBODY - 1
MAX_PINNED: Final = 4096
DEFAULT_ROWS: Final = "fit:600"
MAX_STATS: Final = len(STAT_NAMES)

View = Literal["heatmap", "latest", "scalars", "events", "incidents", "runs"]
_Id = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]
_Sequence = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_First = Annotated[int, msgspec.Meta(gt=-(2**53), lt=2**53)]
_Name = Annotated[str, msgspec.Meta(max_length=1000)]


class _Request(msgspec.Struct, tag_field="op", forbid_unknown_fields=True, frozen=True, kw_only=True):
    id: _Id


class Subscribe(_Request, tag="subscribe", frozen=True, kw_only=True):
    """Starts a subscription, or replaces the one with the same id."""

    view: View
    run: _Name | None = None
    kind: _Name | None = None
    stat: _Name | None = None
    stats: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=MAX_STATS)] = ()
    match: _Name | None = None
    rows: _Name | Annotated[tuple[_Number, ...], msgspec.Meta(max_length=MAX_PINNED)] | None = None
    first: _First | None = msgspec.field(name="from", default=None)
    last: _Number | None = msgspec.field(name="to", default=None)
    columns: Annotated[int, msgspec.Meta(ge=1, le=4000)] = 500
    hz: Annotated[float, msgspec.Meta(ge=1, le=30)] = 10.0
    dtype: Literal["f4", "u8"] = "f4"
    scale: Literal["log", "linear"] = "log"
    low: float | None = None
    high: float | None = None


class Unsubscribe(_Request, tag="unsubscribe", frozen=True, kw_only=True):
    """Ends a subscription."""


class Ack(_Request, tag="ack", frozen=True, kw_only=True):
    """Everything up to this number has arrived."""

    sequence: _Sequence


class Resume(_Request, tag="resume", frozen=True, kw_only=True):
    """Continue after this number."""

    sequence: _Sequence


Request = Subscribe | Unsubscribe | Ack | Resume
_decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def read(text: str) -> Request:
    """Parse a request. Raises ArgumentError with the problem."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ArgumentError(f"this is not a request of the socket: {error}; docs/live.md lists them") from None


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """The contents of a subscription. Two with the same spec get the same bytes."""

    view: View
    kind: str | None
    match: str | None
    stats: tuple[str, ...]
    rows: str | tuple[int, ...] | None
    first: int | None  # negative: counted back from the last one
    last: int | None
    columns: int
    dtype: Literal["f4", "u8"]
    scale_kind: Literal["log", "linear"]
    scale: ColorScale | None  # None until it is computed


def spec_of(asked: Subscribe) -> ViewSpec:
    """Return the spec of a request, checked as a whole."""
    stats = asked.stats or ((asked.stat,) if asked.stat else ())
    if asked.view in ("heatmap", "latest"):
        stats = stats or (("rms",) if asked.view == "heatmap" else ("rms", "min", "max", "nan", "inf"))
        for stat in stats:
            checks.require("stat", stat, STAT_NAMES)
        checks.require_kind(asked.kind)
        check_match(asked.match)
    if asked.view == "heatmap":
        _check_heatmap(asked, stats)
    elif asked.dtype == "u8":
        raise ArgumentError(f"a view {asked.view!r} in u8: colors are for heatmaps; give dtype f4")
    rows = asked.rows
    if rows is None and asked.view == "heatmap":
        rows = DEFAULT_ROWS
    if rows is not None:
        read_rows(rows, asked.view)
    return ViewSpec(
        asked.view,
        asked.kind,
        asked.match,
        tuple(dict.fromkeys(stats)),
        tuple(sorted(set(rows))) if isinstance(rows, tuple) else rows,
        asked.first,
        asked.last,
        asked.columns,
        asked.dtype,
        asked.scale,
        _scale_of(asked),
    )


def check_match(match: str | None) -> None:
    """Raise PatternError unless a match is a pattern whose answer changes only when taps come."""
    if match is not None:
        parse(match, STRUCTURE)


def _check_heatmap(asked: Subscribe, stats: tuple[str, ...]) -> None:
    if asked.kind is None:
        raise ArgumentError("a heatmap without a kind: give one, such as output_grad")
    if len(stats) != 1:
        raise ArgumentError(f"a heatmap of {len(stats)} stats: a heatmap shows one stat, so subscribe once for each")


def _scale_of(asked: Subscribe) -> ColorScale | None:
    if asked.low is None and asked.high is None:
        return None
    low, high = asked.low, asked.high
    least = 0.0 if asked.scale == "log" else float("-inf")
    if low is None or high is None or not least < low < high:
        above = ", both above 0 for a log scale" if asked.scale == "log" else ""
        raise ArgumentError(f"low={low} and high={high}: give both, low below high{above}; or neither")
    return ColorScale(asked.scale, low, high)


def read_rows(rows: str | tuple[int, ...], view: str) -> tuple[str, int, int]:
    """Return how rows are selected: ("fit", n, 0), ("idx", first, last), or ("numbers", 0, 0)."""
    if isinstance(rows, tuple):
        return "numbers", 0, 0
    how, _, what = rows.partition(":")
    parts: list[Any] = [int(part) for part in what.split("-") if part.isdecimal() and len(part) < 9]
    if how == "fit" and view == "heatmap" and len(parts) == 1 and what == str(parts[0]) and 1 <= parts[0] <= MAX_ROWS:
        return "fit", parts[0], 0
    if how == "idx" and len(parts) == 2 and 0 <= parts[1] - parts[0] < MAX_ROWS and what.count("-") == 1:
        return "idx", parts[0], parts[1]
    fits = '"fit:600" (heatmaps only), ' if view == "heatmap" else ""
    raise ArgumentError(f'rows={rows!r} is invalid: use {fits}"idx:120-160" or a list of tap numbers')
