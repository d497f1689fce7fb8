"""Globs and regular expressions for names. No pattern can hang: RE2's run time is linear in the length of the name.

Lookaround and backreferences are not supported. This file knows neither modules nor taps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import re2  # type: ignore[import-untyped]

from hookcore.errors import PatternError

MAX_LENGTH: Final = 1000  # characters of a pattern
MAX_BYTES: Final = 1 << 22  # memory of one compiled expression, including its automaton
MAX_SIZE: Final = 5000  # instructions of a compiled expression; matching takes at most the name's length times this

Fits = Callable[[str], bool]


def matcher(pattern: str) -> Fits:
    """Return a matcher of whole names for a glob or, after "re:", a regular expression."""
    return expression(pattern.removeprefix("re:")) if pattern.startswith("re:") else glob(pattern)


def glob(pattern: str, *, ignore_case: bool = False) -> Fits:
    """Return a matcher of whole names for a glob: `*` any text, dots included, `?` a character, `[a-z]`, `[!a-z]`."""
    require_length(pattern)
    try:
        return _compile(f"(?s{'i' * ignore_case})" + "".join(_translate(pattern)))
    except re2.error:
        raise PatternError(f"{pattern!r} is too large a pattern: use fewer ? and [...]") from None


def expression(text: str, *, ignore_case: bool = False) -> Fits:
    """Return a matcher of whole names for a regular expression."""
    require_length(text)
    try:
        return _compile("(?i)" * ignore_case + text)
    except re2.error as error:
        raise PatternError(
            f"{_shown(f're:{text}')} is not a regular expression: {_reason(error)} of {_shown(text)}. {_hint(text)}"
            "For a glob, omit 're:'."
        ) from None


def literal(text: str) -> str:
    """Return a regular expression that matches a text alone, and has no space."""
    return "".join(map(_escape, text))


def require_length(pattern: str) -> None:
    """Raise PatternError if a pattern is too long."""
    if len(pattern) > MAX_LENGTH:
        raise PatternError(
            f"a pattern of {len(pattern)} characters ({pattern[:40]!r}...) is too long: use at most {MAX_LENGTH}"
        )


def _compile(text: str) -> Fits:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True  # capturing groups would need a slower RE2 engine
    options.max_mem = MAX_BYTES
    compiled = re2.compile(_encode(text), options)
    re2.purge()  # its cache would keep a hundred automata
    if compiled.programsize > MAX_SIZE:
        raise re2.error("too many repetitions")
    return lambda name: compiled.fullmatch(_encode(name)) is not None


def _encode(text: str) -> bytes:
    # A name can contain half a surrogate pair, which has no UTF-8 encoding.
    return text.encode("utf-8", "replace")


def _reason(error: Exception) -> str:
    given = error.args[0] if error.args else ""
    return given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)


def _hint(text: str) -> str:
    if any(sign in text for sign in ("(?=", "(?!", "(?<=", "(?<!", "(?P=", "(?>")) or any(
        f"\\{digit}" in text for digit in range(1, 10)
    ):
        return "Lookaround and backreferences are not supported, so that no expression can hang. "
    return ""


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}..."


def _translate(pattern: str) -> Iterator[str]:
    place, was_star = 0, False
    while place < len(pattern):
        sign = pattern[place]
        end = _end_of_set(pattern, place) if sign == "[" else -1
        if sign == "*":
            yield "" if was_star else ".*"
        elif sign == "?":
            yield "."
        elif end > 0:
            yield _translate_set(pattern[place + 1 : end])
            place = end
        else:
            yield _escape(sign)
        was_star = sign == "*"
        place += 1


def _end_of_set(pattern: str, start: int) -> int:
    """Return where the set that starts here ends, or -1 if it doesn't: the bracket is then literal."""
    place = start + 1
    place += pattern.startswith("!", place)
    place += pattern.startswith("]", place)
    return pattern.find("]", place)


def _translate_set(inside: str) -> str:
    negated = inside.startswith("!")
    signs, parts = inside[negated:], []
    while signs:
        if len(signs) > 2 and signs[1] == "-":
            if signs[0] <= signs[2]:  # a reversed range is empty
                parts.append(f"{_escape(signs[0])}-{_escape(signs[2])}")
            signs = signs[3:]
        else:
            parts.append(_escape(signs[0]))
            signs = signs[1:]
    if not parts:
        return "." if negated else r"[^\x00-\x{10FFFF}]"
    return f"[{'^' * negated}{''.join(parts)}]"


def _escape(sign: str) -> str:
    return sign if sign.isalnum() or sign == "_" else f"\\x{{{ord(sign.encode('utf-8', 'replace').decode()):X}}}"
