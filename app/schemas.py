"""The store's answers in JSON: plain lists and dictionaries, in which every number is one that JSON has.

JSON knows no NaN and no infinity. They are facts here, so they travel as the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.responses import JSONResponse

from hookcore.records import Tap
from hookcore.store import Latest, Series, TapList


class StrictJson(JSONResponse):
    """A response that any JSON parser can read: a NaN that was not turned into a string is an error here."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def number_of(value: float) -> float | str:
    """`value` as JSON can say it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def numbers_of(values: NDArray[Any]) -> list[float | str]:
    """A one-dimensional array as a list that JSON can say."""
    plain: list[float | str] = values.tolist()
    if values.dtype.kind == "f":
        for place in np.flatnonzero(~np.isfinite(values)):
            plain[place] = number_of(float(values[place]))
    return plain


def taps_as_json(found: TapList) -> dict[str, Any]:
    """The taps, with their run-wide numbers."""
    return {"taps": [_tap_as_json(int(number), tap) for number, tap in zip(found.numbers, found.taps, strict=True)]}


def latest_as_json(latest: Latest) -> dict[str, Any]:
    """The newest values of each tap, in the order of `stats`."""
    rows = zip(latest.numbers, latest.taps, latest.steps, latest.values, strict=True)
    taps = [
        {**_tap_as_json(int(number), tap), "step": int(step), "values": numbers_of(values)}
        for number, tap, step, values in rows
    ]
    return {"stats": list(latest.stats), "taps": taps}


def series_as_json(series: Series) -> dict[str, Any]:
    """One stat over time, column by column: item i of each list speaks of the steps first_step[i] to last_step[i]."""
    columns = ("first_step", "last_step", "mean", "min", "max", "present", "nonfinite")
    return {"name": series.name, "tap": series.tap, **{name: numbers_of(getattr(series, name)) for name in columns}}


def _tap_as_json(number: int, tap: Tap) -> dict[str, Any]:
    return {"number": number, **asdict(tap)}
