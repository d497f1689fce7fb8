"""Numbers as JSON can say them, quickly: NaN and the infinities are strings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from hookcore.records import Event, Tap
from hookcore.store import Series

from ..findings import key_of_event

_WORDS = {True: "Infinity", False: "-Infinity"}


def json_of(content: Any) -> bytes:
    """Bytes of content that may hold fragments and arrays of finite numbers."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def number(value: float) -> float | str:
    """One number."""
    if np.isfinite(value):
        return float(value)
    return "NaN" if value != value else _WORDS[value > 0]


def numbers(values: NDArray[Any]) -> Any:
    """An array, as something that `json_of` writes."""
    if values.dtype.kind != "f" or bool(np.isfinite(values).all()):
        return np.ascontiguousarray(values)
    if bool(np.isnan(values).all()):  # a ratio is NaN in all but a few taps
        return orjson.Fragment(b"[" + b",".join([b'"NaN"'] * len(values)) + b"]")
    plain: list[Any] = values.tolist()
    for place in np.flatnonzero(~np.isfinite(values)):
        plain[place] = number(float(values[place]))
    return plain


def tap_as_json(tap_number: int, tap: Tap) -> dict[str, Any]:
    """A tap and its number."""
    return {
        "number": tap_number,
        "module": tap.module,
        "kind": tap.kind,
        "index": tap.index,
        "call": tap.call,
        "phase": tap.phase,
    }


def event_as_json(event: Event) -> dict[str, Any]:
    """An event and the key by which it is acknowledged; its time may be what JSON cannot say."""
    return {**asdict(event), "time_s": number(event.time_s), "key": key_of_event(event)}


def series_as_json(series: Series) -> dict[str, Any]:
    """A scalar over time, column by column, as `GET /api/v1/series` writes it."""
    columns = ("first_step", "last_step", "mean", "min", "max", "present", "nonfinite")
    return {"name": series.name, "tap": series.tap, **{name: numbers(getattr(series, name)) for name in columns}}
