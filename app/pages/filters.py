"""How templates write times, paths, texts, and numbers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Final

from markupsafe import Markup, escape

from hookcore.records.vocabulary import counted

from ..analysis.numerals import pace, percent, shown, size, thousands

LONG_AGO_S: Final = 30 * 86400.0  # from then on, a date says more
_TAIL_LETTERS: Final = 12  # of a name that is shortened in the middle
_NAME_LETTERS: Final = 5  # of what is shortened in a path: fewer say nothing


def moment(time_s: float) -> str:
    """Return a time in ISO format, to the second; "" if no calendar has it."""
    try:
        return datetime.fromtimestamp(time_s, timezone.utc).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


def since(time_s: float, now_s: float) -> str:
    """Write when something was: just now, 12 s ago, 3 h ago; the date if it was more than a month ago."""
    passed_s = now_s - time_s
    if not passed_s <= LONG_AGO_S:
        return moment(time_s).partition("T")[0]
    for size_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed_s >= size_s:
            return f"{int(passed_s // size_s)} {unit} ago"
    return "just now" if passed_s < 2 else f"{int(passed_s)} s ago"


def basename(path: str) -> str:
    """Return the last part of a path of any operating system."""
    return path.replace("\\", "/").rpartition("/")[2]


def ends(text: str) -> Markup:
    """Return a text whose middle shrinks if space is short, because names often differ at their ends."""
    if len(text) <= _TAIL_LETTERS:
        return escape(text)
    parts = Markup('<span class="ends"><span>{}</span><span>{}</span></span>')
    return parts.format(text[:-_TAIL_LETTERS], text[-_TAIL_LETTERS:])


def code(text: str) -> Markup:
    """Render text between backticks as code."""
    # split yields text and code in turn; Markup.format escapes its arguments
    parts = [
        Markup("<code>{}</code>" if place % 2 else "{}").format(part) for place, part in enumerate(text.split("`"))
    ]
    return Markup("").join(parts)


def breakable(text: str) -> Markup:
    """Return a text whose paths wrap after dots, slashes, and underscores, and so never inside a word or a number."""
    return Markup("<wbr>").join(re.split(r"(?<=[/_=:\\])(?=\w)|(?<=\w\.)(?=[^\W\d])|(?<=[^\W\d]\.)(?=\d)", text))


def middle(text: str, most: int) -> str:
    """Shorten a text in its middle to `most` characters, because names often differ at both ends."""
    if len(text) <= most:
        return text
    end = (most - 1) * 3 // 5
    return f"{text[: most - 1 - end]}\u2026{text[-end:]}"


def short_path(text: str, most: int) -> str:
    """Shorten what stands between the numbers of a module's path, because these tell layers apart."""
    if len(text) <= most:
        return text

    def cut(longest: int) -> str:
        return re.sub(r"[^. \d]+", lambda run: middle(run[0], longest), text)

    lengths = range(_NAME_LETTERS + 1, most + 1)
    fit = bisect_right(lengths, most, key=lambda longest: len(cut(longest)))
    return cut(lengths[fit - 1]) if fit else middle(text, most)


def camels(name: str) -> Markup:
    """Return the name of a class that wraps before its words."""
    return Markup("<wbr>").join(re.findall(r"[A-Z]?[^A-Z]+|[A-Z]+(?![a-z])", name) or [name])


FILTERS: Final[tuple[Callable[..., Any], ...]] = (
    ends,
    middle,
    short_path,
    breakable,
    camels,
    shown,
    percent,
    thousands,
    counted,
    pace,
    moment,
    since,
    size,
    basename,
    code,
)
