"""Numbers, times, titles, and answers as a person reads them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

from hookcore.findings import RULES, Rule
from hookcore.reading.answers import CastTo, Tap
from hookcore.records.vocabulary import OWN_RULE

# Numbers and times as a person reads them: letter for letter what js/format.js writes once the page's script runs.

DIGITS: Final = 4
_SMALL: Final = 1e-3  # below it, and from _LARGE on, a number has an exponent
_LARGE: Final = 1e6


def shown(value: float) -> str:
    """Write a number with four digits: 0.01235, 1.235e-5, 12,350; NaN and the infinities by name."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "0"
    rounded = _significant(value, DIGITS)
    if _SMALL <= abs(value) < _LARGE:
        return _plain(rounded, commas=True)
    digits, exponent = f"{rounded:.{DIGITS - 1}e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"


def _significant(value: float, digits: int) -> Decimal:
    """Round to this many digits; a tie goes away from zero, as in a browser."""
    return Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal(Decimal(value))


def _plain(value: Decimal, *, commas: bool = False) -> str:
    """Write without an exponent and without zeros at the end."""
    text = f"{value:,f}" if commas else f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(fraction: float) -> str:
    """Write a share in percent; a small one that is not zero does not look like zero."""
    if not math.isfinite(fraction):
        return shown(fraction)
    if 0 < fraction < 0.001:
        return "< 0.1%"
    if abs(fraction) >= 1e4:
        return f"{shown(fraction * 100)}%"
    rounded = Decimal(fraction * 100 or 0.0).quantize(Decimal("0.1"), ROUND_HALF_UP)
    return f"{rounded:f}%"


def why_not(cast: CastTo) -> str:
    """Return why a tensor doesn't fit into a format; why it does if it fits."""
    parts = [f"{percent(cast.underflow[0])} of its values become zero"] if cast.underflow[0] else []
    parts += [f"{percent(cast.saturated[0])} are too large"] if cast.saturated[0] else []
    noise = f"the noise is {percent(cast.noise)}"
    if cast.most_noise > 2 * cast.noise:
        rest = f"without the largest {100 * (1 - cast.most):.2g}%, which set the scale,"
        noise = f"{rest} the noise is {percent(cast.most_noise)}"
    return "; ".join(filter(None, (", ".join(parts), noise)))


def thousands(number: int | float | None) -> str:
    """Write a count with commas; a dash if there is none."""
    if number is None:
        return "-"
    if not math.isfinite(number):
        return shown(number)
    return f"{number:,}" if isinstance(number, int) else _plain(Decimal(number).quantize(Decimal("0.001")), commas=True)


def duration(seconds: float) -> str:
    """Write a time with at most two units: 3.2 ms, 12 s, 2 min 5 s, 3 h 12 min, 2 d 4 h."""
    if not math.isfinite(seconds):
        return shown(seconds)
    if seconds < 0:
        return f"-{duration(-seconds)}"
    for below, digits, scale, unit in ((1e-3, 3, 1e6, "\u00b5s"), (1, 3, 1e3, "ms"), (10, 2, 1, "s")):
        if seconds < below:
            return f"{_plain(_significant(seconds * scale, digits))} {unit}"
    return _long(math.floor(seconds + 0.5))


def _long(whole: int) -> str:
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole, 60, "min", 1, "s")
    return _two(whole, 3600, "h", 60, "min") if whole < 86400 else _two(whole, 86400, "d", 3600, "h")


def _two(whole: int, large: int, its: str, small: int, unit: str) -> str:
    rest = whole % large // small
    return f"{whole // large} {its}" + (f" {rest} {unit}" if rest else "")


def pace(per_second: float) -> str:
    """Write steps a second: 18/s, 1.2/s; for slow trainings the time of a step: 3.5 s a step."""
    if not math.isfinite(per_second) or per_second <= 0:
        return ""
    if per_second < 0.2:
        return f"{duration(1 / per_second)} a step"
    text = f"{math.floor(per_second + 0.5):,}" if per_second >= 10 else _plain(_significant(per_second, 2))
    return f"{text}/s"


