"""The language of the find box for runs: `lr>0.1 and tag:sweep and not state:crashed`.

A word is searched in a run's texts. `name:text` is true if the value contains the text; a tag or a number must equal
it. `=`, `!=`, `<`, `<=`, `>`, and `>=` compare values. There are also `or`, `not`, and parentheses; `and` may be left
out.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import Final

from hookcore.config import did_you_mean, value_of_text
from hookcore.errors import ArgumentError
from hookcore.records import Value

from .state import STATES
from .traits import Traits

MAX_TERMS: Final = 100
MAX_DEPTH: Final = 20
EXAMPLE: Final = "lr>0.1 and tag:sweep and state:crashed"
_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<paren>[()])
      | (?P<name>[^\s()"'<>=!:]+)\s*(?P<sign><=|>=|!=|==|=|<|>|:)\s*(?P<value>"[^"]*"|'[^']*'|[^\s()"']+)?
      | (?P<word>"[^"]*"|'[^']*'|[^\s()"']+)
      | (?P<odd>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ORDERS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


Query = Callable[[Traits], bool]  # a part of a query, or all of it: whether a run is wanted


def _compare(value: Value, sign: str, text: str) -> bool:
    wanted = value_of_text(text)
    if sign in _ORDERS:
        return _is_number(value) and _ORDERS[sign](float(value), float(wanted))  # type: ignore[arg-type]
    if sign == "!=":
        return not _compare(value, "=", text)
    if _is_number(value) and _is_number(wanted):
        return float(value) == float(wanted)  # type: ignore[arg-type]
    if isinstance(value, str):
        folded = value.casefold()
        return text.casefold() in folded if sign == ":" else text.casefold() == folded
    return value is wanted  # a truth value, or None


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def find_runs(text: str, runs: Iterable[Traits]) -> list[Traits]:
    """Return the runs that match a query. Raises ArgumentError if it is malformed or names a value that no run has."""
    parser = _Parser(text)
    query, all_runs = parser.read(), list(runs)
    for name in parser.names:
        if all_runs and not any(run.find(name) for run in all_runs):
            known = dict.fromkeys(each for run in all_runs for each in (*run.names(), *_last_parts(run)))
            hint = did_you_mean(name, [*known, "state", "group", "tag", "steps"])
            raise ArgumentError(f"no run has a value {name!r}.{hint} To search for text, put it in quotes.")
    return [run for run in all_runs if query(run)]


def names_in(text: str) -> frozenset[str]:
    """Return the names that a query compares with values; none if it is malformed."""
    parser = _Parser(text)
    try:
        parser.read()
    except ArgumentError:
        return frozenset()
    return frozenset(parser.names)


def _last_parts(run: Traits) -> Iterable[str]:
    return (re.split(r"[./]", name)[-1] for name in run.names())


class _Parser:
    """Reads a query from left to right: `or` binds less than `and`, `and` less than `not`."""

    def __init__(self, text: str) -> None:
        self.names: list[str] = []  # that some run must have
        self._tokens = list(_TOKEN.finditer(text.strip()))
        self._place = self._depth = 0
        if len(self._tokens) > MAX_TERMS:
            raise ArgumentError(f"the query has {len(self._tokens)} parts: at most {MAX_TERMS} are allowed")

    def read(self) -> Query:
        if not self._tokens:
            return lambda run: True
        query = self._read_any()
        if self._place < len(self._tokens):
            raise ArgumentError("unmatched parenthesis ): remove it, or put the text in quotes")
        return query

    def _read_any(self) -> Query:
        parts = [self._read_all()]
        while self._take("or"):
            parts.append(self._read_all())
        return parts[0] if len(parts) == 1 else lambda run: any(part(run) for part in parts)

    def _read_all(self) -> Query:
        parts = [self._read_one()]
        while self._place < len(self._tokens) and self._word() not in ("or", ")"):
            self._take("and")
            parts.append(self._read_one())
        return parts[0] if len(parts) == 1 else lambda run: all(part(run) for part in parts)

    def _read_one(self) -> Query:
        if self._take("not"):
            negated = self._deeper(self._read_one)
            return lambda run: not negated(run)
        if self._take("("):
            query = self._deeper(self._read_any)
            if not self._take(")"):
                raise ArgumentError("unclosed parenthesis (: add ), or put the text in quotes")
            return query
        word = self._word()
        if word in ("", "and", "or", ")"):
            where = f"before {word!r}" if word else "at the end"
            raise ArgumentError(f"a condition is missing {where}: write, for example, {EXAMPLE}")
        return self._read_term()

    def _deeper(self, read: Callable[[], Query]) -> Query:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ArgumentError(f"the query is nested more than {MAX_DEPTH} deep: remove parentheses")
        query = read()
        self._depth -= 1
        return query

    def _read_term(self) -> Query:
        token = self._tokens[self._place]
        self._place += 1
        if token["odd"]:
            raise ArgumentError(f"unclosed quote {token['odd']}: add another one")
        if token["word"]:
            text = _unquoted(token["word"]).casefold()
            return lambda run: any(text in each.casefold() for each in run.texts)
        name, sign = token["name"], token["sign"].replace("==", "=")
        if token["value"] is None:
            raise ArgumentError(f"a value is missing after {name}{sign}: write, for example, {EXAMPLE}")
        return self._comparison(name, sign, _unquoted(token["value"]))

    def _comparison(self, name: str, sign: str, text: str) -> Query:
        if sign in _ORDERS and not _is_number(value_of_text(text)):
            raise ArgumentError(f"{name}{sign}{text} is invalid: {text!r} is not a number. Use : or = for text")
        if name in ("tag", "tags"):
            if sign in _ORDERS:
                raise ArgumentError(f"{name}{sign}{text} is invalid: write tag:{text}")
            tag, is_wanted = text.casefold(), sign != "!="
            return lambda run: (tag in map(str.casefold, run.tags)) == is_wanted
        if name == "state" and text not in STATES:
            hint = did_you_mean(text, STATES)
            raise ArgumentError(f"state{sign}{text} is invalid: use one of {', '.join(STATES)}.{hint}")
        self.names.append(name)

        def fits(run: Traits) -> bool:
            found = run.find(name)
            return found is not None and _compare(run.value(found), sign, text)

        return fits

    def _word(self) -> str:
        """Return the next token if it may be a keyword or a parenthesis, "" at the end."""
        if self._place >= len(self._tokens):
            return ""
        token = self._tokens[self._place]
        word = (token["word"] or "").lower()
        return token["paren"] or (word if word in ("and", "or", "not") else "x")

    def _take(self, word: str) -> bool:
        found = self._word() == word
        self._place += found
        return found


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] in "\"'" and text[0] == text[-1] else text
