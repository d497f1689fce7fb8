"""The server and the page's script format numbers in the same way."""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookcore.records.vocabulary import counted
from hookcore_app.analysis import numerals

HERE = Path(__file__).parents[1]
CASES = json.loads((HERE / "js" / "number_cases.json").read_text("utf-8"))
WRITERS: dict[str, Callable[[float], str]] = {
    "number": numerals.shown,
    "percent": numerals.percent,
    "count": numerals.thousands,
    "duration": numerals.duration,
    "bytes": numerals.size,
    "pace": numerals.pace,
}
SCRIPT = f"""
import {{ readFileSync }} from "node:fs";
import * as format from {json.dumps((HERE.parent / "app/static/js/format.js").as_uri())};
const words = new Map([["NaN", NaN], ["Infinity", Infinity], ["-Infinity", -Infinity]]);
const asked = JSON.parse(readFileSync(0, "utf8"));
const said = asked.map(([name, values]) => values.map((value) => format[name](words.get(value) ?? value)));
console.log(JSON.stringify(said));
"""


@pytest.mark.parametrize(("name", "value", "words"), [(name, *case) for name, cases in CASES.items() for case in cases])
def test_numbers_are_formatted_as_in_the_table(name: str, value: Any, words: str) -> None:
    assert WRITERS[name](float(value) if isinstance(value, str) else value) == words


def test_a_count_of_one_uses_a_singular_noun() -> None:
    found = [counted(many, "layer") for many in (0, 1, 2000)]
    assert found == ["0 layers", "1 layer", "2,000 layers"]  # as in format.test.mjs


def test_server_and_script_format_a_wide_grid_of_values_alike() -> None:
    values = grid()
    # Times, bytes, and counts are bounded: no clock measures fractions of a picosecond, or the age of the universe.
    some = [value for value in values if value == 0 or not math.isfinite(value) or 1e-12 < abs(value) < 1e15]
    asked = {name: values if name in ("number", "percent") else some for name in WRITERS}
    asked["count"] = asked["bytes"] = [float(round(value)) for value in some if math.isfinite(value)]
    given = [[name, [word_of(value) for value in some]] for name, some in asked.items()]
    found = subprocess.run(
        ["node", "--input-type=module", "-e", SCRIPT],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    for (name, some), said in zip(asked.items(), json.loads(found.stdout), strict=True):
        own = [WRITERS[name](int(value) if name == "count" else value) for value in some]
        differing = [(name, value, one, two) for value, one, two in zip(some, own, said, strict=True) if one != two]
        assert differing == []


def grid() -> list[float]:
    """Return values of every magnitude, values around the limits, and ties."""
    dice = random.Random(9)
    values = [0.0, math.nan, math.inf, -math.inf, 1e-45, 5e-324, 1.7976931348623157e308]
    values += [
        sign * digit * 10.0**power for sign in (1, -1) for digit in (1, 5, 9.9995, 9.9994) for power in range(-9, 13)
    ]
    values += [whole + 0.5 for whole in range(0, 4000, 7)]
    values += [math.nextafter(edge, to) for edge in (1e-3, 0.2, 10, 60, 999.5, 1e6) for to in (0, math.inf)]
    values += [dice.choice((1, -1)) * 10 ** dice.uniform(-12, 12) for _ in range(3000)]
    return values


def word_of(value: float) -> float | str:
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