def size(nbytes: float) -> str:
    """Write bytes in the unit that fits: 512 B, 1.5 kB, 12 MB."""
    if not math.isfinite(nbytes):
        return shown(nbytes)
    units = ["B", "kB", "MB", "GB", "TB"]
    while abs(nbytes) >= 999.5 and len(units) > 1:
        nbytes /= 1000
        units.pop(0)
    return f"{_plain(_significant(nbytes, 3))} {units[0]}"


# The titles of rules and events, as all pages show them.


def title_of_rule(name: str) -> str:
    """Return the title of a rule; one of the user has none but its name."""
    rule: Rule | None = RULES.get(name)  # type: ignore[call-overload]
    return title_of(name) if rule is None else rule.title


EVENT_TITLES: Final = {  # of those whose name, which programs know, says little to people
    "capsule": "Saved step",
    "capsule-missed": "Step not saved",
    "explained": "Cause found",
    "explanation-failed": "Cause not found",
    "nonfinite-step": "NaN/Inf in a step",
    "out-of-turn": "Extra step captured",
    "replayed": "Step replayed",
}


def title_of(name: str) -> str:
    """Return the title of an event."""
    return EVENT_TITLES.get(name) or name.removeprefix(OWN_RULE).replace("-", " ").capitalize()


# Answers in words: their lines, tables, and texts of a training, which are data: quoted, on one line, and bounded.

MAX_TEXT: Final = 600  # characters of a quoted sentence
MAX_NAME: Final = 120  # and of a quoted name
MAX_ROWS: Final = 50  # of a table
_PLAIN: Final = re.compile(r"[\w.\-\[\]/:+()]{1,80}")  # a name in which nobody can write a sentence
_NUMERIC: Final = frozenset("-+0123456789N<I")  # what a number begins with
_NUMBERS: Final = 30  # characters: a wider column has words


@dataclass(frozen=True, slots=True)
class Told:
    """An answer in words, the answers of REST that it was made of, and a picture if one was asked for."""

    text: str
    answers: dict[str, Any] = field(default_factory=dict)
    image: bytes = b""


# Texts of a training as data.


def quoted(text: str, most: int = MAX_TEXT) -> str:
    """Return a text of a training in double quotes: on one line, bounded, and without anything that isn't printed."""
    cut = text if len(text) <= most else f"{text[:most]}\u2026"
    plain = "".join(each if each.isprintable() else each.encode("unicode_escape", "replace").decode() for each in cut)
    return json.dumps(plain, ensure_ascii=False)


def named(name: str) -> str:
    """Return a name as it is if it is a single word, and quoted otherwise."""
    return name if _PLAIN.fullmatch(name) else quoted(name, MAX_NAME)


def labeled(tap: Tap) -> str:
    """Return the label of a tap, quoted unless all names in it are single words."""
    plain = all(not name or _PLAIN.fullmatch(name) for name in (tap.module, tap.index))
    return tap.label if plain else quoted(tap.label, MAX_NAME)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; columns of numbers are set to the right."""
    every = [tuple(head), *map(tuple, rows)]
    columns = list(zip(*every, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [
        width < _NUMBERS and all(not cell or cell[0] in _NUMERIC for cell in column[1:])
        for column, width in zip(columns, widths, strict=True)
    ]
    return [
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in every
    ]


def title(rule: str) -> str:
    """Return the title of a rule; that of a user's own one is quoted."""
    return title_of_rule(rule) if rule in RULES else quoted(title_of_rule(rule), MAX_NAME)


def told(lines: Iterable[str], image: bytes = b"", /, **made_of: Any) -> Told:
    """Return an answer of some lines."""
    return Told("\n".join(lines), made_of, image)
