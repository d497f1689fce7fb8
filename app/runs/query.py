"""What runs are found, sorted, and shown by: the language of the find box, and traits."""

from __future__ import annotations

import contextlib
import logging
import operator
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, TypeVar

import numpy as np

from hookcore.config import did_you_mean, value_of_text
from hookcore.errors import ArgumentError
from hookcore.findings.keyfigures import newest_of
from hookcore.records import Value
from hookcore.records.vocabulary import OWN as OWN_SCALARS
from hookcore.records.vocabulary import loss_among
from hookcore.store import Store

from .run import STATES, Run

_log: Final = logging.getLogger("hookcore.runs")
Answered = TypeVar("Answered")

MAX_RESULTS: Final = 100  # scalars of a run whose newest values are known
MAX_SAVED: Final = MAX_RESULTS + 2  # with the loss, which may be another one, and what follows from it
RECENT_LOSS: Final = "recent_loss"
RECENT_POINTS: Final = 1000
OWN: Final[Mapping[str, Callable[[Run], Value]]] = {
    "id": lambda run: run.id,
    "name": lambda run: run.name or run.id,
    "state": lambda run: run.state,
    "group": lambda run: run.edits.group,
    "notes": lambda run: run.edits.notes,
    "host": lambda run: run.info.host,
    "script": lambda run: run.info.script,
    "archived": lambda run: run.edits.archived,
    "steps": lambda run: _asked(run, lambda _: run.steps, None),
}


class Traits:
    """The traits of one run. Results are read when they are asked for."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def tags(self) -> tuple[str, ...]:
        return self.run.edits.tags

    @property
    def facts(self) -> dict[str, Value]:
        """The recognized facts, and the versions that every run has."""
        info = self.run.info
        return {**info.facts, **{f"version.{name}": text for name, text in info.versions.items()}}

    @property
    def texts(self) -> Iterator[str]:
        """The texts in which words are searched."""
        run, info, edits = self.run, self.run.info, self.run.edits
        yield from (run.id, run.name, edits.notes, run.state, info.script, info.host, edits.group, *edits.tags)
        yield from (value for value in info.config.values() if isinstance(value, str))

    def find(self, name: str) -> str | None:
        """Return the full name of a trait: `lr` is also `optimizer.lr`. None if the run has none of this name."""
        if name in OWN:
            return name
        names = list(self.names())
        if name in names:
            return name
        endings = f".{name}", f"/{name}"
        return next((full for full in names if full.endswith(endings)), None)

    def value(self, name: str) -> Value:
        """Return the value of a trait by its full name, or None."""
        if name in OWN:
            return OWN[name](self.run)
        for values in (self.run.info.config, self.facts):
            if name in values:
                return values[name]
        return self._result(name)

    def text(self, name: str) -> str:
        """Return a value as groups are named, by the whole name or its end; "" if there is none."""
        full = self.find(name) if name else None
        return "" if full is None else text_of_value(self.value(full))

    def names(self) -> Iterator[str]:
        """Return the names of the configuration, then those of the facts, then those of the results."""
        yield from self.run.info.config
        yield from self.facts
        yield from self.results()

    def results(self) -> Iterable[str]:
        """Return the names of the scalars that it logged."""
        run = self.run
        return _asked(run, result_names, []) if run.loaded else saved_results(run)

    def result_values(self) -> Mapping[str, float]:
        """Return the results by their names."""
        run = self.run
        return _asked(run, results_of, {}) if run.loaded else saved_results(run)

    def _result(self, name: str) -> Value:
        if self.run.loaded:
            return _asked(self.run, lambda store: _result_of(store, name), None)
        return saved_results(self.run).get(name)


def text_of_value(value: Value) -> str:
    """Return a value as groups are named: 1 and 1.0 are the same."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    return f"{value:.12g}" if isinstance(value, float) else str(value)


_IN_NAME: Final = 3  # settings that tell runs apart


def names_apart(runs: Sequence[Traits]) -> dict[str, str]:
    """Return what each of these runs is called: its name, and what differs if others have the same one."""
    names = {each.run.id: each.run.name or each.run.id for each in runs}
    for name in dict.fromkeys(names.values()):
        alike = [each.run for each in runs if names[each.run.id] == name]
        if len(alike) > 1:
            names |= {run.id: f"{name} ({words})" for run, words in zip(alike, _apart(alike), strict=True)}
    return names


def _apart(runs: Sequence[Run]) -> list[str]:
    """Return what tells runs apart: the first settings that differ, or when they began."""
    texts = [{name: text_of_value(value) for name, value in run.info.config.items()} for run in runs]
    differ = [name for name in dict.fromkeys(chain(*texts)) if len({text.get(name) for text in texts}) > 1][:_IN_NAME]
    found = [", ".join(f"{name} {text[name]}" for name in differ if name in text) for text in texts]
    if len(set(found)) == len(found):
        return found
    began = (time.strftime("%m-%d %H:%M:%S", time.localtime(run.info.started_s)) for run in runs)
    return [", ".join(filter(None, each)) for each in zip(found, began, strict=True)]


def _asked(run: Run, ask: Callable[[Store], Answered], otherwise: Answered) -> Answered:
    """Ask the run's store. A run that can't be read must not hide the others."""
    try:
        return ask(run.store)
    except Exception:
        _log.warning("hookcore: the run %s can't be read", run.id, exc_info=True)
        return otherwise


def result_names(store: Store) -> list[str]:
    """Return the names of the scalars that a run logged, and of what follows from them."""
    names = [name for name in store.scalar_names() if not name.startswith(OWN_SCALARS)]
    loss = loss_among(names)
    return list(dict.fromkeys([*names[:MAX_RESULTS], *([loss, RECENT_LOSS] if loss is not None else [])]))


def results_of(store: Store) -> dict[str, float]:
    """Return the newest values of the scalars that a run logged, and what follows from them."""
    results = {name: _result_of(store, name) for name in result_names(store)}
    return {name: value for name, value in results.items() if value is not None}


def _result_of(store: Store, name: str) -> float | None:
    names = store.scalar_names()
    if name == RECENT_LOSS and name not in names:
        return _recent(store, loss_among(names))
    reading = newest_of(store, name)
    return None if reading is None else reading.value


def _recent(store: Store, loss: str | None) -> float | None:
    """Return the mean of the last tenth of a loss: its newest value may be that of an odd batch."""
    if loss is None:
        return None
    series = store.scalars(loss, points=RECENT_POINTS)
    last = slice(-max(1, len(series.mean) // 10), None)
    counts, values = series.present[last].astype(np.float64), series.mean[last]
    return float(np.average(values, weights=counts)) if counts.sum() else None


def saved_results(run: Run) -> dict[str, float]:
    """Return the results in the summary of a run on disk. Unexpected values are left out."""
    saved = run.saved.summary.get("results")
    results = {}
    for name, value in list(saved.items())[:MAX_SAVED] if isinstance(saved, dict) else ():
        with contextlib.suppress(ValueError, TypeError):
            results[str(name)] = float(value)
    return results


# The language of the find box for runs: `lr>0.1 and tag:sweep and not state:crashed`.
#
# A word is searched in a run's texts. `name:text` is true if the value contains the text; a tag or a number must equal
# it. `=`, `!=`, `<`, `<=`, `>`, and `>=` compare values. There are also `or`, `not`, and parentheses; `and` may be left
# out.

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
            traits = dict.fromkeys(trait for run in all_runs for trait in (*run.names(), *_last_parts(run)))
            hint = did_you_mean(name, [*traits, "state", "group", "tag", "steps"])
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
            full = run.find(name)
            return full is not None and _compare(run.value(full), sign, text)

        return fits

    def _word(self) -> str:
        """Return the next token if it may be a keyword or a parenthesis, "" at the end."""
        if self._place >= len(self._tokens):
            return ""
        token = self._tokens[self._place]
        word = (token["word"] or "").lower()
        return token["paren"] or (word if word in ("and", "or", "not") else "x")

    def _take(self, word: str) -> bool:
        is_next = self._word() == word
        self._place += is_next
        return is_next


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] in "\"'" and text[0] == text[-1] else text
